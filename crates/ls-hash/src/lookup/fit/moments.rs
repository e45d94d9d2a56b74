//! Mean and covariance of features, and the directions in which they vary most.

use ndarray::{Array1, Array2, Axis, s};

use super::linalg::{orthonormalise, product, product64};
use crate::error::HashError;
use crate::lookup::layer::GatedLayer;
use crate::lookup::shape::FeatureKind;
use crate::rng::Rng;

/// Rows that are in memory at a time.
pub(crate) const ROWS: usize = 1024;
/// Runs of rows that means of inexact kinds are taken of, and the rows of each.
const MEAN_PARTS: usize = 16;
const PART: usize = 256;
/// Rounds of the power iteration. Directions whose variances differ by less than about a tenth stay
/// mixed, which costs nothing, since they count the same.
const ROUNDS: usize = 12;
/// Directions beyond those that are wanted: the last ones of an iteration converge slowly.
const SURPLUS: usize = 16;

/// Mean and covariance of the exact features.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub mean: Array1<f32>,
    /// `[inputs, inputs]`.
    pub covariance: Array2<f32>,
}

/// Features of `rows`, `[rows, inputs]`.
pub(crate) fn read(
    layer: &dyn GatedLayer,
    kind: FeatureKind,
    rows: std::ops::Range<usize>,
) -> Array2<f32> {
    let mut x = Array2::zeros((rows.len(), layer.n_inputs()));
    layer.features(kind, rows, x.view_mut());
    x
}

/// Mean of the features of one kind in the first `n` rows; of kinds that are not exact, which can take
/// long to compute, in some thousands of them.
pub(crate) fn mean(
    layer: &dyn GatedLayer,
    kind: FeatureKind,
    n: usize,
) -> Result<Array1<f32>, HashError> {
    let mut sum = Array1::<f64>::zeros(layer.n_inputs());
    let (step, size) = match kind {
        FeatureKind::Exact => (ROWS, ROWS),
        _ => ((n / MEAN_PARTS).max(PART), PART),
    };
    let mut n_read = 0;
    for begin in (0..n).step_by(step) {
        let x = read(layer, kind, begin..(begin + size).min(n));
        n_read += x.nrows();
        if let Some(i) = x.iter().position(|x| !x.is_finite()) {
            return Err(HashError::NotFinite { what: "feature", index: i + begin * x.ncols() });
        }
        for row in x.rows() {
            sum.zip_mut_with(&row, |sum, x| *sum += f64::from(*x));
        }
    }
    Ok(sum.mapv(|sum| (sum / n_read as f64) as f32))
}

impl Moments {
    /// Of the first `n` rows.
    pub(crate) fn new(layer: &dyn GatedLayer, n: usize) -> Result<Self, HashError> {
        let mean = mean(layer, FeatureKind::Exact, n)?;
        let mut sum = Array2::<f64>::zeros((mean.len(), mean.len()));
        for begin in (0..n).step_by(ROWS) {
            let x = read(layer, FeatureKind::Exact, begin..(begin + ROWS).min(n)) - &mean;
            let part = product(x.t(), x.view());
            sum.zip_mut_with(&part, |sum, x| *sum += f64::from(*x));
        }
        let covariance = sum.mapv(|sum| (sum / n as f64) as f32);
        Ok(Self { mean, covariance })
    }

    /// The `n` leading principal directions as rows, by block power iteration.
    pub(crate) fn directions(&self, n: usize, seed: u64) -> Result<Array2<f32>, HashError> {
        let d = self.mean.len();
        let c = self.covariance.mapv(f64::from);
        let mut rng = Rng::new(seed, 0);
        let wide = (n + SURPLUS.max(n / 8)).min(d);
        let mut basis = Array2::from_shape_simple_fn((wide, d), || f64::from(rng.normal()));
        orthonormalise(&mut basis)?;
        for _ in 0..ROUNDS {
            basis = product64(basis.view(), c.view());
            // So that directions in which nothing varies stay independent.
            let size = basis.row(0).dot(&basis.row(0)).sqrt().max(1e-30);
            basis /= size;
            orthonormalise(&mut basis)?;
        }
        let spread = product64(basis.view(), c.view());
        let spread = (&spread * &basis).sum_axis(Axis(1));
        let mut order: Vec<usize> = (0..wide).collect();
        order.sort_by(|a, b| spread[*b].total_cmp(&spread[*a]));
        let basis = basis.select(Axis(0), &order[..n]);
        Ok(basis.slice(s![.., ..]).mapv(|x| x as f32))
    }
}
