//! Training predictors from a trace.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ls_hash::{
    FeatureKind, GatedLayer, HashError, LookupConfig, LookupPredictor, LookupShape, LookupTrainer,
};
use ndarray::Array2;

use super::measure::{Measured, measure};
use super::traced::{TracedLayer, TracedMlp};
use super::{
    Cost, KeepPlan, LayerPredictor, PredictError, Predicted, PredictorInfo, PredictorWriter,
    Predictors,
};
use crate::trace::{Trace, TraceError};
use crate::{Choice, Engine, EngineError, PerplexityError, PerplexityOptions, State, fidelity};

/// Kinds of features: what enters the MLP, what entered the one before, and that with a part of what the
/// one before adds.
const KINDS: usize = FeatureKind::ALL.len();
/// Share of the rows that nothing is trained on, and how many at most.
const HELD: usize = 8;
const MAX_HELD: usize = 1024;
/// Fractions of the model whose cost is measured in the end.
const FRACTIONS: [f64; 8] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
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
        if report(TrainStage::Read).is_break() {
            return Ok(Trained::Stopped(layers.len()));
        }
        let mut read = |layer| TracedMlp::read(engine, trace, layer, &training.rows);
        if before.is_none() && layer > 0 {
            before = Some(read(layer - 1)?);
        }
        let here = read(layer)?;
        let with = before.as_ref().zip(layers.last().map(|last| &last.predictor));
        let Some(trained) = training.layer(layer, with, &here, &mut report)? else {
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

    /// Trains one layer; `None` when it was stopped.
    fn layer(
        &self,
        layer: usize,
        before: Option<(&TracedMlp, &LookupPredictor)>,
        here: &TracedMlp,
        report: &mut dyn FnMut(TrainStage) -> ControlFlow<()>,
    ) -> Result<Option<LayerPredictor>, TrainError> {
        let failed = |source| TrainError::Layer { layer, source };
        if report(TrainStage::Fit).is_break() {
            return Ok(None);
        }
        let all = TracedLayer::new(self.engine, here, before);
        let first_held = self.rows.len() - (self.rows.len() / HELD).min(MAX_HELD);
        let data = all.first(first_held);
        let budget = (here.weights.bytes as f64 * self.options.share) as usize;
        let (n_inputs, n_outputs) = (data.n_inputs(), data.n_outputs());
        let shape = LookupShape::within(n_inputs, n_outputs, budget, KINDS).map_err(failed)?;
        let config = self.options.lookup;
        let mut trainer = LookupTrainer::new(shape, config, &data).map_err(failed)?;
        let flow = trainer.train(&data, |done| report(TrainStage::Step(done.step, done.loss)));
        if flow.is_break() || report(TrainStage::Measure).is_break() {
            return Ok(None);
        }
        let predictor = trainer.finish(&data).map_err(failed)?;
        let held = first_held..self.rows.len();
        let mut x = Array2::zeros((held.len(), n_inputs));
        all.features(FeatureKind::Exact, held.clone(), x.view_mut());
        let importance = here.weights.importance(x.view());
        let cpu = self.engine.cpu();
        let Measured { missed, spread } = measure(cpu, &predictor, x.view(), importance.view());
        let norms: Arc<[f32]> = here.weights.norms.to_vec().into();
        Ok(Some(LayerPredictor { predictor, norms, weight: 1.0, missed, spread }))
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
