//! AVX2: sums of bytes by `maddubs`, bits counted by a table of nibbles.

use std::arch::x86_64::*;

use super::{BLOCK, LANES, Layout};

/// Words after which the counts in bytes could overflow: each word adds up to 8 of 255.
const WORDS: usize = 31;

#[inline]
#[target_feature(enable = "avx2")]
fn load_i8(x: &[i8]) -> __m256i {
    let x: &[i8; BLOCK] = x[..BLOCK].try_into().expect("a whole block");
    // SAFETY: 32 bytes are there, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_i32(x: __m256i) -> i32 {
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b00_00_00_01>(x)))
}

/// Twin of [`super::scalar::project_i8`]. No sum of two products saturates: both factors are
/// within ±127.
#[target_feature(enable = "avx2")]
pub(super) fn project_i8(layout: Layout<'_>, weights: &[i8], x: &[i8], out: &mut [i32]) {
    let ones = _mm256_set1_epi16(1);
    for (bit, out) in out.iter_mut().enumerate() {
        let mut sum = _mm256_setzero_si256();
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let w = load_i8(&weights[i * BLOCK..]);
            let x = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        *out = sum_i32(sum);
    }
}

/// All bits of byte `i` of the result are bit `i` of `x`.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(x: u32) -> __m256i {
    let (low, high) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
    let to_byte = _mm256_setr_epi64x(0, low, high, low + high);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(x as i32), to_byte);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// Twin of [`super::scalar::project_ternary`].
#[target_feature(enable = "avx2")]
pub(super) fn project_ternary(layout: Layout<'_>, weights: &[[u32; 2]], x: &[i8], out: &mut [i32]) {
    let (bytes, words) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
    for (bit, out) in out.iter_mut().enumerate() {
        let mut sum = _mm256_setzero_si256();
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let [plus, minus] = weights[i];
            let w = _mm256_sub_epi8(spread(minus), spread(plus));
            let x = load_i8(&x[layout.block(bit, i) * BLOCK..]);
            let pairs = _mm256_maddubs_epi16(bytes, _mm256_sign_epi8(x, w));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, words));
        }
        *out = sum_i32(sum);
    }
}

/// Bits of each byte.
#[inline]
#[target_feature(enable = "avx2")]
fn count(x: __m256i) -> __m256i {
    let table = _mm256_setr_epi8(
        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3,
        3, 4,
    );
    let low = _mm256_set1_epi8(15);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(x), low);
    let low = _mm256_and_si256(x, low);
    _mm256_add_epi8(_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high))
}

/// Twin of [`super::scalar::dots`].
#[target_feature(enable = "avx2")]
pub(super) fn dots(codes: &[u64], bits: &[u64], out: &mut [i32]) {
    let zero = _mm256_setzero_si256();
    let n_bits = _mm256_set1_epi32(bits.len() as i32 * 64);
    for (plane, out) in codes.chunks_exact(bits.len() * LANES).zip(out.chunks_exact_mut(LANES)) {
        let mut sums = [zero; 2];
        for (codes, bits) in plane.chunks(WORDS * LANES).zip(bits.chunks(WORDS)) {
            let mut counts = [zero; 2];
            for (codes, bits) in codes.chunks_exact(LANES).zip(bits) {
                let bits = _mm256_set1_epi64x(*bits as i64);
                for (counts, codes) in counts.iter_mut().zip(codes.chunks_exact(4)) {
                    // SAFETY: four words are there, and the load needs no alignment.
                    let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
                    *counts = _mm256_add_epi8(*counts, count(_mm256_xor_si256(codes, bits)));
                }
            }
            for (sum, counts) in sums.iter_mut().zip(counts) {
                *sum = _mm256_add_epi64(*sum, _mm256_sad_epu8(counts, zero));
            }
        }
        let even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
        let [low, high] = sums.map(|sum| _mm256_permutevar8x32_epi32(sum, even));
        let counts = _mm256_blend_epi32::<0b1111_0000>(low, high);
        let dots = _mm256_sub_epi32(n_bits, _mm256_slli_epi32::<1>(counts));
        // SAFETY: eight values fit, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), dots) };
    }
}

/// Twin of [`super::scalar::at_least`].
#[target_feature(enable = "avx2")]
pub(super) fn at_least(keys: &[u16], least: u16, out: &mut [u64]) {
    let (whole, rest) = keys.as_chunks::<64>();
    let least_all = _mm256_set1_epi16(least as i16);
    for (keys, out) in whole.iter().zip(&mut *out) {
        *out = 0;
        for (i, keys) in keys.as_chunks::<32>().0.iter().enumerate() {
            // SAFETY: 32 keys are there, and the loads need no alignment.
            let [low, high] =
                unsafe { [0, 16].map(|at| _mm256_loadu_si256(keys.as_ptr().add(at).cast())) };
            let low = _mm256_cmpeq_epi16(_mm256_max_epu16(low, least_all), low);
            let high = _mm256_cmpeq_epi16(_mm256_max_epu16(high, least_all), high);
            // Packing takes halves in turn.
            let mask = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(low, high));
            *out |= u64::from(_mm256_movemask_epi8(mask) as u32) << (32 * i);
        }
    }
    super::scalar::at_least(rest, least, &mut out[whole.len()..]);
}
