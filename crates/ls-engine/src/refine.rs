//! Speculate and refine: sparse tokens under a budget.
//!
//! A [`Refiner`] joins predictors, reads, cache and kernels under a [`Controller`], which decides what is
//! ranked, read, computed and kept. When a token enters the MLP of layer n, layer n + 1 is ranked from
//! the residual stream, and the best of its chunks that are not in memory are read while layer n is
//! computed in stages, the best first. After some stages layer n + 1 is ranked again, from the residual and
//! what the stages added; and once more from its true input when it is entered.
//!
//! Chunks are what is ranked, read and kept; of the chunks that are there only the neurons that a
//! prediction finds important are computed. So a chunk is worth as much as its neurons exceed the least
//! that would be computed if all were there, and it is read if that is worth the time
//! ([`RefineOptions::price`]). Or a fixed number is chosen ([`RefineOptions::count`]).
//!
//! What is computed depends on what is in memory, unless a fixed number of chunks is chosen without a price, and on
//! what was read in time, if [`RefineOptions::late_share`] lets late chunks go; and the order of sums always
//! does. So logits are not the same to the bit from run to run.

mod pass;
mod rank;
mod record;
mod times;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use ls_cache::Key;
use ls_cpu::Masks;
use ls_hash::{Mask, Selector};
use ls_model::pack::LayerLayout;
use ls_sched::{Chunk, Controller, Curve, Event, Layer, Layout, Table, Worth};
pub use ls_sched::{Count, Keep as Retain, Policy, Stats};
use parking_lot::Mutex;
use record::Recorder;
pub use times::Times;

use crate::chunks::ChunkSource;
use crate::needs::frame_bytes;
use crate::predict::{KeepPlan, LayerPredictor, Predictors, Scorer};
use crate::sparse::{ChoiceError, Prompts};
use crate::stream::{Landing, ReadFailure, Streamer};
use crate::{Engine, EngineError, SparseCounts};

/// Reads that are submitted at a time for each that the device has in flight.
const QUEUED: u32 = 2;
/// The share of the frames that chunks on their way may have, one part in so many.
const TRANSIT_SHARE: u64 = 4;
/// A cache is small that holds less than one chunk in so many.
const SMALL_CACHE: u64 = 4;
/// How much more, or less, a layer counts than the mean.
const MOST_WEIGHT: f32 = 4.0;

/// How sparse tokens are streamed.
#[derive(Clone, Debug)]
pub struct RefineOptions {
    /// When layers are ranked.
    pub policy: Policy,
    /// What the cache keeps. `None`: the hottest where it holds less than a quarter of all chunks and the pack is in their
    /// order, so that what is absent lies together and is read in long reads; else by priority.
    pub retain: Option<Retain>,
    /// Whether a fixed number of chunks is chosen, or those in memory and what is worth reading.
    pub count: Count,
    /// The fixed number, as a multiple of the share of neurons that are computed; at least 1.
    pub reach: f64,
    /// How much the price of reading counts in choosing chunks, which depends on `count`; see
    /// [`price`](ls_sched::Config::price). `None`: by worth, [what suits](Worth::usual) the share of all chunks that
    /// the cache can hold; for a fixed number nothing.
    pub price: Option<f32>,
    /// By how much dearer reads are for a layer that waits for them.
    pub late_price: f32,
    /// Tokens for which it counts that a chunk is among the best of its layer on a long average; see
    /// [`horizon`](ls_sched::Config::horizon). `None`: likewise.
    pub horizon: Option<f32>,
    /// Stages of a layer.
    pub stages: u32,
    /// Layers that reads are ahead.
    pub ahead: u32,
    /// Whether a layer is ranked once more from its true input.
    pub correct: bool,
    /// The share of a layer's predicted importance that may be given up because it comes too late.
    pub late_share: f32,
    /// The same, because it cannot be read. Beyond it a read that fails ends the token.
    pub lost_share: f32,
    /// Nanoseconds that a layer waits before late chunks may be given up.
    pub late_ns: u64,
    /// What a read costs; `None`: what the engine knows of it, or else as on a usual SSD.
    pub curve: Option<ls_io::Curve>,
}

