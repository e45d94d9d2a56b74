//! AVX2 kernels that add weighted columns: the down matrix of an MLP, stored by neuron.
//!
//! Integers of two neurons are laid side by side, so that an instruction multiplies both with
//! their coefficients and adds the products; 32 outputs at a time stay in registers over the
//! columns of a block.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::x86_64::*;

use super::avx2::{half_at, load, load_ps, load16, store_ps};
use super::avx2_float_columns::add_floats;
use super::blocks::{part, u32_at};
use super::coefficients::{BLOCK, Coefficients, GROUPS};
use crate::column::{ColumnFormat, SCALE};

/// The integers of a group as they are stored, none negative.
#[inline]
#[target_feature(enable = "avx2")]
fn integers<const BYTES: usize>(group: &[u8; BYTES]) -> __m256i {
    if BYTES == 32 {
        return load(part(group, 0));
    }
    let both = _mm256_broadcastsi128_si256(load16(part(group, 0)));
    let shifted = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
    let low = _mm256_and_si256(shifted, _mm256_set1_epi8(15));
    match BYTES {
        24 => {
            let high = _mm256_set1_epi64x(i64::from_le_bytes(*part(group, 16)));
            // Bits that come from the next byte are masked out.
            let shifted = _mm256_srlv_epi64(high, _mm256_setr_epi64x(0, 2, 4, 6));
            let two = _mm256_and_si256(shifted, _mm256_set1_epi8(3));
            _mm256_or_si256(low, _mm256_slli_epi16::<4>(two))
        }
        20 => _mm256_or_si256(low, super::avx2::fifth_bits(u32_at(group, 16))),
        _ => low,
    }
}

/// The stored integers of a pair of groups, side by side: outputs 0 to 15 and 16 to 31, or for
/// whole bytes outputs 0 to 7 and 16 to 23, and 8 to 15 and 24 to 31.
#[inline]
#[target_feature(enable = "avx2")]
fn pair<const BYTES: usize>(a: &[u8; BYTES], b: &[u8; BYTES]) -> [__m256i; 2] {
    if BYTES == 32 {
        let (a, b) = (load(part(a, 0)), load(part(b, 0)));
        return [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
    }
    let (low_a, low_b) = (load16(part(a, 0)), load16(part(b, 0)));
    let (x, y) = (_mm_unpacklo_epi8(low_a, low_b), _mm_unpackhi_epi8(low_a, low_b));
    let both = _mm256_set_m128i(y, x);
    let mask = _mm256_set1_epi8(15);
    let low = [_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)];
    let high = match BYTES {
        24 => {
            let (a, b) = (load8(part(a, 16)), load8(part(b, 16)));
            let bits = _mm256_broadcastsi128_si256(_mm_unpacklo_epi8(a, b));
            // Each lane's two bits to where they belong; bits from another byte are masked out.
            let mask = _mm256_set1_epi8(0x30);
            [
                _mm256_and_si256(_mm256_sllv_epi64(bits, _mm256_setr_epi64x(4, 4, 2, 2)), mask),
                _mm256_and_si256(_mm256_srlv_epi64(bits, _mm256_setr_epi64x(0, 0, 2, 2)), mask),
            ]
        }
        20 => {
            let bits = u64::from(u32_at(a, 16)) | u64::from(u32_at(b, 16)) << 32;
            let bits = _mm256_set1_epi64x(bits as i64);
            let select = _mm256_set_epi64x(
                0x8080404020201010u64 as i64,
                0x0808040402020101,
                0x8080404020201010u64 as i64,
                0x0808040402020101,
            );
            // Bytes i of both words, eight times.
            let spread = |i: u16| {
                let [x, y] = [i | (i + 4) << 8, (i + 1) | (i + 5) << 8].map(|x| x as i16);
                _mm256_setr_epi16(x, x, x, x, x, x, x, x, y, y, y, y, y, y, y, y)
            };
            [0, 2].map(|i| {
                let hit = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread(i)), select);
                _mm256_and_si256(_mm256_cmpeq_epi8(hit, select), _mm256_set1_epi8(16))
            })
        }
        _ => return low,
    };
    [_mm256_or_si256(low[0], high[0]), _mm256_or_si256(low[1], high[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load8(bytes: &[u8; 8]) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(*bytes))
}

/// Weights of `P` pairs of neurons for up to eight groups from `first` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weights<const P: usize>(
    columns: &[&[u8]; BLOCK],
    h: &[f32; BLOCK],
    first: usize,
    n_groups: usize,
) -> [[f32; GROUPS]; BLOCK] {
    let mut out = [[0.0; GROUPS]; BLOCK];
    for j in 0..2 * P {
        let at = SCALE * first;
        let d: [u8; 16] = if n_groups >= GROUPS {
            *part(columns[j], at)
        } else {
            let mut d = [0; 16];
            d[..SCALE * n_groups].copy_from_slice(&columns[j][at..at + SCALE * n_groups]);
            d
        };
        let d = _mm256_cvtph_ps(load16(&d));
        store_ps(&mut out[j], _mm256_mul_ps(d, _mm256_set1_ps(h[j])));
    }
    out
}

