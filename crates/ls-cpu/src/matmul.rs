//! Matrix times activations, on all threads.

use std::cell::RefCell;

use crate::pool::{Pool, Split};
use crate::quant::GROUP;
use crate::simd;
use crate::tile::{TILE_ROWS, Tile};
use crate::{Activations, Isa, Matrix};

/// From this many rows of activations on, unpacking a tile of weights pays (measured), and
/// products go that way.
pub const BATCH: usize = 8;

/// A processor to compute on: its instruction set and a pool of threads.
#[derive(Debug)]
pub struct Cpu {
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
}

/// One product of several that share their input.
#[derive(Debug)]
pub struct Product<'a, 'b> {
    /// The weights, `[rows, cols]`.
    pub matrix: Matrix<'a>,
    /// Where the products go, `[n, rows]`.
    pub out: &'b mut [f32],
}

/// What a thread needs to work on a tile.
#[derive(Default)]
pub(crate) struct Scratch {
    pub tile: Tile,
    pub tile_b: Tile,
    pub rows: Vec<u8>,
    pub out: Vec<[f32; TILE_ROWS]>,
    pub out_b: Vec<[f32; TILE_ROWS]>,
    pub group: Vec<[f32; GROUP]>,
}

thread_local! {
    pub(crate) static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Cpu {
    /// `threads` threads (at least one) with kernels for `isa`.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn new(threads: usize, isa: Isa) -> std::io::Result<Self> {
        Ok(Self { isa, pool: Pool::new(threads.max(1))? })
    }

    /// Kernels in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// `out[t] = matrix · x[t]` for the first `n` rows of `x`; `out` is `[n, rows]`.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn matmul(&self, matrix: Matrix<'_>, x: &Activations, n: usize, out: &mut [f32]) {
        self.matmuls(&mut [Product { matrix, out }], x, n);
    }

    /// Up to four products of the same input, in one parallel region.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit, or there are more than four.
    pub fn matmuls(&self, products: &mut [Product<'_, '_>], x: &Activations, n: usize) {
        let rows_per_task = if n < BATCH { self.decode_rows(products) } else { TILE_ROWS };
        let mut n_tasks = 0;
        for p in products.iter() {
            assert_eq!(p.matrix.cols(), x.cols(), "{:?} takes {} inputs", p.matrix, x.cols());
            assert_eq!(p.out.len(), n * p.matrix.rows(), "outputs of {:?}", p.matrix);
            n_tasks += p.matrix.rows().div_ceil(rows_per_task);
        }
        // At most a handful of products: no allocation for the views.
        let mut views: [Option<(Matrix<'_>, Split<'_, f32>)>; 4] = [const { None }; 4];
        assert!(products.len() <= views.len(), "at most {} products at once", views.len());
        for (view, p) in views.iter_mut().zip(products) {
            *view = Some((p.matrix, Split::new(p.out)));
        }
        self.pool.run(n_tasks, &|mut task| {
            for (matrix, out) in views.iter().flatten() {
                let tasks = matrix.rows().div_ceil(rows_per_task);
                if task < tasks {
                    let first = task * rows_per_task;
                    let rows = first..(first + rows_per_task).min(matrix.rows());
                    self.rows(matrix, rows, x, n, out);
                    return;
                }
                task -= tasks;
            }
        });
    }

    /// Rows for one task of a decode step: a few tasks for each thread, so that a thread which
    /// the system interrupts does not hold up the region, and none too small to be worth claiming.
    fn decode_rows(&self, products: &[Product<'_, '_>]) -> usize {
        let rows: usize = products.iter().map(|p| p.matrix.rows()).sum();
        let bytes: usize = products.iter().map(|p| p.matrix.bytes().len()).sum();
        let by_thread = rows.div_ceil(self.pool.threads() * 8);
        let by_size = (16 << 10) * rows / bytes.max(1);
        by_thread.max(by_size).max(1)
    }

    fn rows(
        &self,
        matrix: &Matrix<'_>,
        rows: std::ops::Range<usize>,
        x: &Activations,
        n: usize,
        out: &Split<'_, f32>,
    ) {
        let (first, len) = (rows.start, rows.len());
        // SAFETY: tasks have different rows, so their parts of each output row are disjoint.
        #[allow(unsafe_code)]
        let part = |t: usize| unsafe { out.slice(t * matrix.rows() + first, len) };
        if n < BATCH {
            for t in 0..n {
                self.dot_rows(matrix, rows.clone(), x, t, part(t));
            }
            return;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { tile, out, .. } = scratch;
            self.tile(matrix, rows, x, n, tile, out);
            for (t, products) in out.iter().enumerate() {
                part(t).copy_from_slice(&products[..len]);
            }
        });
    }

    /// `out[i] = matrix row rows[i] · x[t]`.
    pub(crate) fn dot_rows(
        &self,
        matrix: &Matrix<'_>,
        rows: std::ops::Range<usize>,
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) {
        let (format, row_bytes) = (matrix.format(), matrix.row_bytes());
        let bytes = matrix.row_range(rows);
        if format.is_quantized() {
            simd::dot_rows_q(self.isa, format, bytes, row_bytes, x.q8.row(t), out);
        } else {
            let x = &x.float[t * x.cols()..][..x.cols()];
            simd::dot_rows_f(self.isa, format, bytes, row_bytes, x, out);
        }
    }

    /// `out[t][i] = matrix row rows[i] · x[t]` for at most [`TILE_ROWS`] rows.
    pub(crate) fn tile(
        &self,
        matrix: &Matrix<'_>,
        rows: std::ops::Range<usize>,
        x: &Activations,
        n: usize,
        tile: &mut Tile,
        out: &mut Vec<[f32; TILE_ROWS]>,
    ) {
        tile.load(self.isa, matrix.format(), matrix.row_range(rows), matrix.cols());
        out.resize(n, [0.0; TILE_ROWS]);
        if matrix.format().is_quantized() {
            simd::gemm_q(self.isa, tile, &x.q8, out);
        } else {
            simd::gemm_f(self.isa, tile, x.rows(n), out);
        }
    }
}
