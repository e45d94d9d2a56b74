//! Activations quantised to 8 bits, a scale for each group of 32.

use super::GROUP;
use crate::Isa;

/// Rows of quantised activations.
///
/// Beside the bytes it keeps, for each half group and each group, the sum of its values: that is
/// what a weight format's `min` is multiplied with.
#[derive(Clone, Debug, Default)]
pub struct Q8Rows {
    rows: usize,
    cols: usize,
    pub(crate) q: Vec<i8>,
    pub(crate) d: Vec<f32>,
    pub(crate) sum16: Vec<f32>,
    pub(crate) sum32: Vec<f32>,
}

/// One row of quantised activations.
#[derive(Clone, Copy, Debug)]
pub struct Q8Ref<'a> {
    pub(crate) q: &'a [i8],
    pub(crate) d: &'a [f32],
    pub(crate) sum16: &'a [f32],
    pub(crate) sum32: &'a [f32],
}

/// One row of quantised activations, to be written.
#[derive(Debug)]
pub(crate) struct Q8Mut<'a> {
    pub q: &'a mut [i8],
    pub d: &'a mut [f32],
    pub sum16: &'a mut [f32],
    pub sum32: &'a mut [f32],
}

impl Q8Rows {
    /// Room for `rows` rows of `cols` values, all zero.
    ///
    /// # Panics
    ///
    /// If `cols` is not a multiple of [`GROUP`].
    pub fn new(rows: usize, cols: usize) -> Self {
        assert!(cols.is_multiple_of(GROUP), "{cols} columns are not whole groups of {GROUP}");
        let n = rows * cols;
        Self {
            rows,
            cols,
            q: vec![0; n],
            d: vec![0.0; n / GROUP],
            sum16: vec![0.0; n / 16],
            sum32: vec![0.0; n / GROUP],
        }
    }

    /// Rows that fit.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> Q8Ref<'_> {
        let (q, g, h) = (i * self.cols, i * self.cols / GROUP, i * self.cols / 16);
        Q8Ref {
            q: &self.q[q..][..self.cols],
            d: &self.d[g..][..self.cols / GROUP],
            sum16: &self.sum16[h..][..self.cols / 16],
            sum32: &self.sum32[g..][..self.cols / GROUP],
        }
    }

    /// Quantises `values`, `[cols]`, into row `i`.
    pub fn quantize(&mut self, isa: Isa, i: usize, values: &[f32]) {
        let cols = self.cols;
        assert_eq!(values.len(), cols, "row length");
        let (q, g, h) = (i * cols, i * cols / GROUP, i * cols / 16);
        crate::simd::quantize_row(
            isa,
            values,
            &mut Q8Mut {
                q: &mut self.q[q..][..cols],
                d: &mut self.d[g..][..cols / GROUP],
                sum16: &mut self.sum16[h..][..cols / 16],
                sum32: &mut self.sum32[g..][..cols / GROUP],
            },
        );
    }
}

/// Quantises whole groups: `d = max|x| / 127`, `q = round(x / d)` to nearest, ties to even.
#[inline(always)]
pub(crate) fn quantize(values: &[f32], out: &mut Q8Mut<'_>) {
    for (g, x) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        let mut max = [0f32; 8];
        for x in x.as_chunks::<8>().0 {
            for (m, x) in max.iter_mut().zip(x) {
                *m = m.max(x.abs());
            }
        }
        let amax = max.iter().fold(0f32, |m, x| m.max(*x));
        let d = amax / 127.0;
        let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
        let q: &mut [i8; GROUP] =
            (&mut out.q[g * GROUP..][..GROUP]).try_into().expect("a whole group");
        let mut wide = [0i32; GROUP];
        for (w, x) in wide.iter_mut().zip(x) {
            *w = (x * inverse).round_ties_even() as i32;
        }
        for (q, w) in q.iter_mut().zip(&wide) {
            *q = *w as i8;
        }
        let low: i32 = wide[..16].iter().sum();
        let high: i32 = wide[16..].iter().sum();
        out.d[g] = d;
        out.sum16[2 * g] = d * low as f32;
        out.sum16[2 * g + 1] = d * high as f32;
        out.sum32[g] = d * (low + high) as f32;
    }
}
