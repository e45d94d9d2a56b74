//! How far sparse computation is from dense: on the same text, side by side.
//!
//! Windows and predictions are those of [`perplexity`](crate::perplexity()). Each window is computed densely
//! and in every way that is compared; then the distributions after each token are compared. Beside the
//! perplexities, whose difference is known better than either of them, since both come from the same
//! tokens, there is what perplexity hides: the divergence from dense, also in its tail, and how often the
//! likeliest token is another one.

use std::ops::{ControlFlow, Range};

use ls_model::Config;
use serde::Serialize;

use crate::model::{Engine, batches};
use crate::perplexity::{self, Fault, NllSum, negative_log_likelihood};
use crate::sparse::Sparse;
use crate::{Choice, Perplexity, PerplexityError, PerplexityOptions, SparseCounts, State, argmax};

/// Rows of logits of each way that exist at once.
const ROWS: usize = 16;

/// Ways to compute, beside dense.
#[derive(Clone, Debug, Serialize)]
pub struct Fidelity {
    /// With all neurons.
    pub dense: Perplexity,
    /// With each choice, in the order in which they were given.
    pub ways: Vec<Compared>,
}

/// A way to compute, compared with dense.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Its perplexity.
    pub estimate: Perplexity,
    /// By what factor its perplexity is higher than dense, less 1.
    pub rise: f64,
    /// Standard error of `rise`, from the differences of the single predictions.
    pub rise_stderr: f64,
    /// Mean Kullback-Leibler divergence of its distributions from dense ones, KL(dense ‖ way), in nats.
    pub kl: f64,
    /// What 99 % of the divergences do not exceed.
    pub kl_99: f64,
    /// Fraction of positions at which both find the same token the likeliest.
    pub top1_agreement: f64,
    /// What was computed.
    pub counts: SparseCounts,
}

/// Bytes that [`fidelity`] with `n_ways` choices holds beside a state; for
/// [`LoadOptions::reserve`](crate::LoadOptions::reserve).
pub fn fidelity_bytes(config: &Config, n_ways: usize, n_ctx: usize) -> u64 {
    // The residual streams of half a window, and some logits, of all ways and dense; what a choice
    // keeps for each token of a window: importance and mask.
    let row = (n_ctx / 2 + 1).saturating_mul(config.d_model);
    let logits = ROWS.saturating_mul(config.vocab_size);
    let choice = n_ctx.saturating_mul(config.d_ff).saturating_mul(5);
    let each = row.saturating_add(logits).saturating_mul(4);
    let all = each.saturating_mul(n_ways + 1).saturating_add(choice.saturating_mul(n_ways));
    all as u64
}

/// Compares `choices` with dense on `tokens`, the whole text with its BOS if the model has one.
///
/// Choices should be [for every token](Choice::for_every_token): the tokens of a window are its prompt.
/// After each window `progress` gets the figures so far; a `Break` ends the measurement there.
///
/// # Errors
///
/// As [`perplexity`](crate::perplexity()), and if a choice does not fit the model.
pub fn fidelity(
    engine: &Engine,
    state: &mut State,
    choices: &[Choice],
    tokens: &[u32],
    options: &PerplexityOptions,
    progress: &mut dyn FnMut(&Fidelity) -> ControlFlow<()>,
) -> Result<Fidelity, PerplexityError> {
    perplexity::check(tokens.len(), options, state.capacity())?;
    let mut comparison = Comparison::new(engine, state, choices, options.n_ctx)?;
    let mut result = comparison.result(0);
    for (chunk, window) in perplexity::windows(tokens, options).enumerate() {
        comparison.window(&window, chunk)?;
        result = comparison.result(chunk + 1);
        if progress(&result).is_break() {
            break;
        }
    }
    Ok(result)
}

/// What is known of the predictions of a way so far.
#[derive(Debug, Default)]
struct Sums {
    nll: NllSum,
    /// Of the differences from dense: their sum, and that of their squares.
    difference: f64,
    difference_squared: f64,
    kls: Vec<f32>,
    agreements: usize,
}

