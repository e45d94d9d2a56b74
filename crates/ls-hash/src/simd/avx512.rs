//! AVX-512 with byte products (VNNI) and counts of bits (VPOPCNTDQ).

use std::arch::x86_64::*;

use super::avx2::sum_i32;
use super::{BLOCK, LANES, Layout};

#[inline]
#[target_feature(enable = "avx2")]
fn load_i8(x: &[i8]) -> __m256i {
    let x: &[i8; BLOCK] = x[..BLOCK].try_into().expect("a whole block");
    // SAFETY: 32 bytes are there, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

/// Twin of [`super::scalar::project_i8`].
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn project_i8(layout: Layout<'_>, weights: &[i8], x: &[i8], out: &mut [i32]) {
    for (bit, out) in out.iter_mut().enumerate() {
        let mut sum = _mm256_setzero_si256();
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let w = load_i8(&weights[i * BLOCK..]);
            let x = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            sum = _mm256_dpbusd_epi32(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        }
        *out = sum_i32(sum);
    }
}

/// Twin of [`super::scalar::project_ternary`].
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn project_ternary(layout: Layout<'_>, weights: &[[u32; 2]], x: &[i8], out: &mut [i32]) {
    let ones = _mm512_set1_epi8(1);
    let zero = _mm512_setzero_si512();
    for (bit, out) in out.iter_mut().enumerate() {
        let (mut plus, mut minus) = (zero, zero);
        let begin = bit * layout.per_bit;
        let (pairs, rest) = weights[begin..begin + layout.per_bit].as_chunks::<2>();
        for (i, [first, second]) in pairs.iter().enumerate() {
            let i = begin + 2 * i;
            let low = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            let high = load_i8(&x[layout.block(bit, i + 1) * BLOCK..]);
            let x = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let both = |plane: usize| u64::from(first[plane]) | u64::from(second[plane]) << 32;
            plus = _mm512_dpbusd_epi32(plus, ones, _mm512_maskz_mov_epi8(both(0), x));
            minus = _mm512_dpbusd_epi32(minus, ones, _mm512_maskz_mov_epi8(both(1), x));
        }
        for (i, planes) in rest.iter().enumerate() {
            let i = begin + 2 * pairs.len() + i;
            let x = _mm512_castsi256_si512(load_i8(&x[layout.block(bit, i) * BLOCK..]));
            // The upper half is undefined, and masked out.
            let [p, m] = planes.map(|plane| _mm512_maskz_mov_epi8(u64::from(plane), x));
            plus = _mm512_dpbusd_epi32(plus, ones, p);
            minus = _mm512_dpbusd_epi32(minus, ones, m);
        }
        *out = _mm512_reduce_add_epi32(_mm512_sub_epi32(plus, minus));
    }
}

/// Twin of [`super::scalar::dots`].
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512vpopcntdq")]
pub(super) fn dots(codes: &[u64], bits: &[u64], out: &mut [i32]) {
    let n_bits = _mm256_set1_epi32(bits.len() as i32 * 64);
    for (plane, out) in codes.chunks_exact(bits.len() * LANES).zip(out.chunks_exact_mut(LANES)) {
        let mut sum = _mm512_setzero_si512();
        for (codes, bits) in plane.chunks_exact(LANES).zip(bits) {
            // SAFETY: eight words are there, and the load needs no alignment.
            let codes = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
            let differ = _mm512_xor_si512(codes, _mm512_set1_epi64(*bits as i64));
            sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(differ));
        }
        let dots = _mm256_sub_epi32(n_bits, _mm256_slli_epi32::<1>(_mm512_cvtepi64_epi32(sum)));
        // SAFETY: eight values fit, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), dots) };
    }
}

/// Twin of [`super::scalar::at_least`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn at_least(keys: &[u16], least: u16, out: &mut [u64]) {
    let (whole, rest) = keys.as_chunks::<64>();
    let least_all = _mm512_set1_epi16(least as i16);
    for (keys, out) in whole.iter().zip(&mut *out) {
        // SAFETY: 64 keys are there, and the loads need no alignment.
        let [low, high] =
            unsafe { [0, 32].map(|at| _mm512_loadu_si512(keys.as_ptr().add(at).cast())) };
        let low = _mm512_cmpge_epu16_mask(low, least_all);
        *out = u64::from(low) | u64::from(_mm512_cmpge_epu16_mask(high, least_all)) << 32;
    }
    super::scalar::at_least(rest, least, &mut out[whole.len()..]);
}
