//! What a look-up predictor computes with and leaves behind.

use std::ops::Range;

use bitvec::field::BitField;

use crate::isa::Isa;
use crate::lookup::expect::{Line, Observed, Terms};
use crate::lookup::predictor::LookupPredictor;
use crate::lookup::shape::{FeatureKind, LookupShape};
use crate::select::Mask;
use crate::simd::lookup::{self as kernels, ENTRIES, OUTPUTS, ROW};

/// Blocks whose sums are in flight: they stay in the first cache.
const IN_FLIGHT: usize = 16;

/// Tables, sums and scores of one prediction, and what was seen of the sequence so far.
#[derive(Clone, Debug)]
pub struct LookupState {
    pub(crate) shape: LookupShape,
    pub(crate) kind: FeatureKind,
    /// Features less their means.
    pub(crate) centred: Vec<f32>,
    /// As bytes, filled up with zeros to whole blocks.
    pub(crate) x: Vec<i8>,
    /// What a step of these bytes counts.
    pub(crate) step: f32,
    /// What the products of `x` with weights are too large by, since none of these is stored negative.
    pub(crate) surplus: i32,
    pub(crate) dots: Vec<i32>,
    /// Components.
    pub(crate) z: Vec<f32>,
    pub(crate) tables: Vec<[f32; ENTRIES]>,
    pub(crate) offsets: Vec<f32>,
    /// Each table twice.
    pub(crate) bytes: Vec<u8>,
    pub(crate) lines: [Line; 2],
    /// `[block][code][output]`.
    pub(crate) sums: Vec<u16>,
    /// Filled up to whole blocks, as what follows.
    pub(crate) scores: Vec<f32>,
    /// Errors of both estimates when they were last seen, decayed since.
    pub(crate) seen: [Vec<f32>; 2],
    /// How fresh these are.
    pub(crate) fresh: Vec<f32>,
    pub(crate) has_seen: bool,
    /// Which outputs were computed.
    pub(crate) words: Vec<u64>,
}

impl LookupState {
    pub(crate) fn empty(shape: &LookupShape) -> Self {
        let n = shape.padded_outputs();
        Self {
            shape: *shape,
            kind: FeatureKind::Exact,
            centred: vec![0.0; shape.n_inputs],
            x: vec![0; shape.padded_inputs()],
            step: 0.0,
            surplus: 0,
            dots: vec![0; shape.n_components],
            z: vec![0.0; shape.n_components],
            tables: vec![[0.0; ENTRIES]; shape.n_groups()],
            offsets: vec![0.0; shape.n_groups()],
            bytes: vec![0; shape.n_groups() * ROW],
            lines: [Line::default(); 2],
            sums: vec![0; 2 * n],
            scores: vec![0.0; n],
            seen: [vec![0.0; n], vec![0.0; n]],
            fresh: vec![0.0; n],
            has_seen: false,
            words: vec![0; shape.n_blocks()],
        }
    }

    /// Sizes of the predictors that it serves.
    pub fn shape(&self) -> &LookupShape {
        &self.shape
    }

    /// A score for each output, valid after all parts were scored.
    pub fn scores(&self) -> &[f32] {
        &self.scores[..self.shape.n_outputs]
    }

    /// Begins another sequence: what was seen says nothing of it.
    pub fn forget(&mut self) {
        self.seen.iter_mut().for_each(|seen| seen.fill(0.0));
        self.fresh.fill(0.0);
        self.has_seen = false;
    }
}

/// A run of components that are not yet computed; several can be computed at the same time.
#[derive(Debug)]
pub struct LookupProjection<'a> {
    isa: Isa,
    weights: &'a [u8],
    x: &'a [i8],
    dots: &'a mut [i32],
}

impl LookupProjection<'_> {
    /// Writes the components.
    pub fn project(self) {
        kernels::project_u4(self.isa, self.weights, self.x, self.dots);
    }
}

/// A run of outputs that are not yet scored; parts can be scored at the same time.
#[derive(Debug)]
pub struct LookupPart<'a> {
    predictor: &'a LookupPredictor,
    kind: FeatureKind,
    tables: &'a [u8],
    lines: [Line; 2],
    outputs: Range<usize>,
    seen: [&'a [f32]; 2],
    fresh: &'a [f32],
    sums: &'a mut [u16],
    scores: &'a mut [f32],
}

