//! NEON kernels for a tile of weight rows and several rows of activations.
//!
//! A vector lane is a weight row; a panel of eight rows is two vectors. Weights are signed bytes,
//! four columns of a row to a lane, and `sdot` multiplies them with four activations that are one
//! lane of another vector.

use std::arch::aarch64::*;

use super::neon::{load, load_f32, load_i8, sdot_lane, store_f32};
use crate::quant::{GROUP, Q8Ref, Unpacked};
use crate::tile::{TILE_ROWS, Tile};

/// Rows of a panel.
const LANES: usize = 8;

/// Two vectors of sums of one panel for each token.
type Sums<const T: usize> = [[int32x4_t; 2]; T];

/// One group of 32 columns of a panel: 8 chunks, of 4 columns each, for 2 · 4 rows.
type Group = [[[u8; 16]; 2]; 8];

/// Adds the products of columns `16 · half..16 · half + 16` of a group.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn half_group<const T: usize>(
    w: &Group,
    a: [&[[i8; 16]; 2]; T],
    half: usize,
    mut sums: Sums<T>,
) -> Sums<T> {
    let mut four = [vdupq_n_s8(0); T];
    for t in 0..T {
        four[t] = load_i8(&a[t][half]);
    }
    macro_rules! chunk {
        ($lane:literal) => {
            for i in 0..2 {
                let w = vreinterpretq_s8_u8(load(&w[4 * half + $lane][i]));
                for t in 0..T {
                    sums[t][i] = sdot_lane::<$lane>(sums[t][i], w, four[t]);
                }
            }
        };
    }
    chunk!(0);
    chunk!(1);
    chunk!(2);
    chunk!(3);
    sums
}

/// `HALVES`: scales for half groups; `MINS`: the format has mins that are not zero.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn gemm<const T: usize, const HALVES: bool, const MINS: bool>(
    tile: &Tile,
    x: [Q8Ref<'_>; T],
    out: &mut [[f32; TILE_ROWS]],
) {
    let groups = tile.cols / GROUP;
    let per_group = if HALVES { 2 } else { 1 };
    let weights = tile.q.as_chunks::<16>().0.as_chunks::<2>().0.as_chunks::<8>().0;
    let scales = tile.scale.as_chunks::<4>().0.as_chunks::<2>().0;
    let mins = tile.min.as_chunks::<4>().0.as_chunks::<2>().0;
    let q = x.map(|x| &x.q.as_chunks::<16>().0.as_chunks::<2>().0[..groups]);
    let d = x.map(|x| &x.d[..groups]);
    let sum = x.map(|x| if HALVES { x.sum16 } else { x.sum32 });
    let sum = sum.map(|sum| &sum[..groups * per_group]);
    for panel in 0..TILE_ROWS / LANES {
        let weights = &weights[panel * groups..][..groups];
        let scales = &scales[panel * groups * per_group..][..groups * per_group];
        let mins = &mins[panel * groups * per_group..][..groups * per_group];
        let mut acc = [[vdupq_n_f32(0.0); 2]; T];
        for (g, w) in weights.iter().enumerate() {
            let a: [&[[i8; 16]; 2]; T] = std::array::from_fn(|t| &q[t][g]);
            for part in 0..per_group {
                let mut dots = [[vdupq_n_s32(0); 2]; T];
                dots = half_group(w, a, part, dots);
                if !HALVES {
                    dots = half_group(w, a, 1, dots);
                }
                let s = g * per_group + part;
                for i in 0..2 {
                    let (scale, min) = (load_f32(&scales[s][i]), load_f32(&mins[s][i]));
                    for t in 0..T {
                        let dot = vmulq_n_f32(vcvtq_f32_s32(dots[t][i]), d[t][g]);
                        acc[t][i] = vfmaq_f32(acc[t][i], dot, scale);
                        if MINS {
                            acc[t][i] = vfmaq_n_f32(acc[t][i], min, sum[t][s]);
                        }
                    }
                }
            }
        }
        for (acc, out) in acc.into_iter().zip(&mut *out) {
            let out = &mut out.as_chunks_mut::<4>().0[2 * panel..][..2];
            store_f32(&mut out[0], acc[0]);
            store_f32(&mut out[1], acc[1]);
        }
    }
}

/// `out[t][r] = tile row r · x[t]`, quantised tile.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn gemm_q<const T: usize>(tile: &Tile, x: [Q8Ref<'_>; T], out: &mut [[f32; TILE_ROWS]]) {
    let halves = tile.format.is_some_and(|format| format.has_half_scales());
    match (halves, tile.center == 0) {
        (false, false) => gemm::<T, false, false>(tile, x, out),
        (false, true) => gemm::<T, false, true>(tile, x, out),
        (true, false) => gemm::<T, true, false>(tile, x, out),
        (true, true) => gemm::<T, true, true>(tile, x, out),
    }
}

/// `out[t][r] = tile row r · x[t]`, float tile.
#[target_feature(enable = "neon")]
pub(super) fn gemm_f<const T: usize>(tile: &Tile, x: [&[f32]; T], out: &mut [[f32; TILE_ROWS]]) {
    let (w, w_b) = tile.float.as_chunks::<LANES>().0.split_at(tile.cols);
    let x = x.map(|x| &x[..tile.cols]);
    let mut acc = [[vdupq_n_f32(0.0); 4]; T];
    for (c, (w, w_b)) in w.iter().zip(w_b).enumerate() {
        let (w, w_b) = (w.as_chunks::<4>().0, w_b.as_chunks::<4>().0);
        let w = [load_f32(&w[0]), load_f32(&w[1]), load_f32(&w_b[0]), load_f32(&w_b[1])];
        for t in 0..T {
            for i in 0..4 {
                acc[t][i] = vfmaq_n_f32(acc[t][i], w[i], x[t][c]);
            }
        }
    }
    for (acc, out) in acc.into_iter().zip(out) {
        for (acc, out) in acc.into_iter().zip(out.as_chunks_mut::<4>().0) {
            store_f32(out, acc);
        }
    }
}

/// `to[chunk][lane][4]` from `blocks[lane].q[32 · g..]`, each byte less `center`: transpositions of
/// 4 × 4 words of 4 bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn interleave8(to: &mut [u8], center: u8, blocks: &[Unpacked], g: usize) {
    let to: &mut [[[u8; 16]; 2]] = to.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0;
    let center = vdupq_n_u8(center);
    for half in 0..2 {
        for four in 0..2 {
            let row = |r: usize| {
                let q = &blocks[4 * four + r].q[GROUP * g + 16 * half..];
                let q = load(q.first_chunk().expect("half a group"));
                vreinterpretq_u32_u8(vsubq_u8(q, center))
            };
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let wide = |x: uint32x4_t| vreinterpretq_u64_u32(x);
            let (even, odd) = (wide(vtrn1q_u32(a, b)), wide(vtrn2q_u32(a, b)));
            let (even_b, odd_b) = (wide(vtrn1q_u32(c, d)), wide(vtrn2q_u32(c, d)));
            let chunks = [
                vtrn1q_u64(even, even_b),
                vtrn1q_u64(odd, odd_b),
                vtrn2q_u64(even, even_b),
                vtrn2q_u64(odd, odd_b),
            ];
            for (k, chunk) in chunks.into_iter().enumerate() {
                // SAFETY: 16 writable bytes.
                unsafe { vst1q_u64(to[4 * half + k][four].as_mut_ptr().cast(), chunk) };
            }
        }
    }
}
