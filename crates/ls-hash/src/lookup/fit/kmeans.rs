//! Sixteen centroids for the outputs' places in a group's dimensions.

use ndarray::{Array2, ArrayView2};

use crate::rng::Rng;
use crate::simd::lookup::ENTRIES;

/// Rounds of Lloyd's algorithm.
const ROUNDS: usize = 16;

/// Centroids, `[dimension][entry]`.
pub(crate) type Centroids = Vec<[f32; ENTRIES]>;

/// The nearest centroid, the first of equals.
#[inline]
pub(crate) fn nearest(centroids: &[[f32; ENTRIES]], mut point: impl Iterator<Item = f32>) -> u8 {
    let mut distances = [0.0; ENTRIES];
    for centroids in centroids {
        let x = point.next().unwrap_or(0.0);
        for (distance, c) in distances.iter_mut().zip(centroids) {
            *distance += (x - c) * (x - c);
        }
    }
    let mut best = 0;
    for i in 1..ENTRIES {
        if distances[i] < distances[best] {
            best = i;
        }
    }
    best as u8
}

/// Centroids of `points`, `[points, dimensions]`.
pub(crate) fn centroids(points: ArrayView2<'_, f32>, seed: u64) -> Centroids {
    let mut centroids = match points.ncols() {
        1 => quantiles(points),
        _ => spread(points, &mut Rng::new(seed, 7)),
    };
    let mut codes = vec![u8::MAX; points.nrows()];
    for _ in 0..ROUNDS {
        let mut changed = false;
        for (code, point) in codes.iter_mut().zip(points.rows()) {
            let nearest = nearest(&centroids, point.iter().copied());
            changed |= *code != nearest;
            *code = nearest;
        }
        if !changed {
            break;
        }
        move_to_means(&mut centroids, points, &codes);
    }
    centroids
}

fn move_to_means(centroids: &mut Centroids, points: ArrayView2<'_, f32>, codes: &[u8]) {
    let mut counts = [0u32; ENTRIES];
    for code in codes {
        counts[usize::from(*code)] += 1;
    }
    for (centroids, points) in centroids.iter_mut().zip(points.columns()) {
        let mut sums = [0.0f64; ENTRIES];
        for (code, x) in codes.iter().zip(points) {
            sums[usize::from(*code)] += f64::from(*x);
        }
        for (entry, centroid) in centroids.iter_mut().enumerate() {
            // One that nothing is near to stays.
            if counts[entry] > 0 {
                *centroid = (sums[entry] / f64::from(counts[entry])) as f32;
            }
        }
    }
}

/// Midpoints of sixteen parts that are equally full.
fn quantiles(points: ArrayView2<'_, f32>) -> Centroids {
    let mut sorted: Vec<f32> = points.iter().copied().collect();
    sorted.sort_by(f32::total_cmp);
    let at = |i: usize| sorted[((2 * i + 1) * sorted.len() / (2 * ENTRIES)).min(sorted.len() - 1)];
    vec![std::array::from_fn(at)]
}

/// Points that are far from each other: each is drawn by its square distance to those before.
fn spread(points: ArrayView2<'_, f32>, rng: &mut Rng) -> Centroids {
    let n = points.nrows();
    let mut chosen = Array2::zeros((ENTRIES, points.ncols()));
    chosen.row_mut(0).assign(&points.row(rng.below(n)));
    let mut distances = vec![f32::INFINITY; n];
    for i in 1..ENTRIES {
        let last = chosen.row(i - 1);
        for (distance, point) in distances.iter_mut().zip(points.rows()) {
            let far = point.iter().zip(last).map(|(a, b)| (a - b) * (a - b)).sum();
            *distance = distance.min(far);
        }
        let total: f64 = distances.iter().map(|x| f64::from(*x)).sum();
        let mut left = f64::from(rng.unit()) * total;
        let at = distances.iter().position(|x| {
            left -= f64::from(*x);
            left < 0.0
        });
        let at = at.unwrap_or_else(|| rng.below(n));
        let point = points.row(at).to_owned();
        chosen.row_mut(i).assign(&point);
    }
    chosen.columns().into_iter().map(|column| std::array::from_fn(|i| column[i])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_clusters_are_found() {
        for dims in 1..=4 {
            let mut rng = Rng::new(3, 0);
            let centres = Array2::from_shape_simple_fn((ENTRIES, dims), || 20.0 * rng.unit());
            let points = Array2::from_shape_fn((800, dims), |(i, j)| {
                centres[[i % ENTRIES, j]] + 0.01 * rng.normal()
            });
            let found = centroids(points.view(), 1);
            let error: f32 = points
                .rows()
                .into_iter()
                .map(|point| {
                    let code = usize::from(nearest(&found, point.iter().copied()));
                    (0..dims).map(|j| (point[j] - found[j][code]).powi(2)).sum::<f32>()
                })
                .sum();
            // In one dimension clusters can lie next to each other.
            assert!(error / 800.0 < 0.5, "{dims}: {error}");
        }
    }

    #[test]
    fn fewer_points_than_centroids_are_met() {
        for dims in 1..3 {
            let points = Array2::from_elem((3, dims), 0.5);
            let found = centroids(points.view(), 1);
            assert_eq!(found.len(), dims);
            assert_eq!(found[0][usize::from(nearest(&found, [0.5; 4].into_iter()))], 0.5);
        }
    }
}
