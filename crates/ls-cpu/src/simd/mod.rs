//! Kernels for each instruction set, and the dispatch between them.
//!
//! An [`Isa`] proves that its instructions exist, so the dispatching functions are safe. Each
//! kernel is tested against its scalar twin.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_gemm;
pub(crate) mod scalar;

use crate::Format;
use crate::isa::{Isa, Kind};
use crate::quant::{Q8Mut, Q8Ref, Q8Rows, quantize};
use crate::tile::{TILE_ROWS, Tile};

/// `out[i] = rows[i] · x` for consecutive quantised rows of `row_bytes` bytes.
pub(crate) fn dot_rows_q(
    isa: Isa,
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: Q8Ref<'_>,
    out: &mut [f32],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2::dot_rows_q(format, rows, row_bytes, x, out) },
        _ => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
                *out = scalar::dot_q(format, row, x);
            }
        }
    }
}

/// `out[i] = rows[i] · x` for consecutive float rows of `row_bytes` bytes.
pub(crate) fn dot_rows_f(
    isa: Isa,
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    out: &mut [f32],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2::dot_rows_f(format, rows, row_bytes, x, out) },
        _ => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
                *out = scalar::dot_f(format, row, x);
            }
        }
    }
}

/// Rows of activations that a kernel takes at once.
const TOKENS: usize = 3;

/// `out[t][r] = tile row r · x row t`, quantised tile.
pub(crate) fn gemm_q(isa: Isa, tile: &Tile, x: &Q8Rows, out: &mut [[f32; TILE_ROWS]]) {
    let last = out.len() - out.len() % TOKENS;
    for t in (0..last).step_by(TOKENS) {
        gemm_q_n(isa, tile, [x.row(t), x.row(t + 1), x.row(t + 2)], &mut out[t..t + TOKENS]);
    }
    match out.len() - last {
        1 => gemm_q_n(isa, tile, [x.row(last)], &mut out[last..]),
        2 => gemm_q_n(isa, tile, [x.row(last), x.row(last + 1)], &mut out[last..]),
        _ => {}
    }
}

fn gemm_q_n<const T: usize>(
    isa: Isa,
    tile: &Tile,
    x: [Q8Ref<'_>; T],
    out: &mut [[f32; TILE_ROWS]],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 => unsafe { avx2_gemm::gemm_q(tile, x, out) },
        _ => scalar::gemm_q(tile, x, out),
    }
}

/// `out[t][r] = tile row r · x row t`, float tile; `x` is `[out.len()][tile.cols]`.
pub(crate) fn gemm_f(isa: Isa, tile: &Tile, x: &[f32], out: &mut [[f32; TILE_ROWS]]) {
    let row = |t: usize| &x[t * tile.cols..][..tile.cols];
    let last = out.len() - out.len() % TOKENS;
    for t in (0..last).step_by(TOKENS) {
        gemm_f_n(isa, tile, [row(t), row(t + 1), row(t + 2)], &mut out[t..t + TOKENS]);
    }
    for t in last..out.len() {
        gemm_f_n(isa, tile, [row(t)], &mut out[t..t + 1]);
    }
}

fn gemm_f_n<const T: usize>(isa: Isa, tile: &Tile, x: [&[f32]; T], out: &mut [[f32; TILE_ROWS]]) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 => unsafe { avx2_gemm::gemm_f(tile, x, out) },
        _ => scalar::gemm_f(tile, x, out),
    }
}

/// Quantises whole groups of activations.
pub(crate) fn quantize_row(isa: Isa, x: &[f32], out: &mut Q8Mut<'_>) {
    /// The same code, compiled with wider vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32], out: &mut Q8Mut<'_>) {
        quantize(x, out);
    }
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2(x, out) },
        _ => quantize(x, out),
    }
}

/// `out[i][k] = scale · q[i] · keys[k]`; `out` is `[Q, keys]`.
pub(crate) fn scores<const Q: usize>(
    isa: Isa,
    q: [&[f32]; Q],
    keys: &[u16],
    scale: f32,
    out: &mut [f32],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if q[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_attention::scores(q, keys, scale, out) }
        }
        _ => {
            let d = q[0].len();
            for (q, out) in q.iter().zip(out.chunks_exact_mut(keys.len() / d)) {
                for (out, key) in out.iter_mut().zip(keys.chunks_exact(d)) {
                    *out = scale * scalar::dot_f16(q, key);
                }
            }
        }
    }
}

/// `out[i] = Σ_k weights[i][k] · values[k]`; `weights` is `[Q, values]`.
pub(crate) fn weighted_sums<const Q: usize>(
    isa: Isa,
    weights: &[f32],
    values: &[u16],
    out: [&mut [f32]; Q],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if out[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_attention::weighted_sums(weights, values, out) }
        }
        _ => {
            for (out, weights) in out.into_iter().zip(weights.chunks_exact(weights.len() / Q)) {
                out.fill(0.0);
                for (w, value) in weights.iter().zip(values.chunks_exact(out.len())) {
                    scalar::axpy_f16(out, *w, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
