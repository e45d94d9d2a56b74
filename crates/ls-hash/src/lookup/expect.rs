//! The expected importance of an output, given estimates and their variances.
//!
//! Plain elementwise code, which compiles to wide vectors, and gives the same on every processor.

use std::ops::Range;

use crate::score::{ROUND, bounded, from_bf16};
use crate::simd::lookup::OUTPUTS;

/// Estimates are within this, so that no importance overflows.
const LARGEST: f32 = 1e6;
/// Where the exponential ends: three of them multiplied do not overflow.
const EXPONENT: f32 = 40.0;
/// The outer nodes of three-point Gauss–Hermite quadrature, in standard deviations.
pub(crate) const NODE: f32 = 1.732_050_8;

/// Bits of a [`Byte`] below the exponent's.
const MANTISSA: u32 = 4;
/// Where a byte's lowest bit lies in an f32.
const SHIFT: u32 = 23 - MANTISSA;

/// Positive numbers in a byte: four bits of mantissa and four of an exponent above a lowest one, so
/// within 2⁻¹⁶ of the largest, to 3 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Byte {
    /// Bits of the f32 that 0 stands for.
    pub base: u32,
}

impl Byte {
    /// Bases of which all 256 numbers are finite and normal, and not so large that importances
    /// could overflow.
    pub(crate) fn is_sound(self) -> bool {
        let largest = (f32::MIN_POSITIVE.to_bits(), 1e4f32.to_bits() - (255 << SHIFT));
        (largest.0..=largest.1).contains(&self.base)
    }

    /// The one for numbers up to `largest`.
    pub(crate) fn up_to(largest: f32) -> Self {
        let largest = largest.clamp(1e-20, 9e3).to_bits().next_multiple_of(1 << SHIFT);
        Self { base: largest - (255 << SHIFT) }
    }

    /// The nearest byte.
    pub(crate) fn put(self, x: f32) -> u8 {
        let bits = x.max(0.0).to_bits().saturating_sub(self.base);
        ((bits + (1 << (SHIFT - 1))) >> SHIFT).min(255) as u8
    }

    #[inline(always)]
    pub(crate) fn get(self, x: u8) -> f32 {
        f32::from_bits(self.base + (u32::from(x) << SHIFT))
    }
}

/// `by · sum + plus`: from sums of table entries to what they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pub by: f32,
    pub plus: f32,
}

/// What one of the two estimates is made of, for a run of whole blocks of outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor<'a> {
    pub line: Line,
    /// Upper halves of f32.
    pub scale: &'a [u16],
    /// Upper halves of f32.
    pub bias: &'a [u16],
    pub deviation: &'a [u8],
    pub byte: Byte,
    /// Errors that were seen last, decayed since; empty if none were.
    pub seen: &'a [f32],
    /// What such an error says of the next.
    pub rho: f32,
    /// Share of the variance that a fresh one explains.
    pub explained: f32,
}

/// All that scores follow from, for a run of whole blocks of outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub gate: Factor<'a>,
    pub up: Factor<'a>,
    pub weight: &'a [u8],
    pub byte: Byte,
    /// How fresh the errors are, 0 to 1; empty if there are none.
    pub fresh: &'a [f32],
}

type Lanes = [f32; OUTPUTS];

impl<'a> Terms<'a> {
    /// Those of a part of the outputs, which begins with a block.
    pub(crate) fn part(&self, outputs: Range<usize>) -> Self {
        let part = |x: &'a [f32]| if x.is_empty() { x } else { &x[outputs.clone()] };
        let factor = |factor: &Factor<'a>| Factor {
            scale: &factor.scale[outputs.clone()],
            bias: &factor.bias[outputs.clone()],
            deviation: &factor.deviation[outputs.clone()],
            seen: part(factor.seen),
            ..*factor
        };
        let (gate, up) = (factor(&self.gate), factor(&self.up));
        Self { gate, up, weight: &self.weight[outputs.clone()], fresh: part(self.fresh), ..*self }
    }
}

