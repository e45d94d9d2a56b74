//! What a predictor consists of, and how it scores.

use crate::error::HashError;
use crate::isa::Isa;
use crate::project::Projection;
use crate::rng::Rng;
use crate::score::{Params, mean_square, to_bf16};
use crate::shape::{Norm, Shape};
use crate::simd::{self, LANES};
use crate::state::State;

/// Features that are this many standard deviations large, or larger, are all the same.
pub(crate) const CLIP: f32 = 8.0;

/// Groups of outputs whose products are in flight: their scratch stays in the first cache.
const GROUPS: usize = 16;
/// Most planes of a group, so that the scratch has a fixed size.
const MAX_PLANES: usize = 8;

/// A further stack: each bit compares the bits below with a code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stack {
    /// `[group][word][lane]`.
    pub codes: Vec<u64>,
    /// A bit is set where the product with the code reaches this.
    pub thresholds: Vec<i32>,
}

/// Predicts a score for each output of a layer from its features.
///
/// See the crate's page for an example.
#[derive(Clone, Debug)]
pub struct Predictor {
    pub(crate) shape: Shape,
    /// Steps of a byte for each unit of a feature.
    pub(crate) scale: Vec<f32>,
    pub(crate) projection: Projection,
    pub(crate) stacks: Vec<Stack>,
    /// `[group][estimate][code][word][lane]`.
    pub(crate) codes: Vec<u64>,
    /// `[group][term][lane]`, upper halves of f32.
    pub(crate) terms: Vec<u16>,
    pub(crate) isa: Isa,
}

/// Two predictors are equal if they score equally, whatever computes it.
impl PartialEq for Predictor {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape
            && self.scale == other.scale
            && self.projection == other.projection
            && self.stacks == other.stacks
            && self.codes == other.codes
            && self.terms == other.terms
    }
}

impl Predictor {
    /// One with random weights and codes: it predicts nothing, but takes as long as a trained one.
    ///
    /// # Errors
    ///
    /// [`HashError::Size`] if no predictor has this shape.
    pub fn random(shape: Shape, seed: u64) -> Result<Self, HashError> {
        shape.check()?;
        let mut rng = Rng::new(seed, 0);
        let mut words = |n: usize| (0..n).map(|_| rng.next()).collect::<Vec<u64>>();
        let stacks = shape.stacks.windows(2).map(|pair| Stack {
            codes: words(pair[1] * pair[0] / 64),
            thresholds: vec![0; pair[1]],
        });
        let stacks = stacks.collect();
        let planes = shape.n_groups() * shape.form.n_planes(shape.n_codes);
        let codes = words(planes * LANES * shape.n_bits() / 64);
        let n_terms = shape.n_groups() * shape.form.n_terms(shape.n_codes) * LANES;
        let made = Self {
            scale: vec![127.0 / CLIP; shape.n_inputs],
            projection: Projection::random(&shape, &mut rng),
            stacks,
            codes,
            terms: vec![to_bf16(0.05); n_terms],
            isa: Isa::detect(),
            shape,
        };
        made.check()?;
        Ok(made)
    }

