//! What look-up predictors are fitted to.

use std::ops::Range;

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayViewMut2, Axis, s};

use crate::error::HashError;
use crate::lookup::fit::product;
use crate::lookup::predictor::length;
use crate::lookup::shape::FeatureKind;
use crate::samples::{Pick, Samples};
use crate::score::sigmoid;

/// The first half of a gated layer, `silu(gate · x) · (up · x)`, and rows of its features `x`.
///
/// Implement it to read them from files; [`LayerData`] has them in memory.
pub trait GatedLayer: Sync {
    /// Features.
    fn n_inputs(&self) -> usize;
    /// Outputs.
    fn n_outputs(&self) -> usize;
    /// Rows of features.
    fn n_rows(&self) -> usize;
    /// Kinds of features that the rows are known as, the first ones of [`FeatureKind::ALL`].
    fn n_kinds(&self) -> usize;
    /// Writes features of `rows` to `out`, `[rows, inputs]`. Rows are in the order of the text.
    fn features(&self, kind: FeatureKind, rows: Range<usize>, out: ArrayViewMut2<'_, f32>);
    /// Writes weights of the gates of `outputs` to `out`, `[outputs, inputs]`.
    fn gate(&self, outputs: Range<usize>, out: ArrayViewMut2<'_, f32>);
    /// Writes weights of the second factors of `outputs` to `out`, `[outputs, inputs]`.
    fn up(&self, outputs: Range<usize>, out: ArrayViewMut2<'_, f32>);
    /// What a unit of each output's product counts, as the norm of what it is multiplied with next.
    fn gains(&self) -> Vec<f32>;
}

/// A layer in memory. As [`Samples`] it has importances `gain · |silu(gate) · up|`, computed when
/// they are asked for, and kinds of features as stages.
#[derive(Clone, Copy, Debug)]
pub struct LayerData<'a> {
    features: ArrayView3<'a, f32>,
    gate: ArrayView2<'a, f32>,
    up: ArrayView2<'a, f32>,
    gains: ArrayView1<'a, f32>,
}

impl<'a> LayerData<'a> {
    /// From features `[kinds, rows, inputs]`, weights `[outputs, inputs]` and a gain for each
    /// output.
    ///
    /// # Errors
    ///
    /// [`HashError::Length`] if the lengths differ.
    pub fn new(
        features: ArrayView3<'a, f32>,
        gate: ArrayView2<'a, f32>,
        up: ArrayView2<'a, f32>,
        gains: ArrayView1<'a, f32>,
    ) -> Result<Self, HashError> {
        let n_inputs = features.len_of(Axis(2));
        length("inputs of gate", gate.ncols(), n_inputs)?;
        length("inputs of up", up.ncols(), n_inputs)?;
        length("outputs of up", up.nrows(), gate.nrows())?;
        length("gains", gains.len(), gate.nrows())?;
        Ok(Self { features, gate, up, gains })
    }
}

impl GatedLayer for LayerData<'_> {
    fn n_inputs(&self) -> usize {
        self.gate.ncols()
    }

    fn n_outputs(&self) -> usize {
        self.gate.nrows()
    }

    fn n_rows(&self) -> usize {
        self.features.len_of(Axis(1))
    }

    fn n_kinds(&self) -> usize {
        self.features.len_of(Axis(0))
    }

    fn features(&self, kind: FeatureKind, rows: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        out.assign(&self.features.slice(s![kind.idx(), rows, ..]));
    }

    fn gate(&self, outputs: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        out.assign(&self.gate.slice(s![outputs, ..]));
    }

    fn up(&self, outputs: Range<usize>, mut out: ArrayViewMut2<'_, f32>) {
        out.assign(&self.up.slice(s![outputs, ..]));
    }

    fn gains(&self) -> Vec<f32> {
        self.gains.to_vec()
    }
}

impl Samples for LayerData<'_> {
    fn n_rows(&self) -> usize {
        GatedLayer::n_rows(self)
    }

    fn n_stages(&self) -> usize {
        self.n_kinds()
    }

    fn n_inputs(&self) -> usize {
        GatedLayer::n_inputs(self)
    }

    fn n_outputs(&self) -> usize {
        GatedLayer::n_outputs(self)
    }

    fn features(&self, picks: &[Pick], mut out: ArrayViewMut2<'_, f32>) {
        for (pick, mut out) in picks.iter().zip(out.rows_mut()) {
            out.assign(&self.features.slice(s![pick.stage, pick.row, ..]));
        }
    }

    fn importance(&self, rows: &[usize], mut out: ArrayViewMut2<'_, f32>) {
        let x = self.features.index_axis(Axis(0), 0).select(Axis(0), rows);
        let up = product(x.view(), self.up.t());
        out.assign(&product(x.view(), self.gate.t()));
        out.zip_mut_with(&up, |out, up| *out = (*out * sigmoid(*out) * up).abs());
        out *= &self.gains;
    }

    fn has_factors(&self) -> bool {
        true
    }

    fn factors(
        &self,
        rows: &[usize],
        mut gate: ArrayViewMut2<'_, f32>,
        mut up: ArrayViewMut2<'_, f32>,
    ) {
        let x = self.features.index_axis(Axis(0), 0).select(Axis(0), rows);
        gate.assign(&product(x.view(), self.gate.t()));
        up.assign(&product(x.view(), self.up.t()));
    }

    fn gains(&self) -> Option<ArrayView1<'_, f32>> {
        Some(self.gains)
    }
}
