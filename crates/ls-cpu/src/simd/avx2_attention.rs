//! AVX2 kernels of attention over an f16 cache, a few queries at a time.

#![allow(clippy::needless_range_loop)] // as in the dot products

use std::arch::x86_64::*;

use super::avx2::{load_f16, load_ps, store_ps, sum8};

/// `out[i][k] = scale · q[i] · keys[k]`; heads of whole eights.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn scores<const Q: usize>(q: [&[f32]; Q], keys: &[u16], scale: f32, out: &mut [f32]) {
    let d = q[0].len() / 8;
    let q: [&[[f32; 8]]; Q] = std::array::from_fn(|i| &q[i].as_chunks::<8>().0[..d]);
    let n = keys.len() / 8 / d;
    let keys = keys.as_chunks::<8>().0;
    for k in 0..n {
        let key = &keys[k * d..][..d];
        let mut acc = [_mm256_setzero_ps(); Q];
        for j in 0..d {
            let key = load_f16(&key[j]);
            for i in 0..Q {
                acc[i] = _mm256_fmadd_ps(load_ps(&q[i][j]), key, acc[i]);
            }
        }
        for i in 0..Q {
            out[i * n + k] = scale * sum8(acc[i]);
        }
    }
}

/// `out[i] = Σ_k weights[i][k] · values[k]`; heads of whole eights.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn weighted_sums<const Q: usize>(weights: &[f32], values: &[u16], out: [&mut [f32]; Q]) {
    let d = out[0].len() / 8;
    let n = weights.len() / Q;
    let values = values.as_chunks::<8>().0;
    let mut j = 0;
    while j < d {
        // Two vectors of each output at a time: they stay in registers over all positions.
        let two = j + 1 < d;
        let mut acc = [[_mm256_setzero_ps(); 2]; Q];
        for k in 0..n {
            let value = &values[k * d..][..d];
            let (a, b) = (load_f16(&value[j]), load_f16(&value[if two { j + 1 } else { j }]));
            for i in 0..Q {
                let w = _mm256_set1_ps(weights[i * n + k]);
                acc[i][0] = _mm256_fmadd_ps(w, a, acc[i][0]);
                acc[i][1] = _mm256_fmadd_ps(w, b, acc[i][1]);
            }
        }
        for i in 0..Q {
            let out = out[i].as_chunks_mut::<8>().0;
            store_ps(&mut out[j], acc[i][0]);
            if two {
                store_ps(&mut out[j + 1], acc[i][1]);
            }
        }
        j += 2;
    }
}

/// `to = x` as f16 bits; whole eights.
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn to_f16(x: &[f32], to: &mut [u16]) {
    let (x, to) = (x.as_chunks::<8>().0, to.as_chunks_mut::<8>().0);
    for i in 0..to.len() {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_ps(&x[i]));
        // SAFETY: 16 writable bytes; the store needs no alignment.
        unsafe { _mm_storeu_si128(to[i].as_mut_ptr().cast(), halves) };
    }
}
