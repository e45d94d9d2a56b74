//! Fitting, and training on from there by the loss itself: the energy that a selection would miss.

mod adam;
mod energies;
pub(crate) mod loss;
mod step;

use std::ops::ControlFlow;

use ndarray::{Array2, Axis};

use crate::error::HashError;
use crate::lookup::fit::{Net, Variances, Weights, divide, fit, measure};
use crate::lookup::layer::GatedLayer;
use crate::lookup::predictor::LookupPredictor;
use crate::lookup::shape::{FeatureKind, LookupShape};
use crate::rng::Rng;
use crate::train::Progress;
use adam::Rate;
use energies::Energies;
use step::{Learner, Selection};

/// Sequences of random numbers for the orders of rows.
const EPOCHS: u64 = 1 << 33;

/// How long and how to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookupConfig {
    /// Everything random follows from it.
    pub seed: u64,
    /// Steps in all; the rates fall to 0 with the last, along a cosine. With 0 the predictor is
    /// only fitted.
    pub n_steps: usize,
    /// Rows of one step.
    pub batch: usize,
    /// What all rates are multiplied by.
    pub learning_rate: f32,
    /// Share of outputs that the loss selects.
    pub keep: f32,
    /// How soft the selection is: the logarithm of scores over which it changes.
    pub softness: f32,
}

impl Default for LookupConfig {
    fn default() -> Self {
        Self { seed: 0, n_steps: 200, batch: 1024, learning_rate: 1.0, keep: 0.5, softness: 0.5 }
    }
}

/// A look-up predictor in training.
#[derive(Debug)]
pub struct LookupTrainer {
    config: LookupConfig,
    step: usize,
    net: Net,
    weights: Weights,
    learner: Learner,
    energies: Energies,
}

impl LookupTrainer {
    /// Fits a predictor of `shape` to `layer`: most of the way, in seconds.
    ///
    /// # Errors
    ///
    /// If `shape` is none or does not fit `layer`, or numbers of `layer` are not finite.
    pub fn new(
        shape: LookupShape,
        config: LookupConfig,
        layer: &dyn GatedLayer,
    ) -> Result<Self, HashError> {
        let weights = Weights::read(layer)?;
        let net = fit(&shape, layer, &weights, config.seed)?;
        let learner = Learner::new(&net);
        Ok(Self { config, step: 0, net, weights, learner, energies: Energies::default() })
    }

    /// The predictor as trained so far, with variances and correlations as measured on the last
    /// rows of `layer`, which nothing else was made from.
    ///
    /// # Errors
    ///
    /// [`HashError::NotFinite`] if training diverged.
    pub fn finish(&self, layer: &dyn GatedLayer) -> Result<LookupPredictor, HashError> {
        let mut predictor = self.net.predictor()?;
        let (_, held) = divide(layer.n_rows());
        let variances = if self.step == 0 { Variances::Measured } else { Variances::Learnt };
        measure(&mut predictor, layer, &self.weights, held, variances);
        predictor.check()?;
        Ok(predictor)
    }

    /// How many steps are done.
    pub fn step_idx(&self) -> usize {
        self.step
    }

    /// Trains until all steps are done or `on_step`, which is called after each, breaks. The losses
    /// are shares of the true energy that the selection misses.
    pub fn train(
        &mut self,
        layer: &dyn GatedLayer,
        mut on_step: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while self.step < self.config.n_steps {
            on_step(self.step(layer))?;
        }
        ControlFlow::Continue(())
    }

    /// One step, on the threads of the current rayon pool.
    ///
    /// # Panics
    ///
    /// If `layer` is not of the shape that it had.
    pub fn step(&mut self, layer: &dyn GatedLayer) -> Progress {
        let LookupConfig { n_steps, learning_rate, keep, softness, .. } = self.config;
        let rows = self.batch(layer);
        let mut x = Array2::zeros((rows.len(), layer.n_inputs()));
        for (row, mut x) in rows.iter().zip(x.axis_chunks_iter_mut(Axis(0), 1)) {
            layer.features(FeatureKind::Exact, *row..row + 1, x.view_mut());
        }
        let mut energies = self.energies.of(&rows, &x, &self.weights);
        let x = self.net.centred(&x);
        let done = self.step as f32 / n_steps.max(1) as f32;
        let fallen = 0.5 * (1.0 + (std::f32::consts::PI * done.min(1.0)).cos());
        let n = self.net.shape.n_outputs;
        let selection = Selection { k: ((keep * n as f32).round() as usize).max(1), softness };
        let rate = Rate::new(learning_rate * fallen, self.step);
        let loss = self.learner.step(&mut self.net, x.view(), &mut energies, selection, rate);
        self.step += 1;
        Progress { step: self.step, n_steps, loss }
    }

    /// The rows of the next step: each epoch goes through all of them in an order of its own.
    fn batch(&self, layer: &dyn GatedLayer) -> Vec<usize> {
        let (rows, _) = divide(layer.n_rows());
        let n = self.config.batch.clamp(1, rows.len());
        let per_epoch = rows.len() / n;
        let mut order: Vec<usize> = rows.collect();
        Rng::new(self.config.seed, EPOCHS + (self.step / per_epoch) as u64).shuffle(&mut order);
        order[self.step % per_epoch * n..][..n].to_vec()
    }
}
