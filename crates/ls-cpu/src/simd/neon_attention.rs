//! NEON kernels of attention over an f16 cache, a few queries at a time.

use std::arch::aarch64::*;

use super::neon::{f16_high, f16_low, load_f32, load_u16, store_f32};

/// `out[i][k] = scale · q[i] · keys[k]`; heads of whole eights.
#[target_feature(enable = "neon")]
pub(super) fn scores<const Q: usize>(q: [&[f32]; Q], keys: &[u16], scale: f32, out: &mut [f32]) {
    let d = q[0].len() / 8;
    let q = q.map(|q| &q.as_chunks::<4>().0.as_chunks::<2>().0[..d]);
    let n = keys.len() / 8 / d;
    for (k, key) in keys.as_chunks::<8>().0.chunks_exact(d).enumerate() {
        let mut acc = [[vdupq_n_f32(0.0); 2]; Q];
        for (j, key) in key.iter().enumerate() {
            let key = load_u16(key);
            let (low, high) = (f16_low(key), f16_high(key));
            for i in 0..Q {
                acc[i][0] = vfmaq_f32(acc[i][0], load_f32(&q[i][j][0]), low);
                acc[i][1] = vfmaq_f32(acc[i][1], load_f32(&q[i][j][1]), high);
            }
        }
        for i in 0..Q {
            out[i * n + k] = scale * vaddvq_f32(vaddq_f32(acc[i][0], acc[i][1]));
        }
    }
}

/// `out[i] = Σ_k weights[i][k] · values[k]`; heads of whole eights.
#[target_feature(enable = "neon")]
pub(super) fn weighted_sums<const Q: usize>(weights: &[f32], values: &[u16], out: [&mut [f32]; Q]) {
    let d = out[0].len() / 8;
    let n = weights.len() / Q;
    let values = values.as_chunks::<8>().0;
    let mut j = 0;
    while j < d {
        // Sixteen elements of each output at a time: they stay in registers over all positions.
        let two = j + 1 < d;
        let mut acc = [[vdupq_n_f32(0.0); 4]; Q];
        for (k, value) in values.chunks_exact(d).enumerate() {
            let (a, b) = (load_u16(&value[j]), load_u16(&value[if two { j + 1 } else { j }]));
            let value = [f16_low(a), f16_high(a), f16_low(b), f16_high(b)];
            for i in 0..Q {
                let w = weights[i * n + k];
                for c in 0..4 {
                    acc[i][c] = vfmaq_n_f32(acc[i][c], value[c], w);
                }
            }
        }
        for i in 0..Q {
            let out = &mut out[i].as_chunks_mut::<4>().0[2 * j..];
            for (out, acc) in out.iter_mut().zip(&acc[i][..if two { 4 } else { 2 }]) {
                store_f32(out, *acc);
            }
        }
        j += 2;
    }
}
