//! How far estimates are from what they estimate.

use ndarray::{Array2, ArrayView2};
use rayon::prelude::*;

use crate::score::sigmoid;

/// Share of the mean importance that is added before the logarithm.
const FLOOR: f32 = 1e-3;
/// Bounds of an importance's weight, as multiples of the row's mean.
const WEIGHTS: [f32; 2] = [0.2, 5.0];
/// What an error of a factor counts beside one of their product.
const FACTOR: f32 = 0.3;
/// Errors of products beyond it have no larger gradient.
const LARGEST: f32 = 30.0;

/// What estimates of a batch should be.
#[derive(Debug)]
pub(super) enum Targets {
    /// Logarithms of importance, normalised in each row, and what each error counts.
    Log { log: Array2<f32>, weight: Array2<f32> },
    /// Factors in units of their size.
    Factors { gate: Array2<f32>, up: Array2<f32> },
}

/// Typical sizes of the factors and of their product, gain and all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub gate: f32,
    pub up: f32,
    pub act: f32,
}

impl Targets {
    pub(super) fn log(mut importance: Array2<f32>) -> Self {
        let mut weight = Array2::zeros(importance.raw_dim());
        let rows: Vec<_> = importance.rows_mut().into_iter().zip(weight.rows_mut()).collect();
        rows.into_par_iter().for_each(|(mut row, mut weight)| {
            let n = row.len() as f32;
            let mean = (row.sum() / n).max(f32::MIN_POSITIVE);
            let [low, high] = WEIGHTS;
            weight.zip_mut_with(&row, |weight, a| *weight = (a / mean).clamp(low, high));
            row.mapv_inplace(|a| (a / mean + FLOOR).ln());
            row -= row.sum() / n;
            let deviation = (row.dot(&row) / n).sqrt().max(1e-6);
            row /= deviation;
        });
        Self::Log { log: importance, weight }
    }
}

/// Gradient of `weight · (estimate − log)²`, in place of the estimate; the sum of these losses.
pub(super) fn log_loss(
    mut estimate: ndarray::ArrayViewMut2<'_, f32>,
    log: ArrayView2<'_, f32>,
    weight: ArrayView2<'_, f32>,
) -> f64 {
    let mut loss = 0.0;
    ndarray::Zip::from(&mut estimate).and(log).and(weight).for_each(|estimate, log, weight| {
        let error = *estimate - log;
        loss += f64::from(weight * error * error);
        *estimate = 2.0 * weight * error;
    });
    loss
}

/// Loss and gradient of one pair of factors, which like the estimates are in units of their size.
#[inline]
pub(super) fn factor_loss(
    estimate: [f32; 2],
    target: [f32; 2],
    gain: f32,
    sizes: Sizes,
) -> (f32, [f32; 2]) {
    let [gate, up] = [estimate[0] * sizes.gate, estimate[1] * sizes.up];
    let s = sigmoid(gate);
    let silu = gate * s;
    let slope = s * (1.0 + gate * (1.0 - s));
    let [true_gate, true_up] = [target[0] * sizes.gate, target[1] * sizes.up];
    let act = true_gate * sigmoid(true_gate) * true_up;
    let by = gain / sizes.act;
    let error = ((silu * up - act) * by).clamp(-LARGEST, LARGEST);
    let [of_gate, of_up] = [estimate[0] - target[0], estimate[1] - target[1]];
    let loss = FACTOR * (of_gate * of_gate + of_up * of_up) + error * error;
    let to_gate = 2.0 * (FACTOR * of_gate + error * by * slope * up * sizes.gate);
    let to_up = 2.0 * (FACTOR * of_up + error * by * silu * sizes.up);
    (loss, [to_gate, to_up])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradient_of_factors_is_right() {
        let sizes = Sizes { gate: 1.3, up: 0.7, act: 0.9 };
        let loss = |a: f32, b: f32| factor_loss([a, b], [0.3, -0.8], 1.2, sizes).0;
        for (a, b) in [(0.5, 0.2), (-1.5, 1.0), (2.0, -3.0), (0.0, 0.0)] {
            let (_, gradient) = factor_loss([a, b], [0.3, -0.8], 1.2, sizes);
            let slopes = [
                (loss(a + 1e-2, b) - loss(a - 1e-2, b)) / 2e-2,
                (loss(a, b + 1e-2) - loss(a, b - 1e-2)) / 2e-2,
            ];
            for (g, slope) in gradient.iter().zip(slopes) {
                assert!((g - slope).abs() < 0.01 * (1.0 + slope.abs()), "{g} {slope}");
            }
        }
    }

    #[test]
    fn logarithms_are_normalised_by_row() {
        let importance = ndarray::array![[1.0, 2.0, 4.0, 0.0], [3.0, 3.0, 3.0, 3.0]];
        let Targets::Log { log, weight } = Targets::log(importance) else { panic!("logarithms") };
        assert!(log.iter().all(|x| x.is_finite()));
        assert!(log.row(0).sum().abs() < 1e-5);
        assert!((log.row(0).dot(&log.row(0)) / 4.0 - 1.0).abs() < 1e-4);
        assert_eq!(weight[[0, 3]], 0.2);
    }
}
