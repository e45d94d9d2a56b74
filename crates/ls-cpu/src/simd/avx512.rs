//! AVX-512 kernels with VNNI: dot products of one row.
//!
//! `vpdpbusd` adds four products of an unsigned weight and a signed activation to each 32-bit
//! lane. One vector holds two groups of 32 weights, or four half groups; their sums are scaled by
//! a vector of factors that repeats each group's factor over its lanes.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::x86_64::*;

use super::avx2::{
    AHEAD, half_at, halves, load, load_ps, load16, prefetch, sum8, u8_to_ps, up_to_8,
};
use super::blocks::{Min, SuperBlocks, part, q3_scales, scales_k4, u32_at};
use crate::Format;
use crate::quant::Q8Ref;

/// 64 activations: two groups.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_pair(a: &[[i8; 32]; 2]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(a.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_ps16(x: &[f32; 16]) -> __m512 {
    // SAFETY: 16 readable floats; the load needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_ps16(x: &mut [f32; 16], v: __m512) {
    // SAFETY: 16 writable floats; the store needs no alignment.
    unsafe { _mm512_storeu_ps(x.as_mut_ptr(), v) }
}

/// Sum of the sixteen lanes.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn sum16(v: __m512) -> f32 {
    let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
    sum8(_mm256_add_ps(_mm512_castps512_ps256(v), high))
}

/// 32 bytes in the low half, 32 others in the high half.
#[inline]
#[target_feature(enable = "avx512f")]
fn both(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Lane i is `FIRST + i / EACH`.
#[inline]
#[target_feature(enable = "avx512f")]
fn repeated<const FIRST: i32, const EACH: usize>() -> __m512i {
    // Made by the compiler: a closure in here would have its features, and what calls it would not, so that it
    // would be called for each lane of each row.
    let lanes = const { lanes(FIRST, EACH) };
    // SAFETY: 16 readable words; the load needs no alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

const fn lanes(first: i32, each: usize) -> [i32; 16] {
    let (mut lanes, mut i) = ([first; 16], 0);
    while i < lanes.len() {
        lanes[i] += (i / each) as i32;
        i += 1;
    }
    lanes
}

/// `acc + products of q and a, scaled`: lane i takes `factor[pick[i]]`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add(acc: __m512, q: __m512i, a: &[[i8; 32]; 2], factor: __m512, pick: __m512i) -> __m512 {
    let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), q, load_pair(a));
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_permutexvar_ps(pick, factor), acc)
}

/// Two blocks' 16 bytes: for each, low nibbles, then high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(b: &[u8; 16], c: &[u8; 16]) -> __m512i {
    let b = _mm512_broadcast_i32x4(load16(b));
    let bytes = _mm512_mask_broadcast_i32x4(b, 0xff00, load16(c));
    let shifted = _mm512_mask_srli_epi16::<4>(bytes, 0xff00_ff00, bytes);
    _mm512_and_si512(shifted, _mm512_set1_epi8(15))
}

/// `q` with 16 added where a bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with_fifth_bits(q: __m512i, low: u32, high: u32) -> __m512i {
    let bits = u64::from(low) | u64::from(high) << 32;
    _mm512_mask_add_epi8(q, bits, q, _mm512_set1_epi8(16))
}

