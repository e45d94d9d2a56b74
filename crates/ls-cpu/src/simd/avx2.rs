//! AVX2 (with FMA and F16C) kernels: dot products of one row.
//!
//! Quantised rows: unsigned weight bytes times signed activation bytes give pairs of 16-bit sums
//! (`maddubs`), which are widened to 32 bits, scaled as f32 and accumulated.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::x86_64::*;

use super::blocks::{Act256, Min, SuperBlocks, part, q3_scales, scales_k4, u16_at, u32_at};
use crate::Format;
use crate::quant::Q8Ref;

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_i8(bytes: &[i8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn load_ps(x: &[f32; 8]) -> __m256 {
    // SAFETY: 8 readable floats; the load needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn store_ps(x: &mut [f32; 8], v: __m256) {
    // SAFETY: 8 writable floats; the store needs no alignment.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn load_f16(x: &[u16; 8]) -> __m256 {
    // SAFETY: 16 readable bytes; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(x.as_ptr().cast()) })
}

/// Sum of the eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sum8(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// How far ahead of its use a row is fetched. The hardware's own prefetcher leaves a third of the
/// memory's bandwidth unused, because a block keeps the processor busy for long between loads.
pub(super) const AHEAD: usize = 1024;

/// Asks for the cache lines of the block that lies `A` bytes behind this one; for none if that is 0.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch<const BYTES: usize, const A: usize>(block: &[u8; BYTES]) {
    let lines = if A == 0 { 0 } else { BYTES.div_ceil(64) };
    for line in 0..lines {
        let at = block.as_ptr().wrapping_add(A + 64 * line);
        // An address beyond the mapping is ignored.
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

/// The f16 at `at` of each of eight blocks.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn halves<const BYTES: usize>(blocks: &[[u8; BYTES]], at: usize) -> __m256 {
    let h = |i: usize| if i < blocks.len() { u16_at(&blocks[i], at) as i16 } else { 0 };
    _mm256_cvtph_ps(_mm_setr_epi16(h(0), h(1), h(2), h(3), h(4), h(5), h(6), h(7)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(block, at)))))
}

/// Stores factors that are broadcast from memory later. Broadcasting loads are free beside the
/// arithmetic; the compiler would rather keep the vector and shuffle it, on the busiest ports.
/// Blocks of 32 gain by it; the K formats do not, and lose on some processors.
#[inline]
#[target_feature(enable = "avx2")]
fn to_memory(x: &mut [f32; 8], v: __m256) {
    store_ps(x, v);
    std::hint::black_box(x);
}

/// Up to eight floats, zeros after them.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn up_to_8(x: &[f32]) -> __m256 {
    if let Some(x) = x.first_chunk::<8>() {
        return load_ps(x);
    }
    const MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let mask: &[i32; 8] = MASK[8 - x.len()..].first_chunk().expect("eight follow");
    // SAFETY: the mask's bytes are readable, and lanes beyond `x` are masked out, not read.
    unsafe { _mm256_maskload_ps(x.as_ptr(), _mm256_loadu_si256(mask.as_ptr().cast())) }
}

/// Sums of four products, as eight i32: unsigned `q` (at most 7 bits) times signed `a`.
#[inline]
#[target_feature(enable = "avx2")]
fn products(q: __m256i, a: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(q, a), _mm256_set1_epi16(1))
}

/// Bytes of 16 to two halves: low nibbles below, high nibbles above.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles16(b: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(b), b);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// For each set bit i of `bits`, byte i is 16.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn fifth_bits(bits: u32) -> __m256i {
    let spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits as i32),
        _mm256_set_epi64x(
            0x0303030303030303,
            0x0202020202020202,
            0x0101010101010101,
            0x0000000000000000,
        ),
    );
    let select = _mm256_set1_epi64x(0x8040201008040201u64 as i64);
    let hit = _mm256_cmpeq_epi8(_mm256_and_si256(spread, select), select);
    _mm256_and_si256(hit, _mm256_set1_epi8(16))
}

/// The kinds of 32-weight blocks, as constants: header offsets and how bytes unpack.
trait Block32 {
    /// Where the f16 min lies, or the constant that times the scale is the min.
    const MIN: Min;
    const SIGNED: bool = false;
}

