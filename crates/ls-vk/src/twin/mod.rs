//! What each kernel must compute, in plain Rust and double precision.
//!
//! Slow, and meant to be read: tests and self-tests compare kernels with these.

mod column;
mod mlp;
mod random;
mod row;

pub use column::{read_column, write_column};
pub use mlp::{Answer, mlp};
pub use random::Random;
pub use row::read_row;

/// `x / rms(x) · weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let scale = 1.0 / (square / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

/// Products of the rows of a matrix of f16, `[rows, cols]`, with `x`, `[cols]`.
pub fn project(matrix: &[half::f16], x: &[f32]) -> Vec<f64> {
    matrix
        .chunks_exact(x.len())
        .map(|row| row.iter().zip(x).map(|(w, x)| f64::from(w.to_f32()) * f64::from(*x)).sum())
        .collect()
}
