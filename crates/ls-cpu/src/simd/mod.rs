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
mod avx2_columns;
#[cfg(target_arch = "x86_64")]
mod avx2_float_columns;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_gemm;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_gemm;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod blocks;
mod coefficients;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_attention;
#[cfg(target_arch = "aarch64")]
mod neon_columns;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_gemm;
pub(crate) mod scalar;

pub(crate) use coefficients::BLOCK;

use crate::Format;
use crate::column::ColumnFormat;
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
        Kind::Avx2 => unsafe { avx2::dot_rows_q(format, rows, row_bytes, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx512 => unsafe { avx512::dot_rows_q(format, rows, row_bytes, x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Neon => unsafe { neon::dot_rows_q(format, rows, row_bytes, x, out) },
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
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Neon => unsafe { neon::dot_rows_f(format, rows, row_bytes, x, out) },
        _ => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
                *out = scalar::dot_f(format, row, x);
            }
        }
    }
}

/// `out[i] = rows[i] · x` for quantised rows that lie apart. Meanwhile both of `ahead[i]` are asked for.
pub(crate) fn dot_gathered_q(
    isa: Isa,
    format: Format,
    rows: &[&[u8]],
    ahead: &[[&[u8]; 2]],
    x: Q8Ref<'_>,
    out: &mut [f32],
) {
    // Elsewhere the hardware is left to find its way.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ahead;
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx2 => unsafe { avx2::dot_gathered_q(format, rows, ahead, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Avx512 => unsafe { avx512::dot_gathered_q(format, rows, ahead, x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: an `Isa` of this kind exists only where the features do.
        Kind::Neon => unsafe { neon::dot_gathered_q(format, rows, x, out) },
        _ => {
            for (row, out) in rows.iter().zip(out) {
                *out = scalar::dot_q(format, row, x);
            }
        }
    }
}

/// `out[i] = rows[i] · x` for float rows that lie apart. Meanwhile both of `ahead[i]` are asked for.
pub(crate) fn dot_gathered_f(
    isa: Isa,
    format: Format,
    rows: &[&[u8]],
    ahead: &[[&[u8]; 2]],
    x: &[f32],
    out: &mut [f32],
) {
    for ((row, ahead), out) in rows.iter().zip(ahead).zip(out) {
        ahead.iter().for_each(|bytes| prefetch_far(bytes));
        dot_rows_f(isa, format, row, row.len(), x, std::slice::from_mut(out));
    }
}

/// `out += Σ_j weights[j] · columns[j]` for columns that lie apart. Meanwhile `ahead` is asked for.
pub(crate) fn add_columns(
    isa: Isa,
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    ahead: &[&[u8]],
    out: &mut [f32],
) {
    // Elsewhere the hardware is left to find its way.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ahead;
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if out.len().is_multiple_of(32) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_columns::add_columns(format, columns, weights, ahead, out) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon if out.len().is_multiple_of(32) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_columns::add_columns(format, columns, weights, out) }
        }
        _ => scalar::add_columns(format, columns, weights, out),
    }
}

/// Asks for the cache lines of `bytes`, which will be needed soon. Does nothing where that has not
/// been measured to help.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        // SAFETY: a hint, which every processor of this architecture has.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Asks for the cache lines of `bytes`, to be brought to the second cache.
#[inline]
pub(crate) fn prefetch_far(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        // Bytes that begin within a line end within one more.
        let first = bytes.as_ptr().addr() % 64;
        for line in 0..(first + bytes.len()).div_ceil(64) {
            let at = bytes.as_ptr().wrapping_sub(first).wrapping_add(64 * line);
            // SAFETY: a hint, which every processor of this architecture has.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T1>(at.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Values `first..` of a column; `first` and the length of `out` are whole groups.
pub(crate) fn read_column(
    isa: Isa,
    format: ColumnFormat,
    column: &[u8],
    first: usize,
    out: &mut [f32],
) {
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if format.is_quantized() => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_columns::read_column(format, column, first / format.group_len(), out) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon if format.is_quantized() => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_columns::read_column(format, column, first / format.group_len(), out) }
        }
        _ => scalar::read_column(format, column, first, out),
    }
}