macro_rules! block32 {
    ($kind:ident, $dot:ident, $bytes:literal, $min:expr, $signed:literal, |$b:ident| $q:expr) => {
        struct $kind;
        impl Block32 for $kind {
            const MIN: Min = $min;
            const SIGNED: bool = $signed;
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn $dot<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
            let (mut acc, mut acc_b) = (_mm256_setzero_ps(), _mm256_setzero_ps());
            let mut mins = _mm256_setzero_ps();
            let blocks = row.as_chunks::<$bytes>().0;
            let n = blocks.len();
            let (a, d, sum) = (&x.q.as_chunks::<32>().0[..n], &x.d[..n], &x.sum32[..n]);
            let mut factor = [0f32; 8];
            let one = |i: usize, factor: f32, acc: __m256| {
                let $b = &blocks[i];
                let (mut q, mut a) = ($q, load_i8(&a[i]));
                if $kind::SIGNED {
                    a = _mm256_sign_epi8(a, q);
                    q = _mm256_abs_epi8(q);
                }
                let dot = _mm256_cvtepi32_ps(products(q, a));
                _mm256_fmadd_ps(dot, _mm256_set1_ps(factor), acc)
            };
            // Eight blocks at a time: their scales are converted together.
            let full = n - n % 8;
            let mut first = 0;
            while first < full {
                let b = &blocks[first..][..8];
                let sum = load_ps(sum[first..].first_chunk().expect("eight"));
                let scale = halves(b, 0);
                match $kind::MIN {
                    Min::At(at) => mins = _mm256_fmadd_ps(halves(b, at), sum, mins),
                    Min::Times(0.0) => {}
                    Min::Times(_) => mins = _mm256_fmadd_ps(scale, sum, mins),
                }
                let d = load_ps(d[first..].first_chunk().expect("eight"));
                to_memory(&mut factor, _mm256_mul_ps(scale, d));
                for i in 0..4 {
                    prefetch::<_, AHEAD>(&b[2 * i]);
                    acc = one(first + 2 * i, factor[2 * i], acc);
                    acc_b = one(first + 2 * i + 1, factor[2 * i + 1], acc_b);
                }
                first += 8;
            }
            let mut rest = 0.0;
            for i in full..n {
                let scale = half_at(&blocks[i], 0);
                acc = one(i, scale * d[i], acc);
                match $kind::MIN {
                    Min::At(at) => rest += half_at(&blocks[i], at) * sum[i],
                    Min::Times(0.0) => {}
                    Min::Times(_) => rest += scale * sum[i],
                }
            }
            let times = if let Min::Times(times) = $kind::MIN { times } else { 1.0 };
            sum8(_mm256_add_ps(acc, acc_b)) + times * (sum8(mins) + rest)
        }
    };
}

block32!(Q4_0, dot_q4_0, 18, Min::Times(-8.0), false, |b| nibbles16(load16(part(b, 2))));
block32!(Q4_1, dot_q4_1, 20, Min::At(2), false, |b| nibbles16(load16(part(b, 4))));
block32!(Q5_0, dot_q5_0, 22, Min::Times(-16.0), false, |b| _mm256_or_si256(
    nibbles16(load16(part(b, 6))),
    fifth_bits(u32_at(b, 2))
));
block32!(Q5_1, dot_q5_1, 24, Min::At(2), false, |b| _mm256_or_si256(
    nibbles16(load16(part(b, 8))),
    fifth_bits(u32_at(b, 4))
));
block32!(Q8_0, dot_q8_0, 34, Min::Times(0.0), true, |b| load(part(b, 2)));

/// Eight u8 in the low half to floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn u8_to_ps(bytes: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)))
}

