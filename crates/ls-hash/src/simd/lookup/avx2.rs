//! AVX2: products of nibbles by `maddubs`, tables in registers by `pshufb`.

use std::arch::x86_64::*;

use super::{INPUTS, OUTPUTS, ROW};
use crate::simd::avx2::sum_i32;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(x: &[u8]) -> __m256i {
    let x: &[u8; ROW] = x[..ROW].try_into().expect("a whole row");
    // SAFETY: 32 bytes are there, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_x(x: &[i8; INPUTS]) -> [__m256i; 2] {
    // SAFETY: 64 bytes are there, and the loads need no alignment.
    unsafe {
        [_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(ROW).cast())]
    }
}

/// Low and high halves of each byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn halves(x: __m256i) -> [__m256i; 2] {
    let low = _mm256_set1_epi8(15);
    [_mm256_and_si256(x, low), _mm256_and_si256(_mm256_srli_epi16::<4>(x), low)]
}

/// Twin of [`super::scalar::project_u4`]. Four products of at most 15 · 128 fit into 16 bits.
#[target_feature(enable = "avx2")]
pub(super) fn project_u4(weights: &[u8], x: &[i8], out: &mut [i32]) {
    let ones = _mm256_set1_epi16(1);
    let (blocks, _) = x.as_chunks::<INPUTS>();
    for (row, out) in weights.chunks_exact(x.len() / 2).zip(out) {
        let mut sum = _mm256_setzero_si256();
        for (w, x) in row.chunks_exact(ROW).zip(blocks) {
            let ([low, high], x) = (halves(load(w)), load_x(x));
            let pairs =
                _mm256_add_epi16(_mm256_maddubs_epi16(low, x[0]), _mm256_maddubs_epi16(high, x[1]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        *out = sum_i32(sum);
    }
}

/// Adds even and odd bytes of `x` to two sums of 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn add(sums: &mut [__m256i], x: __m256i) {
    sums[0] = _mm256_add_epi16(sums[0], _mm256_and_si256(x, _mm256_set1_epi16(255)));
    sums[1] = _mm256_add_epi16(sums[1], _mm256_srli_epi16::<8>(x));
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_block(codes: &[u8], tables: &[u8], out: &mut [u16; OUTPUTS]) {
    let mut sums = [_mm256_setzero_si256(); 4];
    for (codes, table) in codes.chunks_exact(ROW).zip(tables.chunks_exact(ROW)) {
        let (table, [low, high]) = (load(table), halves(load(codes)));
        add(&mut sums[..2], _mm256_shuffle_epi8(table, low));
        add(&mut sums[2..], _mm256_shuffle_epi8(table, high));
    }
    for (out, sum) in out.chunks_exact_mut(16).zip(sums) {
        // SAFETY: 16 values fit, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sum) };
    }
}

/// Twin of [`super::scalar::look_up`].
#[target_feature(enable = "avx2")]
pub(super) fn look_up(codes: &[u8], n_gate: usize, tables: &[u8], out: &mut [u16]) {
    let (out, _) = out.as_chunks_mut::<OUTPUTS>();
    for (codes, out) in codes.chunks_exact(tables.len()).zip(out.as_chunks_mut::<2>().0) {
        let (gate, up) = codes.split_at(n_gate * ROW);
        let (of_gate, of_up) = tables.split_at(n_gate * ROW);
        sum_block(gate, of_gate, &mut out[0]);
        sum_block(up, of_up, &mut out[1]);
    }
}
