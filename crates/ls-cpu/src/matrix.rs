//! A weight matrix in place, and the activations that it multiplies.

use std::ops::Range;

use crate::error::ShapeError;
use crate::quant::{GROUP, Q8Rows};
use crate::{Cpu, Format, dequantize_row};

/// A view of `[rows, cols]` weights, stored by row.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl std::fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} [{}, {}])", self.format, self.rows, self.cols)
    }
}

impl<'a> Matrix<'a> {
    /// Sees `data` as `[rows, cols]` weights.
    ///
    /// # Errors
    ///
    /// If `cols` is not whole blocks, or `data` not exactly `rows` rows.
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        data: &'a [u8],
    ) -> Result<Self, ShapeError> {
        let row_bytes = format.row_bytes(cols).ok_or(ShapeError::PartialBlock { format, cols })?;
        let expected = row_bytes.saturating_mul(rows);
        if expected != data.len() {
            let found = data.len();
            return Err(ShapeError::Length { format, rows, cols, expected, found });
        }
        Ok(Self { format, rows, cols, row_bytes, data })
    }

    /// Storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows: the outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> &'a [u8] {
        self.data
    }

    /// Bytes of one row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of consecutive rows.
    pub(crate) fn row_range(&self, rows: Range<usize>) -> &'a [u8] {
        &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes]
    }

    /// Row `i` as f32, `[cols]`.
    ///
    /// # Panics
    ///
    /// If `i` is not a row, or `out` is not `cols` long.
    pub fn dequantize_row(&self, i: usize, out: &mut [f32]) {
        dequantize_row(self.format, self.row_range(i..i + 1), out);
    }
}

/// Rows of activations, as floats and, for quantised weights, in 8 bits.
#[derive(Debug)]
pub struct Activations {
    cols: usize,
    pub(crate) float: Vec<f32>,
    /// Empty when the columns are not whole groups: then no quantised matrix fits them either.
    pub(crate) q8: Q8Rows,
}

impl Activations {
    /// Room for `rows` rows of `cols`.
    pub fn new(rows: usize, cols: usize) -> Self {
        let q8 =
            if cols.is_multiple_of(GROUP) { Q8Rows::new(rows, cols) } else { Q8Rows::default() };
        Self { cols, float: vec![0.0; rows * cols], q8 }
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The first `n` rows as floats, `[n, cols]`.
    pub fn rows(&self, n: usize) -> &[f32] {
        &self.float[..n * self.cols]
    }

    /// Writes the first `n` rows, in parallel: `row(t, values)` fills row `t`, which is then
    /// quantised too, if its length allows.
    pub fn fill(&mut self, cpu: &Cpu, n: usize, row: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let cols = self.cols;
        assert!(n * cols <= self.float.len(), "{n} rows fit");
        let q8 = (self.q8.cols() > 0).then(|| self.q8.split());
        cpu.pool.for_each_chunk(&mut self.float[..n * cols], cols, &|t, values| {
            row(t, values);
            if let Some(q8) = &q8 {
                // SAFETY: each row is handed out once.
                #[allow(unsafe_code)]
                let mut to = unsafe { q8.groups(t, 0..cols / GROUP) };
                crate::simd::quantize_row(cpu.isa, values, &mut to);
            }
        });
    }
}
