//! What a look-up predictor consists of, and how it scores.

use std::fmt;

use ndarray::Array1;

use crate::error::HashError;
use crate::isa::Isa;
use crate::lookup::expect::{Byte, Factor, Line, Terms};
use crate::lookup::shape::{FeatureKind, LookupShape, MAX_WIDTH};
use crate::lookup::state::LookupState;
use crate::lookup::tables::{Centroids, Spans};
use crate::rng::Rng;
use crate::score::{from_bf16, to_bf16};
use crate::simd::lookup::{self as kernels, ENTRIES};

/// What a byte of weights stands for where it stands for 0.
pub(crate) const ZERO: u8 = 8;

/// How the codes of one of an output's two factors are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Code {
    /// Components of each group.
    pub widths: Vec<u8>,
    /// The components themselves, group after group.
    pub components: Vec<u16>,
    /// What a step of each component's centroids counts.
    pub scales: Vec<f32>,
    /// `[component][entry]`.
    pub entries: Vec<[i8; ENTRIES]>,
    /// Of each output, upper halves of f32.
    pub scale: Vec<u16>,
    /// Of each output, upper halves of f32.
    pub bias: Vec<u16>,
}

/// What is different for each kind of features, with a number for each factor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kind {
    /// Upper halves of f32.
    pub means: Vec<u16>,
    /// Standard deviations of what estimates leave.
    pub deviation: [Vec<u8>; 2],
    pub bytes: [Byte; 2],
    /// What estimates from these features count.
    pub by: [f32; 2],
    /// What a fresh error says of the next.
    pub rho: [f32; 2],
    /// Share of the variance that it explains.
    pub explained: [f32; 2],
}

/// Predicts the expected importance `(silu(gate) · up · gain)²` of each output of a gated layer by
/// looking up coded weights in tables of the features.
///
/// The page of [`crate::lookup`] says how, and has an example.
#[derive(Clone)]
pub struct LookupPredictor {
    pub(crate) shape: LookupShape,
    /// What a step of each row of the projection counts.
    pub(crate) rows: Vec<f32>,
    /// `[component][block][32]`, two inputs a byte.
    pub(crate) weights: Vec<u8>,
    /// Of the gate and of the other factor.
    pub(crate) factors: [Code; 2],
    /// `[block][group][32]`, the groups of the gate first.
    pub(crate) codes: Vec<u8>,
    /// Gains.
    pub(crate) gains: Vec<u8>,
    pub(crate) gain_byte: Byte,
    pub(crate) kinds: Vec<Kind>,
    /// What stays of a seen error for each call of `observe` without a newer one.
    pub(crate) decay: f32,
    pub(crate) isa: Isa,
}

impl fmt::Debug for LookupPredictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LookupPredictor");
        out.field("shape", &self.shape).field("isa", &self.isa).finish_non_exhaustive()
    }
}

/// Two predictors are equal if they score equally, whatever computes it.
impl PartialEq for LookupPredictor {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape
            && self.rows == other.rows
            && self.weights == other.weights
            && self.factors == other.factors
            && self.codes == other.codes
            && self.gains == other.gains
            && self.gain_byte == other.gain_byte
            && self.kinds == other.kinds
            && self.decay == other.decay
    }
}

impl LookupPredictor {
    /// One with random weights and codes: it predicts nothing, but takes as long as a fitted one.
    ///
    /// # Errors
    ///
    /// [`HashError::Size`] if no predictor has this shape.
    pub fn random(shape: LookupShape, seed: u64) -> Result<Self, HashError> {
        shape.check()?;
        let mut rng = Rng::new(seed, 0);
        let n = shape.padded_outputs();
        let byte = Byte::up_to(1.0);
        let kind = Kind {
            means: vec![to_bf16(0.1); shape.n_inputs],
            deviation: [0, 1].map(|_| (0..n).map(|_| 150 + rng.below(100) as u8).collect()),
            bytes: [byte; 2],
            by: [1.0; 2],
            rho: [0.5; 2],
            explained: [0.25; 2],
        };
        let weights = (0..shape.n_components * shape.row()).map(|_| rng.next() as u8).collect();
        let factors = [shape.gate_groups, shape.up_groups]
            .map(|groups| Code::random(groups, shape.n_components, n, &mut rng));
        let codes = n / 2 * shape.n_groups();
        let made = Self {
            shape,
            rows: vec![0.01; shape.n_components],
            weights,
            factors,
            codes: (0..codes).map(|_| rng.next() as u8).collect(),
            gains: (0..n).map(|_| 150 + rng.below(100) as u8).collect(),
            gain_byte: byte,
            kinds: vec![kind; shape.n_kinds],
            decay: 0.7,
            isa: Isa::detect(),
        };
        made.check()?;
        Ok(made)
    }

