//! AVX-512 kernels of attention over an f16 cache, a few queries at a time.

use std::arch::x86_64::*;

use super::avx512::{load_ps16, store_ps16, sum16};

#[inline]
#[target_feature(enable = "avx512f")]
fn load_f16(x: &[u16; 16]) -> __m512 {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(x.as_ptr().cast()) })
}

/// `out[i][k] = scale · q[i] · keys[k]`; heads of whole sixteens.
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn scores<const Q: usize>(q: [&[f32]; Q], keys: &[u16], scale: f32, out: &mut [f32]) {
    let d = q[0].len() / 16;
    let q = q.map(|q| &q.as_chunks::<16>().0[..d]);
    let n = keys.len() / 16 / d;
    for (k, key) in keys.as_chunks::<16>().0.chunks_exact(d).enumerate() {
        let mut acc = [_mm512_setzero_ps(); Q];
        for (j, key) in key.iter().enumerate() {
            let key = load_f16(key);
            for i in 0..Q {
                acc[i] = _mm512_fmadd_ps(load_ps16(&q[i][j]), key, acc[i]);
            }
        }
        for i in 0..Q {
            out[i * n + k] = scale * sum16(acc[i]);
        }
    }
}

/// `out[i] = Σ_k weights[i][k] · values[k]`; heads of whole sixteens.
#[target_feature(enable = "avx512f")]
pub(super) fn weighted_sums<const Q: usize>(
    weights: &[f32],
    values: &[u16],
    mut out: [&mut [f32]; Q],
) {
    // Up to 64 elements of each output at a time: they stay in registers over all positions.
    let mut from = 0;
    while from < out[0].len() / 16 {
        match out[0].len() / 16 - from {
            1 => from = part::<Q, 1>(weights, values, &mut out, from),
            2 | 3 => from = part::<Q, 2>(weights, values, &mut out, from),
            _ => from = part::<Q, 4>(weights, values, &mut out, from),
        }
    }
}

/// Vectors `from..from + N` of each output; gives the next `from`.
#[inline]
#[target_feature(enable = "avx512f")]
fn part<const Q: usize, const N: usize>(
    weights: &[f32],
    values: &[u16],
    out: &mut [&mut [f32]; Q],
    from: usize,
) -> usize {
    let (d, n) = (out[0].len() / 16, weights.len() / Q);
    let mut acc = [[_mm512_setzero_ps(); N]; Q];
    for (k, value) in values.as_chunks::<16>().0.chunks_exact(d).enumerate() {
        let value: &[[u16; 16]; N] = value[from..].first_chunk().expect("vectors of a head");
        for (j, value) in value.iter().enumerate() {
            let value = load_f16(value);
            for i in 0..Q {
                let w = _mm512_set1_ps(weights[i * n + k]);
                acc[i][j] = _mm512_fmadd_ps(w, value, acc[i][j]);
            }
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        let out = &mut out.as_chunks_mut::<16>().0[from..];
        for (out, acc) in out.iter_mut().zip(acc) {
            store_ps16(out, acc);
        }
    }
    from + N
}