impl<'a> Factor<'a> {
    /// Estimates of block `i`, without what was seen.
    #[inline(always)]
    pub(crate) fn plain(&self, i: usize, sums: &[u16; OUTPUTS]) -> Lanes {
        let scale = &self.scale.as_chunks::<OUTPUTS>().0[i];
        let bias = &self.bias.as_chunks::<OUTPUTS>().0[i];
        let mut out = [0.0; OUTPUTS];
        for lane in 0..OUTPUTS {
            let sum = self.line.by * f32::from(sums[lane]) + self.line.plus;
            out[lane] = bounded(from_bf16(scale[lane]) * sum + from_bf16(bias[lane]), LARGEST);
        }
        out
    }

    /// The best estimates of block `i`.
    #[inline(always)]
    pub(crate) fn estimate(&self, i: usize, sums: &[u16; OUTPUTS]) -> Lanes {
        let mut out = self.plain(i, sums);
        if let Some(seen) = self.seen.as_chunks::<OUTPUTS>().0.get(i) {
            for lane in 0..OUTPUTS {
                out[lane] = bounded(out[lane] + self.rho * seen[lane], LARGEST);
            }
        }
        out
    }

    /// Variances of block `i`.
    #[inline(always)]
    fn variance(&self, i: usize, fresh: Option<&Lanes>) -> Lanes {
        let deviation = &self.deviation.as_chunks::<OUTPUTS>().0[i];
        let mut out = [0.0; OUTPUTS];
        for lane in 0..OUTPUTS {
            let x = self.byte.get(deviation[lane]);
            out[lane] = x * x;
        }
        if let Some(fresh) = fresh {
            for lane in 0..OUTPUTS {
                out[lane] *= 1.0 - self.explained * fresh[lane];
            }
        }
        out
    }
}

/// `exp(−x)` to about five digits, for what is not beyond the ends of the exponent.
#[inline(always)]
fn exp_minus(x: f32) -> f32 {
    let t = bounded(x * -std::f32::consts::LOG2_E, EXPONENT);
    let rounded = t + ROUND;
    let f = t - (rounded - ROUND);
    // 2^f, Taylor around 0 on ±1/2.
    let p = 0.009_618_129 * f + 0.055_504_11;
    let p = p * f + 0.240_226_5;
    let p = p * f + std::f32::consts::LN_2;
    let p = p * f + 1.0;
    let power = (rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23).wrapping_add(127 << 23);
    p * f32::from_bits(power)
}

/// `E[silu(g)²]` for a normal `g`, by three-point quadrature. The three divisions are one.
#[inline(always)]
pub(crate) fn expected_silu(mean: f32, variance: f32) -> f32 {
    let far = NODE * variance.sqrt();
    let (low, high) = (mean - far, mean + far);
    let [a, b, c] = [1.0 + exp_minus(low), 1.0 + exp_minus(mean), 1.0 + exp_minus(high)];
    let (ab, bc) = (a * b, b * c);
    let inverse = 1.0 / (ab * c);
    let low = low * bc * inverse;
    let middle = mean * (a * c) * inverse;
    let high = high * ab * inverse;
    (middle * middle) * (2.0 / 3.0) + (low * low + high * high) * (1.0 / 6.0)
}

/// Expected importances of whole blocks; `sums` is `[block][code][output]`.
#[inline(always)]
pub(crate) fn expected(terms: Terms<'_>, sums: &[u16], out: &mut [f32]) {
    let (sums, _) = sums.as_chunks::<OUTPUTS>();
    let sums = sums.as_chunks::<2>().0.iter();
    let outs = out.as_chunks_mut::<OUTPUTS>().0.iter_mut();
    let weights = terms.weight.as_chunks::<OUTPUTS>().0.iter();
    let fresh = terms.fresh.as_chunks::<OUTPUTS>().0;
    for (i, ((out, [of_gate, of_up]), weight)) in outs.zip(sums).zip(weights).enumerate() {
        let (gate, up) = (terms.gate.estimate(i, of_gate), terms.up.estimate(i, of_up));
        let of_gate = terms.gate.variance(i, fresh.get(i));
        let of_up = terms.up.variance(i, fresh.get(i));
        for lane in 0..OUTPUTS {
            let silu = expected_silu(gate[lane], of_gate[lane]);
            let weight = terms.byte.get(weight[lane]);
            out[lane] = silu * (up[lane] * up[lane] + of_up[lane]) * (weight * weight);
        }
    }
}

