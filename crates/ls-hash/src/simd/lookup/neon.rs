//! NEON: products of nibbles by pairs, tables in registers by `tbl`.

use std::arch::aarch64::*;

use super::{INPUTS, OUTPUTS, ROW};

#[inline]
#[target_feature(enable = "neon")]
fn load(x: &[u8]) -> [uint8x16_t; 2] {
    let x: &[u8; ROW] = x[..ROW].try_into().expect("a whole row");
    // SAFETY: 32 bytes are there, and the loads need no alignment.
    unsafe { [vld1q_u8(x.as_ptr()), vld1q_u8(x.as_ptr().add(16))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_x(x: &[i8]) -> int8x16_t {
    let x: &[i8; 16] = x[..16].try_into().expect("sixteen features");
    // SAFETY: 16 bytes are there, and the load needs no alignment.
    unsafe { vld1q_s8(x.as_ptr()) }
}

/// `sum + w · x`. Two products of at most 15 · 128 fit into 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn add_products(sum: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    let w = vreinterpretq_s8_u8(w);
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    vpadalq_s16(sum, vmlal_high_s8(low, w, x))
}

/// Twin of [`super::scalar::project_u4`].
#[target_feature(enable = "neon")]
pub(super) fn project_u4(weights: &[u8], x: &[i8], out: &mut [i32]) {
    let nibble = vdupq_n_u8(15);
    for (row, out) in weights.chunks_exact(x.len() / 2).zip(out) {
        let mut sum = vdupq_n_s32(0);
        for (w, x) in row.chunks_exact(ROW).zip(x.chunks_exact(INPUTS)) {
            for (i, w) in load(w).into_iter().enumerate() {
                sum = add_products(sum, vandq_u8(w, nibble), load_x(&x[16 * i..]));
                sum = add_products(sum, vshrq_n_u8::<4>(w), load_x(&x[ROW + 16 * i..]));
            }
        }
        *out = vaddvq_s32(sum);
    }
}

/// Adds even and odd bytes of `x` to two sums of 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn add(sums: &mut [[uint16x8_t; 2]], x: uint8x16_t, half: usize) {
    let x = vreinterpretq_u16_u8(x);
    sums[0][half] = vaddq_u16(sums[0][half], vandq_u16(x, vdupq_n_u16(255)));
    sums[1][half] = vsraq_n_u16::<8>(sums[1][half], x);
}

#[inline]
#[target_feature(enable = "neon")]
fn sum_block(codes: &[u8], tables: &[u8], out: &mut [u16; OUTPUTS]) {
    let nibble = vdupq_n_u8(15);
    let mut sums = [[vdupq_n_u16(0); 2]; 4];
    for (codes, table) in codes.chunks_exact(ROW).zip(tables.chunks_exact(ROW)) {
        let [table, _] = load(table);
        for (half, codes) in load(codes).into_iter().enumerate() {
            add(&mut sums[..2], vqtbl1q_u8(table, vandq_u8(codes, nibble)), half);
            add(&mut sums[2..], vqtbl1q_u8(table, vshrq_n_u8::<4>(codes)), half);
        }
    }
    for (out, sum) in out.chunks_exact_mut(8).zip(sums.into_iter().flatten()) {
        // SAFETY: eight values fit, and the store needs no alignment.
        unsafe { vst1q_u16(out.as_mut_ptr(), sum) };
    }
}

/// Twin of [`super::scalar::look_up`].
#[target_feature(enable = "neon")]
pub(super) fn look_up(codes: &[u8], n_gate: usize, tables: &[u8], out: &mut [u16]) {
    let (out, _) = out.as_chunks_mut::<OUTPUTS>();
    for (codes, out) in codes.chunks_exact(tables.len()).zip(out.as_chunks_mut::<2>().0) {
        let (gate, up) = codes.split_at(n_gate * ROW);
        let (of_gate, of_up) = tables.split_at(n_gate * ROW);
        sum_block(gate, of_gate, &mut out[0]);
        sum_block(up, of_up, &mut out[1]);
    }
}
