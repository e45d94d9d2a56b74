//! Made-up data of a gated MLP, for tests and examples: real data has more structure.

use ndarray::{Array1, Array2, Array3, s};

use crate::error::HashError;
use crate::rng::Rng;
use crate::samples::Matrices;

/// Sizes of made-up data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synthetic {
    /// Everything follows from it.
    pub seed: u64,
    /// Features.
    pub n_inputs: usize,
    /// Outputs.
    pub n_outputs: usize,
    /// Directions in which features vary, the later ones less.
    pub rank: usize,
    /// How much of a row stays in the next.
    pub memory: f32,
    /// Noise of the features at stage 0, relative to them; stage 1 has none.
    pub noise: f32,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self { seed: 1, n_inputs: 128, n_outputs: 512, rank: 24, memory: 0.4, noise: 0.3 }
    }
}

/// Features at two stages and the factors of each output.
#[derive(Clone, Debug)]
pub struct Data {
    /// `[rows, 2, inputs]`.
    pub features: Array3<f32>,
    /// `[rows, outputs]`.
    pub gate: Array2<f32>,
    /// `[rows, outputs]`.
    pub up: Array2<f32>,
    /// What each output counts.
    pub gains: Array1<f32>,
}

/// Weights of a gated layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Gate and second factor, `[outputs, inputs]`.
    pub weights: [Array2<f32>; 2],
    /// What each output counts.
    pub gains: Array1<f32>,
}

impl Synthetic {
    /// A layer and `n` rows of features `[2, rows, inputs]`, each correlated with the one before:
    /// first the exact ones, then others that are known earlier.
    pub fn layer(self, n: usize) -> (Layer, Array3<f32>) {
        let mut rng = Rng::new(self.seed, 1);
        let mut matrix = |rows, cols, size: f32| {
            Array2::from_shape_simple_fn((rows, cols), || size * rng.normal())
        };
        let x = self.correlated(n, &mut matrix);
        let noise = matrix(n, self.n_inputs, 2.0 * self.noise);
        // A feature that is always the same inclines outputs to be open or closed.
        let mut features = Array3::zeros((2, n, self.n_inputs));
        features.slice_mut(s![0, .., ..]).assign(&x);
        features.slice_mut(s![1, .., ..]).assign(&(&x + &noise));
        features.slice_mut(s![.., .., 0]).fill(1.0);
        let size = 2.0 / (self.n_inputs as f32).sqrt();
        let [mut gate, up] = [0.6, 0.5].map(|by| matrix(self.n_outputs, self.n_inputs, by * size));
        gate.column_mut(0).assign(&(matrix(1, self.n_outputs, 1.0) - 1.0).row(0));
        let gains = matrix(1, self.n_outputs, 0.2).row(0).mapv(|g: f32| (1.0 + g).max(0.2));
        (Layer { weights: [gate, up], gains }, features)
    }

    /// Rows that vary in some directions, each like the one before.
    fn correlated(
        self,
        n: usize,
        matrix: &mut impl FnMut(usize, usize, f32) -> Array2<f32>,
    ) -> Array2<f32> {
        let mut latent = matrix(n, self.rank, 1.0);
        let fresh = (1.0 - self.memory * self.memory).sqrt();
        for i in 1..n {
            let (before, mut now) = latent.multi_slice_mut((s![i - 1, ..], s![i, ..]));
            now.zip_mut_with(&before, |now, before| *now = fresh * *now + self.memory * before);
        }
        for (i, mut column) in latent.columns_mut().into_iter().enumerate() {
            column *= (1.0 + i as f32).powf(-0.4);
        }
        let x = latent.dot(&matrix(self.rank, self.n_inputs, 1.0));
        x + matrix(n, self.n_inputs, 0.1)
    }

    /// `n` rows, each correlated with the one before.
    pub fn rows(self, n: usize) -> Data {
        let mut rng = Rng::new(self.seed, 0);
        let mut matrix = |rows, cols, size: f32| {
            Array2::from_shape_simple_fn((rows, cols), || size * rng.normal())
        };
        let x = self.correlated(n, &mut matrix);
        // Each output has a direction, and an inclination to be open or closed.
        let size = 2.0 / (self.n_inputs as f32).sqrt();
        let gate_weights = matrix(self.n_inputs, self.n_outputs, 0.6 * size);
        let up_weights = matrix(self.n_inputs, self.n_outputs, 0.5 * size);
        let inclination = matrix(1, self.n_outputs, 1.0) - 1.0;
        let gate = x.dot(&gate_weights) + inclination;
        let up = x.dot(&up_weights);
        let gains = matrix(1, self.n_outputs, 0.2).row(0).mapv(|g: f32| (1.0 + g).max(0.2));
        let noise = matrix(n, self.n_inputs, self.noise);
        let mut features = Array3::zeros((n, 2, self.n_inputs));
        features.slice_mut(s![.., 0, ..]).assign(&(&x + &(noise * 2.0)));
        features.slice_mut(s![.., 1, ..]).assign(&x);
        Data { features, gate, up, gains }
    }
}

impl Data {
    /// All rows.
    ///
    /// # Errors
    ///
    /// If the lengths were changed.
    pub fn samples(&self) -> Result<Matrices<'_>, HashError> {
        self.part(0, self.gate.nrows())
    }

    /// The rows before `n` and those from `n` on.
    ///
    /// # Panics
    ///
    /// If there are not `n` rows.
    #[allow(clippy::type_complexity)]
    pub fn split(
        &self,
        n: usize,
    ) -> (Result<Matrices<'_>, HashError>, Result<Matrices<'_>, HashError>) {
        (self.part(0, n), self.part(n, self.gate.nrows()))
    }

    fn part(&self, begin: usize, end: usize) -> Result<Matrices<'_>, HashError> {
        Matrices::with_factors(
            self.features.slice(s![begin..end, .., ..]),
            self.gate.slice(s![begin..end, ..]),
            self.up.slice(s![begin..end, ..]),
            Some(self.gains.view()),
        )
    }
}
