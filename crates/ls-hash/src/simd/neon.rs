//! NEON: products of bytes summed by pairs, bits counted by `cnt`.

use std::arch::aarch64::*;

use super::{BLOCK, LANES, Layout};

/// Words after which the counts in bytes could overflow: each word adds up to 8 of 255.
const WORDS: usize = 31;

#[inline]
#[target_feature(enable = "neon")]
fn load_i8(x: &[i8]) -> [int8x16_t; 2] {
    let x: &[i8; BLOCK] = x[..BLOCK].try_into().expect("a whole block");
    // SAFETY: 32 bytes are there, and the loads need no alignment.
    unsafe { [vld1q_s8(x.as_ptr()), vld1q_s8(x.as_ptr().add(16))] }
}

/// `sum + w · x`. No 16-bit sum of two products overflows: both factors are within ±127.
#[inline]
#[target_feature(enable = "neon")]
fn add_products(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    vpadalq_s16(sum, vmlal_high_s8(low, w, x))
}

/// Twin of [`super::scalar::project_i8`].
#[target_feature(enable = "neon")]
pub(super) fn project_i8(layout: Layout<'_>, weights: &[i8], x: &[i8], out: &mut [i32]) {
    for (bit, out) in out.iter_mut().enumerate() {
        let mut sum = vdupq_n_s32(0);
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let w = load_i8(&weights[i * BLOCK..]);
            let x = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            sum = add_products(sum, w[0], x[0]);
            sum = add_products(sum, w[1], x[1]);
        }
        *out = vaddvq_s32(sum);
    }
}

/// All bits of byte `i` of the result are bit `i` of `x`.
#[inline]
#[target_feature(enable = "neon")]
fn spread(x: u16) -> int8x16_t {
    let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let [low, high] = x.to_le_bytes();
    vreinterpretq_s8_u8(vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), bit))
}

/// Twin of [`super::scalar::project_ternary`].
#[target_feature(enable = "neon")]
pub(super) fn project_ternary(layout: Layout<'_>, weights: &[[u32; 2]], x: &[i8], out: &mut [i32]) {
    for (bit, out) in out.iter_mut().enumerate() {
        let mut sum = vdupq_n_s32(0);
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let [plus, minus] = weights[i];
            let x = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            for (half, x) in x.into_iter().enumerate() {
                let part = |word: u32| spread((word >> (16 * half)) as u16);
                sum = add_products(sum, vsubq_s8(part(minus), part(plus)), x);
            }
        }
        *out = vaddvq_s32(sum);
    }
}

/// Twin of [`super::scalar::dots`].
#[target_feature(enable = "neon")]
pub(super) fn dots(codes: &[u64], bits: &[u64], out: &mut [i32]) {
    let n_bits = bits.len() as i32 * 64;
    for (plane, out) in codes.chunks_exact(bits.len() * LANES).zip(out.chunks_exact_mut(LANES)) {
        out.fill(n_bits);
        for (codes, bits) in plane.chunks(WORDS * LANES).zip(bits.chunks(WORDS)) {
            let mut counts = [vdupq_n_u8(0); LANES / 2];
            for (codes, bits) in codes.chunks_exact(LANES).zip(bits) {
                let bits = vdupq_n_u64(*bits);
                for (counts, codes) in counts.iter_mut().zip(codes.chunks_exact(2)) {
                    // SAFETY: two words are there, and the load needs no alignment.
                    let codes = unsafe { vld1q_u64(codes.as_ptr()) };
                    let differ = vreinterpretq_u8_u64(veorq_u64(codes, bits));
                    *counts = vaddq_u8(*counts, vcntq_u8(differ));
                }
            }
            for (out, counts) in out.chunks_exact_mut(2).zip(counts) {
                let sums = vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(counts)));
                out[0] -= 2 * vgetq_lane_u64::<0>(sums) as i32;
                out[1] -= 2 * vgetq_lane_u64::<1>(sums) as i32;
            }
        }
    }
}

/// As [`super::scalar::at_least`], which compiles well enough.
#[target_feature(enable = "neon")]
pub(super) fn at_least(keys: &[u16], least: u16, out: &mut [u64]) {
    super::scalar::at_least(keys, least, out);
}