    /// All lengths follow from the shape, and all numbers are sound.
    pub(crate) fn check(&self) -> Result<(), HashError> {
        let shape = &self.shape;
        shape.check()?;
        let n = shape.padded_outputs();
        length("rows", self.rows.len(), shape.n_components)?;
        finite("scale of a row", &self.rows)?;
        length("weights", self.weights.len(), shape.n_components * shape.row())?;
        self.factors[0].check(shape.gate_groups, shape)?;
        self.factors[1].check(shape.up_groups, shape)?;
        length("codes", self.codes.len(), n / 2 * shape.n_groups())?;
        length("gains", self.gains.len(), n)?;
        sound("gains", self.gain_byte)?;
        finite("decay", &[self.decay])?;
        length("kinds", self.kinds.len(), shape.n_kinds)?;
        self.kinds.iter().try_for_each(|kind| kind.check(shape))
    }

    /// Its sizes.
    pub fn shape(&self) -> &LookupShape {
        &self.shape
    }

    /// Bytes that it takes in memory.
    pub fn n_bytes(&self) -> usize {
        let of_kind = |kind: &Kind| kind.means.len() * 2 + kind.deviation[0].len() * 2;
        self.rows.len() * 4
            + self.weights.len()
            + self.factors.iter().map(Code::n_bytes).sum::<usize>()
            + self.codes.len()
            + self.gains.len()
            + self.kinds.iter().map(of_kind).sum::<usize>()
    }

    /// The same, computing with `isa`.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// The same with its outputs in another order: output `i` of the result is output `order[i]` of this one.
    ///
    /// # Errors
    ///
    /// If `order` does not name each output once.
    pub fn reordered(&self, order: &[u32]) -> Result<Self, HashError> {
        let n = self.shape.n_outputs;
        length("an order's outputs", order.len(), n)?;
        let mut seen = vec![false; n];
        let first =
            |i: &u32| seen.get_mut(*i as usize).is_some_and(|s| !std::mem::replace(s, true));
        if !order.iter().all(first) {
            let expected = "each output once";
            return Err(HashError::Size { what: "outputs of an order", found: n, expected });
        }
        // What fills up the last block stays.
        let from = |i: usize| order.get(i).map_or(i, |from| *from as usize);
        let (n, groups) = (self.shape.padded_outputs(), self.shape.n_groups());
        let bytes = |of: &[u8]| -> Vec<u8> { (0..n).map(|i| of[from(i)]).collect() };
        let halves = |of: &[u16]| -> Vec<u16> { (0..n).map(|i| of[from(i)]).collect() };
        let mut codes = vec![0; self.codes.len()];
        for i in 0..n {
            for group in 0..groups {
                let code = kernels::code_at(&self.codes, groups, group, from(i));
                kernels::put_code(&mut codes, groups, group, i, code);
            }
        }
        let mut made = self.clone();
        made.codes = codes;
        made.gains = bytes(&self.gains);
        for (code, old) in made.factors.iter_mut().zip(&self.factors) {
            (code.scale, code.bias) = (halves(&old.scale), halves(&old.bias));
        }
        for (kind, old) in made.kinds.iter_mut().zip(&self.kinds) {
            kind.deviation = [0, 1].map(|factor: usize| bytes(&old.deviation[factor]));
        }
        Ok(made)
    }

    /// Memory for predictions of one sequence, with scores for features that are their means.
    pub fn state(&self) -> LookupState {
        let mut state = LookupState::empty(&self.shape);
        let means = &self.kinds[0].means;
        let means: Vec<f32> = means.iter().map(|x| from_bf16(*x)).collect();
        self.set(&mut state, &means, FeatureKind::Exact);
        state
    }

    /// Scores for `features`: of each output the expectation of `(silu(gate) · up · gain)²`.
    ///
    /// # Panics
    ///
    /// If there are not [`LookupShape::n_inputs`] features, the predictor does not know `kind`, or
    /// `state` is of another shape.
    pub fn set(&self, state: &mut LookupState, features: &[f32], kind: FeatureKind) {
        self.prepare(state, features, kind);
        self.parts(state, 1).for_each(super::LookupPart::score);
    }