/// A kernel for a format of 32-weight blocks; `$q` unpacks two blocks.
macro_rules! block32 {
    ($dot:ident, $bytes:literal, $min:expr, |$b:ident, $c:ident| $q:expr) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $dot<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
            const MIN: Min = $min;
            let (mut acc, mut acc_b) = (_mm512_setzero_ps(), _mm512_setzero_ps());
            let mut mins = _mm256_setzero_ps();
            let pick =
                [repeated::<0, 8>(), repeated::<2, 8>(), repeated::<4, 8>(), repeated::<6, 8>()];
            let two = |$b: &[u8; $bytes], $c: &[u8; $bytes]| $q;
            let parts =
                row.as_chunks::<$bytes>().0.chunks(8).zip(x.q.as_chunks::<32>().0.chunks(8));
            for ((blocks, a), (d, sum)) in parts.zip(x.d.chunks(8).zip(x.sum32.chunks(8))) {
                let scale = halves(blocks, 0);
                match MIN {
                    Min::At(at) => {
                        mins = _mm256_fmadd_ps(halves(blocks, at), up_to_8(sum), mins);
                    }
                    Min::Times(_) => mins = _mm256_fmadd_ps(scale, up_to_8(sum), mins),
                }
                let factor = _mm512_castps256_ps512(_mm256_mul_ps(scale, up_to_8(d)));
                if let (Some(b), Some(a)) = (blocks.first_chunk::<8>(), a.first_chunk::<8>()) {
                    let bytes = b.as_flattened().first_chunk::<{ 8 * $bytes }>();
                    prefetch::<_, AHEAD>(bytes.expect("eight blocks"));
                    let a = a.as_chunks::<2>().0;
                    acc = add(acc, two(&b[0], &b[1]), &a[0], factor, pick[0]);
                    acc_b = add(acc_b, two(&b[2], &b[3]), &a[1], factor, pick[1]);
                    acc = add(acc, two(&b[4], &b[5]), &a[2], factor, pick[2]);
                    acc_b = add(acc_b, two(&b[6], &b[7]), &a[3], factor, pick[3]);
                } else {
                    let ((pairs, last), (a, last_a)) = (blocks.as_chunks(), a.as_chunks());
                    for ((b, a), pick) in pairs.iter().zip(a).zip(pick) {
                        let [b, c] = b;
                        acc = add(acc, two(b, c), a, factor, pick);
                    }
                    if let ([b], [a]) = (last, last_a) {
                        // The second half meets activations of zero.
                        acc_b = add(acc_b, two(b, b), &[*a, [0; 32]], factor, pick[pairs.len()]);
                    }
                }
            }
            let times = if let Min::Times(times) = MIN { times } else { 1.0 };
            sum16(_mm512_add_ps(acc, acc_b)) + times * sum8(mins)
        }
    };
}

block32!(dot_q4_0, 18, Min::Times(-8.0), |b, c| nibbles(part(b, 2), part(c, 2)));
block32!(dot_q4_1, 20, Min::At(2), |b, c| nibbles(part(b, 4), part(c, 4)));
block32!(dot_q5_0, 22, Min::Times(-16.0), |b, c| with_fifth_bits(
    nibbles(part(b, 6), part(c, 6)),
    u32_at(b, 2),
    u32_at(c, 2)
));
block32!(dot_q5_1, 24, Min::At(2), |b, c| with_fifth_bits(
    nibbles(part(b, 8), part(c, 8)),
    u32_at(b, 4),
    u32_at(c, 4)
));
// Signed bytes become unsigned ones by adding 128.
block32!(dot_q8_0, 34, Min::Times(-128.0), |b, c| _mm512_xor_si512(
    both(load(part(b, 2)), load(part(c, 2))),
    _mm512_set1_epi8(-128)
));

/// Bit `bit` in the low 32 bytes, the next one in the high 32 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
fn bit_pair(bit: usize) -> __m512i {
    both(_mm256_set1_epi8((1u8 << bit) as i8), _mm256_set1_epi8((2u8 << bit) as i8))
}

/// `q` with `value` added to the bytes of two groups whose bits `bit` and `bit + 1` of `high` are
/// set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn with_high_bits(q: __m512i, high: __m512i, bit: usize, value: i8) -> __m512i {
    let set = _mm512_test_epi8_mask(high, bit_pair(bit));
    _mm512_mask_add_epi8(q, set, q, _mm512_set1_epi8(value))
}