/// One prediction of a way, beside dense.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prediction {
    dense_nll: f64,
    nll: f64,
    kl: f64,
    agrees: bool,
}

impl Sums {
    fn add(&mut self, prediction: Prediction) {
        let difference = prediction.nll - prediction.dense_nll;
        self.nll.add(prediction.nll);
        self.difference += difference;
        self.difference_squared += difference * difference;
        self.kls.push(prediction.kl as f32);
        self.agreements += usize::from(prediction.agrees);
    }

    fn compared(&self, chunks: usize, counts: SparseCounts) -> Compared {
        let n = self.kls.len() as f64;
        let mean = self.difference / n;
        let variance = (self.difference_squared / n - mean * mean).max(0.0);
        let mut kls = self.kls.clone();
        kls.sort_unstable_by(f32::total_cmp);
        let at = (kls.len() * 99).div_ceil(100).saturating_sub(1);
        Compared {
            estimate: self.nll.estimate(chunks),
            rise: mean.exp_m1(),
            rise_stderr: mean.exp() * (variance / (n - 1.0)).sqrt(),
            kl: self.kls.iter().map(|kl| f64::from(*kl)).sum::<f64>() / n,
            kl_99: kls.get(at).map_or(f64::NAN, |kl| f64::from(*kl)),
            top1_agreement: self.agreements as f64 / n,
            counts,
        }
    }
}

/// Compares predictions with dense ones, one by one: for logits that were not computed by [`fidelity`].
#[derive(Debug, Default)]
pub struct Predictions {
    sums: Sums,
}

impl Predictions {
    /// Takes in logits after the token at `position`, dense ones and those of another way; `next` is what came there.
    ///
    /// # Errors
    ///
    /// If a logit is not finite, or there is none of `next`.
    pub fn add(
        &mut self,
        dense: &[f32],
        way: &[f32],
        next: u32,
        position: usize,
    ) -> Result<(), PerplexityError> {
        let prediction = compare(dense, way, next);
        let prediction = prediction.map_err(|fault| fault.at(0, position, next, way.len()))?;
        self.sums.add(prediction);
        Ok(())
    }

    /// What is known of the way so far, for which `counts` says what was computed; `None` before the first prediction.
    pub fn compared(&self, counts: SparseCounts) -> Option<Compared> {
        (!self.sums.kls.is_empty()).then(|| self.sums.compared(1, counts))
    }
}

struct Comparison<'a> {
    engine: &'a Engine,
    state: &'a mut State,
    /// What the state computes with in each way; of dense `None`, which comes first. The one whose turn
    /// it is lies in the state.
    sparse: Vec<Option<Box<Sparse>>>,
    /// For each way the residual streams that count, `[n, d_model]`.
    residual: Vec<Vec<f32>>,
    /// For each way, `[ROWS, vocab_size]`.
    logits: Vec<Vec<f32>>,
    dense: NllSum,
    /// Of each way but dense.
    sums: Vec<Sums>,
}

impl<'a> Comparison<'a> {
    fn new(
        engine: &'a Engine,
        state: &'a mut State,
        choices: &[Choice],
        n_ctx: usize,
    ) -> Result<Self, PerplexityError> {
        let config = engine.config();
        let mut sparse = vec![None];
        for choice in choices {
            engine.set_choice(state, Some(choice.clone()))?;
            sparse.push(state.sparse.take());
        }
        let n = n_ctx - n_ctx / 2;
        Ok(Self {
            engine,
            state,
            residual: vec![vec![0.0; n * config.d_model]; sparse.len()],
            logits: vec![vec![0.0; ROWS.min(n) * config.vocab_size]; sparse.len()],
            dense: NllSum::default(),
            sums: choices.iter().map(|_| Sums::default()).collect(),
            sparse,
        })
    }

