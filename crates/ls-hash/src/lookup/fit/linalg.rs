//! Products on all threads, Cholesky factors and what they solve.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, LinalgScalar, s};
use rayon::prelude::*;

use crate::error::HashError;

/// Rows of a product that are one task, and columns that are solved together. Fixed, so that
/// results do not depend on the threads.
const ROWS: usize = 128;
const COLUMNS: usize = 64;

/// `out = a · b`.
fn into<T: LinalgScalar + Send + Sync>(
    a: ArrayView2<'_, T>,
    b: ArrayView2<'_, T>,
    mut out: ArrayViewMut2<'_, T>,
) {
    // Along the longer side of the result.
    if a.nrows() < b.ncols() / 2 {
        let parts = out.axis_chunks_iter_mut(Axis(1), ROWS).zip(b.axis_chunks_iter(Axis(1), ROWS));
        let parts: Vec<_> = parts.collect();
        parts.into_par_iter().for_each(|(mut out, b)| {
            general_mat_mul(T::one(), &a, &b, T::zero(), &mut out);
        });
        return;
    }
    let parts = out.axis_chunks_iter_mut(Axis(0), ROWS).zip(a.axis_chunks_iter(Axis(0), ROWS));
    let parts: Vec<_> = parts.collect();
    parts.into_par_iter().for_each(|(mut out, a)| {
        general_mat_mul(T::one(), &a, &b, T::zero(), &mut out);
    });
}

/// `a · b` on all threads.
pub(crate) fn product(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut out = Array2::zeros((a.nrows(), b.ncols()));
    into(a, b, out.view_mut());
    out
}

/// `a · b` on all threads.
pub(crate) fn product64(a: ArrayView2<'_, f64>, b: ArrayView2<'_, f64>) -> Array2<f64> {
    let mut out = Array2::zeros((a.nrows(), b.ncols()));
    into(a, b, out.view_mut());
    out
}

/// The lower triangle `l` of which `l · lᵀ` is the symmetric `a`, with as much added to the diagonal
/// as it takes.
pub(crate) fn cholesky(a: &Array2<f64>) -> Result<Array2<f64>, HashError> {
    let size = a.diag().sum() / a.nrows().max(1) as f64;
    if !size.is_finite() {
        return Err(HashError::NotFinite { what: "variance", index: 0 });
    }
    let mut added = 1e-12 * size.max(1e-30);
    loop {
        match factor(a, added) {
            Some(l) => return Ok(l),
            // At the latest where the diagonal outweighs all else.
            None if added.is_finite() => added *= 100.0,
            None => return Err(HashError::NotFinite { what: "variance", index: 0 }),
        }
    }
}

fn factor(a: &Array2<f64>, added: f64) -> Option<Array2<f64>> {
    let n = a.nrows();
    let mut l = Array2::<f64>::zeros((n, n));
    for i in 0..n {
        for j in 0..=i {
            let dot = l.slice(s![i, ..j]).dot(&l.slice(s![j, ..j]));
            if i == j {
                let rest = a[[i, i]] + added - dot;
                // Not larger, or not a number.
                if rest.is_nan() || rest <= 0.1 * added {
                    return None;
                }
                l[[i, i]] = rest.sqrt();
            } else {
                l[[i, j]] = (a[[i, j]] - dot) / l[[j, j]];
            }
        }
    }
    Some(l)
}

/// The inverse of the lower triangle `l`, lower too: with it substitutions are products, which keep
/// all threads and their vectors busy.
fn inverse(l: &Array2<f64>) -> Array2<f64> {
    let n = l.nrows();
    let mut out = Array2::zeros((n, n));
    let parts: Vec<_> = out.axis_chunks_iter_mut(Axis(1), COLUMNS).enumerate().collect();
    parts.into_par_iter().for_each(|(chunk, mut out)| {
        let first = chunk * COLUMNS;
        let width = out.ncols();
        let mut x = Array2::<f64>::zeros((n - first, width));
        let flat = x.as_slice_mut().expect("made in standard layout");
        for i in 0..n - first {
            let (above, from) = flat.split_at_mut(i * width);
            let row = &mut from[..width];
            if i < width {
                row[i] = 1.0;
            }
            for (above, factor) in above.chunks_exact(width).zip(l.slice(s![first + i, first..])) {
                row.iter_mut().zip(above).for_each(|(x, above)| *x -= factor * above);
            }
            let by = l[[first + i, first + i]].recip();
            row.iter_mut().for_each(|x| *x *= by);
        }
        out.slice_mut(s![first.., ..]).assign(&x);
    });
    out
}

/// The solution of `l · lᵀ · x = b`, column by column.
pub(crate) fn solve(l: &Array2<f64>, b: ArrayView2<'_, f32>) -> Array2<f32> {
    let inverse = inverse(l);
    let mut out = Array2::zeros(b.raw_dim());
    let parts =
        out.axis_chunks_iter_mut(Axis(1), COLUMNS).zip(b.axis_chunks_iter(Axis(1), COLUMNS));
    let parts: Vec<_> = parts.collect();
    parts.into_par_iter().for_each(|(mut out, b)| {
        let half = inverse.dot(&b.mapv(f64::from));
        out.assign(&inverse.t().dot(&half).mapv(|x| x as f32));
    });
    out
}

/// Makes the rows orthonormal in their order, by the Cholesky factor of their products, twice
/// since once is not exact.
pub(crate) fn orthonormalise(rows: &mut Array2<f64>) -> Result<(), HashError> {
    for _ in 0..2 {
        for mut row in rows.rows_mut() {
            let size = row.dot(&row).sqrt().max(1e-200);
            row /= size;
        }
        let l = cholesky(&product64(rows.view(), rows.t()))?;
        *rows = product64(inverse(&l).view(), rows.view());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn random(rows: usize, cols: usize) -> Array2<f64> {
        let mut rng = Rng::new(5, 0);
        Array2::from_shape_simple_fn((rows, cols), || f64::from(rng.normal()))
    }

    #[test]
    fn rows_become_orthonormal() {
        let mut rows = random(40, 60);
        // Nearly the same directions.
        let first = rows.row(0).to_owned();
        rows.row_mut(7).assign(&(&first + 1e-5));
        orthonormalise(&mut rows).unwrap();
        let unit = rows.dot(&rows.t()) - Array2::<f64>::eye(40);
        assert!(unit.iter().all(|x| x.abs() < 1e-6));
    }

    #[test]
    fn solutions_solve() {
        let half = random(30, 50);
        let a = half.dot(&half.t());
        let x = random(30, 200);
        let b = a.dot(&x).mapv(|x| x as f32);
        let found = solve(&cholesky(&a).unwrap(), b.view());
        let off = found.mapv(f64::from) - &x;
        assert!(off.iter().all(|x| x.abs() < 1e-3));
    }

    #[test]
    fn products_are_products() {
        for (a, b) in [(3, 900), (700, 5), (1, 1)] {
            let (a, b) = (random(a, 20), random(20, b));
            let found = product64(a.view(), b.view());
            assert!((found - a.dot(&b)).iter().all(|x| x.abs() < 1e-9));
        }
    }

    #[test]
    fn singular_and_endless_matrices_are_survived() {
        assert!(cholesky(&Array2::zeros((4, 4))).is_ok());
        assert!(cholesky(&Array2::from_elem((4, 4), 1.0)).is_ok());
        assert!(cholesky(&Array2::from_elem((4, 4), f64::NAN)).is_err());
    }
}