impl Default for RefineOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Refine,
            retain: None,
            count: Count::ByWorth,
            reach: 1.0,
            price: None,
            // What is late keeps everything waiting.
            late_price: 4.0,
            horizon: None,
            stages: 8,
            ahead: 1,
            correct: true,
            late_share: 0.0,
            lost_share: 0.0,
            late_ns: 500_000,
            curve: None,
        }
    }
}

/// Streams and computes sparse tokens of one engine, for any number of its sequences, one at a time.
#[derive(Debug)]
pub struct Refiner {
    /// Tells refiners of one engine apart.
    id: u64,
    predictors: Arc<Predictors>,
    plan: Vec<KeepPlan>,
    count: Count,
    /// The given price and horizon.
    given: (Option<f32>, Option<f32>),
    inner: Mutex<Inner>,
}

/// A sequence's share of a refiner.
#[derive(Debug)]
pub(crate) struct Refined {
    pub refiner: Arc<Refiner>,
    pub prompts: Prompts,
    pub counts: SparseCounts,
}

/// All that changes.
#[derive(Debug)]
struct Inner {
    controller: Controller,
    epoch: Instant,
    /// That of the streamer when both last agreed on what is in memory; 0: never.
    generation: u64,
    budget: u64,
    /// Chunks that are being read.
    reading: Vec<Chunk>,
    landing: Landing,
    /// What they tell the controller.
    events: Vec<Event<'static>>,
    /// The chunks of each layer that were found sound. The pack does not change, and its device sees to
    /// what it reads; to look at every byte again each time took 15 % of the time of the thread that decodes.
    sound: Vec<Mask>,
    /// The last read that failed.
    failure: Option<ReadFailure>,
    scorer: Scorer,
    /// Scores of each layer's neurons when it was last ranked; empty before.
    neurons: Vec<Vec<f32>>,
    /// Scores of a layer's chunks.
    chunks: Vec<f32>,
    /// Features, `[d_model]`, and what a norm makes of the output so far.
    feature: Vec<f32>,
    delta: Vec<f32>,
    /// What stages of the layer took, and whether the mask is older than its ranking.
    taken: Vec<u16>,
    is_ranked: bool,
    masks: Masks,
    reachable: Vec<f32>,
    selector: Selector,
    selected: Mask,
    stage: Vec<u16>,
    /// Outputs of a stage's parts, `[parts, d_model]`.
    partial: Vec<f32>,
    solver: Option<JoinHandle<Option<Table>>>,
    times: Times,
    recorder: Option<Recorder>,
    /// Stats that were reported to the streamer.
    reported: Stats,
}