/// Sums of a group over pairs of neurons, with coefficients of 16 bits: 32 bits hold a block.
#[inline]
#[target_feature(enable = "avx2")]
fn wide_sums<const BYTES: usize, const P: usize>(
    groups: &[&[[u8; BYTES]]; BLOCK],
    g: usize,
    start: i32,
    k: [i32; P],
) -> [__m256i; 4] {
    let zero = _mm256_setzero_si256();
    let mut acc = [_mm256_set1_epi32(start); 4];
    for p in 0..P {
        let k = _mm256_set1_epi32(k[p]);
        let [x, y] = pair(&groups[2 * p][g], &groups[2 * p + 1][g]);
        let wide = [
            _mm256_unpacklo_epi8(x, zero),
            _mm256_unpackhi_epi8(x, zero),
            _mm256_unpacklo_epi8(y, zero),
            _mm256_unpackhi_epi8(y, zero),
        ];
        for v in 0..4 {
            acc[v] = _mm256_add_epi32(acc[v], _mm256_madd_epi16(wide[v], k));
        }
    }
    [
        _mm256_permute2x128_si256::<0x20>(acc[0], acc[1]),
        _mm256_permute2x128_si256::<0x20>(acc[2], acc[3]),
        _mm256_permute2x128_si256::<0x31>(acc[0], acc[1]),
        _mm256_permute2x128_si256::<0x31>(acc[2], acc[3]),
    ]
}

/// Sums of a group over pairs of neurons, with coefficients of 8 bits.
///
/// Integers of six bits, `q` from -32 to 31, sum to 8 · 127 · 32 = 32512 at most: 16 bits hold a
/// block. On the way sums of the stored `q + 32` may wrap, and wrap back; those of one pair, 2 ·
/// 127 · 63 at most, are not cut off.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow_sums<const BYTES: usize, const P: usize>(
    groups: &[&[[u8; BYTES]]; BLOCK],
    g: usize,
    start: i32,
    k: [i32; P],
) -> [__m256i; 4] {
    let mut acc = [_mm256_set1_epi16(start as i16); 2];
    for p in 0..P {
        let k = _mm256_set1_epi32(k[p]);
        let q = pair(&groups[2 * p][g], &groups[2 * p + 1][g]);
        for v in 0..2 {
            acc[v] = _mm256_add_epi16(acc[v], _mm256_maddubs_epi16(q[v], k));
        }
    }
    [
        _mm256_cvtepi16_epi32(_mm256_castsi256_si128(acc[0])),
        _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(acc[0])),
        _mm256_cvtepi16_epi32(_mm256_castsi256_si128(acc[1])),
        _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(acc[1])),
    ]
}

/// Coefficients of pairs as the products take them, by group: two of 16 bits, or of 8 bits twice.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs<const BYTES: usize, const P: usize>(co: &Coefficients) -> [[i32; GROUPS]; P] {
    let mut out = [[0; GROUPS]; P];
    for p in 0..P {
        for g in 0..GROUPS {
            let (a, b) = (co.k[2 * p][g], co.k[2 * p + 1][g]);
            out[p][g] = if BYTES == 32 {
                a & 0xffff | b << 16
            } else {
                let both = a & 0xff | (b & 0xff) << 8;
                both | both << 16
            };
        }
    }
    out
}

