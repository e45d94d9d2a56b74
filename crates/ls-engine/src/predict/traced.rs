//! A layer as training sees it: rows of a trace, at every stage at which the layer's input is known.
//!
//! What enters the MLP of a layer is known for sure only when the MLP before it is done and the layer's own
//! attention too. Before that there are guesses, which become better with each stage of the MLP before:
//! the residual stream that entered that one, plus the outputs of those of its neurons that are computed so
//! far, the best first.

use std::ops::Range;

use ls_cpu::{rms_norm, rms_norm_in_place};
use ls_hash::{FeatureKind, GatedLayer, LookupPredictor, Mask, Selector};
use ls_model::config::Activation;
use ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, Zip, s};

use super::train::TrainError;
use crate::trace::Trace;
use crate::{Engine, EngineError};

/// Stages in which the neurons of an MLP are computed: after `s` of them the best `s / STAGES` are.
pub const STAGES: usize = 8;
/// gelu(x) ≈ silu(GELU · x) / GELU, to 0.02.
const GELU: f32 = 1.702;
/// Rows that are one task.
const ROWS: usize = 64;

/// Weights of an MLP as floats.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// `[d_ff, d_model]`, as are the others; for a GELU such that a SiLU is nearly the same.
    pub gate: Array2<f32>,
    pub up: Array2<f32>,
    pub down: Array2<f32>,
    /// Of the rows of `down`.
    pub norms: Array1<f32>,
    /// That they have in the pack.
    pub bytes: u64,
}

impl Weights {
    fn read(engine: &Engine, layer: usize) -> Result<Self, EngineError> {
        let shape = engine.mlp_shapes()[layer];
        let (n, d) = (shape.d_ff, shape.d_model);
        let zeros = || Array2::<f32>::zeros((n, d));
        let (mut gate, mut up, mut down) = (zeros(), zeros(), zeros());
        engine.mlp_weights(layer, &mut |some| {
            let range = some.first * d..(some.first + some.n) * d;
            for (to, from) in [(&mut gate, some.gate), (&mut up, some.up), (&mut down, some.down)] {
                to.as_slice_mut().expect("rows in memory")[range.clone()].copy_from_slice(from);
            }
        })?;
        let norm = |column: ndarray::ArrayView1<'_, f32>| {
            column.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt() as f32
        };
        let norms = down.rows().into_iter().map(norm).collect();
        if engine.config().activation == Activation::GeluTanh {
            gate *= GELU;
            up /= GELU;
        }
        let pack = engine.model().pack();
        let bytes = pack.map_or(0, |pack| pack.layers()[layer].useful_bytes());
        Ok(Self { gate, up, down, norms, bytes })
    }

    /// `silu(gate · x) · (up · x)`, `[rows, d_ff]`.
    fn activations(&self, x: ArrayView2<'_, f32>) -> Array2<f32> {
        let mut gate = x.dot(&self.gate.t());
        Zip::from(&mut gate)
            .and(&x.dot(&self.up.t()))
            .for_each(|g, u| *g *= u / (1.0 + (-*g).exp()));
        gate
    }

    /// `|silu(gate · x) · (up · x)| · norm`, `[rows, d_ff]`.
    pub(super) fn importance(&self, x: ArrayView2<'_, f32>) -> Array2<f32> {
        let mut out = self.activations(x);
        out.mapv_inplace(f32::abs);
        out * &self.norms
    }
}

/// The MLP of a layer and what entered it, for some rows of a trace.
#[derive(Clone, Debug)]
pub struct TracedMlp {
    layer: usize,
    /// Before the norm, `[rows, d_model]`.
    residual: Array2<f32>,
    pub(super) weights: Weights,
}

impl TracedMlp {
    /// Reads `rows` of a layer, and its weights.
    ///
    /// # Errors
    ///
    /// If `trace` or the pack cannot be read.
    ///
    /// # Panics
    ///
    /// If the trace has no such layer or row, or is not of `engine`'s pack.
    pub fn read(
        engine: &Engine,
        trace: &mut Trace,
        layer: usize,
        rows: &[usize],
    ) -> Result<Self, TrainError> {
        let of = trace.layer(layer)?;
        let mut residual = Array2::zeros((rows.len(), engine.config().d_model));
        for (row, mut out) in rows.iter().zip(residual.rows_mut()) {
            of.rows(*row..*row + 1, out.as_slice_mut().expect("rows in memory"));
        }
        Ok(Self { layer, residual, weights: Weights::read(engine, layer)? })
    }

    /// Its rows, normalised with the norm before the MLP of `layer`.
    fn normed(&self, engine: &Engine, layer: usize, rows: Range<usize>, out: &mut [f32]) {
        let d = self.residual.ncols();
        let weight = &engine.weights().layers[layer].ffn_norm;
        let (isa, eps) = (engine.cpu().isa(), engine.config().norm_eps);
        for (x, out) in self.residual.slice(s![rows, ..]).rows().into_iter().zip(out.chunks_mut(d))
        {
            rms_norm(isa, x.to_slice().expect("rows in memory"), weight, eps, out);
        }
    }
}

/// A layer with all that its input is known as.
#[derive(Clone, Copy, Debug)]
pub struct TracedLayer<'a> {
    engine: &'a Engine,
    here: &'a TracedMlp,
    /// The layer before, and by what its neurons are put in order.
    before: Option<(&'a TracedMlp, &'a LookupPredictor)>,
    n_rows: usize,
}

