//! Sizes of a look-up predictor, and which to choose for a number of bytes.

use crate::error::HashError;
use crate::simd::lookup::{ENTRIES, INPUTS, OUTPUTS};

const MAX_INPUTS: usize = 1 << 16;
const MAX_OUTPUTS: usize = 1 << 20;
/// Far less than steps that a sum of 16 bits can have.
const MAX_GROUPS: usize = 1 << 12;
/// Components that a group may have.
pub(crate) const MAX_WIDTH: usize = 4;
const MAX_BYTES: usize = 1 << 30;

/// Share of the bytes that the projection takes, and of the codes' bits that the gate's take:
/// measured on real layers, where both have a wide optimum.
const PROJECTION: f64 = 0.28;
const GATE: f64 = 0.3;
/// Components below which there is little to look up.
const MIN_COMPONENTS: usize = 16;

/// What the features of a call are; each kind has means and variances of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureKind {
    /// What the layer itself computes from.
    Exact,
    /// Features that are known much earlier.
    Speculative,
    /// Better ones than those, still not exact.
    Refined,
}

impl FeatureKind {
    /// All kinds; a predictor of `n` kinds knows the first `n`.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Speculative, Self::Refined];

    /// Its place in [`Self::ALL`].
    pub const fn idx(self) -> usize {
        self as usize
    }
}

/// Sizes of a look-up predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupShape {
    /// Features; at most 2¹⁶.
    pub n_inputs: usize,
    /// Outputs that get a score; at most 2²⁰.
    pub n_outputs: usize,
    /// Principal components that the features are projected on.
    pub n_components: usize,
    /// Groups of components in the code of an output's gate, 4 bits each; at most 2¹².
    pub gate_groups: usize,
    /// The same for its second factor.
    pub up_groups: usize,
    /// Kinds of features, 1 to 3.
    pub n_kinds: usize,
}

impl LookupShape {
    /// The best known sizes within `bytes` of memory for a predictor of `n_kinds` kinds of features.
    ///
    /// # Errors
    ///
    /// [`HashError::Size`] if no predictor is that small, or none has these sizes.
    pub fn within(
        n_inputs: usize,
        n_outputs: usize,
        bytes: usize,
        n_kinds: usize,
    ) -> Result<Self, HashError> {
        let least = Self {
            n_inputs,
            n_outputs,
            n_components: MIN_COMPONENTS.min(n_inputs),
            gate_groups: 1,
            up_groups: 1,
            n_kinds,
        };
        least.check()?;
        if least.n_bytes() > bytes {
            let expected = "enough for a few components and two groups";
            return Err(HashError::Size { what: "number of bytes", found: bytes, expected });
        }
        let components = PROJECTION * bytes as f64 / (least.row() as f64);
        let mut shape = Self {
            n_components: (components as usize).clamp(least.n_components, n_inputs),
            ..least
        };
        // Small budgets: terms come first.
        while shape.n_bytes() > bytes && shape.n_components > least.n_components {
            shape.n_components -= 1;
        }
        let most = shape.n_components.min(MAX_GROUPS);
        let with = |n: usize| Self {
            gate_groups: ((n as f64 * GATE).round() as usize).clamp(1, most),
            up_groups: (n - (n as f64 * GATE).round() as usize).clamp(1, most),
            ..shape
        };
        let mut n = 2;
        while n < 3 * most && with(n + 1).n_bytes() <= bytes {
            n += 1;
        }
        Ok(with(n))
    }

    /// Bytes of a row of the projection.
    pub(crate) fn row(&self) -> usize {
        self.padded_inputs() / 2
    }

    /// Features filled up to whole blocks.
    pub(crate) fn padded_inputs(&self) -> usize {
        self.n_inputs.next_multiple_of(INPUTS)
    }

    /// Blocks of outputs.
    pub(crate) fn n_blocks(&self) -> usize {
        self.n_outputs.div_ceil(OUTPUTS)
    }

    /// Outputs filled up to whole blocks.
    pub(crate) fn padded_outputs(&self) -> usize {
        self.n_blocks() * OUTPUTS
    }

    /// Groups of both codes.
    pub(crate) fn n_groups(&self) -> usize {
        self.gate_groups + self.up_groups
    }

    /// Bytes that a predictor takes at most; less if groups turn out narrow.
    pub fn n_bytes(&self) -> usize {
        let widths = |groups: usize| {
            groups + (MAX_WIDTH * groups).min(self.n_components) * (2 + 4 + ENTRIES)
        };
        let of_kind = 2 * self.n_inputs + 2 * self.padded_outputs();
        self.n_components * (4 + self.row())
            + widths(self.gate_groups)
            + widths(self.up_groups)
            + self.padded_outputs() * (8 + 1)
            + self.padded_outputs() / 2 * self.n_groups()
            + self.n_kinds * of_kind
    }

    /// # Errors
    ///
    /// [`HashError::Size`] if no predictor has this shape.
    pub fn check(&self) -> Result<(), HashError> {
        let within = |what, found, max, expected| match (1..=max).contains(&found) {
            true => Ok(()),
            false => Err(HashError::Size { what, found, expected }),
        };
        within("number of inputs", self.n_inputs, MAX_INPUTS, "1 to 2^16")?;
        within("number of outputs", self.n_outputs, MAX_OUTPUTS, "1 to 2^20")?;
        let expected = "1 to the number of inputs";
        within("number of components", self.n_components, self.n_inputs, expected)?;
        within("number of kinds", self.n_kinds, FeatureKind::ALL.len(), "1 to 3")?;
        for groups in [self.gate_groups, self.up_groups] {
            let most = self.n_components.min(MAX_GROUPS);
            within("number of groups", groups, most, "1 to 2^12, at most one for a component")?;
        }
        within("size", self.n_bytes(), MAX_BYTES, "at most 2^30 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_and_kept() {
        for (inputs, outputs, bytes) in [
            (576, 1536, 92_000),
            (896, 4864, 478_000),
            (1536, 8960, 1_370_000),
            (4096, 14336, 750_000),
        ] {
            for times in [1, 2, 5] {
                let shape = LookupShape::within(inputs, outputs, times * bytes, 1).unwrap();
                shape.check().unwrap();
                let used = shape.n_bytes() as f64 / (times * bytes) as f64;
                assert!((0.97..=1.0).contains(&used), "{shape:?} {used}");
            }
        }
        assert!(LookupShape::within(576, 1536, 10_000, 1).is_err());
        assert!(LookupShape::within(576, 1536, 92_000, 4).is_err());
        // More than can be used is not.
        assert!(LookupShape::within(64, 128, 1 << 20, 3).unwrap().n_bytes() < 1 << 17);
    }
}