    fn result(&self, chunks: usize) -> Fidelity {
        let counts = self.sparse.iter().skip(1).flatten().map(|sparse| sparse.counts);
        Fidelity {
            dense: self.dense.estimate(chunks),
            ways: self.sums.iter().zip(counts).map(|(s, c)| s.compared(chunks, c)).collect(),
        }
    }

    fn window(&mut self, window: &[u32], chunk: usize) -> Result<(), PerplexityError> {
        let from = window.len() / 2;
        for (sparse, residual) in self.sparse.iter_mut().zip(&mut self.residual) {
            self.state.truncate(0);
            self.state.sparse = sparse.take();
            let done = self.engine.prefill_residual(self.state, window, from, residual);
            *sparse = self.state.sparse.take();
            done?;
        }
        // Nothing follows the last token of the window.
        for rows in batches(window.len() - 1 - from, ROWS) {
            self.rows(window, chunk, from + rows.start..from + rows.end)?;
        }
        Ok(())
    }

    /// The predictions after the tokens at `positions` of the window.
    fn rows(
        &mut self,
        window: &[u32],
        chunk: usize,
        positions: Range<usize>,
    ) -> Result<(), PerplexityError> {
        let (config, cpu) = (self.engine.config(), self.engine.cpu());
        let (d, vocab_size) = (config.d_model, config.vocab_size);
        let first = positions.start - window.len() / 2;
        for (residual, logits) in self.residual.iter().zip(&mut self.logits) {
            let rows = &residual[first * d..(first + positions.len()) * d];
            let logits = &mut logits[..positions.len() * vocab_size];
            self.engine.residual_logits(self.state, rows, logits);
        }
        let row = |way: usize, i: usize| &self.logits[way][i * vocab_size..(i + 1) * vocab_size];
        let none = Ok(Prediction { dense_nll: 0.0, nll: 0.0, kl: 0.0, agrees: true });
        let n_ways = self.logits.len();
        let mut predictions = vec![none; positions.len() * n_ways];
        // A way is a row's column; dense is compared with itself, for its likelihood.
        cpu.pool().for_each_chunk(&mut predictions, 1, &|at, prediction| {
            let (i, way) = (at / n_ways, at % n_ways);
            prediction[0] = compare(row(0, i), row(way, i), window[positions.start + i + 1]);
        });
        for (i, position) in positions.enumerate() {
            let predictions = &predictions[i * n_ways..(i + 1) * n_ways];
            for (way, prediction) in predictions.iter().enumerate() {
                let prediction = prediction
                    .map_err(|fault| fault.at(chunk, position, window[position + 1], vocab_size))?;
                match way.checked_sub(1) {
                    None => self.dense.add(prediction.nll),
                    Some(way) => self.sums[way].add(prediction),
                }
            }
        }
        Ok(())
    }
}

/// Compares logits with dense ones, where the next token is `next`.
fn compare(dense: &[f32], way: &[f32], next: u32) -> Result<Prediction, Fault> {
    let dense_nll = negative_log_likelihood(dense, next)?;
    let is_dense = std::ptr::eq(dense, way);
    let nll = if is_dense { dense_nll } else { negative_log_likelihood(way, next)? };
    let kl = if is_dense { 0.0 } else { divergence(dense, dense_nll, way, nll, next) };
    if !kl.is_finite() {
        return Err(Fault::NotFinite);
    }
    let top = |logits| argmax(logits).map_err(|_| Fault::NotFinite);
    Ok(Prediction { dense_nll, nll, kl, agrees: top(dense)? == top(way)? })
}