/// Q4_K (`HIGH` false) and Q5_K (`HIGH` true).
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn dot_k4<const BYTES: usize, const HIGH: bool, const AHEAD: usize>(
    row: &[u8],
    x: Q8Ref<'_>,
) -> f32 {
    let mut acc = [_mm512_setzero_ps(); 2];
    let mut mins = _mm256_setzero_ps();
    let pick = [repeated::<0, 8>(), repeated::<2, 8>(), repeated::<4, 8>(), repeated::<6, 8>()];
    let blocks = SuperBlocks::<BYTES>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        prefetch::<_, AHEAD>(block);
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(u32_at(block, 0) as i32));
        let d = _mm256_broadcastss_ps(both);
        let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
        let (scale, min) = scales_k4(block);
        let factor = _mm256_mul_ps(_mm256_mul_ps(u8_to_ps(scale), d), load_ps(a.d));
        let factor = _mm512_castps256_ps512(factor);
        mins = _mm256_fmadd_ps(_mm256_mul_ps(u8_to_ps(min), dmin), load_ps(a.sum32), mins);
        let high = _mm512_broadcast_i64x4(load(part(block, 16)));
        let base = if HIGH { 48 } else { 16 };
        for (j, a) in a.q.as_chunks::<2>().0.iter().enumerate() {
            let b = _mm512_broadcast_i64x4(load(part(block, base + 32 * j)));
            let b = _mm512_mask_srli_epi16::<4>(b, 0xffff_0000, b);
            let mut q = _mm512_and_si512(b, _mm512_set1_epi8(15));
            if HIGH {
                q = with_high_bits(q, high, 2 * j, 16);
            }
            acc[j % 2] = add(acc[j % 2], q, a, factor, pick[j]);
        }
    }
    sum16(_mm512_add_ps(acc[0], acc[1])) - sum8(mins)
}

/// What the three formats with scales for half groups do: `$scales` gives 16 scales and 16 mins
/// as bytes, the factors of both, and `$q` the weights of groups 2 · `$pair` and 2 · `$pair` + 1.
macro_rules! half_scales {
    (
        $dot:ident, $bytes:literal, $times:literal,
        |$block:ident| $scales:expr, |$at:ident, $pair:ident| $q:expr
    ) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        fn $dot<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
            let mut acc = [_mm512_setzero_ps(); 2];
            let mut mins = _mm512_setzero_ps();
            let pick =
                [repeated::<0, 4>(), repeated::<4, 4>(), repeated::<8, 4>(), repeated::<12, 4>()];
            let twice = repeated::<0, 2>();
            let blocks = SuperBlocks::<$bytes>::new(row, x);
            for i in 0..blocks.blocks.len() {
                let ($block, a) = blocks.get(i);
                prefetch::<_, AHEAD>($block);
                let (scale, d, min, dmin) = $scales;
                let scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scale));
                let min = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(min));
                let sums = a.sum16.as_flattened().first_chunk().expect("sixteen half groups");
                mins = _mm512_fmadd_ps(
                    _mm512_mul_ps(min, _mm512_set1_ps(dmin)),
                    load_ps16(sums),
                    mins,
                );
                let a_d = _mm512_castps256_ps512(load_ps(a.d));
                let factor = _mm512_mul_ps(
                    _mm512_mul_ps(scale, _mm512_set1_ps(d)),
                    _mm512_permutexvar_ps(twice, a_d),
                );
                let weights = |$at: &[u8; $bytes], $pair: usize| $q;
                for (pair, a) in a.q.as_chunks::<2>().0.iter().enumerate() {
                    let q = weights($block, pair);
                    acc[pair % 2] = add(acc[pair % 2], q, a, factor, pick[pair]);
                }
            }
            sum16(_mm512_add_ps(acc[0], acc[1])) + $times * sum16(mins)
        }
    };
}

half_scales!(
    dot_q6_k,
    210,
    -32.0,
    |block| {
        let (scales, d) = (load16(part(block, 192)), half_at(block, 208));
        (scales, d, scales, d)
    },
    |block, pair| {
        let half = pair / 2;
        let low: &[u8; 64] = part(block, 64 * half);
        let low = both(load(part(low, 0)), load(part(low, 32)));
        let high = _mm512_broadcast_i64x4(load(part(block, 128 + 32 * half)));
        let (low, high) = if pair.is_multiple_of(2) {
            // Bits 0, 1 for the first group, 2, 3 for the second.
            (low, both_shifted_left::<4, 2>(high))
        } else {
            (_mm512_srli_epi16::<4>(low), both_shifted_right::<0, 2>(high))
        };
        _mm512_or_si512(
            _mm512_and_si512(low, _mm512_set1_epi8(15)),
            _mm512_and_si512(high, _mm512_set1_epi8(0x30)),
        )
    }
);

