//! AVX-512: products of nibbles by VNNI, tables of two groups at a time.

use std::arch::x86_64::*;

use super::avx2::{halves, load, load_x};
use super::{INPUTS, OUTPUTS, ROW};
use crate::simd::avx2::sum_i32;

/// Rows of weights that share the loads of features.
const ROWS: usize = 4;

/// Twin of [`super::scalar::project_u4`].
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn project_u4(weights: &[u8], x: &[i8], out: &mut [i32]) {
    let (blocks, _) = x.as_chunks::<INPUTS>();
    let row = x.len() / 2;
    for (weights, out) in weights.chunks(ROWS * row).zip(out.chunks_mut(ROWS)) {
        let mut sums = [_mm256_setzero_si256(); ROWS];
        if out.len() == ROWS {
            for (i, x) in blocks.iter().enumerate() {
                let x = load_x(x);
                for (j, sum) in sums.iter_mut().enumerate() {
                    let [low, high] = halves(load(&weights[j * row + i * ROW..]));
                    *sum = _mm256_dpbusd_epi32(*sum, low, x[0]);
                    *sum = _mm256_dpbusd_epi32(*sum, high, x[1]);
                }
            }
        } else {
            for (weights, sum) in weights.chunks_exact(row).zip(&mut sums) {
                for (w, x) in weights.chunks_exact(ROW).zip(blocks) {
                    let ([low, high], x) = (halves(load(w)), load_x(x));
                    *sum = _mm256_dpbusd_epi32(*sum, low, x[0]);
                    *sum = _mm256_dpbusd_epi32(*sum, high, x[1]);
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum_i32(sum);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_both(x: &[u8; 2 * ROW]) -> __m512i {
    // SAFETY: 64 bytes are there, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// Adds even and odd bytes of `x` to two sums of 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add(sums: &mut [__m512i], x: __m512i) {
    sums[0] = _mm512_add_epi16(sums[0], _mm512_and_si512(x, _mm512_set1_epi16(255)));
    sums[1] = _mm512_add_epi16(sums[1], _mm512_srli_epi16::<8>(x));
}

/// Adds the entries that 64 bytes of codes name in two groups' tables. A function, as is what loads them:
/// closures are not always inlined into code with these features, and then pass registers through memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn step(sums: &mut [__m512i; 4], codes: __m512i, table: __m512i) {
    let nibble = _mm512_set1_epi8(15);
    let low = _mm512_and_si512(codes, nibble);
    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibble);
    add(&mut sums[..2], _mm512_shuffle_epi8(table, low));
    add(&mut sums[2..], _mm512_shuffle_epi8(table, high));
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn sum_block(codes: &[u8], tables: &[u8], out: &mut [u16; OUTPUTS]) {
    let mut sums = [_mm512_setzero_si512(); 4];
    let (pairs, last) = codes.as_chunks::<{ 2 * ROW }>();
    let (tables, last_table) = tables.as_chunks::<{ 2 * ROW }>();
    for (codes, table) in pairs.iter().zip(tables) {
        step(&mut sums, load_both(codes), load_both(table));
    }
    if !last.is_empty() {
        // The upper half looks up zeros.
        let upper_zero = _mm512_zextsi256_si512(load(last));
        step(&mut sums, upper_zero, _mm512_zextsi256_si512(load(last_table)));
    }
    for (out, sum) in out.chunks_exact_mut(16).zip(sums) {
        let both =
            _mm256_add_epi16(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
        // SAFETY: 16 values fit, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), both) };
    }
}

/// Twin of [`super::scalar::look_up`].
#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn look_up(codes: &[u8], n_gate: usize, tables: &[u8], out: &mut [u16]) {
    let (out, _) = out.as_chunks_mut::<OUTPUTS>();
    for (codes, out) in codes.chunks_exact(tables.len()).zip(out.as_chunks_mut::<2>().0) {
        let (gate, up) = codes.split_at(n_gate * ROW);
        let (of_gate, of_up) = tables.split_at(n_gate * ROW);
        sum_block(gate, of_gate, &mut out[0]);
        sum_block(up, of_up, &mut out[1]);
    }
}
