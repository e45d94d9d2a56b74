//! Training: end to end by gradients, with signs taken for clipped identities on the way back.
//!
//! Everything random follows from the seed and the step, and sums have an order that does not
//! depend on the threads: the same settings and samples give the same predictor, at once or in
//! parts. (Another kind of processor may round products of matrices otherwise.)

mod finish;
mod head;
mod layer;
mod loss;
mod low_rank;
mod param;
mod prepare;
mod saved;

use std::ops::ControlFlow;

use ndarray::{Array2, Axis, Zip, concatenate, s};
use rayon::prelude::*;

use crate::error::HashError;
use crate::predictor::{CLIP, Predictor};
use crate::rng::Rng;
use crate::samples::{Pick, Samples};
use crate::score::bounded;
use crate::shape::{Form, Shape};
use head::{Estimate, Head, OUTPUTS};
use layer::{Activation, Layer, Trace};
use loss::{Sizes, Targets};
use param::Rate;
use prepare::{check, look, measure, normalised};

/// Heads whose gradients are in memory at a time.
const HEADS: usize = 32;

/// Sequences of random numbers, so that one purpose does not disturb another.
mod stream {
    pub(super) const WEIGHTS: u64 = 1;
    pub(super) const LOOK: u64 = 2;
    pub(super) const STAGES: u64 = 1 << 32;
    pub(super) const EPOCHS: u64 = 1 << 33;
}

/// How long and how to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainConfig {
    /// Everything random follows from it.
    pub seed: u64,
    /// Steps in all; the rate falls to 0 with the last, along a cosine.
    pub n_steps: usize,
    /// Rows of one step.
    pub batch: usize,
    /// Of the first step.
    pub learning_rate: f32,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self { seed: 0, n_steps: 400, batch: 512, learning_rate: 4e-3 }
    }
}

/// How far training has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// Steps in all.
    pub n_steps: usize,
    /// Mean loss of the last step's rows and outputs.
    pub loss: f64,
}

/// A predictor in training.
///
/// The loss follows from the form of the predictor: the weighted square error of normalised
/// logarithms of importance for [`Form::Direct`], errors of both factors and of their product
/// for [`Form::Bilinear`], which needs [`Samples::factors`].
#[derive(Clone, Debug)]
pub struct Trainer {
    shape: Shape,
    config: TrainConfig,
    step: usize,
    net: Net,
    /// Order of the rows in an epoch, kept as long as it lasts.
    order: Option<(u64, Vec<u32>)>,
}

/// All that is learnt or was measured before.
#[derive(Clone, Debug)]
struct Net {
    /// What makes features about 1 large.
    scale: Vec<f32>,
    layers: Vec<Layer>,
    heads: Vec<Head>,
    gains: Vec<f32>,
    sizes: Sizes,
}

impl Trainer {
    /// Starts the training of a hash predictor.
    ///
    /// # Errors
    ///
    /// If `shape` is none, does not fit `samples` or asks for factors that these do not have.
    pub fn new(
        shape: Shape,
        config: TrainConfig,
        samples: &dyn Samples,
    ) -> Result<Self, HashError> {
        let mut trainer = Self::unfitted(shape, config, samples, Activation::Sign)?;
        trainer.fit_codes(samples);
        Ok(trainer)
    }

    fn unfitted(
        shape: Shape,
        config: TrainConfig,
        samples: &dyn Samples,
        activation: Activation,
    ) -> Result<Self, HashError> {
        check(&shape, &config, samples)?;
        let mut rng = Rng::new(config.seed, stream::WEIGHTS);
        let mut layers = vec![Layer::first(&shape, activation, &mut rng)];
        for pair in shape.stacks.windows(2) {
            layers.push(Layer::stack(pair[0], pair[1], &mut rng));
        }
        let n_bits = shape.n_bits();
        let heads = (0..shape.n_outputs).step_by(OUTPUTS).map(|begin| {
            let end = (begin + OUTPUTS).min(shape.n_outputs);
            let estimates = (0..shape.form.n_estimates())
                .map(|_| Estimate::new(end - begin, n_bits, shape.n_codes, &mut rng));
            Head { begin, end, estimates: estimates.collect() }
        });
        let heads = heads.collect();
        let picks = look(config.seed, samples);
        let features = normalised(&shape, samples, &picks);
        let mean_squares = Zip::from(features.columns())
            .map_collect(|column| column.dot(&column) / column.len() as f32);
        // A feature that is always 0 stays so.
        let scale = |x: &f32| if *x > 1e-24 { x.sqrt().recip() } else { 0.0 };
        let scale = mean_squares.iter().map(scale).collect();
        let (gains, sizes) = measure(&shape, samples, &picks);
        let net = Net { scale, layers, heads, gains, sizes };
        Ok(Self { shape, config, step: 0, net, order: None })
    }

    /// Codes and scales that fit the bits of random weights.
    fn fit_codes(&mut self, samples: &dyn Samples) {
        let picks = look(self.config.seed, samples);
        let x = self.features(samples, &picks);
        let traces = self.net.forward(&x);
        let bits = outputs(&traces);
        let targets = self.targets(samples, &picks);
        self.net.heads.par_iter_mut().for_each(|head| {
            let range = s![.., head.begin..head.end];
            match &targets {
                Targets::Log { log, .. } => head.estimates[0].fit(bits.view(), log.slice(range)),
                Targets::Factors { gate, up } => {
                    head.estimates[0].fit(bits.view(), gate.slice(range));
                    head.estimates[1].fit(bits.view(), up.slice(range));
                }
            }
        });
    }

