//! Training predictors from a trace.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ls_cpu::rms_norm;
use ls_hash::{HashError, LayerData, LookupConfig, LookupShape, LookupTrainer};
use ls_model::config::Activation;
use ndarray::{Array1, Array2, Array3, Axis, s};

use super::measure::{Measured, measure};
use super::{
    Cost, KeepPlan, LayerPredictor, PredictError, Predicted, PredictorInfo, PredictorWriter,
    Predictors,
};
use crate::trace::{Trace, TraceError};
use crate::{Choice, Engine, EngineError, PerplexityError, PerplexityOptions, State, fidelity};

/// Kinds of features: what enters the MLP, and what entered the one before.
const KINDS: usize = 2;
/// Share of the rows that nothing is trained on, and how many at most.
const HELD: usize = 8;
const MAX_HELD: usize = 1024;
/// Fractions of the model whose cost is measured in the end.
const FRACTIONS: [f64; 8] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// gelu(x) ≈ silu(GELU · x) / GELU, to 0.02.
const GELU: f32 = 1.702;
/// What is kept of a layer when its weight is measured.
const HALF: f64 = 0.5;

/// How to train.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Bytes of the predictors as a share of the MLPs' bytes.
    pub share: f64,
    /// Rows of the trace to train on, at most.
    pub rows: usize,
    /// How each layer's predictor is trained.
    pub lookup: LookupConfig,
    /// Goes on with what an interrupted training left.
    pub resume: bool,
    /// Windows of the text by which the cost of fractions is measured in the end; half of them, at least
    /// one, show what each layer does to the output.
    pub windows: usize,
    /// Tokens of such a window.
    pub n_ctx: usize,
}

impl Default for TrainOptions {
    fn default() -> Self {
        let lookup = LookupConfig::default();
        Self { share: 0.05, rows: 32768, lookup, resume: false, windows: 2, n_ctx: 512 }
    }
}

/// What training is at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainStage {
    /// Reads inputs and weights.
    Read,
    /// Fits codes.
    Fit,
    /// Has done so many steps, the last with this loss.
    Step(usize, f64),
    /// Measures the layer.
    Measure,
    /// Measures the model's output; so many windows of all are done.
    Output(usize, usize),
}

/// How far training has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainProgress {
    /// The layer; the number of layers when all are trained.
    pub layer: usize,
    /// Layers.
    pub n_layers: usize,
    /// What it is at.
    pub stage: TrainStage,
    /// Steps for each layer.
    pub n_steps: usize,
}

/// What came of it.
#[derive(Debug)]
pub enum Trained {
    /// It is all there.
    Whole(Predictors),
    /// It was stopped; so many layers are saved.
    Stopped(usize),
}

/// Why predictors could not be trained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Too few bytes for a predictor, or a layer that none can be trained on.
    #[error("layer {layer}: {source}")]
    Layer {
        /// The layer.
        layer: usize,
        /// What is wrong.
        source: HashError,
    },
    /// The trace is of something else.
    #[error("the trace was recorded with another pack; record it anew")]
    OtherTrace,
    /// The trace has too few tokens.
    #[error("the trace has {found} tokens, but {needed} are needed to train; use a longer text")]
    TooFew {
        /// Tokens of the trace.
        found: usize,
        /// The least that can be trained on.
        needed: usize,
    },
    /// A file of predictors could not be written.
    #[error(transparent)]
    File(#[from] PredictError),
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The model could not be computed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its output could not be measured.
    #[error(transparent)]
    Output(#[from] PerplexityError),
}

/// Trains predictors for all layers of `engine`'s pack from `trace`, and measures what they are worth on
/// `tokens`, a text. They are written to `path`; what an interruption leaves is in `NAME.part`.
///
/// `progress` is asked after each step; on a `Break` the layers that are done are kept.
///
/// # Errors
///
/// If the trace is not of this pack or too short, or files cannot be read or written.
pub fn train(
    engine: &Engine,
    state: &mut State,
    trace: &mut Trace,
    tokens: &[u32],
    path: &Path,
    options: &TrainOptions,
    progress: &mut dyn FnMut(&TrainProgress) -> ControlFlow<()>,
) -> Result<Trained, TrainError> {
    let training = Training::new(engine, trace, options)?;
    let (mut writer, mut layers) = match options.resume {
        true => PredictorWriter::resume(path, &training.info)?,
        false => (PredictorWriter::create(path, &training.info)?, Vec::new()),
    };
    let n_layers = training.info.n_layers as usize;
    let mut before = None;
    for layer in 0..n_layers {
        if layer < layers.len() {
            continue;
        }
        let mut report = |stage| {
            progress(&TrainProgress { layer, n_layers, stage, n_steps: options.lookup.n_steps })
        };
        if before.is_none() && layer > 0 {
            before = Some(training.residual(trace, layer - 1)?);
        }
        let here = training.residual(trace, layer)?;
        let Some(trained) = training.layer(layer, before.as_ref(), &here, &mut report)? else {
            return Ok(Trained::Stopped(layers.len()));
        };
        writer.layer(&trained)?;
        layers.push(trained);
        before = Some(here);
    }
    drop(writer);
    let mut predictors = Predictors::new(training.info, layers, Vec::new());
    let mut report = |done, of| {
        let stage = TrainStage::Output(done, of);
        let n_steps = options.lookup.n_steps;
        progress(&TrainProgress { layer: n_layers, n_layers, stage, n_steps })
    };
    match training.output(state, &mut predictors, tokens, &mut report)? {
        false => Ok(Trained::Stopped(n_layers)),
        true => {
            predictors.write(path)?;
            Ok(Trained::Whole(predictors))
        }
    }
}

struct Training<'a> {
    engine: &'a Engine,
    options: &'a TrainOptions,
    info: PredictorInfo,
    /// Rows of the trace that are used.
    rows: Vec<usize>,
}