impl Refiner {
    /// For the pack of `engine`, of each of whose layers `plan` says how much is computed
    /// ([`Predictors::plan`]).
    ///
    /// # Errors
    ///
    /// If the engine streams nothing, the predictors or the plan are of another model, or an option
    /// makes no sense.
    pub fn new(
        engine: &Engine,
        predictors: Arc<Predictors>,
        plan: Vec<KeepPlan>,
        options: &RefineOptions,
    ) -> Result<Arc<Self>, EngineError> {
        let streamer = engine.chunks().and_then(ChunkSource::streamer);
        let streamer = streamer.ok_or(EngineError::NoBudget)?;
        check(streamer, &predictors, &plan)?;
        let budget = cache_bytes(streamer);
        let controller = controller(streamer, &predictors, &plan, options, budget)?;
        let d_model = engine.config().d_model;
        let n_chunks = streamer.layers().iter().map(|l| l.n_chunks as usize).max().unwrap_or(0);
        let d_ff = streamer.layers().iter().map(|layer| layer.d_ff).max().unwrap_or(0);
        let inner = Inner {
            controller,
            epoch: Instant::now(),
            generation: 0,
            budget,
            reading: Vec::new(),
            landing: Landing::new(),
            events: Vec::new(),
            sound: streamer.layers().iter().map(unseen).collect(),
            failure: None,
            scorer: Scorer::new(&predictors),
            neurons: vec![Vec::new(); streamer.layers().len()],
            chunks: Vec::with_capacity(n_chunks),
            feature: vec![0.0; d_model],
            delta: vec![0.0; d_model],
            taken: Vec::with_capacity(n_chunks),
            is_ranked: false,
            masks: Masks::new(1, d_ff),
            reachable: Vec::with_capacity(d_ff),
            selector: Selector::default(),
            selected: Mask::new(),
            stage: Vec::with_capacity(n_chunks),
            partial: vec![0.0; pass::PARTS * engine.threads() * d_model],
            solver: None,
            times: Times::default(),
            recorder: None,
            reported: Stats::default(),
        };
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (count, given) = (options.count, (options.price, options.horizon));
        Ok(Arc::new(Self { id, predictors, plan, count, given, inner: Mutex::new(inner) }))
    }

    /// What was decided so far, and what came of it. Waits for the token that is under way.
    pub fn stats(&self) -> Stats {
        *self.inner.lock().controller.stats()
    }

    /// What the parts of tokens took so far.
    pub fn times(&self) -> Times {
        self.inner.lock().times
    }

    /// What decisions go by.
    pub fn config(&self) -> ls_sched::Config {
        let inner = self.inner.lock();
        ls_sched::Config { budget_bytes: inner.budget, ..inner.controller.config().clone() }
    }

    /// What there is to stream.
    pub fn layout(&self) -> Layout {
        self.inner.lock().controller.layout().clone()
    }

    /// From now on records of each token what the neurons scored whenever they were ranked, and what they were
    /// worth in truth. That makes tokens slower, and takes some bytes of memory for each neuron and token.
    pub fn record(&self) {
        let mut inner = self.inner.lock();
        let n_keep = self.predictors.layers().iter().zip(&self.plan).map(|(layer, plan)| {
            (layer.norms.len() as u32, (plan.rows * layer.norms.len() as f64).round() as u32)
        });
        inner.recorder = Some(Recorder::new(n_keep));
    }

    /// What was recorded, as a [trace of the simulator](ls_sched::sim::Trace) in bytes; `None` if that is nothing.
    pub fn recorded(&self) -> Option<Vec<u8>> {
        self.inner.lock().recorder.as_ref()?.trace().map(|trace| trace.to_bytes())
    }

    /// Bytes that a refiner of so many layers and neurons takes at most, beside its predictors.
    pub fn bytes(n_layers: usize, d_ff: usize) -> u64 {
        // Scores of all neurons, at most as many chunks, and what a layer is chosen in.
        (n_layers * d_ff * 12 + d_ff * 64 + (1 << 19)) as u64
    }
}

/// None of the chunks of a layer.
fn unseen(layer: &LayerLayout) -> Mask {
    Mask::repeat(false, layer.n_chunks as usize)
}

/// Bytes that the cache may have now.
fn cache_bytes(streamer: &Streamer) -> u64 {
    let stats = streamer.cache().stats();
    stats.budget_frames * streamer.cache().frame_bytes() as u64
}

fn check(
    streamer: &Streamer,
    predictors: &Predictors,
    plan: &[KeepPlan],
) -> Result<(), ChoiceError> {
    let expected = streamer.layers().len();
    for found in [predictors.layers().len(), plan.len()] {
        if found != expected {
            return Err(ChoiceError::Layers { found, expected });
        }
    }
    let all = streamer.layers().iter().zip(predictors.layers()).zip(plan).enumerate();
    for (layer, ((layout, of), plan)) in all {
        let (found, expected) = (of.norms.len(), layout.d_ff);
        if found != expected {
            return Err(ChoiceError::Neurons { layer, found, expected });
        }
        if !(0.0..=1.0).contains(&plan.rows) {
            return Err(ChoiceError::Fraction { layer, value: plan.rows });
        }
    }
    Ok(())
}