    /// Everything of [`Self::set`] but the scores, about a sixth of its time. [`Self::parts`] are
    /// the rest.
    ///
    /// # Panics
    ///
    /// As [`Self::set`] does.
    pub fn prepare(&self, state: &mut LookupState, features: &[f32], kind: FeatureKind) {
        self.begin(state, features, kind);
        self.projections(state, 1).for_each(super::LookupProjection::project);
        self.fill_tables(state);
    }

    /// The first step of [`Self::prepare`], for who computes the second, [`Self::projections`], on
    /// several threads; [`Self::fill_tables`] is the third.
    ///
    /// # Panics
    ///
    /// As [`Self::set`] does.
    pub fn begin(&self, state: &mut LookupState, features: &[f32], kind: FeatureKind) {
        assert_eq!(features.len(), self.shape.n_inputs, "as many features as inputs");
        assert!(kind.idx() < self.kinds.len(), "a kind that the predictor knows");
        assert!(state.shape == self.shape, "a state of this shape");
        state.kind = kind;
        let means = &self.kinds[kind.idx()].means;
        let mut largest = 0.0;
        kernels::centre(self.isa, features, means, &mut state.centred, &mut largest);
        // A step of a byte; any will do if all are 0.
        state.step = largest.max(f32::MIN_POSITIVE * 128.0) / 127.0;
        let x = &mut state.x[..features.len()];
        kernels::to_bytes(self.isa, &state.centred, 1.0 / state.step, x);
        state.surplus = i32::from(ZERO) * x.iter().map(|x| i32::from(*x)).sum::<i32>();
    }

    /// The last step of [`Self::prepare`]: tables of both factors, and what their sums stand for.
    ///
    /// # Panics
    ///
    /// If `state` is of another shape.
    pub fn fill_tables(&self, state: &mut LookupState) {
        assert!(state.shape == self.shape, "a state of this shape");
        let (step, surplus) = (state.step, state.surplus);
        for ((z, dot), row) in state.z.iter_mut().zip(&state.dots).zip(&self.rows) {
            *z = (dot - surplus) as f32 * (row * step);
        }
        let LookupState { tables, offsets, bytes, lines, z, kind, .. } = state;
        let by = self.kinds[kind.idx()].by;
        let mut begin = 0;
        for (i, code) in self.factors.iter().enumerate() {
            let groups = begin..begin + code.widths.len();
            let (tables, offsets) = (&mut tables[groups.clone()], &mut offsets[groups.clone()]);
            let mut spans = Spans::default();
            kernels::fill_tables(self.isa, code.centroids(), z, tables, offsets, &mut spans);
            let step = spans.step(offsets.len());
            let bytes = &mut bytes[groups.start * 32..groups.end * 32];
            kernels::round_tables(self.isa, tables, offsets, 1.0 / step, bytes);
            lines[i] = Line { by: step * by[i], plus: offsets.iter().sum::<f32>() * by[i] };
            begin = groups.end;
        }
    }

    /// Biases of both factors.
    pub(crate) fn biases(&self) -> [Array1<f32>; 2] {
        [0, 1].map(|i| {
            let all = self.factors[i].bias[..self.shape.n_outputs].iter();
            all.map(|x| from_bf16(*x)).collect()
        })
    }

    /// Standard deviations of a factor's exact kind.
    pub(crate) fn deviations(&self, i: usize) -> Array1<f32> {
        let kind = &self.kinds[0];
        let all = kind.deviation[i][..self.shape.n_outputs].iter();
        all.map(|x| kind.bytes[i].get(*x)).collect()
    }

    /// What the scores of a run of blocks follow from.
    pub(crate) fn terms<'a>(
        &'a self,
        lines: [Line; 2],
        kind: FeatureKind,
        outputs: std::ops::Range<usize>,
        seen: [&'a [f32]; 2],
        fresh: &'a [f32],
    ) -> Terms<'a> {
        let of_kind = &self.kinds[kind.idx()];
        let factor = |i: usize| Factor {
            line: lines[i],
            scale: &self.factors[i].scale[outputs.clone()],
            bias: &self.factors[i].bias[outputs.clone()],
            deviation: &of_kind.deviation[i][outputs.clone()],
            byte: of_kind.bytes[i],
            seen: seen[i],
            rho: of_kind.rho[i],
            explained: of_kind.explained[i],
        };
        let (gate, up) = (factor(0), factor(1));
        Terms { gate, up, weight: &self.gains[outputs.clone()], byte: self.gain_byte, fresh }
    }
}