    /// All lengths follow from the shape, and all numbers are finite.
    pub(crate) fn check(&self) -> Result<(), HashError> {
        let shape = &self.shape;
        shape.check()?;
        let length = |what, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(HashError::Length { what, found, expected }),
        };
        length("scale", self.scale.len(), shape.n_inputs)?;
        self.projection.check(shape)?;
        length("stacks", self.stacks.len(), shape.stacks.len() - 1)?;
        for (stack, pair) in self.stacks.iter().zip(shape.stacks.windows(2)) {
            length("codes of a stack", stack.codes.len(), pair[1] * (pair[0] / 64))?;
            length("thresholds of a stack", stack.thresholds.len(), pair[1])?;
        }
        let lanes = shape.n_groups() * LANES;
        let words = lanes * shape.form.n_planes(shape.n_codes) * (shape.n_bits() / 64);
        length("codes", self.codes.len(), words)?;
        length("terms", self.terms.len(), lanes * shape.form.n_terms(shape.n_codes))?;
        let finite = |what, at: Option<usize>| match at {
            None => Ok(()),
            Some(index) => Err(HashError::NotFinite { what, index }),
        };
        finite("scale", self.scale.iter().position(|x| !x.is_finite()))?;
        // All ones in the exponent.
        finite("term", self.terms.iter().position(|x| x & 0x7f80 == 0x7f80))
    }

    /// Its sizes and kinds.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes that it takes in memory, projection and all.
    pub fn n_bytes(&self) -> usize {
        let stacks = self.stacks.iter().map(|s| s.codes.len() * 8 + s.thresholds.len() * 4);
        self.scale.len() * 4
            + self.projection.n_bytes()
            + stacks.sum::<usize>()
            + self.codes.len() * 8
            + self.terms.len() * 2
    }

    /// The same, computing with `isa`.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Memory for predictions, with scores for features that are all zero.
    pub fn state(&self) -> State {
        let mut state = State::empty(&self.shape);
        self.rescore(&mut state);
        state
    }

    /// Scores for `features`.
    ///
    /// # Panics
    ///
    /// If there are not [`Shape::n_inputs`] features, or `state` is of another shape.
    pub fn set(&self, state: &mut State, features: &[f32]) {
        assert_eq!(features.len(), self.shape.n_inputs, "as many features as inputs");
        assert!(state.fits(&self.shape), "a state of this shape");
        state.features.copy_from_slice(features);
        self.quantize(state);
        std::mem::swap(&mut state.quantized, &mut state.next);
        self.projection.project(self.isa, &state.quantized, &mut state.sums);
        self.rescore(state);
    }

    /// Scores for the features of the last call plus `delta`: exactly those that [`Self::set`]
    /// gives for the sum, but where few blocks of features change only these are projected, and
    /// nothing more is computed if no bit changes.
    ///
    /// # Panics
    ///
    /// As [`Self::set`] does.
    pub fn update(&self, state: &mut State, delta: &[f32]) {
        assert_eq!(delta.len(), self.shape.n_inputs, "as many features as inputs");
        assert!(state.fits(&self.shape), "a state of this shape");
        for (x, delta) in state.features.iter_mut().zip(delta) {
            *x += delta;
        }
        self.quantize(state);
        let changed = state.difference();
        if changed == Some(0) {
            return;
        }
        std::mem::swap(&mut state.quantized, &mut state.next);
        // A sparse update costs what it skips and a little more.
        let few = changed.filter(|n| *n <= self.shape.n_blocks() / 2);
        match few {
            Some(_) => self.projection.add(self.isa, state),
            None => self.projection.project(self.isa, &state.quantized, &mut state.sums),
        }
        if self.hash_first(state) {
            self.rescore_bits(state);
        }
    }

    fn quantize(&self, state: &mut State) {
        let by = match self.shape.norm {
            Norm::None => 1.0,
            Norm::Rms => (mean_square(&state.features) + 1e-6).sqrt().recip(),
        };
        simd::quantize(self.isa, &state.features, &self.scale, by, &mut state.next);
    }

    /// Everything that follows from the sums.
    fn rescore(&self, state: &mut State) {
        self.hash_first(state);
        self.rescore_bits(state);
    }

    /// Bits of the first stack, and whether one of them has changed.
    fn hash_first(&self, state: &mut State) -> bool {
        let n_words = self.shape.stacks[0] / 64;
        pack_bits(&state.sums, &self.projection.thresholds, &mut state.bits[..n_words])
    }

    /// Further stacks and scores.
    fn rescore_bits(&self, state: &mut State) {
        let mut from = 0;
        for (stack, pair) in self.stacks.iter().zip(self.shape.stacks.windows(2)) {
            let (below, above) = state.bits[from..].split_at_mut(pair[0] / 64);
            let dots = &mut state.dots[..pair[1]];
            simd::dots(self.isa, &stack.codes, below, dots);
            pack_bits(dots, &stack.thresholds, &mut above[..pair[1] / 64]);
            from += pair[0] / 64;
        }
        self.score(&state.bits, &mut state.scores);
    }

    /// Scores of whole groups of outputs.
    fn score(&self, bits: &[u64], out: &mut [f32]) {
        let (form, n_codes) = (self.shape.form, self.shape.n_codes);
        let n_planes = form.n_planes(n_codes);
        let n_terms = form.n_terms(n_codes) * LANES;
        let mut dots = [0; GROUPS * MAX_PLANES * LANES];
        let parts = self.codes.chunks(GROUPS * n_planes * bits.len() * LANES);
        let parts = parts.zip(self.terms.chunks(GROUPS * n_terms));
        for ((codes, terms), out) in parts.zip(out.chunks_mut(GROUPS * LANES)) {
            let dots = &mut dots[..out.len() * n_planes];
            simd::dots(self.isa, codes, bits, dots);
            simd::scores(self.isa, Params { form, n_codes, terms }, dots, out);
        }
    }
}

/// Sets the bits whose sums reach their thresholds; whether one has changed.
fn pack_bits(sums: &[i32], thresholds: &[i32], out: &mut [u64]) -> bool {
    let mut changed = false;
    for ((out, sums), least) in out.iter_mut().zip(sums.chunks(64)).zip(thresholds.chunks(64)) {
        let mut word = 0;
        for (i, (sum, least)) in sums.iter().zip(least).enumerate() {
            word |= u64::from(sum >= least) << i;
        }
        changed |= *out != word;
        *out = word;
    }
    changed
}