half_scales!(
    dot_q2_k,
    84,
    1.0,
    |block| {
        let (bytes, low) = (load16(part(block, 0)), _mm_set1_epi8(15));
        let min = _mm_and_si128(_mm_srli_epi16::<4>(bytes), low);
        (_mm_and_si128(bytes, low), half_at(block, 80), min, -half_at(block, 82))
    },
    |block, pair| {
        let bytes = _mm512_broadcast_i64x4(load(part(block, 16 + 32 * (pair / 2))));
        _mm512_and_si512(two_bits(bytes, pair), _mm512_set1_epi8(3))
    }
);

half_scales!(
    dot_q3_k,
    110,
    -4.0,
    |block| {
        let (scales, d) = (load16(&q3_scales(part(block, 96))), half_at(block, 108));
        (scales, d, scales, d)
    },
    |block, pair| {
        let bytes = _mm512_broadcast_i64x4(load(part(block, 32 + 32 * (pair / 2))));
        let q = _mm512_and_si512(two_bits(bytes, pair), _mm512_set1_epi8(3));
        let high = _mm512_broadcast_i64x4(load(part(block, 0)));
        with_high_bits(q, high, 2 * pair, 4)
    }
);

/// Moves the two bits of group 2 · `pair` (low half) and of the next one (high half) to bit 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn two_bits(bytes: __m512i, pair: usize) -> __m512i {
    if pair.is_multiple_of(2) {
        both_shifted_right::<0, 2>(bytes)
    } else {
        both_shifted_right::<4, 6>(bytes)
    }
}

/// Words of the low half shifted by `LOW`, of the high half by `HIGH`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn both_shifted_right<const LOW: i16, const HIGH: i16>(v: __m512i) -> __m512i {
    _mm512_srlv_epi16(v, both(_mm256_set1_epi16(LOW), _mm256_set1_epi16(HIGH)))
}

/// Words of the low half shifted by `LOW`, of the high half by `HIGH`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn both_shifted_left<const LOW: i16, const HIGH: i16>(v: __m512i) -> __m512i {
    _mm512_sllv_epi16(v, both(_mm256_set1_epi16(LOW), _mm256_set1_epi16(HIGH)))
}

/// Calls `$each!` with the kernel of a format.
macro_rules! of_format {
    ($format:expr, $ahead:expr, $each:ident) => {
        match $format {
            Format::Q4_0 => $each!(dot_q4_0::<{ $ahead }>),
            Format::Q4_1 => $each!(dot_q4_1::<{ $ahead }>),
            Format::Q5_0 => $each!(dot_q5_0::<{ $ahead }>),
            Format::Q5_1 => $each!(dot_q5_1::<{ $ahead }>),
            Format::Q8_0 => $each!(dot_q8_0::<{ $ahead }>),
            Format::Q2_K => $each!(dot_q2_k::<{ $ahead }>),
            Format::Q3_K => $each!(dot_q3_k::<{ $ahead }>),
            Format::Q4_K => $each!(dot_k4::<144, false, { $ahead }>),
            Format::Q5_K => $each!(dot_k4::<176, true, { $ahead }>),
            Format::Q6_K => $each!(dot_q6_k::<{ $ahead }>),
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("a float format"),
        }
    };
}

/// `out[i] = rows[i] · x` for consecutive quantised rows of `row_bytes` bytes.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn dot_rows_q(
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: Q8Ref<'_>,
    out: &mut [f32],
) {
    macro_rules! each {
        ($dot:expr) => {
            for i in 0..out.len() {
                out[i] = $dot(&rows[i * row_bytes..][..row_bytes], x);
            }
        };
    }
    of_format!(format, AHEAD, each)
}

/// `out[i] = rows[i] · x` for quantised rows that lie apart; both of `ahead[i]` are asked for meanwhile.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn dot_gathered_q(
    format: Format,
    rows: &[&[u8]],
    ahead: &[[&[u8]; 2]],
    x: Q8Ref<'_>,
    out: &mut [f32],
) {
    macro_rules! each {
        ($dot:expr) => {
            for i in 0..out.len() {
                ahead[i].iter().for_each(|bytes| super::prefetch_far(bytes));
                out[i] = $dot(rows[i], x);
            }
        };
    }
    of_format!(format, 0, each)
}
