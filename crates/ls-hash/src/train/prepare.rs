//! What is known of samples before training: whether they fit, and how large things are.

use ndarray::{Array2, Zip};

use super::loss::Sizes;
use super::{TrainConfig, stream};
use crate::error::HashError;
use crate::rng::Rng;
use crate::samples::{Pick, Samples};
use crate::score::{mean_square, sigmoid};
use crate::shape::{Form, Norm, Shape};

/// Rows from which sizes are taken, and first codes.
const LOOK: usize = 2048;

/// Features, normalised as the shape says.
pub(super) fn normalised(shape: &Shape, samples: &dyn Samples, picks: &[Pick]) -> Array2<f32> {
    let mut x = Array2::zeros((picks.len(), shape.n_inputs));
    samples.features(picks, x.view_mut());
    if shape.norm == Norm::Rms {
        for mut row in x.rows_mut() {
            let by = (mean_square(row.as_slice().expect("rows are contiguous")) + 1e-6).sqrt();
            row /= by;
        }
    }
    x
}

/// Rows to look at before and after training, spread over all rows and stages.
pub(super) fn look(seed: u64, samples: &dyn Samples) -> Vec<Pick> {
    let mut rng = Rng::new(seed, stream::LOOK);
    let n = samples.n_rows().min(LOOK);
    let pick = |i| Pick { row: i * samples.n_rows() / n, stage: rng.below(samples.n_stages()) };
    (0..n).map(pick).collect()
}

/// Gains relative to their typical size, and sizes of factors.
pub(super) fn measure(shape: &Shape, samples: &dyn Samples, picks: &[Pick]) -> (Vec<f32>, Sizes) {
    let mut gains = vec![1.0; shape.n_outputs];
    let mut sizes = Sizes { gate: 1.0, up: 1.0, act: 1.0 };
    if shape.form == Form::Direct {
        return (gains, sizes);
    }
    if let Some(given) = samples.gains() {
        let size = (given.dot(&given) / given.len() as f32).sqrt().max(1e-12);
        gains = given.iter().map(|gain| gain / size).collect();
    }
    let rows: Vec<usize> = picks.iter().take(512).map(|pick| pick.row).collect();
    let size = (rows.len(), shape.n_outputs);
    let (mut gate, mut up) = (Array2::zeros(size), Array2::zeros(size));
    samples.factors(&rows, gate.view_mut(), up.view_mut());
    let root = |x: &Array2<f32>| (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
    (sizes.gate, sizes.up) = (root(&gate).max(1e-6), root(&up).max(1e-6));
    Zip::from(&mut gate).and(&up).for_each(|g, u| *g = *g * sigmoid(*g) * u);
    gate *= &ndarray::ArrayView1::from(&gains);
    sizes.act = root(&gate).max(1e-6);
    (gains, sizes)
}

pub(super) fn check(
    shape: &Shape,
    config: &TrainConfig,
    samples: &dyn Samples,
) -> Result<(), HashError> {
    shape.check()?;
    let same = |what, found: usize, expected: usize| match found == expected {
        true => Ok(()),
        false => Err(HashError::Length { what, found, expected }),
    };
    same("a row of features", samples.n_inputs(), shape.n_inputs)?;
    same("a row of importances", samples.n_outputs(), shape.n_outputs)?;
    let size = |what, found, least, expected| match found >= least {
        true => Ok(()),
        false => Err(HashError::Size { what, found, expected }),
    };
    size("number of rows", samples.n_rows(), 2, "at least 2")?;
    size("number of stages", samples.n_stages(), 1, "at least 1")?;
    size("batch", config.batch, 2, "at least 2")?;
    size("number of steps", config.n_steps, 1, "at least 1")?;
    if shape.form == Form::Bilinear && !samples.has_factors() {
        return Err(HashError::Missing { what: "factors" });
    }
    match config.learning_rate.is_finite() && samples.n_rows() <= u32::MAX as usize {
        true => Ok(()),
        false => Err(HashError::NotFinite { what: "learning rate", index: 0 }),
    }
}
