//! AVX2 kernels for a tile of weight rows and several rows of activations.
//!
//! A vector lane is a weight row. Products of up to eight chunks of 4 columns are summed in 16
//! bits before they are widened: as many as cannot overflow for the format's bits.

#![allow(clippy::needless_range_loop)] // as in the dot products

use std::arch::x86_64::*;

use super::avx2::load_ps;
use crate::quant::{Q8Ref, Unpacked};
use crate::tile::{TILE_ROWS, Tile};

const LANES: usize = 8;
const PANELS: usize = TILE_ROWS / LANES;

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// One group of 32 columns of a panel.
type Group = [[u8; 32]; 8];

#[inline(always)]
fn q_of<'a>(x: &Q8Ref<'a>) -> &'a [[[i8; 4]; 8]] {
    x.q.as_chunks::<4>().0.as_chunks::<8>().0
}

/// Four activations as one word.
#[inline(always)]
fn four(a: &[i8; 4]) -> i32 {
    i32::from_le_bytes([a[0] as u8, a[1] as u8, a[2] as u8, a[3] as u8])
}

/// Tokens × panels of eight rows.
type Accumulators<const T: usize> = [[__m256; T]; PANELS];

/// Sums of products of chunks `from..from + n` of a group, as i32: `[T]` for each panel.
#[inline]
#[target_feature(enable = "avx2")]
fn chunks<const T: usize, const ACC: usize, const SIGNED: bool>(
    w: [&Group; PANELS],
    a: [&[[i8; 4]; 8]; T],
    from: usize,
    n: usize,
) -> [[__m256i; T]; PANELS] {
    let ones = _mm256_set1_epi16(1);
    let mut wide = [[_mm256_setzero_si256(); T]; PANELS];
    let mut c = from;
    while c < from + n {
        let mut sums = [[_mm256_setzero_si256(); T]; PANELS];
        for k in c..c + ACC {
            for p in 0..PANELS {
                let w = load(&w[p][k]);
                let magnitude = if SIGNED { _mm256_abs_epi8(w) } else { w };
                for t in 0..T {
                    let mut a = _mm256_set1_epi32(four(&a[t][k]));
                    if SIGNED {
                        a = _mm256_sign_epi8(a, w);
                    }
                    let products = _mm256_maddubs_epi16(magnitude, a);
                    sums[p][t] =
                        if ACC == 1 { products } else { _mm256_add_epi16(sums[p][t], products) };
                }
            }
        }
        for p in 0..PANELS {
            for t in 0..T {
                let four = _mm256_madd_epi16(sums[p][t], ones);
                wide[p][t] = _mm256_add_epi32(wide[p][t], four);
            }
        }
        c += ACC;
    }
    wide
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn gemm<const T: usize, const ACC: usize, const HALVES: bool, const SIGNED: bool>(
    tile: &Tile,
    x: [Q8Ref<'_>; T],
    out: &mut [[f32; TILE_ROWS]],
) {
    let groups = tile.cols / 32;
    let (q, q_b) = tile.q.as_chunks::<32>().0.as_chunks::<8>().0.split_at(groups);
    let per_group = if HALVES { 2 } else { 1 };
    let (scale, scale_b) = tile.scale.as_chunks::<LANES>().0.split_at(groups * per_group);
    let (min, min_b) = tile.min.as_chunks::<LANES>().0.split_at(groups * per_group);
    let (scale, min) = ([scale, scale_b], [min, min_b]);
    let mut acc: Accumulators<T> = [[_mm256_setzero_ps(); T]; PANELS];
    for g in 0..groups {
        let w = [&q[g], &q_b[g]];
        let a: [&[[i8; 4]; 8]; T] = std::array::from_fn(|t| &q_of(&x[t])[g]);
        for h in 0..per_group {
            let dots = chunks::<T, ACC, SIGNED>(w, a, 4 * h, 8 / per_group);
            let s = g * per_group + h;
            for p in 0..PANELS {
                let (scale, min) = (load_ps(&scale[p][s]), load_ps(&min[p][s]));
                for t in 0..T {
                    let sum = if HALVES { x[t].sum16[s] } else { x[t].sum32[s] };
                    let dot = _mm256_cvtepi32_ps(dots[p][t]);
                    let scaled = _mm256_mul_ps(dot, _mm256_set1_ps(x[t].d[g]));
                    acc[p][t] = _mm256_fmadd_ps(scaled, scale, acc[p][t]);
                    acc[p][t] = _mm256_fmadd_ps(min, _mm256_set1_ps(sum), acc[p][t]);
                }
            }
        }
    }
    store(&acc, out);
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const T: usize>(acc: &Accumulators<T>, out: &mut [[f32; TILE_ROWS]]) {
    for (t, out) in out.iter_mut().enumerate() {
        for (p, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            super::avx2::store_ps(out, acc[p][t]);
        }
    }
}

/// `out[t][r] = tile row r · x[t]`, quantised tile.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gemm_q<const T: usize>(tile: &Tile, x: [Q8Ref<'_>; T], out: &mut [[f32; TILE_ROWS]]) {
    let format = tile.format.expect("a loaded tile");
    match (format.q_bits(), format.has_half_scales()) {
        (8, _) => gemm::<T, 1, false, true>(tile, x, out),
        (6, _) => gemm::<T, 2, true, false>(tile, x, out),
        (5, _) => gemm::<T, 4, false, false>(tile, x, out),
        (_, true) => gemm::<T, 4, true, false>(tile, x, out),
        (_, false) => gemm::<T, 8, false, false>(tile, x, out),
    }
}

/// `out[t][r] = tile row r · x[t]`, float tile.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gemm_f<const T: usize>(tile: &Tile, x: [&[f32]; T], out: &mut [[f32; TILE_ROWS]]) {
    let (w, w_b) = tile.float.as_chunks::<LANES>().0.split_at(tile.cols);
    let mut acc: Accumulators<T> = [[_mm256_setzero_ps(); T]; PANELS];
    for c in 0..tile.cols {
        for p in 0..PANELS {
            let w = load_ps(&[w, w_b][p][c]);
            for t in 0..T {
                acc[p][t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[t][c]), acc[p][t]);
            }
        }
    }
    store(&acc, out);
}