impl LookupPart<'_> {
    /// The outputs; some beyond the last output can be among them.
    pub fn outputs(&self) -> Range<usize> {
        self.outputs.clone()
    }

    /// Writes their scores.
    pub fn score(self) {
        let Self { predictor, sums, scores, .. } = self;
        let isa = predictor.isa;
        let terms =
            predictor.terms(self.lines, self.kind, self.outputs.clone(), self.seen, self.fresh);
        let per_block = self.tables.len();
        let first = self.outputs.start / OUTPUTS * per_block;
        let codes = &predictor.codes[first..][..self.outputs.len() / OUTPUTS * per_block];
        let codes = codes.chunks(IN_FLIGHT * per_block);
        let sums = sums.chunks_mut(2 * IN_FLIGHT * OUTPUTS);
        let scores = scores.chunks_mut(IN_FLIGHT * OUTPUTS);
        for (i, ((codes, sums), scores)) in codes.zip(sums).zip(scores).enumerate() {
            let n_gate = predictor.shape.gate_groups;
            kernels::look_up(isa, codes, n_gate, self.tables, sums);
            let begin = i * IN_FLIGHT * OUTPUTS;
            kernels::expect(isa, terms.part(begin..begin + scores.len()), sums, scores);
        }
    }
}

impl LookupPredictor {
    /// At most `n` runs of all components, about equally large, of the features of the last
    /// [`Self::begin`].
    ///
    /// # Panics
    ///
    /// If `n` is 0 or `state` is of another shape.
    pub fn projections<'a>(
        &'a self,
        state: &'a mut LookupState,
        n: usize,
    ) -> impl Iterator<Item = LookupProjection<'a>> + use<'a> {
        assert!(state.shape == self.shape, "a state of this shape");
        // Kernels take a few rows at a time.
        let size = self.shape.n_components.div_ceil(n).next_multiple_of(8).max(8);
        let LookupState { x, dots, .. } = state;
        let x = &**x;
        let weights = self.weights.chunks(size * self.shape.row());
        let runs = weights.zip(dots.chunks_mut(size));
        runs.map(move |(weights, dots)| LookupProjection { isa: self.isa, weights, x, dots })
    }

    /// At most `n` parts of all outputs, in order and about equally large, for the features of the
    /// last [`Self::prepare`].
    ///
    /// # Panics
    ///
    /// If `n` is 0 or `state` is of another shape.
    pub fn parts<'a>(
        &'a self,
        state: &'a mut LookupState,
        n: usize,
    ) -> impl Iterator<Item = LookupPart<'a>> + use<'a> {
        assert!(state.shape == self.shape, "a state of this shape");
        let size = self.shape.n_blocks().div_ceil(n) * OUTPUTS;
        let LookupState { kind, bytes, lines, sums, scores, seen, fresh, has_seen, .. } = state;
        let (kind, lines, has_seen) = (*kind, *lines, *has_seen);
        let (tables, seen, fresh) = (&**bytes, &*seen, &**fresh);
        let parts = sums.chunks_mut(2 * size).zip(scores.chunks_mut(size)).enumerate();
        parts.map(move |(i, (sums, scores))| {
            let outputs = i * size..i * size + scores.len();
            let of = |x: &'a [f32]| if has_seen { &x[outputs.clone()] } else { &[][..] };
            let seen = [of(&seen[0]), of(&seen[1])];
            let fresh = of(fresh);
            LookupPart { predictor: self, kind, tables, lines, outputs, seen, fresh, sums, scores }
        })
    }

    /// Writes the estimates of `gate` and `up` that the scores in `state` came from: the means of
    /// what each is expected to be.
    ///
    /// # Panics
    ///
    /// If there is not one place for each output, or `state` is of another shape.
    pub fn estimates(&self, state: &LookupState, gate: &mut [f32], up: &mut [f32]) {
        assert!(state.shape == self.shape, "a state of this shape");
        assert_eq!(gate.len(), self.shape.n_outputs, "one place for each output");
        assert_eq!(up.len(), self.shape.n_outputs, "one place for each output");
        let terms = self.all_terms(state);
        let sums = state.sums.as_chunks::<OUTPUTS>().0.as_chunks::<2>().0;
        for (i, [of_gate, of_up]) in sums.iter().enumerate() {
            let range = i * OUTPUTS..((i + 1) * OUTPUTS).min(gate.len());
            let n = range.len();
            gate[range.clone()].copy_from_slice(&terms.gate.estimate(i, of_gate)[..n]);
            up[range].copy_from_slice(&terms.up.estimate(i, of_up)[..n]);
        }
    }

    fn all_terms<'a>(&'a self, state: &'a LookupState) -> Terms<'a> {
        let of = |x: &'a [f32]| if state.has_seen { x } else { &[] };
        let seen = [of(&state.seen[0]), of(&state.seen[1])];
        let all = 0..self.shape.padded_outputs();
        self.terms(state.lines, state.kind, all, seen, of(&state.fresh))
    }

    /// Learns from a token whose outputs in `mask` were really computed: `gate` and `up` hold what
    /// they were, at the places of these outputs; the others are not looked at. Errors of the
    /// estimates go on from token to token, so the next calls of [`Self::set`] take them off.
    ///
    /// Call it once for each token, after scoring its [`FeatureKind::Exact`] features: estimates of
    /// other kinds have other errors.
    ///
    /// # Panics
    ///
    /// If there is not one bit, gate and up for each output, or `state` is of another shape.
    pub fn observe(&self, state: &mut LookupState, mask: &Mask, gate: &[f32], up: &[f32]) {
        let n = self.shape.n_outputs;
        assert!(state.shape == self.shape, "a state of this shape");
        assert_eq!((mask.len(), gate.len(), up.len()), (n, n, n), "one for each output");
        for (word, bits) in state.words.iter_mut().zip(mask.chunks(OUTPUTS)) {
            *word = bits.load_le();
        }
        let all = 0..self.shape.padded_outputs();
        let terms = self.terms(state.lines, state.kind, all, [&[]; 2], &[]);
        let LookupState { sums, words, seen: [of_gate, of_up], fresh, .. } = state;
        let observed = Observed { words, gate, up, decay: self.decay };
        kernels::observe(self.isa, terms, sums, observed, of_gate, of_up, fresh);
        state.has_seen = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tables of one factor sum to for an output, without rounding.
    fn exact(
        predictor: &LookupPredictor,
        state: &LookupState,
        factor: usize,
        output: usize,
    ) -> f64 {
        let shape = predictor.shape();
        let first = factor * shape.gate_groups;
        let n = [shape.gate_groups, shape.up_groups][factor];
        let (block, lane) = (output / OUTPUTS, output % OUTPUTS);
        let byte = 2 * (lane % 16) + lane / 16 % 2;
        let code = |group: usize| {
            let codes = predictor.codes[(block * shape.n_groups() + group) * 32 + byte];
            usize::from(codes >> (4 * (lane / 32)) & 15)
        };
        (first..first + n).map(|group| f64::from(state.tables[group][code(group)])).sum()
    }

    #[test]
    fn sums_of_many_groups_keep_their_precision() {
        for groups in [40, 256, 1000] {
            let shape = LookupShape {
                n_inputs: 1536,
                n_outputs: 256,
                n_components: 1536,
                gate_groups: groups,
                up_groups: groups,
                n_kinds: 1,
            };
            let predictor = LookupPredictor::random(shape, 3).unwrap();
            let mut state = predictor.state();
            let features: Vec<f32> =
                (0..1536).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
            predictor.set(&mut state, &features, FeatureKind::Exact);
            for factor in 0..2 {
                let line = state.lines[factor];
                let (mut off, mut values) = (0.0, Vec::new());
                for output in 0..256 {
                    let (block, lane) = (output / OUTPUTS, output % OUTPUTS);
                    let sum = state.sums[(2 * block + factor) * OUTPUTS + lane];
                    let want = exact(&predictor, &state, factor, output);
                    off += (f64::from(line.by * f32::from(sum) + line.plus) - want).powi(2);
                    values.push(want);
                }
                let mean = values.iter().sum::<f64>() / 256.0;
                let spread = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
                let share = (off / spread).sqrt();
                assert!(share < 0.02, "{groups} groups: {share} of the deviation");
            }
        }
    }
}
