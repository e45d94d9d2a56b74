//! From products of codes to scores. Plain elementwise code, which compiles to wide vectors.

use crate::shape::Form;
use crate::simd::LANES;

/// Adding it rounds a float to an integer, which then lies in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Numbers that turn products into scores: for each group `[term][lane]` as upper halves of f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params<'a> {
    pub form: Form,
    /// Codes of each estimate.
    pub n_codes: usize,
    pub terms: &'a [u16],
}

/// The upper half of `x`, rounded to nearest.
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.saturating_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[inline(always)]
pub(crate) fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// `x` within ±`most`; what is not a number is as low as can be.
#[inline(always)]
#[allow(clippy::manual_clamp)] // which keeps what is not a number
pub(crate) fn bounded(x: f32, most: f32) -> f32 {
    x.max(-most).min(most)
}

/// `1 / (1 + exp(-x))` to about six digits, the same on every processor.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let t = bounded(x * -std::f32::consts::LOG2_E, 126.0);
    let rounded = t + ROUND;
    let f = t - (rounded - ROUND);
    // 2^f, Taylor around 0 on ±1/2.
    let p = 0.001_333_356 * f + 0.009_618_129;
    let p = p * f + 0.055_504_11;
    let p = p * f + 0.240_226_5;
    let p = p * f + std::f32::consts::LN_2;
    let p = p * f + 1.0;
    let power = (rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23).wrapping_add(127 << 23);
    1.0 / (1.0 + p * f32::from_bits(power))
}

/// `offset + Σ scale · dot` of one estimate.
#[inline(always)]
fn estimate(n_codes: usize, terms: &[[u16; LANES]], dots: &[[i32; LANES]]) -> [f32; LANES] {
    let mut out = terms[n_codes].map(from_bf16);
    for (scales, dots) in terms[..n_codes].iter().zip(dots) {
        for lane in 0..LANES {
            out[lane] += from_bf16(scales[lane]) * dots[lane] as f32;
        }
    }
    out
}

/// Scores of whole groups; `dots` is `[group][estimate][code][lane]`.
#[inline(always)]
pub(crate) fn combine(params: Params<'_>, dots: &[i32], out: &mut [f32]) {
    let n = params.n_codes;
    let (terms, _) = params.terms.as_chunks::<LANES>();
    let (dots, _) = dots.as_chunks::<LANES>();
    let (out, _) = out.as_chunks_mut::<LANES>();
    let groups = terms.chunks_exact(params.form.n_terms(n));
    let groups = groups.zip(dots.chunks_exact(params.form.n_planes(n))).zip(out);
    if params.form == Form::Direct {
        groups.for_each(|((terms, dots), out)| *out = estimate(n, terms, dots));
        return;
    }
    for ((terms, dots), out) in groups {
        let gate = estimate(n, terms, dots);
        let up = estimate(n, &terms[n + 1..], &dots[n..]);
        let gain = terms[2 * (n + 1)].map(from_bf16);
        *out = activation(gate, up, gain);
    }
}

/// `gain · |silu(gate) · up|`.
#[inline(always)]
fn activation(gate: [f32; LANES], up: [f32; LANES], gain: [f32; LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        out[lane] = (gate[lane] * sigmoid(gate[lane]) * up[lane]).abs() * gain[lane];
    }
    out
}

/// `out = x · scale · by`, rounded and clipped to ±127. What is not a number counts as −127.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], scale: &[f32], by: f32, out: &mut [i8]) {
    for ((out, x), scale) in out.iter_mut().zip(x).zip(scale) {
        let x = bounded(x * scale * by, 127.0);
        *out = (x + ROUND).to_bits() as i8;
    }
}

/// Mean of squares, in an order of its own that does not depend on the processor.
pub(crate) fn mean_square(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for x in whole {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x * x;
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x * x;
    }
    sums.iter().sum::<f32>() / x.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoid_is_close() {
        for i in -2000..2000 {
            let x = i as f32 * 0.02;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - exact).abs() < 5e-6, "{x}");
        }
        assert!(sigmoid(f32::MAX) == 1.0 && sigmoid(f32::MIN) < 1e-30);
    }

    #[test]
    fn halves_round_to_nearest() {
        assert_eq!(from_bf16(to_bf16(1.0)), 1.0);
        assert_eq!(from_bf16(to_bf16(-3.15)), -3.15625);
        assert!((from_bf16(to_bf16(0.3)) - 0.3).abs() < 0.001);
    }

    #[test]
    fn features_are_rounded_and_clipped() {
        let mut out = [0; 5];
        quantize(&[0.4, -0.6, 300.0, -300.0, f32::NAN], &[1.0; 5], 1.0, &mut out);
        assert_eq!(out, [0, -1, 127, -127, -127]);
    }
}
