//! AVX-512 kernels for a tile of weight rows and several rows of activations.
//!
//! A vector lane is a weight row: one panel of sixteen. `vpdpbusd` multiplies four unsigned
//! weights of each row with four signed activations, which it can broadcast from memory.

use std::arch::x86_64::*;

use super::avx512::{load_ps16, store_ps16};
use crate::quant::{GROUP, Q8Rows, Unpacked};
use crate::tile::{TILE_ROWS, Tile};

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Rows of activations by one offset each, which serves all their arrays: eight rows' pointers to
/// bytes, scales and sums would not fit the registers, and reloading them would take the load
/// ports from the weights.
#[derive(Clone, Copy)]
struct Rows {
    q: *const i8,
    d: *const f32,
    sums: *const f32,
    sums_per_group: usize,
}

impl Rows {
    /// Activations 4 · `chunk`.. of the group, in all lanes.
    ///
    /// # Safety
    ///
    /// `group` is one of the rows' groups and `chunk` below 8.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn four(self, group: usize, chunk: usize) -> __m512i {
        // SAFETY: the caller's promise; a group has 32 bytes.
        let four = unsafe { self.q.add(group * GROUP + 4 * chunk).cast::<i32>().read_unaligned() };
        _mm512_set1_epi32(four)
    }

    /// The group's scale, in all lanes.
    ///
    /// # Safety
    ///
    /// `group` is one of the rows' groups.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn d(self, group: usize) -> __m512 {
        // SAFETY: the caller's promise.
        _mm512_set1_ps(unsafe { *self.d.add(group) })
    }

    /// The sum of the group, or of half `part` of it, in all lanes.
    ///
    /// # Safety
    ///
    /// `group` is one of the rows' groups and `part` below `sums_per_group`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn sum(self, group: usize, part: usize) -> __m512 {
        // SAFETY: the caller's promise.
        _mm512_set1_ps(unsafe { *self.sums.add(group * self.sums_per_group + part) })
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn gemm<const T: usize, const HALVES: bool>(
    tile: &Tile,
    x: &Q8Rows,
    first: usize,
    out: &mut [[f32; TILE_ROWS]],
) {
    let groups = tile.cols / GROUP;
    let per_group = if HALVES { 2 } else { 1 };
    assert!(x.cols() == tile.cols && first + T <= x.rows(), "rows of activations");
    let rows = Rows {
        q: x.q.as_ptr(),
        d: x.d.as_ptr(),
        sums: if HALVES { x.sum16.as_ptr() } else { x.sum32.as_ptr() },
        sums_per_group: per_group,
    };
    let weights = &tile.q.as_chunks::<64>().0.as_chunks::<8>().0[..groups];
    let scales = tile.scale.as_chunks::<16>().0[..groups * per_group].chunks_exact(per_group);
    let mins = tile.min.as_chunks::<16>().0[..groups * per_group].chunks_exact(per_group);
    let mut at: [usize; T] = std::array::from_fn(|t| (first + t) * groups);
    let mut acc = [_mm512_setzero_ps(); T];
    for (w, (scales, mins)) in weights.iter().zip(scales.zip(mins)) {
        for part in 0..per_group {
            let mut dots = [_mm512_setzero_si512(); T];
            for chunk in part * 4..part * 4 + 8 / per_group {
                let w = load(&w[chunk]);
                for t in 0..T {
                    // SAFETY: group `at[t]` is one of row `first + t`, which the assertion covers.
                    let a = unsafe { rows.four(at[t], chunk) };
                    dots[t] = _mm512_dpbusd_epi32(dots[t], w, a);
                }
            }
            let (scale, min) = (load_ps16(&scales[part]), load_ps16(&mins[part]));
            for t in 0..T {
                // SAFETY: as above.
                let (d, sum) = unsafe { (rows.d(at[t]), rows.sum(at[t], part)) };
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t]), d);
                acc[t] = _mm512_fmadd_ps(scaled, scale, acc[t]);
                acc[t] = _mm512_fmadd_ps(min, sum, acc[t]);
            }
        }
        for at in &mut at {
            *at += 1;
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store_ps16(out, acc);
    }
}

/// `out[t][r] = tile row r · x row first + t` for `T` rows, quantised tile.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn gemm_q<const T: usize>(
    tile: &Tile,
    x: &Q8Rows,
    first: usize,
    out: &mut [[f32; TILE_ROWS]],
) {
    if tile.scales_per_group() == 2 {
        gemm::<T, true>(tile, x, first, out);
    } else {
        gemm::<T, false>(tile, x, first, out);
    }
}

/// `out[t][r] = tile row r · x row first + t` for `T` rows, float tile; `x` is `[rows][tile.cols]`.
#[target_feature(enable = "avx512f")]
pub(super) fn gemm_f<const T: usize>(
    tile: &Tile,
    x: &[f32],
    first: usize,
    out: &mut [[f32; TILE_ROWS]],
) {
    let x = &x[first * tile.cols..][..T * tile.cols];
    let mut acc = [_mm512_setzero_ps(); T];
    for (c, w) in tile.float.as_chunks::<TILE_ROWS>().0[..tile.cols].iter().enumerate() {
        let w = load_ps16(w);
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: `x` has `T` rows of `tile.cols`, and `c` is below that.
            let x = unsafe { *x.as_ptr().add(t * tile.cols + c) };
            *acc = _mm512_fmadd_ps(w, _mm512_set1_ps(x), *acc);
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store_ps16(out, acc);
    }
}

/// `to[chunk][lane][4]` from `blocks[lane].q[32 · g..]`, each byte less `center`, which is zero
/// here: four transpositions of 4 × 4 words, one in each quarter of the vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn interleave16(to: &mut [u8], center: u8, blocks: &[Unpacked], g: usize) {
    debug_assert_eq!(center, 0, "weights stay unsigned");
    let to = to.as_chunks_mut::<64>().0;
    for half in 0..2 {
        // Rows r, r + 4, r + 8 and r + 12, four chunks of each.
        let rows = |r: usize| {
            let quarter = |row: usize| {
                let q = &blocks[row].q[GROUP * g + 16 * half..];
                super::avx2::load16(q.first_chunk().expect("half a group"))
            };
            let v = _mm512_castsi128_si512(quarter(r));
            let v = _mm512_inserti32x4::<1>(v, quarter(r + 4));
            let v = _mm512_inserti32x4::<2>(v, quarter(r + 8));
            _mm512_inserti32x4::<3>(v, quarter(r + 12))
        };
        let (a, b, c, d) = (rows(0), rows(1), rows(2), rows(3));
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (low_b, high_b) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        let chunks = [
            _mm512_unpacklo_epi64(low, low_b),
            _mm512_unpackhi_epi64(low, low_b),
            _mm512_unpacklo_epi64(high, high_b),
            _mm512_unpackhi_epi64(high, high_b),
        ];
        for (to, chunk) in to[4 * half..].iter_mut().zip(chunks) {
            // SAFETY: 64 writable bytes; the store needs no alignment.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), chunk) };
        }
    }
}
