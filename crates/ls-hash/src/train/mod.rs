//! Training: end to end by gradients, with signs taken for clipped identities on the way back.
//!
//! Everything random follows from the seed and the step, and sums have an order that does not
//! depend on the threads: the same settings and samples give the same predictor, at once or in
//! parts. (Another kind of processor may round products of matrices otherwise.)

mod finish;
mod head;
mod layer;
mod loss;
mod param;
mod saved;

use std::ops::ControlFlow;

use ndarray::{Array2, Axis, Zip, concatenate, s};
use rayon::prelude::*;

use crate::baseline::LowRank;
use crate::error::HashError;
use crate::predictor::{CLIP, Form, Norm, Predictor, Shape};
use crate::project::WeightType;
use crate::rng::Rng;
use crate::samples::{Pick, Samples};
use crate::score::{bounded, mean_square};
use head::{Estimate, Head, OUTPUTS};
use layer::{Activation, Layer, Trace};
use loss::{Sizes, Targets};
use param::Rate;

/// Rows from which sizes are taken, and first codes.
const LOOK: usize = 2048;
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

/// Features, normalised as the shape says.
fn normalised(shape: &Shape, samples: &dyn Samples, picks: &[Pick]) -> Array2<f32> {
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
fn look(seed: u64, samples: &dyn Samples) -> Vec<Pick> {
    let mut rng = Rng::new(seed, stream::LOOK);
    let n = samples.n_rows().min(LOOK);
    let pick = |i| Pick { row: i * samples.n_rows() / n, stage: rng.below(samples.n_stages()) };
    (0..n).map(pick).collect()
}

/// Gains relative to their typical size, and sizes of factors.
fn measure(shape: &Shape, samples: &dyn Samples, picks: &[Pick]) -> (Vec<f32>, Sizes) {
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
    Zip::from(&mut gate).and(&up).for_each(|g, u| *g = *g * crate::score::sigmoid(*g) * u);
    gate *= &ndarray::ArrayView1::from(&gains);
    sizes.act = root(&gate).max(1e-6);
    (gains, sizes)
}

fn check(shape: &Shape, config: &TrainConfig, samples: &dyn Samples) -> Result<(), HashError> {
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

impl LowRank {
    /// Trains a low-rank network on the logarithms of importance: the baseline that costs most.
    ///
    /// # Errors
    ///
    /// As those of [`Trainer::new`].
    pub fn train(
        rank: usize,
        norm: Norm,
        config: TrainConfig,
        samples: &dyn Samples,
    ) -> Result<Self, HashError> {
        let shape = Shape {
            n_inputs: samples.n_inputs(),
            n_outputs: samples.n_outputs(),
            stacks: vec![rank],
            blocks_per_bit: Shape::DENSE,
            weights: WeightType::Int8,
            form: Form::Direct,
            n_codes: 1,
            norm,
        };
        let mut trainer = Trainer::unfitted(shape, config, samples, Activation::Relu)?;
        for estimate in trainer.net.heads.iter_mut().flat_map(|head| &mut head.estimates) {
            estimate.binary = false;
        }
        let _ = trainer.train(samples, |_| ControlFlow::Continue(()));
        let net = &trainer.net;
        let outer: Vec<_> =
            net.heads.iter().map(|h| h.estimates[0].codes[0].value.view()).collect();
        let offsets: Vec<_> =
            net.heads.iter().map(|h| h.estimates[0].offset.value.row(0)).collect();
        Ok(Self {
            norm,
            inner: &net.layers[0].weights.value * &ndarray::ArrayView1::from(&net.scale),
            bias: net.layers[0].bias.value.row(0).to_owned(),
            outer: concatenate(Axis(0), &outer).expect("all have as many columns"),
            offset: concatenate(Axis(0), &offsets).expect("all are vectors"),
        })
    }
}