/// Adds the columns of `P` pairs of neurons. Meanwhile `ahead` is asked for, a few at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_pairs<const BYTES: usize, const P: usize>(
    format: ColumnFormat,
    columns: &[&[u8]; BLOCK],
    h: &[f32; BLOCK],
    ahead: &[&[u8]],
    out: &mut [[[f32; 8]; 4]],
) {
    let n_groups = out.len();
    let mut co = Coefficients::default();
    let mut groups: [&[[u8; BYTES]]; BLOCK] = [&[]; BLOCK];
    for j in 0..2 * P {
        groups[j] = &columns[j][SCALE * n_groups..].as_chunks().0[..n_groups];
    }
    let (mut first, mut asked) = (0, 0);
    while first < n_groups {
        let n = (n_groups - first).min(GROUPS);
        let until = ahead.len() * (first + n) / n_groups;
        while asked < until {
            super::prefetch_far(ahead[asked]);
            asked += 1;
        }
        co.round(format, &weights::<P>(columns, h, first, n), 2 * P);
        let pairs = pairs::<BYTES, P>(&co);
        for i in 0..n {
            let (g, start) = (first + i, co.start[i]);
            let mut k = [0; P];
            for p in 0..P {
                k[p] = pairs[p][i];
            }
            let sums = if BYTES == 32 {
                wide_sums(&groups, g, start, k)
            } else {
                narrow_sums(&groups, g, start, k)
            };
            let (scale, out) = (_mm256_set1_ps(co.scale[i]), &mut out[g]);
            for v in 0..4 {
                let sum = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sums[v]), load_ps(&out[v]));
                store_ps(&mut out[v], sum);
            }
        }
        first += n;
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_quantized<const BYTES: usize>(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    ahead: &[&[u8]],
    out: &mut [f32],
) {
    let out = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    let mut first = 0;
    while first < weights.len() {
        let n = (weights.len() - first).min(BLOCK);
        // An odd neuron is paired with itself, weighted zero.
        let (mut h, mut block): ([f32; BLOCK], [&[u8]; BLOCK]) = ([0.0; BLOCK], [&[]; BLOCK]);
        for j in 0..n.next_multiple_of(2) {
            let from = first + j.min(n - 1);
            h[j] = if j < n { weights[from] } else { 0.0 };
            block[j] = columns[from];
        }
        match n.div_ceil(2) {
            1 => add_pairs::<BYTES, 1>(format, &block, &h, ahead, out),
            2 => add_pairs::<BYTES, 2>(format, &block, &h, ahead, out),
            3 => add_pairs::<BYTES, 3>(format, &block, &h, ahead, out),
            _ => add_pairs::<BYTES, 4>(format, &block, &h, ahead, out),
        }
        first += n;
    }
}

/// `out = d · q` of groups `first..` of a quantised column.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn read_groups<const BYTES: usize>(
    format: ColumnFormat,
    column: &[u8],
    first: usize,
    out: &mut [[[f32; 8]; 4]],
) {
    let n_groups = column.len() / (SCALE + BYTES);
    let groups = column[SCALE * n_groups..].as_chunks::<BYTES>().0;
    let center = _mm256_set1_epi8(format.center() as u8 as i8);
    for i in 0..out.len() {
        let d = _mm256_set1_ps(half_at(column, SCALE * (first + i)));
        let q = _mm256_sub_epi8(integers(&groups[first + i]), center);
        let (low, high) = (_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
        let parts = [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)];
        for v in 0..4 {
            let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(parts[v]));
            store_ps(&mut out[i][v], _mm256_mul_ps(d, q));
        }
    }
}

/// `out += Σ_j weights[j] · columns[j]`; `out` is whole groups of 32. Meanwhile `ahead` is asked for.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_columns(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    ahead: &[&[u8]],
    out: &mut [f32],
) {
    if !format.is_quantized() {
        ahead.iter().for_each(|bytes| super::prefetch_far(bytes));
    }
    match format {
        ColumnFormat::Q8 => add_quantized::<32>(format, columns, weights, ahead, out),
        ColumnFormat::Q6 => add_quantized::<24>(format, columns, weights, ahead, out),
        ColumnFormat::Q5 => add_quantized::<20>(format, columns, weights, ahead, out),
        ColumnFormat::Q4 => add_quantized::<16>(format, columns, weights, ahead, out),
        ColumnFormat::F32 => add_floats::<4>(format, columns, weights, out),
        ColumnFormat::F16 | ColumnFormat::BF16 => add_floats::<2>(format, columns, weights, out),
    }
}

/// Values of a quantised column, from group `first` on; `out` is whole groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn read_column(format: ColumnFormat, column: &[u8], first: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    match format {
        ColumnFormat::Q8 => read_groups::<32>(format, column, first, out),
        ColumnFormat::Q6 => read_groups::<24>(format, column, first, out),
        ColumnFormat::Q5 => read_groups::<20>(format, column, first, out),
        _ => read_groups::<16>(format, column, first, out),
    }
}