/// What was computed of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed<'a> {
    /// One bit for each output.
    pub words: &'a [u64],
    pub gate: &'a [f32],
    pub up: &'a [f32],
    /// What stays of an older error.
    pub decay: f32,
}

/// Errors of what was computed replace those seen before, which otherwise decay.
#[inline(always)]
pub(crate) fn observe(
    terms: Terms<'_>,
    sums: &[u16],
    observed: Observed<'_>,
    of_gate: &mut [f32],
    of_up: &mut [f32],
    fresh: &mut [f32],
) {
    let Observed { words, decay, .. } = observed;
    let sums = sums.as_chunks::<OUTPUTS>().0.as_chunks::<2>().0;
    let seen = of_gate.as_chunks_mut::<OUTPUTS>().0.iter_mut();
    let seen = seen.zip(of_up.as_chunks_mut::<OUTPUTS>().0);
    let seen = seen.zip(fresh.as_chunks_mut::<OUTPUTS>().0).zip(sums.iter().zip(words));
    let truth = observed.gate.chunks(OUTPUTS).zip(observed.up.chunks(OUTPUTS));
    let blocks = seen.zip(truth).enumerate();
    for (i, ((((of_gate, of_up), fresh), (sums, word)), (gate, up))) in blocks {
        renew(of_gate, &terms.gate.plain(i, &sums[0]), gate, *word, decay);
        renew(of_up, &terms.up.plain(i, &sums[1]), up, *word, decay);
        for (lane, fresh) in fresh.iter_mut().enumerate() {
            *fresh = if word >> lane & 1 == 1 { 1.0 } else { *fresh * (decay * decay) };
        }
    }
}

/// `seen = truth − estimate` where the bit is set, less of itself elsewhere.
#[inline(always)]
fn renew(seen: &mut Lanes, estimate: &Lanes, truth: &[f32], word: u64, decay: f32) {
    // The last block can be short.
    let mut padded = [0.0; OUTPUTS];
    padded[..truth.len()].copy_from_slice(truth);
    for lane in 0..OUTPUTS {
        let error = bounded(padded[lane] - estimate[lane], LARGEST);
        seen[lane] = if word >> lane & 1 == 1 { error } else { seen[lane] * decay };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    proptest! {
        #[test]
        fn expectation_is_the_quadrature(mean in -20.0f32..20.0, variance in 0.0f32..16.0) {
            let (m, far) = (f64::from(mean), (3.0 * f64::from(variance)).sqrt());
            let exact = silu(m).powi(2) * 2.0 / 3.0
                + (silu(m - far).powi(2) + silu(m + far).powi(2)) / 6.0;
            let found = f64::from(expected_silu(mean, variance));
            prop_assert!((found - exact).abs() <= 2e-4 * exact + 1e-9, "{found} {exact}");
        }

        #[test]
        fn bytes_are_near(x in 0.002f32..90.0) {
            let byte = Byte::up_to(100.0);
            prop_assert!(byte.is_sound());
            let near = byte.get(byte.put(x));
            prop_assert!((near / x - 1.0).abs() < 0.04, "{near} {x}");
        }
    }

    #[test]
    fn extremes_are_finite() {
        for mean in [-LARGEST, LARGEST, 0.0] {
            for variance in [0.0, 1e8] {
                let x = expected_silu(mean, variance);
                assert!(x.is_finite() && x >= 0.0);
            }
        }
        assert!(Byte::up_to(0.0).is_sound() && Byte::up_to(f32::MAX).is_sound());
    }
}