impl Code {
    fn random(groups: usize, n_components: usize, n: usize, rng: &mut Rng) -> Self {
        let mut left = n_components;
        let mut widths = Vec::new();
        for i in 0..groups {
            let width = (left + i + 1 - groups).min(1 + i * MAX_WIDTH / groups).max(1);
            left -= width;
            widths.push(width as u8);
        }
        let components: Vec<u16> = (0..(n_components - left) as u16).collect();
        let mut entry = || (rng.below(255) as i16 - 127) as i8;
        Self {
            scales: vec![0.02; components.len()],
            entries: components.iter().map(|_| std::array::from_fn(|_| entry())).collect(),
            scale: (0..n).map(|_| to_bf16(0.1 + 0.2 * rng.unit())).collect(),
            bias: (0..n).map(|_| to_bf16(rng.unit() - 0.5)).collect(),
            widths,
            components,
        }
    }

    pub(crate) fn centroids(&self) -> Centroids<'_> {
        Centroids {
            widths: &self.widths,
            components: &self.components,
            scales: &self.scales,
            entries: &self.entries,
        }
    }

    fn n_bytes(&self) -> usize {
        self.widths.len()
            + self.components.len() * (2 + 4 + ENTRIES)
            + 2 * (self.scale.len() + self.bias.len())
    }

    fn check(&self, groups: usize, shape: &LookupShape) -> Result<(), HashError> {
        length("groups", self.widths.len(), groups)?;
        if let Some(width) =
            self.widths.iter().find(|w| !(1..=MAX_WIDTH).contains(&usize::from(**w)))
        {
            let (what, found) = ("width of a group", usize::from(*width));
            return Err(HashError::Size { what, found, expected: "1 to 4" });
        }
        let n = self.widths.iter().map(|width| usize::from(*width)).sum();
        length("components of a code", self.components.len(), n)?;
        let most = shape.n_components;
        if let Some(found) = self.components.iter().find(|c| usize::from(**c) >= most) {
            let (what, found) = ("component", usize::from(*found));
            return Err(HashError::Size { what, found, expected: "less than their number" });
        }
        length("scales of centroids", self.scales.len(), n)?;
        finite("scale of a centroid", &self.scales)?;
        length("centroids", self.entries.len(), n)?;
        length("scales", self.scale.len(), shape.padded_outputs())?;
        length("biases", self.bias.len(), shape.padded_outputs())?;
        finite_halves("scale", &self.scale)?;
        finite_halves("bias", &self.bias)
    }
}

impl Kind {
    fn check(&self, shape: &LookupShape) -> Result<(), HashError> {
        length("means", self.means.len(), shape.n_inputs)?;
        finite_halves("mean", &self.means)?;
        for i in 0..2 {
            length("deviations", self.deviation[i].len(), shape.padded_outputs())?;
            sound("deviations", self.bytes[i])?;
        }
        finite("weight of a kind", &self.by)?;
        finite("correlation", &self.rho)?;
        finite("explained share", &self.explained)?;
        let share = |x: &f32| !(0.0..=1.0).contains(x);
        match self.explained.iter().position(share) {
            None => Ok(()),
            Some(index) => Err(HashError::NotFinite { what: "explained share", index }),
        }
    }
}

pub(super) fn length(what: &'static str, found: usize, expected: usize) -> Result<(), HashError> {
    match found == expected {
        true => Ok(()),
        false => Err(HashError::Length { what, found, expected }),
    }
}

pub(super) fn finite(what: &'static str, of: &[f32]) -> Result<(), HashError> {
    match of.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(index) => Err(HashError::NotFinite { what, index }),
    }
}

fn finite_halves(what: &'static str, of: &[u16]) -> Result<(), HashError> {
    // All ones in the exponent.
    match of.iter().position(|x| x & 0x7f80 == 0x7f80) {
        None => Ok(()),
        Some(index) => Err(HashError::NotFinite { what, index }),
    }
}

fn sound(what: &'static str, byte: Byte) -> Result<(), HashError> {
    match byte.is_sound() {
        true => Ok(()),
        false => Err(HashError::NotFinite { what, index: 0 }),
    }
}
