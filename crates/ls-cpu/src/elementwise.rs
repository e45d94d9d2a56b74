//! Norms, gates, softmax and rotary embedding: plain loops, compiled for each vector width.
//!
//! They compute the same bits on every instruction set: no fused multiply-add, and sums in a
//! fixed order.

use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Kind;

/// The gate activation of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x · sigmoid(x).
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
}

/// Compiles `body` plainly and with AVX2, and calls the one that fits.
macro_rules! each_isa {
    ($isa:expr, ($($arg:ident: $type:ty),*), $body:path) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $type),*) {
                $body($($arg),*);
            }
            if matches!($isa.0, Kind::Avx2 | Kind::Avx512) {
                // SAFETY: an `Isa` of this kind exists only where the features do.
                #[allow(unsafe_code)]
                return unsafe { avx2($($arg),*) };
            }
        }
        let _ = $isa;
        $body($($arg),*);
    }};
}

/// e^x to about 2 units in the last place; underflows to 1e-38 and saturates at 1e38.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Cody and Waite: x = k · ln 2 + r, then a polynomial in r and k into the exponent.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    // Adding 1.5 · 2^23 rounds to nearest and leaves k in the low mantissa bits.
    const MAGIC: f32 = 12_582_912.0;
    let biased = x * std::f32::consts::LOG2_E + MAGIC;
    let k = biased - MAGIC;
    let r = x - k * LN2_HIGH - k * LN2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 0.166_666_65;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let exponent = (biased.to_bits() << 23).wrapping_add(127 << 23);
    p * f32::from_bits(exponent)
}

#[inline(always)]
fn gate_silu(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

#[inline(always)]
fn gate_gelu(gate: &mut [f32], up: &[f32]) {
    // 0.5 · (1 + tanh(z)) = sigmoid(2z), z = sqrt(2/π) · (x + 0.044715 x³).
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    for (g, u) in gate.iter_mut().zip(up) {
        let x = *g;
        let z = TWO_SQRT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x);
        *g = x / (1.0 + exp(-z)) * u;
    }
}

/// `gate[j] = act(gate[j]) · up[j]`.
pub(crate) fn gate_rows(isa: Isa, kind: Gate, gate: &mut [f32], up: &[f32]) {
    match kind {
        Gate::Silu => each_isa!(isa, (gate: &mut [f32], up: &[f32]), gate_silu),
        Gate::GeluTanh => each_isa!(isa, (gate: &mut [f32], up: &[f32]), gate_gelu),
    }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut acc = [0f32; 8];
    for x in eights {
        for (a, x) in acc.iter_mut().zip(x) {
            *a += x * x;
        }
    }
    acc.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>()
}

#[inline(always)]
fn rms_norm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

/// `out = x / rms(x) · weight`, all of one length.
///
/// # Panics
///
/// If the lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!((weight.len(), out.len()), (x.len(), x.len()), "lengths of weight and output");
    each_isa!(isa, (x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]), rms_norm_body);
}

#[inline(always)]
fn rms_norm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// `x = x / rms(x) · weight`.
///
/// # Panics
///
/// If the lengths differ.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(weight.len(), x.len(), "length of weight");
    each_isa!(isa, (x: &mut [f32], weight: &[f32], eps: f32), rms_norm_in_place_body);
}

#[inline(always)]
fn softmax_body(x: &mut [f32]) {
    let (eights, rest) = x.as_chunks_mut::<8>();
    let mut max = [f32::NEG_INFINITY; 8];
    for x in &*eights {
        for (m, x) in max.iter_mut().zip(x) {
            *m = m.max(*x);
        }
    }
    let max = max.iter().chain(&*rest).fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let mut acc = [0f32; 8];
    for x in &mut *eights {
        for (a, x) in acc.iter_mut().zip(x) {
            *x = exp(*x - max);
            *a += *x;
        }
    }
    let mut sum: f32 = acc.iter().sum();
    for x in rest {
        *x = exp(*x - max);
        sum += *x;
    }
    let scale = 1.0 / sum;
    x.iter_mut().for_each(|x| *x *= scale);
}