/// Σ p (ln p − ln q) of the distributions that logits make: `p` and `q` of token i are
/// `exp(logit[i] − logit[next] − nll)`, which saves another pass for the sums of exponentials.
fn divergence(p: &[f32], p_nll: f64, q: &[f32], q_nll: f64, next: u32) -> f64 {
    let shift = |logits: &[f32], nll: f64| f64::from(logits[next as usize]) + nll;
    let (p_shift, q_shift) = (shift(p, p_nll), shift(q, q_nll));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let p = f64::from(*p) - p_shift;
        let weight = p.exp();
        if weight > 0.0 { weight * (p - (f64::from(*q) - q_shift)) } else { 0.0 }
    });
    // Rounding may leave a little less than nothing.
    terms.sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(p: &[f64]) -> Vec<f32> {
        p.iter().map(|p| (p.ln() + 3.0) as f32).collect()
    }

    #[test]
    fn predictions_are_those_of_the_definition() {
        let (p, q) = ([0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.125, 0.125]);
        let got = compare(&logits(&p), &logits(&q), 2).unwrap();
        let kl = 0.5 * 2f64.ln() - 0.25 * 2f64.ln() + 0.25 * 2f64.ln();
        assert!((got.kl - kl).abs() < 1e-6, "{got:?}");
        assert!((got.dense_nll - 4f64.ln()).abs() < 1e-6 && (got.nll - 8f64.ln()).abs() < 1e-6);
        assert!(!got.agrees);
        let same = compare(&logits(&p), &logits(&p), 0).unwrap();
        assert!(same.agrees && same.kl.abs() < 1e-7 && same.nll == same.dense_nll);
        // What dense allows and the way excludes is infinitely far.
        assert_eq!(compare(&logits(&q), &logits(&p), 0), Err(Fault::NotFinite));
        assert_eq!(compare(&logits(&p), &logits(&q), 4), Err(Fault::UnknownToken));
    }

    #[test]
    fn sums_give_the_paired_error_and_the_tail() {
        let mut sums = Sums::default();
        let prediction = |dense_nll, difference, kl, agrees| Prediction {
            dense_nll,
            nll: dense_nll + difference,
            kl,
            agrees,
        };
        for i in 0..200 {
            // Likelihoods that vary much more than their differences.
            let kl = if i >= 198 { 9.0 } else { 0.5 };
            sums.add(prediction(f64::from(i), if i % 2 == 0 { 0.1 } else { 0.3 }, kl, i % 4 > 0));
        }
        let got = sums.compared(3, SparseCounts::default());
        assert!((got.rise - 0.2f64.exp_m1()).abs() < 1e-9, "{got:?}");
        let stderr = 0.2f64.exp() * 0.1 / 199f64.sqrt();
        assert!((got.rise_stderr - stderr).abs() < 1e-9, "{got:?}");
        assert!((got.kl - (198.0 * 0.5 + 2.0 * 9.0) / 200.0).abs() < 1e-6);
        assert_eq!((got.kl_99, got.top1_agreement), (0.5, 0.75));
        sums.add(prediction(0.0, 0.2, 9.0, true));
        assert_eq!(sums.compared(3, SparseCounts::default()).kl_99, 9.0);
    }

    #[test]
    fn predictions_can_be_compared_one_by_one() {
        let (p, q) = ([0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.125, 0.125]);
        let mut predictions = Predictions::default();
        assert_eq!(predictions.compared(SparseCounts::default()), None);
        predictions.add(&logits(&p), &logits(&q), 2, 0).unwrap();
        predictions.add(&logits(&p), &logits(&p), 0, 1).unwrap();
        let got = predictions.compared(SparseCounts::default()).unwrap();
        assert!((got.rise - (0.5 * 2f64.ln()).exp_m1()).abs() < 1e-6, "{got:?}");
        assert_eq!(got.top1_agreement, 0.5);
        let none = predictions.add(&logits(&p), &logits(&q), 4, 7);
        assert!(matches!(none, Err(PerplexityError::UnknownToken { token: 4, vocab_size: 4 })));
        let nan = predictions.add(&logits(&p), &[f32::NAN; 4], 1, 7);
        assert!(matches!(nan, Err(PerplexityError::NotFinite { position: 7, .. })), "{nan:?}");
    }
}
