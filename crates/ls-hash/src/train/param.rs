//! Parameters with the moments of Adam, and products of matrices on all threads.

use ndarray::{Array2, ArrayView2, Axis, Zip};
use rayon::prelude::*;

use crate::rng::Rng;

const DECAY: [f32; 2] = [0.9, 0.98];
const EPSILON: f32 = 1e-8;

/// Rows of a product that are one task. Fixed, so that results do not depend on the threads.
const ROWS: usize = 64;

/// How far to go in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// With the corrections of the moments' bias.
    by: f32,
    root: f32,
}

impl Rate {
    /// Of step `step`, counted from 0.
    pub(super) fn new(learning_rate: f32, step: u64) -> Self {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let [first, second] = DECAY.map(|decay| 1.0 - decay.powi(t));
        Self { by: learning_rate / first, root: second.sqrt().recip() }
    }
}

/// A matrix that is learnt.
#[derive(Clone, Debug)]
pub(super) struct Param {
    pub value: Array2<f32>,
    pub first: Array2<f32>,
    pub second: Array2<f32>,
}

impl Param {
    pub(super) fn new(value: Array2<f32>) -> Self {
        let zero = Array2::zeros(value.raw_dim());
        Self { value, first: zero.clone(), second: zero }
    }

    pub(super) fn normal(rows: usize, cols: usize, size: f32, rng: &mut Rng) -> Self {
        Self::new(Array2::from_shape_simple_fn((rows, cols), || size * rng.normal()))
    }

    /// One step of Adam down `gradient`.
    pub(super) fn step(&mut self, gradient: &Array2<f32>, rate: Rate) {
        let [keep_first, keep_second] = DECAY;
        Zip::from(&mut self.value)
            .and(&mut self.first)
            .and(&mut self.second)
            .and(gradient)
            .for_each(|x, first, second, g| {
                *first = keep_first * *first + (1.0 - keep_first) * g;
                *second = keep_second * *second + (1.0 - keep_second) * g * g;
                *x -= rate.by * *first / (second.sqrt() * rate.root + EPSILON);
            });
    }
}

/// `a · b` on all threads.
pub(super) fn product(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut out = Array2::zeros((a.nrows(), b.ncols()));
    let parts: Vec<_> =
        out.axis_chunks_iter_mut(Axis(0), ROWS).zip(a.axis_chunks_iter(Axis(0), ROWS)).collect();
    parts.into_par_iter().for_each(|(mut out, a)| {
        ndarray::linalg::general_mat_mul(1.0, &a, &b, 0.0, &mut out);
    });
    out
}

/// −1 for negative numbers, 1 for others.
pub(super) fn sign(x: f32) -> f32 {
    if x >= 0.0 { 1.0 } else { -1.0 }
}