/// Turns scores into probabilities.
pub(crate) fn softmax(isa: Isa, x: &mut [f32]) {
    each_isa!(isa, (x: &mut [f32]), softmax_body);
}

#[inline(always)]
fn add_body(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x += y`.
///
/// # Panics
///
/// If the lengths differ.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(y.len(), x.len(), "lengths");
    each_isa!(isa, (x: &mut [f32], y: &[f32]), add_body);
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// 2i with 2i + 1.
    Interleaved,
    /// i with i + dim/2.
    Halves,
}

/// Rotates the first `2 · cos.len()` elements of one head by the angles' cosines and sines.
///
/// # Panics
///
/// If the head is shorter, or `sin` is not as long as `cos`.
pub fn rope(pairing: Pairing, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let n = cos.len();
    assert_eq!(sin.len(), n, "sines");
    let head = &mut head[..2 * n];
    match pairing {
        Pairing::Interleaved => {
            for ((x, c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                *x = [x[0] * c - x[1] * s, x[0] * s + x[1] * c];
            }
        }
        Pairing::Halves => {
            let (a, b) = head.split_at_mut(n);
            for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exp_is_close(x in -86f32..88.0) {
            let want = f64::from(x).exp();
            let got = f64::from(exp(x));
            prop_assert!((got - want).abs() <= want * 3e-7, "{x}: {got} for {want}");
        }

        #[test]
        fn every_isa_computes_the_same_bits(x in prop::collection::vec(-20f32..20.0, 1..70)) {
            let up: Vec<f32> = x.iter().map(|x| 3.0 - x).collect();
            let all = |isa| {
                let (mut silu, mut gelu, mut soft) = (x.clone(), x.clone(), x.clone());
                let mut norm = vec![0.0; x.len()];
                gate_rows(isa, Gate::Silu, &mut silu, &up);
                gate_rows(isa, Gate::GeluTanh, &mut gelu, &up);
                softmax(isa, &mut soft);
                rms_norm(isa, &x, &up, 1e-6, &mut norm);
                [silu, gelu, soft, norm].concat()
            };
            let want = all(Isa::SCALAR);
            for isa in Isa::available() {
                prop_assert_eq!(&all(isa), &want);
            }
        }

        #[test]
        fn softmax_sums_to_one(x in prop::collection::vec(-80f32..80.0, 1..70)) {
            let mut p = x.clone();
            softmax(Isa::SCALAR, &mut p);
            prop_assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            prop_assert!(p.iter().all(|p| (0.0..=1.00001).contains(p)));
        }
    }

    #[test]
    fn gates_match_their_definitions() {
        let x = [-30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 30.0f32];
        let (mut silu, mut gelu) = (x, x);
        gate_rows(Isa::detect(), Gate::Silu, &mut silu, &[1.0; 7]);
        gate_rows(Isa::detect(), Gate::GeluTanh, &mut gelu, &[1.0; 7]);
        for (i, x) in x.into_iter().map(f64::from).enumerate() {
            let want = x / (1.0 + (-x).exp());
            assert!((f64::from(silu[i]) - want).abs() < 1e-5, "silu({x}) = {}", silu[i]);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let want = 0.5 * x * (1.0 + inner.tanh());
            assert!((f64::from(gelu[i]) - want).abs() < 1e-5, "gelu({x}) = {}", gelu[i]);
        }
    }

    #[test]
    fn rope_turns_pairs() {
        let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rope(Pairing::Interleaved, &mut head, &cos, &sin);
        assert_eq!(head, [-2.0, 1.0, 3.0, 4.0, 9.0]);
        let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
        rope(Pairing::Halves, &mut head, &cos, &sin);
        assert_eq!(head, [-3.0, 2.0, 1.0, 4.0, 9.0]);
    }
}