    /// How many steps are done.
    pub fn step_idx(&self) -> usize {
        self.step
    }

    /// Whether all steps are done.
    pub fn is_finished(&self) -> bool {
        self.step >= self.config.n_steps
    }

    /// Trains until all steps are done or `on_step`, which is called after each, breaks.
    pub fn train(
        &mut self,
        samples: &dyn Samples,
        mut on_step: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while !self.is_finished() {
            on_step(self.step(samples))?;
        }
        ControlFlow::Continue(())
    }

    /// One step, on the threads of the current rayon pool.
    pub fn step(&mut self, samples: &dyn Samples) -> Progress {
        let picks = self.batch(samples);
        let x = self.features(samples, &picks);
        let targets = self.targets(samples, &picks);
        let done = self.step as f32 / self.config.n_steps as f32;
        let fallen = 0.5 * (1.0 + (std::f32::consts::PI * done.min(1.0)).cos());
        let rate = Rate::new(self.config.learning_rate * fallen, self.step as u64);
        let sum = self.net.learn(&x, &targets, rate);
        self.step += 1;
        let loss = sum / (picks.len() * self.shape.n_outputs) as f64;
        Progress { step: self.step, n_steps: self.config.n_steps, loss }
    }

    /// The rows of the next step: each epoch goes through all rows in an order of its own.
    fn batch(&mut self, samples: &dyn Samples) -> Vec<Pick> {
        let n = self.config.batch.min(samples.n_rows());
        let per_epoch = samples.n_rows() / n;
        let epoch = (self.step / per_epoch) as u64;
        if self.order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            let mut order: Vec<u32> = (0..samples.n_rows() as u32).collect();
            Rng::new(self.config.seed, stream::EPOCHS + epoch).shuffle(&mut order);
            self.order = Some((epoch, order));
        }
        let (_, order) = self.order.as_ref().expect("just made");
        let mut rng = Rng::new(self.config.seed, stream::STAGES + self.step as u64);
        let rows = &order[self.step % per_epoch * n..][..n];
        let pick = |row: &u32| Pick { row: *row as usize, stage: rng.below(samples.n_stages()) };
        rows.iter().map(pick).collect()
    }

    /// Features as the first layer sees them.
    fn features(&self, samples: &dyn Samples, picks: &[Pick]) -> Array2<f32> {
        let mut x = normalised(&self.shape, samples, picks);
        for mut row in x.rows_mut() {
            for (x, scale) in row.iter_mut().zip(&self.net.scale) {
                *x = bounded(*x * scale, CLIP);
            }
        }
        x
    }

    fn targets(&self, samples: &dyn Samples, picks: &[Pick]) -> Targets {
        let rows: Vec<usize> = picks.iter().map(|pick| pick.row).collect();
        let shape = (rows.len(), self.shape.n_outputs);
        if self.shape.form == Form::Direct {
            let mut importance = Array2::zeros(shape);
            samples.importance(&rows, importance.view_mut());
            return Targets::log(importance);
        }
        let (mut gate, mut up) = (Array2::zeros(shape), Array2::zeros(shape));
        samples.factors(&rows, gate.view_mut(), up.view_mut());
        gate /= self.net.sizes.gate;
        up /= self.net.sizes.up;
        Targets::Factors { gate, up }
    }

    /// The predictor as trained so far. Thresholds are fitted to features as it will see them.
    ///
    /// # Errors
    ///
    /// [`HashError::NotFinite`] if training diverged.
    pub fn finish(&self, samples: &dyn Samples) -> Result<Predictor, HashError> {
        finish::predictor(&self.shape, &self.net, samples, &look(self.config.seed, samples))
    }
}

impl Net {
    fn forward(&self, x: &Array2<f32>) -> Vec<Trace> {
        let mut traces: Vec<Trace> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let x = traces.last().map_or(x, |trace| &trace.out);
            traces.push(layer.forward(x.view()));
        }
        traces
    }

    /// The sum of losses of a batch, from which everything has learnt.
    fn learn(&mut self, x: &Array2<f32>, targets: &Targets, rate: Rate) -> f64 {
        let traces = self.forward(x);
        let bits = outputs(&traces);
        let (gains, sizes) = (&self.gains, self.sizes);
        let mut loss = 0.0;
        let mut to_bits = Array2::zeros(bits.raw_dim());
        for heads in self.heads.chunks_mut(HEADS) {
            let parts = heads.par_iter_mut();
            let parts = parts.map(|head| head.step(bits.view(), targets, gains, sizes, rate));
            // Collected first: summed in the order of the heads.
            let parts: Vec<(f64, Array2<f32>)> = parts.collect();
            for (part, gradient) in &parts {
                loss += part;
                to_bits += gradient;
            }
        }
        let mut end = bits.ncols();
        let mut from_above: Option<Array2<f32>> = None;
        for (i, trace) in traces.iter().enumerate().rev() {
            let begin = end - trace.out.ncols();
            let mut gradient = to_bits.slice(s![.., begin..end]).to_owned();
            if let Some(above) = from_above {
                gradient += &above;
            }
            let x = if i == 0 { x } else { &traces[i - 1].out };
            from_above = self.layers[i].backward(x.view(), trace, gradient, rate, i > 0);
            end = begin;
        }
        loss
    }
}

/// Bits of all stacks side by side.
fn outputs(traces: &[Trace]) -> Array2<f32> {
    let parts: Vec<_> = traces.iter().map(|trace| trace.out.view()).collect();
    concatenate(Axis(1), &parts).expect("all have the rows of the batch")
}