impl<'a> Training<'a> {
    fn new(
        engine: &'a Engine,
        trace: &Trace,
        options: &'a TrainOptions,
    ) -> Result<Self, TrainError> {
        let of = trace.info();
        let pack = engine.model().pack();
        if pack.is_none_or(|pack| pack.checksum() != of.pack) {
            return Err(TrainError::OtherTrace);
        }
        let (found, needed) = (of.sampled.len(), 256);
        if found < needed {
            return Err(TrainError::TooFew { found, needed });
        }
        let n = found.min(options.rows.max(needed));
        let info = PredictorInfo {
            pack: of.pack,
            text: of.text,
            d_model: of.d_model,
            n_layers: of.n_layers,
        };
        // Spread over the text.
        let rows = (0..n).map(|i| i * found / n).collect();
        Ok(Self { engine, options, info, rows })
    }

    /// What enters the MLP of `layer` before its norm, `[rows, d_model]`.
    fn residual(&self, trace: &mut Trace, layer: usize) -> Result<Array2<f32>, TrainError> {
        let of = trace.layer(layer)?;
        let mut all = Array2::zeros((self.rows.len(), self.info.d_model as usize));
        for (row, mut out) in self.rows.iter().zip(all.rows_mut()) {
            of.rows(*row..*row + 1, out.as_slice_mut().expect("rows in memory"));
        }
        Ok(all)
    }

    /// Trains one layer; `None` when it was stopped.
    fn layer(
        &self,
        layer: usize,
        before: Option<&Array2<f32>>,
        here: &Array2<f32>,
        report: &mut dyn FnMut(TrainStage) -> ControlFlow<()>,
    ) -> Result<Option<LayerPredictor>, TrainError> {
        let failed = |source| TrainError::Layer { layer, source };
        if report(TrainStage::Read).is_break() {
            return Ok(None);
        }
        let features = self.features(layer, before.unwrap_or(here), here);
        let (gate, up, norms, bytes) = self.weights(layer)?;
        if report(TrainStage::Fit).is_break() {
            return Ok(None);
        }
        let held = (self.rows.len() / HELD).min(MAX_HELD);
        let first_held = self.rows.len() - held;
        let train = features.slice(s![.., ..first_held, ..]);
        let data = LayerData::new(train, gate.view(), up.view(), norms.view()).map_err(failed)?;
        let budget = (bytes as f64 * self.options.share) as usize;
        let (n_outputs, n_inputs) = gate.dim();
        let shape = LookupShape::within(n_inputs, n_outputs, budget, KINDS).map_err(failed)?;
        let config = self.options.lookup;
        let mut trainer = LookupTrainer::new(shape, config, &data).map_err(failed)?;
        let flow = trainer.train(&data, |done| report(TrainStage::Step(done.step, done.loss)));
        if flow.is_break() || report(TrainStage::Measure).is_break() {
            return Ok(None);
        }
        let predictor = trainer.finish(&data).map_err(failed)?;
        let x = features.slice(s![0, first_held.., ..]);
        let importance = importance(x, &gate, &up, &norms);
        let cpu = self.engine.cpu();
        let Measured { missed, spread } = measure(cpu, &predictor, x, importance.view());
        let norms: Arc<[f32]> = norms.to_vec().into();
        Ok(Some(LayerPredictor { predictor, norms, weight: 1.0, missed, spread }))
    }

    /// Of each kind, normalised as the layer's MLP sees it, `[kinds, rows, d_model]`.
    fn features(&self, layer: usize, before: &Array2<f32>, here: &Array2<f32>) -> Array3<f32> {
        let engine = self.engine;
        let (eps, cpu) = (engine.config().norm_eps, engine.cpu());
        let weight = &engine.weights().layers[layer].ffn_norm;
        let (n, d) = here.dim();
        let mut all = Array3::zeros((KINDS, n, d));
        for (from, mut to) in [here, before].into_iter().zip(all.axis_iter_mut(Axis(0))) {
            let from = from.as_slice().expect("rows in memory");
            let to = to.as_slice_mut().expect("rows in memory");
            cpu.pool().for_each_chunk(to, d, &|t, out| {
                rms_norm(cpu.isa(), &from[t * d..][..d], weight, eps, out);
            });
        }
        all
    }