/// Q4_K (`HIGH` false) and Q5_K (`HIGH` true).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_k4<const BYTES: usize, const HIGH: bool, const AHEAD: usize>(
    row: &[u8],
    x: Q8Ref<'_>,
) -> f32 {
    let (mut acc, mut acc_b) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    let mut mins = _mm256_setzero_ps();
    let low_bits = _mm256_set1_epi8(15);
    let blocks = SuperBlocks::<BYTES>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        prefetch::<_, AHEAD>(block);
        let both = _mm_cvtph_ps(_mm_cvtsi32_si128(u32_at(block, 0) as i32));
        let d = _mm256_broadcastss_ps(both);
        let dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
        let (scale, min) = scales_k4(block);
        let mut factor = [0f32; 8];
        store_ps(&mut factor, _mm256_mul_ps(_mm256_mul_ps(u8_to_ps(scale), d), load_ps(a.d)));
        mins = _mm256_fmadd_ps(_mm256_mul_ps(u8_to_ps(min), dmin), load_ps(a.sum32), mins);
        let high = if HIGH { load(part(block, 16)) } else { _mm256_setzero_si256() };
        let base = if HIGH { 48 } else { 16 };
        macro_rules! pair {
            ($j:literal, $low:expr, $high:expr) => {
                let b = load(part(block, base + 32 * $j));
                let mut q = _mm256_and_si256(b, low_bits);
                let mut q_b = _mm256_and_si256(_mm256_srli_epi16::<4>(b), low_bits);
                if HIGH {
                    let bit = _mm256_set1_epi8(16);
                    q = _mm256_or_si256(q, _mm256_and_si256($low, bit));
                    q_b = _mm256_or_si256(q_b, _mm256_and_si256($high, bit));
                }
                let dot = _mm256_cvtepi32_ps(products(q, load_i8(&a.q[2 * $j])));
                acc = _mm256_fmadd_ps(dot, _mm256_set1_ps(factor[2 * $j]), acc);
                let dot = _mm256_cvtepi32_ps(products(q_b, load_i8(&a.q[2 * $j + 1])));
                acc_b = _mm256_fmadd_ps(dot, _mm256_set1_ps(factor[2 * $j + 1]), acc_b);
            };
        }
        // Bit 2j (2j + 1) of each byte of `high` moves to bit 4.
        pair!(0, _mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<3>(high));
        pair!(1, _mm256_slli_epi16::<2>(high), _mm256_slli_epi16::<1>(high));
        pair!(2, high, _mm256_srli_epi16::<1>(high));
        pair!(3, _mm256_srli_epi16::<2>(high), _mm256_srli_epi16::<3>(high));
    }
    sum8(_mm256_add_ps(acc, acc_b)) - sum8(mins)
}

/// A block whose half groups have scales of their own, ready for its eight groups.
struct HalfScales {
    /// Even scales in the low lane, odd ones in the high lane, as i16.
    by_lane: __m256i,
}

impl HalfScales {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(scales: __m128i) -> Self {
        let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        Self { by_lane: _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, even_odd)) }
    }

    /// Sums of four products, times the scale of their half of group `g`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn products(&self, g: i16, q: __m256i, a: &[i8; 32]) -> __m256 {
        let pick = _mm256_set1_epi16(0x0100 + 0x0202 * g);
        let scale = _mm256_shuffle_epi8(self.by_lane, pick);
        _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(q, load_i8(a)), scale))
    }
}

