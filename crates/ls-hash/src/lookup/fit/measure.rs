//! What a finished predictor's estimates leave, measured on rows that it was not made from.

use std::ops::Range;

use ndarray::{Array1, Array2, Zip};
use rayon::prelude::*;

use super::linalg::product;
use super::{Weights, net, read};
use crate::lookup::layer::GatedLayer;
use crate::lookup::predictor::LookupPredictor;
use crate::lookup::shape::FeatureKind;

/// Rows that are in memory at a time.
const CHUNK: usize = 256;

/// Sums over rows of what is known (`truth` less the bias) and estimated (`guess`, less it too).
#[derive(Debug)]
struct Sums {
    truth_truth: Array1<f64>,
    truth_guess: Array1<f64>,
    guess_guess: Array1<f64>,
    /// With the exact kind's error of the row before.
    truth_before: f64,
    guess_before: f64,
    before_before: f64,
}

impl Sums {
    fn new(n: usize) -> Self {
        let zero = || Array1::zeros(n);
        Self {
            truth_truth: zero(),
            truth_guess: zero(),
            guess_guess: zero(),
            truth_before: 0.0,
            guess_before: 0.0,
            before_before: 0.0,
        }
    }

    fn add(&mut self, truth: &Array2<f32>, guess: &Array2<f32>, before: &Array2<f32>) {
        for ((truth, guess), before) in
            truth.rows().into_iter().zip(guess.rows()).zip(before.rows())
        {
            let dot = |x: ndarray::ArrayView1<'_, f32>| f64::from(x.dot(&before));
            self.truth_before += dot(truth);
            self.guess_before += dot(guess);
            self.before_before += dot(before);
            Zip::from(&mut self.truth_truth)
                .and(&mut self.truth_guess)
                .and(&mut self.guess_guess)
                .and(truth)
                .and(guess)
                .for_each(|tt, tg, gg, t, g| {
                    let (t, g) = (f64::from(*t), f64::from(*g));
                    *tt += t * t;
                    *tg += t * g;
                    *gg += g * g;
                });
        }
    }

    /// What guesses should count, by least squares over all outputs.
    fn by(&self) -> f64 {
        let by = self.truth_guess.sum() / self.guess_guess.sum();
        if by.is_finite() { by.clamp(0.0, 1.0) } else { 1.0 }
    }

    /// Square errors of each output's guesses times `by`, summed.
    fn left(&self, by: f64) -> Array1<f64> {
        let left = &self.truth_truth - 2.0 * by * &self.truth_guess + by * by * &self.guess_guess;
        left.mapv(|x| x.max(0.0))
    }
}

/// Both factors of some rows, less their biases: what they are, and what each kind estimates.
struct Chunk {
    truth: [Array2<f32>; 2],
    guesses: Vec<[Array2<f32>; 2]>,
}

impl Chunk {
    fn new(
        predictor: &LookupPredictor,
        layer: &dyn GatedLayer,
        weights: &Weights,
        rows: &Range<usize>,
    ) -> Self {
        let biases = predictor.biases();
        let exact = read(layer, FeatureKind::Exact, rows.clone());
        let truth = [0, 1].map(|i| product(exact.view(), weights.factors[i].t()) - &biases[i]);
        let guesses = net::kinds(&predictor.shape).iter().map(|kind| {
            let x = read(layer, *kind, rows.clone());
            let mut guess = [0, 1].map(|_| Array2::zeros(truth[0].raw_dim()));
            let [gate, up] = &mut guess;
            let outs = gate.rows_mut().into_iter().zip(up.rows_mut());
            let outs: Vec<_> = outs.zip(x.rows()).collect();
            outs.into_par_iter().for_each_init(
                || predictor.state(),
                |state, ((mut gate, mut up), x)| {
                    predictor.set(state, &x.to_vec(), *kind);
                    let slice = "rows of a matrix in standard layout are contiguous";
                    let (to_gate, to_up) =
                        (gate.as_slice_mut().expect(slice), up.as_slice_mut().expect(slice));
                    predictor.estimates(state, to_gate, to_up);
                    gate -= &biases[0];
                    up -= &biases[1];
                },
            );
            guess
        });
        let guesses = guesses.collect();
        Self { truth, guesses }
    }
}

/// Which variances the exact kind has; those of other kinds are in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variances {
    /// Those that are measured.
    Measured,
    /// Those that were learnt.
    Learnt,
}

/// Measures variances, weights and correlations of all kinds on `rows`.
pub(crate) fn measure(
    predictor: &mut LookupPredictor,
    layer: &dyn GatedLayer,
    weights: &Weights,
    rows: Range<usize>,
    variances: Variances,
) {
    let n = predictor.shape.n_outputs;
    let kinds = predictor.kinds.len();
    let mut sums: Vec<[Sums; 2]> = (0..kinds).map(|_| [Sums::new(n), Sums::new(n)]).collect();
    let mut last: Option<[Array1<f32>; 2]> = None;
    for begin in rows.clone().step_by(CHUNK) {
        let part = begin..(begin + CHUNK).min(rows.end);
        let chunk = Chunk::new(predictor, layer, weights, &part);
        for i in 0..2 {
            let error = &chunk.truth[i] - &chunk.guesses[0][i];
            // Each row beside the error of the row before it; of the first there is none.
            let mut before = Array2::zeros(error.raw_dim());
            if let Some(last) = &last {
                before.row_mut(0).assign(&last[i]);
            }
            for row in 1..error.nrows() {
                before.row_mut(row).assign(&error.row(row - 1));
            }
            for (sums, guess) in sums.iter_mut().zip(&chunk.guesses) {
                sums[i].add(&chunk.truth[i], &guess[i], &before);
            }
        }
        let end = chunk.truth[0].nrows() - 1;
        let row = |i: usize| &chunk.truth[i].row(end) - &chunk.guesses[0][i].row(end);
        last = Some([row(0), row(1)]);
    }
    store(predictor, &sums, rows.len(), variances);
}

fn store(predictor: &mut LookupPredictor, sums: &[[Sums; 2]], n_rows: usize, keep: Variances) {
    let padded = predictor.shape.padded_outputs();
    let root = |x: &f64| (x / n_rows.max(1) as f64).sqrt() as f32;
    for i in 0..2 {
        let measured = sums[0][i].left(1.0).map(root);
        // What the others' variances are multiplied by.
        let ratio = match keep {
            Variances::Measured => Array1::ones(measured.len()),
            Variances::Learnt => &predictor.deviations(i) / &measured.mapv(|x| x.max(1e-12)),
        };
        for (k, (kind, sums)) in predictor.kinds.iter_mut().zip(sums).enumerate() {
            let own = &sums[i];
            let by = if k == 0 { 1.0 } else { own.by() };
            let left = own.left(by);
            kind.by[i] = by as f32;
            let rho = (own.truth_before - by * own.guess_before) / own.before_before;
            let rho = if rho.is_finite() { rho.clamp(0.0, 1.0) } else { 0.0 };
            kind.rho[i] = rho as f32;
            // The correlation's square.
            let explained = rho * rho * own.before_before / left.sum();
            let explained = if explained.is_finite() { explained.clamp(0.0, 0.95) } else { 0.0 };
            kind.explained[i] = explained as f32;
            kind.set_deviation(i, &(left.map(root) * &ratio), padded);
        }
    }
}