/// Runs `$kernel` for all rows of `$out`, `T` of them at once for each `T` in the list as long as
/// so many are left; `$t` is the first.
macro_rules! in_steps {
    ($out:ident, [$($n:literal)*], |$t:ident, $part:ident| $kernel:expr) => {{
        let mut $t = 0;
        $({
            const T: usize = $n;
            while $out.len() - $t >= T {
                let $part = &mut $out[$t..$t + T];
                $kernel;
                $t += T;
            }
        })*
    }};
}

/// `out[t][r] = tile row r · x row t`, quantised tile.
pub(crate) fn gemm_q(isa: Isa, tile: &Tile, x: &Q8Rows, out: &mut [[f32; TILE_ROWS]]) {
    /// `T` rows from `t` on.
    fn rows<const T: usize>(x: &Q8Rows, t: usize) -> [Q8Ref<'_>; T] {
        std::array::from_fn(|i| x.row(t + i))
    }
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => in_steps!(out, [8 4 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx512_gemm::gemm_q::<T>(tile, x, t, part) }
        }),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => in_steps!(out, [3 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_gemm::gemm_q::<T>(tile, rows(x, t), part) }
        }),
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => in_steps!(out, [4 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_gemm::gemm_q::<T>(tile, rows(x, t), part) }
        }),
        _ => in_steps!(out, [1], |t, part| scalar::gemm_q::<T>(tile, rows(x, t), part)),
    }
}

/// `out[t][r] = tile row r · x row t`, float tile; `x` is `[out.len()][tile.cols]`.
pub(crate) fn gemm_f(isa: Isa, tile: &Tile, x: &[f32], out: &mut [[f32; TILE_ROWS]]) {
    /// `T` rows from `t` on.
    fn rows<const T: usize>(x: &[f32], cols: usize, t: usize) -> [&[f32]; T] {
        std::array::from_fn(|i| &x[(t + i) * cols..][..cols])
    }
    match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => in_steps!(out, [8 4 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx512_gemm::gemm_f::<T>(tile, x, t, part) }
        }),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => in_steps!(out, [6 3 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_gemm::gemm_f::<T>(tile, rows(x, tile.cols, t), part) }
        }),
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => in_steps!(out, [4 2 1], |t, part| {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_gemm::gemm_f::<T>(tile, rows(x, tile.cols, t), part) }
        }),
        _ => in_steps!(out, [1], |t, part| {
            scalar::gemm_f::<T>(tile, rows(x, tile.cols, t), part)
        }),
    }
}

/// `to = x` as f16 bits, rounded to nearest, ties to even.
pub(crate) fn to_f16(isa: Isa, x: &[f32], to: &mut [u16]) {
    let done = match isa.0 {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 => {
            let done = x.len() - x.len() % 8;
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_attention::to_f16(&x[..done], &mut to[..done]) };
            done
        }
        _ => 0,
    };
    for (to, x) in to[done..].iter_mut().zip(&x[done..]) {
        *to = half::f16::from_f32(*x).to_bits();
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
        Kind::Avx512 if q[0].len().is_multiple_of(16) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx512_attention::scores(q, keys, scale, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if q[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_attention::scores(q, keys, scale, out) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon if q[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_attention::scores(q, keys, scale, out) }
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
        Kind::Avx512 if out[0].len().is_multiple_of(16) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx512_attention::weighted_sums(weights, values, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 if out[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { avx2_attention::weighted_sums(weights, values, out) }
        }
        #[cfg(target_arch = "aarch64")]
        Kind::Neon if out[0].len().is_multiple_of(8) => {
            // SAFETY: an `Isa` of this kind exists only where the features do.
            unsafe { neon_attention::weighted_sums(weights, values, out) }
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
pub(crate) mod tests;
