//! Sizes and kinds of a predictor.

use crate::error::HashError;
use crate::project::WeightType;
use crate::simd::{BLOCK, LANES};

/// Limits that keep sizes sane whatever the bytes of a file say.
const MAX_INPUTS: usize = 1 << 20;
const MAX_OUTPUTS: usize = 1 << 24;
const MAX_BITS: usize = 1 << 14;
const MAX_BYTES: usize = 1 << 30;

/// How an output's score comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One estimate: the score itself.
    Direct,
    /// Two estimates ĝ and û, multiplied as a gated MLP does: `gain · |silu(ĝ) · û|`.
    Bilinear,
}

impl Form {
    /// Estimates that each output has.
    pub const fn n_estimates(self) -> usize {
        match self {
            Self::Direct => 1,
            Self::Bilinear => 2,
        }
    }

    /// Codes that each output has.
    pub(crate) const fn n_planes(self, n_codes: usize) -> usize {
        self.n_estimates() * n_codes
    }

    /// Numbers that each output has: scales and offset of each estimate, and a gain.
    pub(crate) const fn n_terms(self, n_codes: usize) -> usize {
        match self {
            Self::Direct => n_codes + 1,
            Self::Bilinear => 2 * (n_codes + 1) + 1,
        }
    }
}

/// What is done to the features first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Nothing.
    None,
    /// Division by the root of their mean square.
    Rms,
}

/// Sizes and kinds of a predictor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Features.
    pub n_inputs: usize,
    /// Outputs that get a score.
    pub n_outputs: usize,
    /// Bits of each stack of hashes, the first computed from the features, each other from the
    /// bits of the one before. Multiples of 64.
    pub stacks: Vec<usize>,
    /// Blocks of 32 features that each bit of the first stack reads; [`Shape::DENSE`] for all.
    pub blocks_per_bit: usize,
    /// How the weights of the first stack are kept.
    pub weights: WeightType,
    /// How a score comes about.
    pub form: Form,
    /// Binary codes of each estimate, each with a scale of its own; 1 to 4.
    pub n_codes: usize,
    /// What is done to the features first.
    pub norm: Norm,
}

impl Shape {
    /// Each bit reads all features.
    pub const DENSE: usize = usize::MAX;

    /// Two codes of 128 bits for each output, from bits that read 128 features each.
    pub fn new(n_inputs: usize, n_outputs: usize) -> Self {
        Self {
            n_inputs,
            n_outputs,
            stacks: vec![128],
            blocks_per_bit: 4,
            weights: WeightType::Int8,
            form: Form::Bilinear,
            n_codes: 1,
            norm: Norm::None,
        }
    }

    /// Bits of all stacks, which are the bits of a code.
    pub fn n_bits(&self) -> usize {
        self.stacks.iter().sum()
    }

    /// Blocks that the features have.
    pub(crate) fn n_blocks(&self) -> usize {
        self.n_inputs.div_ceil(BLOCK)
    }

    /// Blocks that one bit reads.
    pub(crate) fn per_bit(&self) -> usize {
        self.blocks_per_bit.min(self.n_blocks())
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.per_bit() == self.n_blocks()
    }

    pub(crate) fn n_groups(&self) -> usize {
        self.n_outputs.div_ceil(LANES)
    }

    /// # Errors
    ///
    /// [`HashError::Size`] if no predictor has this shape.
    pub fn check(&self) -> Result<(), HashError> {
        let within = |what, found, max, expected| match (1..=max).contains(&found) {
            true => Ok(()),
            false => Err(HashError::Size { what, found, expected }),
        };
        within("number of inputs", self.n_inputs, MAX_INPUTS, "1 to 2^20")?;
        within("number of outputs", self.n_outputs, MAX_OUTPUTS, "1 to 2^24")?;
        within("number of stacks", self.stacks.len(), 8, "1 to 8")?;
        within("number of codes", self.n_codes, 4, "1 to 4")?;
        within("blocks per bit", self.blocks_per_bit, usize::MAX, "at least 1")?;
        for bits in &self.stacks {
            let expected = "a multiple of 64, at most 2^14";
            within("width of a stack", *bits, MAX_BITS, expected)?;
            if !bits.is_multiple_of(64) {
                let what = "width of a stack";
                return Err(HashError::Size { what, found: *bits, expected });
            }
        }
        // So that all lengths fit into 32 bits, and no product of them overflows.
        let codes = self.n_outputs as u64 * self.form.n_planes(self.n_codes) as u64;
        let bits = codes * self.n_bits() as u64;
        let weights = self.stacks[0] as u64 * (self.per_bit() * BLOCK) as u64;
        within("size of all codes", (bits >> 3) as usize, MAX_BYTES, "at most 2^30 bytes")?;
        within("number of weights", weights as usize, MAX_BYTES, "at most 2^30")
    }
}