    /// Gates and ups, norms of the down columns, and the bytes of all.
    #[allow(clippy::type_complexity)] // used once
    fn weights(
        &self,
        layer: usize,
    ) -> Result<(Array2<f32>, Array2<f32>, Array1<f32>, u64), TrainError> {
        let shape = self.engine.mlp_shapes()[layer];
        let (n, d) = (shape.d_ff, shape.d_model);
        let (mut gate, mut up) = (Array2::zeros((n, d)), Array2::zeros((n, d)));
        let mut norms = Array1::zeros(n);
        self.engine.mlp_weights(layer, &mut |some| {
            let range = some.first * d..(some.first + some.n) * d;
            for (to, from) in [(&mut gate, some.gate), (&mut up, some.up)] {
                to.as_slice_mut().expect("rows in memory")[range.clone()].copy_from_slice(from);
            }
            for (j, column) in some.down.chunks_exact(d).enumerate() {
                let sum: f64 = column.iter().map(|w| f64::from(*w).powi(2)).sum();
                norms[some.first + j] = sum.sqrt() as f32;
            }
        })?;
        if self.engine.config().activation == Activation::GeluTanh {
            // A GELU is nearly a SiLU of this multiple of its input, divided by it.
            gate *= GELU;
            up /= GELU;
        }
        let pack = self.engine.model().pack();
        let bytes = pack.map_or(0, |pack| pack.layers()[layer].useful_bytes());
        Ok((gate, up, norms, bytes))
    }

    /// Measures what missed importance in each layer does to the output, then what fractions cost.
    /// `false` when it was stopped.
    fn output(
        &self,
        state: &mut State,
        predictors: &mut Predictors,
        tokens: &[u32],
        report: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<bool, TrainError> {
        let n = predictors.layers.len();
        let (all_windows, half) = (self.options.windows, self.options.windows.div_ceil(2));
        let shared = Arc::new(predictors.clone());
        let all = KeepPlan { rows: 1.0, least: 0.0 };
        let mut plans = vec![vec![all; n]; n];
        for (layer, plan) in plans.iter_mut().enumerate() {
            plan[layer].rows = HALF;
        }
        let Some(kls) = self.compare(state, &shared, plans, tokens, half, &mut |done| {
            report(done, half + all_windows)
        })?
        else {
            return Ok(false);
        };
        for (layer, (_, kl)) in predictors.layers.iter_mut().zip(kls) {
            layer.weight = (kl / layer.missed(HALF).max(1e-6)).max(0.0) as f32;
        }
        let row_share = self.engine.row_share();
        let shared = Arc::new(predictors.clone());
        let plans = FRACTIONS.map(|fraction| shared.plan(fraction, row_share)).to_vec();
        let Some(costs) =
            self.compare(state, &shared, plans, tokens, all_windows, &mut |done| {
                report(half + done, half + all_windows)
            })?
        else {
            return Ok(false);
        };
        let cost = |(fraction, (rise, kl)): (&f64, &(f64, f64))| Cost {
            fraction: *fraction as f32,
            rise: *rise as f32,
            kl: *kl as f32,
        };
        predictors.costs = FRACTIONS.iter().zip(&costs).map(cost).collect();
        Ok(true)
    }

    /// Rise of the perplexity and divergence of each plan.
    fn compare(
        &self,
        state: &mut State,
        predictors: &Arc<Predictors>,
        plans: Vec<Vec<KeepPlan>>,
        tokens: &[u32],
        windows: usize,
        report: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<(f64, f64)>>, TrainError> {
        let choice =
            |plan| Choice::for_every_token(Arc::new(Predicted::new(predictors.clone(), plan)));
        let choices: Vec<Choice> = plans.into_iter().map(choice).collect();
        let tokenizer = self.engine.tokenizer();
        let options = PerplexityOptions {
            n_ctx: self.options.n_ctx,
            max_chunks: Some(windows),
            bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
        };
        let mut is_stopped = report(0).is_break();
        if is_stopped {
            return Ok(None);
        }
        let result = fidelity(self.engine, state, &choices, tokens, &options, &mut |so_far| {
            let flow = report(so_far.dense.chunks);
            is_stopped = flow.is_break();
            flow
        })?;
        let ways = result.ways.iter().map(|way| (way.rise, way.kl));
        Ok((!is_stopped).then(|| ways.collect()))
    }
}

/// `|silu(gate · x) · (up · x)| · norm`, `[n, neurons]`.
fn importance(
    x: ndarray::ArrayView2<'_, f32>,
    gate: &Array2<f32>,
    up: &Array2<f32>,
    norms: &Array1<f32>,
) -> Array2<f32> {
    let (mut g, u) = (x.dot(&gate.t()), x.dot(&up.t()));
    g.zip_mut_with(&u, |g, u| *g = (*g / (1.0 + (-*g).exp()) * u).abs());
    g *= norms;
    g
}
