//! AVX2 kernel that adds weighted columns: the down matrix of an MLP, stored by neuron.
//!
//! 32 outputs at a time stay in registers over all columns of a chunk, so that each quantised
//! byte is touched once and each output is loaded and stored once.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::x86_64::*;

use super::avx2::{half_at, load, load_ps, load16, store_ps};
use super::blocks::{part, u32_at};
use crate::column::ColumnFormat;

/// The signed integers of a group.
#[inline]
#[target_feature(enable = "avx2")]
fn integers<const BYTES: usize>(group: &[u8; BYTES]) -> __m256i {
    if BYTES == 34 {
        return load(part(group, 2));
    }
    let low = load16(part(group, 2));
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    let low = _mm256_and_si256(both, _mm256_set1_epi8(15));
    match BYTES {
        26 => {
            let high = i64::from_le_bytes(*part(group, 18));
            // Bits that come from the next byte are masked out.
            let shifted =
                _mm256_srlv_epi64(_mm256_set1_epi64x(high), _mm256_setr_epi64x(0, 2, 4, 6));
            let two = _mm256_and_si256(shifted, _mm256_set1_epi8(3));
            let q = _mm256_or_si256(low, _mm256_slli_epi16::<4>(two));
            _mm256_sub_epi8(q, _mm256_set1_epi8(32))
        }
        22 => {
            let q = _mm256_or_si256(low, super::avx2::fifth_bits(u32_at(group, 18)));
            _mm256_sub_epi8(q, _mm256_set1_epi8(16))
        }
        _ => _mm256_sub_epi8(low, _mm256_set1_epi8(8)),
    }
}

/// Eight of the integers as floats.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(q: __m128i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_quantized<const BYTES: usize>(columns: &[u8], weights: &[f32], out: &mut [f32]) {
    let out = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    let column_bytes = out.len() * BYTES;
    for g in 0..out.len() {
        let out = &mut out[g];
        let mut acc = [load_ps(&out[0]), load_ps(&out[1]), load_ps(&out[2]), load_ps(&out[3])];
        for j in 0..weights.len() {
            let group: &[u8; BYTES] = part(columns, j * column_bytes + g * BYTES);
            let scale = _mm256_set1_ps(weights[j] * half_at(group, 0));
            let q = integers(group);
            let (low, high) = (_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q));
            let parts = [low, _mm_srli_si128::<8>(low), high, _mm_srli_si128::<8>(high)];
            for i in 0..4 {
                acc[i] = _mm256_fmadd_ps(scale, widen(parts[i]), acc[i]);
            }
        }
        for i in 0..4 {
            store_ps(&mut out[i], acc[i]);
        }
    }
}

/// 8-bit integers need no unpacking: they are widened as they are loaded.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_bytes(columns: &[u8], weights: &[f32], out: &mut [f32]) {
    let out = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    let column_bytes = out.len() * 34;
    for g in 0..out.len() {
        let out = &mut out[g];
        let mut acc = [load_ps(&out[0]), load_ps(&out[1]), load_ps(&out[2]), load_ps(&out[3])];
        for j in 0..weights.len() {
            let group: &[u8; 34] = part(columns, j * column_bytes + g * 34);
            let scale = _mm256_set1_ps(weights[j] * half_at(group, 0));
            for i in 0..4 {
                let eight = i64::from_le_bytes(*part(group, 2 + 8 * i));
                acc[i] = _mm256_fmadd_ps(scale, widen(_mm_cvtsi64_si128(eight)), acc[i]);
            }
        }
        for i in 0..4 {
            store_ps(&mut out[i], acc[i]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_floats<const BYTES: usize>(
    format: ColumnFormat,
    columns: &[u8],
    weights: &[f32],
    out: &mut [f32],
) {
    let out = out.as_chunks_mut::<8>().0;
    let column_bytes = out.len() * 8 * BYTES;
    for g in 0..out.len() {
        let mut acc = load_ps(&out[g]);
        for j in 0..weights.len() {
            let at = j * column_bytes + g * 8 * BYTES;
            let values = match format {
                ColumnFormat::F32 => _mm256_castsi256_ps(load(part(columns, at))),
                ColumnFormat::F16 => _mm256_cvtph_ps(load16(part(columns, at))),
                _ => {
                    let wide = _mm256_cvtepu16_epi32(load16(part(columns, at)));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                }
            };
            acc = _mm256_fmadd_ps(_mm256_set1_ps(weights[j]), values, acc);
        }
        store_ps(&mut out[g], acc);
    }
}

/// `out += Σ_j weights[j] · column j`; `out` is whole groups of 32.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_columns(format: ColumnFormat, columns: &[u8], weights: &[f32], out: &mut [f32]) {
    match format {
        ColumnFormat::Q8 => add_bytes(columns, weights, out),
        ColumnFormat::Q6 => add_quantized::<26>(columns, weights, out),
        ColumnFormat::Q5 => add_quantized::<22>(columns, weights, out),
        ColumnFormat::Q4 => add_quantized::<18>(columns, weights, out),
        ColumnFormat::F32 => add_floats::<4>(format, columns, weights, out),
        ColumnFormat::F16 | ColumnFormat::BF16 => add_floats::<2>(format, columns, weights, out),
    }
}