/// What a share of each layer's scores counts beside that of others: what the model's output lost when a share of that
/// layer was left out, relative to the mean.
fn weights(predictors: &Predictors, count: Count) -> impl Iterator<Item = f32> {
    let layers = predictors.layers();
    let mean = layers.iter().map(|layer| layer.weight).sum::<f32>() / layers.len().max(1) as f32;
    let weight = move |layer: &LayerPredictor| match count {
        // Measured on a few hundred tokens; none is without worth.
        Count::ByWorth if mean > 0.0 => (layer.weight / mean).clamp(1.0 / MOST_WEIGHT, MOST_WEIGHT),
        _ => 1.0,
    };
    layers.iter().map(weight)
}

fn controller(
    streamer: &Streamer,
    predictors: &Predictors,
    plan: &[KeepPlan],
    options: &RefineOptions,
    budget: u64,
) -> Result<Controller, EngineError> {
    let frame = frame_bytes(streamer.layers()) as u32;
    let layer = |((layout, plan), weight): ((&ls_model::pack::LayerLayout, &KeepPlan), f32)| {
        let share = (plan.rows * options.reach.max(1.0)).min(1.0);
        let n_keep = (share * f64::from(layout.n_chunks)).ceil() as u32;
        Layer {
            n_chunks: layout.n_chunks,
            n_keep: n_keep.clamp(1, layout.n_chunks),
            segment_chunks: layout.segment_chunks,
            chunk_bytes: layout.record_bytes as u32,
            weight,
        }
    };
    let all = streamer.layers().iter().zip(plan).zip(weights(predictors, options.count));
    let layers = all.map(layer).collect();
    // A usual SSD: reads of 64 KiB reach two thirds of its rate.
    let source = streamer.source();
    let curve =
        options.curve.or(source.curve).unwrap_or(ls_io::Curve { fixed_us: 15.0, us_per_kib: 0.4 });
    let curve = Curve::line(curve.fixed_us * 1000.0, curve.us_per_kib * 1000.0);
    let layout = Layout { frame_bytes: frame, layers };
    let mut config = ls_sched::Config::new(ls_sched::Mode::Sparse, options.policy, budget, curve);
    config.keep = options.retain.unwrap_or_else(|| {
        let all: u64 = layout.layers.iter().map(|layer| u64::from(layer.n_chunks)).sum();
        let is_small = budget < all * u64::from(frame) / SMALL_CACHE;
        if is_small && source.is_ordered { Retain::Hot } else { Retain::Priority }
    });
    config.count = options.count;
    let worth = match options.count {
        Count::ByWorth => Worth::of(&config, &layout),
        Count::Fixed => Worth { price: 0.0, horizon: 0.0 },
    };
    config.price = options.price.unwrap_or(worth.price);
    config.late_price = options.late_price;
    config.horizon = options.horizon.unwrap_or(worth.horizon);
    config.ranks_inline = true;
    config.stages = options.stages;
    config.ahead = options.ahead.min(streamer.layers().len() as u32 - 1);
    config.correct = options.correct;
    config.fidelity.late_share = options.late_share;
    config.fidelity.lost_share = options.lost_share;
    config.late_ns = options.late_ns;
    config.max_reads = QUEUED * source.depth as u32;
    let frames = budget / u64::from(frame);
    config.transit_frames = config.transit_frames.min((frames / TRANSIT_SHARE) as u32).max(1);
    Ok(Controller::new(layout, config)?)
}

fn key(chunk: Chunk) -> Key {
    Key { group: chunk.layer, index: chunk.index }
}
