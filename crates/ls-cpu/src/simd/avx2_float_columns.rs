//! AVX2 kernel that adds weighted columns of floats.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::x86_64::*;

use super::avx2::{load, load_ps, load16, store_ps};
use super::blocks::part;
use crate::column::ColumnFormat;

/// `out += Σ_j weights[j] · columns[j]`; `out` is whole groups of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_floats<const BYTES: usize>(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    out: &mut [f32],
) {
    let out = out.as_chunks_mut::<8>().0;
    for g in 0..out.len() {
        let mut acc = load_ps(&out[g]);
        for j in 0..weights.len() {
            let (column, at) = (columns[j], g * 8 * BYTES);
            let values = match format {
                ColumnFormat::F32 => _mm256_castsi256_ps(load(part(column, at))),
                ColumnFormat::F16 => _mm256_cvtph_ps(load16(part(column, at))),
                _ => {
                    let wide = _mm256_cvtepu16_epi32(load16(part(column, at)));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                }
            };
            acc = _mm256_fmadd_ps(_mm256_set1_ps(weights[j]), values, acc);
        }
        store_ps(&mut out[g], acc);
    }
}