/// Σ values[i] · sum16[i], eight partial sums; `values` are 16 signed bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn half_mins(values: __m128i, a: &Act256<'_>) -> __m256 {
    let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(values, values)));
    let sum = _mm256_mul_ps(low, load_ps(&a.sum16[0]));
    _mm256_fmadd_ps(high, load_ps(&a.sum16[1]), sum)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_q6_k<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    let (low_bits, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
    let blocks = SuperBlocks::<210>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        prefetch::<_, AHEAD>(block);
        let d = _mm256_set1_ps(half_at(block, 208));
        let scales = load16(part(block, 192));
        mins = _mm256_fmadd_ps(half_mins(scales, &a), d, mins);
        let scales = HalfScales::new(scales);
        let mut factor = [0f32; 8];
        store_ps(&mut factor, _mm256_mul_ps(load_ps(a.d), d));
        macro_rules! half {
            ($h:literal) => {
                let (l, l_b) = (load(part(block, 64 * $h)), load(part(block, 64 * $h + 32)));
                let h = load(part(block, 128 + 32 * $h));
                let q = [
                    _mm256_or_si256(
                        _mm256_and_si256(l, low_bits),
                        _mm256_and_si256(_mm256_slli_epi16::<4>(h), two),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(l_b, low_bits),
                        _mm256_and_si256(_mm256_slli_epi16::<2>(h), two),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(l), low_bits),
                        _mm256_and_si256(h, two),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(l_b), low_bits),
                        _mm256_and_si256(_mm256_srli_epi16::<2>(h), two),
                    ),
                ];
                for i in 0..4 {
                    let g = 4 * $h + i;
                    let dot = scales.products(g as i16, q[i], &a.q[g]);
                    acc = _mm256_fmadd_ps(dot, _mm256_set1_ps(factor[g]), acc);
                }
            };
        }
        half!(0);
        half!(1);
    }
    sum8(acc) - 32.0 * sum8(mins)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_q2_k<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    let two = _mm256_set1_epi8(3);
    let blocks = SuperBlocks::<84>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        prefetch::<_, AHEAD>(block);
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        let scales = load16(part(block, 0));
        let low = _mm_set1_epi8(15);
        let min = _mm_and_si128(_mm_srli_epi16::<4>(scales), low);
        mins = _mm256_fmadd_ps(half_mins(min, &a), _mm256_set1_ps(dmin), mins);
        let scales = HalfScales::new(_mm_and_si128(scales, low));
        let mut factor = [0f32; 8];
        store_ps(&mut factor, _mm256_mul_ps(load_ps(a.d), _mm256_set1_ps(d)));
        for half in 0..2 {
            let b = load(part(block, 16 + 32 * half));
            let shifted = [
                b,
                _mm256_srli_epi16::<2>(b),
                _mm256_srli_epi16::<4>(b),
                _mm256_srli_epi16::<6>(b),
            ];
            for i in 0..4 {
                let (g, b) = (4 * half + i, shifted[i]);
                let dot = scales.products(g as i16, _mm256_and_si256(b, two), &a.q[g]);
                acc = _mm256_fmadd_ps(dot, _mm256_set1_ps(factor[g]), acc);
            }
        }
    }
    sum8(acc) - sum8(mins)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_q3_k<const AHEAD: usize>(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    let two = _mm256_set1_epi8(3);
    let blocks = SuperBlocks::<110>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        prefetch::<_, AHEAD>(block);
        let d = _mm256_set1_ps(half_at(block, 108));
        let scales = load16(&q3_scales(part(block, 96)));
        mins = _mm256_fmadd_ps(half_mins(scales, &a), d, mins);
        let scales = HalfScales::new(scales);
        let mut factor = [0f32; 8];
        store_ps(&mut factor, _mm256_mul_ps(load_ps(a.d), d));
        let mut high = load(part(block, 0));
        for half in 0..2 {
            let mut b = load(part(block, 32 + 32 * half));
            for i in 0..4 {
                let g = 4 * half + i;
                // The high bit of this group is bit 0 of `high`'s bytes by now.
                let bit = _mm256_and_si256(high, _mm256_set1_epi8(1));
                let q = _mm256_or_si256(_mm256_and_si256(b, two), _mm256_slli_epi16::<2>(bit));
                let dot = scales.products(g as i16, q, &a.q[g]);
                acc = _mm256_fmadd_ps(dot, _mm256_set1_ps(factor[g]), acc);
                b = _mm256_srli_epi16::<2>(b);
                high = _mm256_srli_epi16::<1>(high);
            }
        }
    }
    sum8(acc) - 4.0 * sum8(mins)
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
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_rows_q(
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
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_gathered_q(
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

/// Eight weights of a float row as f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn floats(format: Format, eight: &[u8]) -> __m256 {
    match format {
        Format::F32 => _mm256_castsi256_ps(load(part(eight, 0))),
        Format::F16 => _mm256_cvtph_ps(load16(part(eight, 0))),
        _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load16(part(
            eight, 0,
        ))))),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_f<const BYTES: usize>(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [_mm256_setzero_ps(); 4];
    let (x, x_rest) = x.as_chunks::<8>();
    let (weights, rest) = row.split_at(8 * BYTES * x.len());
    for i in 0..x.len() {
        let w = floats(format, &weights[8 * BYTES * i..][..8 * BYTES]);
        acc[i % 4] = _mm256_fmadd_ps(w, load_ps(&x[i]), acc[i % 4]);
    }
    let sum = _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
    sum8(sum) + super::scalar::dot_f(format, rest, x_rest)
}

/// `out[i] = rows[i] · x` for consecutive float rows of `row_bytes` bytes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot_rows_f(
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    out: &mut [f32],
) {
    macro_rules! each {
        ($dot:expr) => {
            for i in 0..out.len() {
                out[i] = $dot(&rows[i * row_bytes..][..row_bytes], x);
            }
        };
    }
    match format {
        Format::F32 => each!(|row, x| dot_f::<4>(Format::F32, row, x)),
        Format::F16 => each!(|row, x| dot_f::<2>(Format::F16, row, x)),
        Format::BF16 => each!(|row, x| dot_f::<2>(Format::BF16, row, x)),
        _ => unreachable!("a quantised format"),
    }
}
