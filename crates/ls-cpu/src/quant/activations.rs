//! Activations quantised to 8 bits, a scale for each group of 32.

use std::ops::Range;

use super::GROUP;
use crate::Isa;
use crate::pool::Split;

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
    ///
    /// # Panics
    ///
    /// If `i` is not a row, or `values` is not `cols` long.
    pub fn quantize(&mut self, isa: Isa, i: usize, values: &[f32]) {
        assert_eq!(values.len(), self.cols, "row length");
        let groups = 0..self.cols / GROUP;
        // SAFETY: `self` is borrowed mutably and one row is handed out.
        #[allow(unsafe_code)]
        let mut row = unsafe { self.split().groups(i, groups) };
        crate::simd::quantize_row(isa, values, &mut row);
    }

    /// All rows, for threads that write disjoint groups.
    pub(crate) fn split(&mut self) -> Q8Split<'_> {
        Q8Split {
            cols: self.cols,
            q: Split::new(&mut self.q),
            d: Split::new(&mut self.d),
            sum16: Split::new(&mut self.sum16),
            sum32: Split::new(&mut self.sum32),
        }
    }
}

/// Rows that several threads write disjoint groups of.
pub(crate) struct Q8Split<'a> {
    cols: usize,
    q: Split<'a, i8>,
    d: Split<'a, f32>,
    sum16: Split<'a, f32>,
    sum32: Split<'a, f32>,
}

impl<'a> Q8Split<'a> {
    /// Groups `groups` of row `i`.
    ///
    /// # Safety
    ///
    /// No other borrow of the same groups may be alive.
    #[allow(unsafe_code)]
    pub unsafe fn groups(&self, i: usize, groups: Range<usize>) -> Q8Mut<'a> {
        let (at, n) = (i * self.cols / GROUP + groups.start, groups.len());
        // SAFETY: disjoint groups are disjoint parts of each array; the caller promises the rest.
        unsafe {
            Q8Mut {
                q: self.q.slice(at * GROUP, n * GROUP),
                d: self.d.slice(at, n),
                sum16: self.sum16.slice(2 * at, 2 * n),
                sum32: self.sum32.slice(at, n),
            }
        }
    }
}

/// Quantises whole groups: `d = max|x| / 127`, `q = round(x / d)` to nearest, ties to even.
///
/// A group with an infinity or a NaN gets a `d` that makes every product with it NaN: what is
/// wrong must not turn into plausible zeros.
#[inline(always)]
pub(crate) fn quantize(values: &[f32], out: &mut Q8Mut<'_>) {
    for (g, x) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        // Magnitudes as integers: they sort as the floats do, and NaN above all of them, where
        // a maximum of floats would pass it over.
        let mut max = [0u32; 8];
        for x in x.as_chunks::<8>().0 {
            for (m, x) in max.iter_mut().zip(x) {
                *m = (*m).max(x.to_bits() & 0x7fff_ffff);
            }
        }
        let amax = f32::from_bits(max.iter().fold(0, |m, x| m.max(*x)));
        // Below that the inverse would overflow, and there is nothing worth keeping.
        let is_ordinary = amax > 1e-30 && amax < f32::INFINITY;
        let d = if amax <= 1e-30 { 0.0 } else { amax / 127.0 };
        let d = if amax < f32::INFINITY { d } else { f32::NAN };
        let inverse = if is_ordinary { 127.0 / amax } else { 0.0 };
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