/// `to[chunk][lane][4]` from `blocks[lane].q[32 · g..]`, each byte xor `flip`: a transposition of
/// 8 × 8 words of 4 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn interleave8(to: &mut [u8], flip: u8, blocks: &[Unpacked], g: usize) {
    let to = to.as_chunks_mut::<32>().0;
    let flip = _mm256_set1_epi8(flip as i8);
    let row = |r: usize| {
        let q: &[u8; 32] = blocks[r].q[32 * g..].first_chunk().expect("a group");
        _mm256_castsi256_ps(_mm256_xor_si256(load(q), flip))
    };
    let (mut pairs, mut fours) = ([_mm256_setzero_ps(); 8], [_mm256_setzero_ps(); 8]);
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(row(2 * i), row(2 * i + 1));
        pairs[2 * i + 1] = _mm256_unpackhi_ps(row(2 * i), row(2 * i + 1));
    }
    for i in 0..2 {
        let p = &pairs[4 * i..];
        fours[4 * i] = _mm256_shuffle_ps::<0x44>(p[0], p[2]);
        fours[4 * i + 1] = _mm256_shuffle_ps::<0xee>(p[0], p[2]);
        fours[4 * i + 2] = _mm256_shuffle_ps::<0x44>(p[1], p[3]);
        fours[4 * i + 3] = _mm256_shuffle_ps::<0xee>(p[1], p[3]);
    }
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        // SAFETY: 32 writable bytes each; the stores need no alignment.
        unsafe {
            _mm256_storeu_ps(to[i].as_mut_ptr().cast(), low);
            _mm256_storeu_ps(to[i + 4].as_mut_ptr().cast(), high);
        }
    }
}
