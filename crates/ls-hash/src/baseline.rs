//! What a predictor has to beat, behind one trait for reports.

use ndarray::{Array1, Array2, ArrayView1};

use crate::lookup::{FeatureKind, LookupPredictor, LookupState};
use crate::predictor::Predictor;
use crate::rng::Rng;
use crate::samples::Samples;
use crate::score::mean_square;
use crate::shape::Norm;
use crate::state::State;

/// What a scorer may look at.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Features of the row.
    pub features: &'a [f32],
    /// Importances of the row before, if there is one.
    pub last: Option<&'a [f32]>,
    /// Importances of the row itself: for [`Oracle`] only.
    pub truth: &'a [f32],
}

/// Something that scores outputs.
pub trait Scorer {
    /// For the report.
    fn name(&self) -> String;
    /// Bytes that it keeps in memory.
    fn n_bytes(&self) -> usize;
    /// Writes a score for each output.
    fn score(&mut self, row: Row<'_>, out: &mut [f32]);
}

/// A hash predictor with its memory.
#[derive(Clone, Debug)]
pub struct Hash<'a> {
    predictor: &'a Predictor,
    state: State,
    name: String,
}

impl<'a> Hash<'a> {
    /// `predictor`, which the report calls `name`.
    pub fn new(name: impl Into<String>, predictor: &'a Predictor) -> Self {
        Self { predictor, state: predictor.state(), name: name.into() }
    }
}

impl Scorer for Hash<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn n_bytes(&self) -> usize {
        self.predictor.n_bytes()
    }

    fn score(&mut self, row: Row<'_>, out: &mut [f32]) {
        self.predictor.set(&mut self.state, row.features);
        out.copy_from_slice(self.state.scores());
    }
}

/// A look-up predictor with its memory, which learns nothing from row to row.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    predictor: &'a LookupPredictor,
    state: LookupState,
    kind: FeatureKind,
    name: String,
}

impl<'a> Lookup<'a> {
    /// `predictor` on features of `kind`, which the report calls `name`.
    ///
    /// # Panics
    ///
    /// If the predictor does not know `kind`.
    pub fn new(name: impl Into<String>, predictor: &'a LookupPredictor, kind: FeatureKind) -> Self {
        assert!(kind.idx() < predictor.shape().n_kinds, "a kind that the predictor knows");
        Self { predictor, state: predictor.state(), kind, name: name.into() }
    }
}

impl Scorer for Lookup<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn n_bytes(&self) -> usize {
        self.predictor.n_bytes()
    }

    fn score(&mut self, row: Row<'_>, out: &mut [f32]) {
        self.predictor.set(&mut self.state, row.features, self.kind);
        out.copy_from_slice(self.state.scores());
    }
}

/// A network of two matrices with a rectifier between them.
#[derive(Clone, Debug)]
pub struct LowRank {
    pub(crate) norm: Norm,
    /// `[rank, inputs]`.
    pub(crate) inner: Array2<f32>,
    pub(crate) bias: Array1<f32>,
    /// `[outputs, rank]`.
    pub(crate) outer: Array2<f32>,
    pub(crate) offset: Array1<f32>,
}

impl Scorer for LowRank {
    fn name(&self) -> String {
        format!("low rank {}", self.inner.nrows())
    }

    /// Of weights in 16 bits.
    fn n_bytes(&self) -> usize {
        2 * (self.inner.len() + self.bias.len() + self.outer.len() + self.offset.len())
    }

    fn score(&mut self, row: Row<'_>, out: &mut [f32]) {
        let by = match self.norm {
            Norm::None => 1.0,
            Norm::Rms => (mean_square(row.features) + 1e-6).sqrt().recip(),
        };
        let hidden = self.inner.dot(&ArrayView1::from(row.features)) * by + &self.bias;
        let scores = self.outer.dot(&hidden.mapv(|h| h.max(0.0))) + &self.offset;
        out.copy_from_slice(scores.as_slice().expect("a new vector is contiguous"));
    }
}

/// The outputs that are important on average, whatever the features.
#[derive(Clone, Debug)]
pub struct StaticHot(Vec<f32>);

impl StaticHot {
    /// Mean squares of importance over all rows.
    pub fn new(samples: &dyn Samples) -> Self {
        let mut sums = Array1::<f32>::zeros(samples.n_outputs());
        let rows: Vec<usize> = (0..samples.n_rows()).collect();
        for rows in rows.chunks(256) {
            let mut importance = Array2::zeros((rows.len(), samples.n_outputs()));
            samples.importance(rows, importance.view_mut());
            for row in importance.rows() {
                sums.zip_mut_with(&row, |sum, x| *sum += x * x);
            }
        }
        Self(sums.to_vec())
    }
}

impl Scorer for StaticHot {
    fn name(&self) -> String {
        "static hot set".to_owned()
    }

    fn n_bytes(&self) -> usize {
        self.0.len().div_ceil(8)
    }

    fn score(&mut self, _: Row<'_>, out: &mut [f32]) {
        out.copy_from_slice(&self.0);
    }
}

/// What was important in the row before.
#[derive(Clone, Copy, Debug)]
pub struct LastSet;

impl Scorer for LastSet {
    fn name(&self) -> String {
        "last set".to_owned()
    }

    fn n_bytes(&self) -> usize {
        0
    }

    fn score(&mut self, row: Row<'_>, out: &mut [f32]) {
        match row.last {
            Some(last) => out.copy_from_slice(last),
            None => out.fill(0.0),
        }
    }
}

/// Chance.
#[derive(Clone, Debug)]
pub struct Random(Rng);

impl Random {
    /// All that it says follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed, 0))
    }
}

impl Scorer for Random {
    fn name(&self) -> String {
        "random".to_owned()
    }

    fn n_bytes(&self) -> usize {
        0
    }

    fn score(&mut self, _: Row<'_>, out: &mut [f32]) {
        out.fill_with(|| self.0.unit());
    }
}

/// The truth, which no predictor can beat.
#[derive(Clone, Copy, Debug)]
pub struct Oracle;

impl Scorer for Oracle {
    fn name(&self) -> String {
        "oracle".to_owned()
    }

    fn n_bytes(&self) -> usize {
        0
    }

    fn score(&mut self, row: Row<'_>, out: &mut [f32]) {
        out.copy_from_slice(row.truth);
    }
}