impl<'a> TracedLayer<'a> {
    /// `here`, and the same rows of the layer before with its predictor. The first layer has none: its
    /// input is as good as known.
    pub fn new(
        engine: &'a Engine,
        here: &'a TracedMlp,
        before: Option<(&'a TracedMlp, &'a LookupPredictor)>,
    ) -> Self {
        Self { engine, here, before, n_rows: here.residual.nrows() }
    }

    /// Only the first rows.
    #[must_use]
    pub fn first(self, n_rows: usize) -> Self {
        Self { n_rows: n_rows.min(self.n_rows), ..self }
    }

    /// Gates and ups, `[rows, d_ff]` each, of which the importance of neurons follows with
    /// [`GatedLayer::gains`].
    pub fn factors(&self, rows: Range<usize>) -> [Array2<f32>; 2] {
        let mut x = Array2::zeros((rows.len(), self.n_inputs()));
        self.features(FeatureKind::Exact, rows, x.view_mut());
        [&self.here.weights.gate, &self.here.weights.up].map(|weights| x.dot(&weights.t()))
    }

    /// Features of `rows` when row `i` knows the first `stage(i)` of [`STAGES`] stages of the MLP before;
    /// into `out`, `[rows, d_model]`.
    ///
    /// # Panics
    ///
    /// If `out` has other rows, or its memory has gaps.
    pub fn refined(
        &self,
        rows: Range<usize>,
        stage: &(dyn Fn(usize) -> usize + Sync),
        mut out: ArrayViewMut2<'_, f32>,
    ) {
        let Some((before, predictor)) = self.before else {
            return self.features(FeatureKind::Exact, rows, out);
        };
        let (cpu, d, layer) = (self.engine.cpu(), self.n_inputs(), self.here.layer);
        assert_eq!(out.nrows(), rows.len(), "a place for each row");
        let out = out.as_slice_mut().expect("rows in memory");
        let eps = self.engine.config().norm_eps;
        let weights = &self.engine.weights().layers;
        cpu.pool().for_each_chunk(out, ROWS * d, &|i, out| {
            let first = rows.start + i * ROWS;
            let rows = first..first + out.len() / d;
            before.normed(self.engine, before.layer, rows.clone(), out);
            let x = ArrayView2::from_shape((rows.len(), d), &*out).expect("whole rows");
            let mut values = before.weights.activations(x);
            keep_best(predictor, x, &mut values, &|row| stage(first + row));
            let mut delta = values.dot(&before.weights.down);
            let residual = before.residual.slice(s![rows, ..]);
            let places = out.chunks_mut(d).zip(delta.rows_mut()).zip(residual.rows());
            for ((out, mut delta), residual) in places {
                let delta = delta.as_slice_mut().expect("rows in memory");
                if let Some(norm) = &weights[before.layer].post_ffn_norm {
                    rms_norm_in_place(cpu.isa(), delta, norm, eps);
                }
                delta.iter_mut().zip(residual).for_each(|(delta, x)| *delta += x);
                rms_norm(cpu.isa(), delta, &weights[layer].ffn_norm, eps, out);
            }
        });
    }
}

/// Sets all but the values of the best neurons to 0, as many of each row as `stage` says.
fn keep_best(
    predictor: &LookupPredictor,
    x: ArrayView2<'_, f32>,
    values: &mut Array2<f32>,
    stage: &dyn Fn(usize) -> usize,
) {
    let mut state = predictor.state();
    let (mut selector, mut mask) = (Selector::default(), Mask::new());
    for (row, (x, mut values)) in x.rows().into_iter().zip(values.rows_mut()).enumerate() {
        let k = stage(row) * values.len() / STAGES;
        if k >= values.len() {
            continue;
        }
        predictor.set(&mut state, x.to_slice().expect("rows in memory"), FeatureKind::Exact);
        selector.top_k(state.scores(), k, &mut mask);
        values
            .iter_mut()
            .zip(mask.iter())
            .for_each(|(value, kept)| *value *= f32::from(u8::from(*kept)));
    }
}

/// The stage that a row's refined features are of: 1 to [`STAGES`], all alike often.
fn mixed(row: usize) -> usize {
    1 + (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(8) as usize % STAGES
}

impl GatedLayer for TracedLayer<'_> {
    fn n_inputs(&self) -> usize {
        self.here.residual.ncols()
    }

    fn n_outputs(&self) -> usize {
        self.here.weights.gate.nrows()
    }

    fn n_rows(&self) -> usize {
        self.n_rows
    }

    fn n_kinds(&self) -> usize {
        FeatureKind::ALL.len()
    }

    fn features(&self, kind: FeatureKind, rows: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        let of = match (kind, self.before) {
            (FeatureKind::Refined, Some(_)) => return self.refined(rows, &mixed, out),
            (FeatureKind::Speculative, Some((before, _))) => before,
            _ => self.here,
        };
        let out = out.as_slice_mut().expect("rows in memory");
        of.normed(self.engine, self.here.layer, rows, out);
    }

    fn gate(&self, outputs: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        out.assign(&self.here.weights.gate.slice(s![outputs, ..]));
    }

    fn up(&self, outputs: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        out.assign(&self.here.weights.up.slice(s![outputs, ..]));
    }

    fn gains(&self) -> Vec<f32> {
        self.here.weights.norms.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_mixed_evenly() {
        let mut counts = [0; STAGES + 1];
        (0..8000).for_each(|row| counts[mixed(row)] += 1);
        assert_eq!(counts[0], 0);
        assert!(counts[1..].iter().all(|n| (700..1300).contains(n)), "{counts:?}");
    }
}
