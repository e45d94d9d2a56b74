//! What a pack needs of a budget, before a weight is read.

use ls_io::{BackendKind, Curve};
use ls_model::ModelFile;
use ls_model::pack::{LayerLayout, Pack};

use crate::budget::{Floor, Needs, Plan};
use crate::embedding::FlashRows;
use crate::load::Budgeted;
use crate::state::{CHUNK_BATCH, MlpSize, buffer_bytes, kv_bytes};
use crate::stream::WINDOW;
use crate::tensors::Tensors;
use crate::{EngineError, LoadOptions, system};

/// Tokens of context when none are asked for and the model allows more.
const DEFAULT_CONTEXT: usize = 4096;
/// Under a budget the default context shrinks to this, so that keys and values leave room for
/// weights.
const SMALL_CONTEXT: usize = 512;
/// The share of a budget that keys and values of a default context may take.
const KV_SHARE: u64 = 8;

/// The batch shrinks to this while buffers would take more than their share of the budget: larger
/// ones read less for a prompt, but leave less for the cache.
const SMALL_BATCH: usize = 32;
const BUFFER_SHARE: u64 = 32;

/// Buffers of the reads and of what keeps track of them, in bytes.
const IO_BYTES: u64 = 3 << 19;

/// What the schedule keeps of a chunk.
const ENTRY_BYTES: u64 = 40;

/// What a thread holds: its stack, as far as it is used, and its share of the allocator's memory.
const THREAD_BYTES: u64 = 192 << 10;

/// What the kernel holds for a process: files, threads, and page tables for all weights.
fn kernel_bytes(weights: u64) -> u64 {
    (3 << 19) + weights / 512
}

/// What a process that cannot be asked is taken to hold before weights are loaded, in bytes.
const UNKNOWN_PROCESS: u64 = 48 << 20;

/// Segments of which frames must be there at once: one for each of two threads, and one that is
/// being read.
const MIN_SEGMENTS: u64 = 3;

/// The smallest budget that the pack `model` runs in with these `options`, and its parts. No weight
/// is read. What the process holds now counts as held by it then.
///
/// # Errors
///
/// If the model is no pack, or its sizes cannot be counted.
pub fn smallest_budget(model: &ModelFile, options: &LoadOptions) -> Result<Floor, EngineError> {
    let pack = pack_of(model)?;
    let sizes = Sizes::least(model, options);
    Ok(Floor::new(&needs(model, pack, options, sizes, &Reading::default())?.0))
}

/// Where the bytes of `options.budget` would go if the pack `model` was loaded now; of all that
/// can be addressed if there is no budget. No weight is read.
///
/// # Errors
///
/// If the model is no pack, or the budget is below the smallest.
pub fn plan_for(model: &ModelFile, options: &LoadOptions) -> Result<Plan, EngineError> {
    let budget = options.budget.unwrap_or(u64::MAX);
    Ok(settle(model, pack_of(model)?, budget, options, &Reading::default())?.budgeted.plan)
}

fn pack_of(model: &ModelFile) -> Result<&Pack, EngineError> {
    model.pack().ok_or_else(|| EngineError::NotAPack { path: model.path().to_owned() })
}

/// A divided budget, and what was left to us.
#[derive(Debug)]
pub(crate) struct Settled {
    pub budgeted: Budgeted,
    pub mlp: MlpSize,
    pub context: usize,
    /// Only if there is room for what it lets reads go through.
    pub curve: Option<Curve>,
}

/// What is known of how chunks come to where they are computed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading<'a> {
    /// How the disk is read, if that is known already.
    pub backend: Option<&'a str>,
    /// Bytes of the host's memory that a GPU needs, but for the chunks that it holds.
    pub gpu_bytes: u64,
}

/// Divides the budget, and settles what is left to us.
pub(crate) fn settle(
    model: &ModelFile,
    pack: &Pack,
    budget: u64,
    options: &LoadOptions,
    reading: &Reading<'_>,
) -> Result<Settled, EngineError> {
    let divide = |sizes: Sizes| {
        let (needs, mlp) = needs(model, pack, options, sizes, reading)?;
        let budgeted = Budgeted { plan: Plan::new(budget, &needs)?, needs, is_lent: false };
        let curve = options.stream.curve.filter(|_| sizes.gap_bytes > 0);
        Ok(Settled { budgeted, mlp, context: sizes.context, curve })
    };
    match divide(Sizes::of(model, pack, budget, options)?) {
        // Each size keeps to its share, but all of them together may still be too much.
        Err(EngineError::Budget { .. }) => divide(Sizes::least(model, options)),
        settled => settled,
    }
}

/// What depends on the budget.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    context: usize,
    batch: usize,
    /// What gaps between chunks are read to.
    gap_bytes: u64,
}

impl Sizes {
    /// As large as their shares of `budget` allow.
    fn of(
        model: &ModelFile,
        pack: &Pack,
        budget: u64,
        options: &LoadOptions,
    ) -> Result<Self, EngineError> {
        let config = model.config();
        let kv = |context| kv_bytes(config, context).map_or(u64::MAX, |bytes| bytes as u64);
        let mut context = default_context(model, options.context);
        while options.context == 0 && context > SMALL_CONTEXT && kv(context) > budget / KV_SHARE {
            context = (context / 2).max(SMALL_CONTEXT);
        }
        let memory = EngineError::Memory { bytes: None, context };
        let buffers = |batch| buffer_bytes(config, context, mlp_size(pack.layers(), batch));
        let most = options.stream.prompt_batch.unwrap_or(CHUNK_BATCH);
        let mut batch = CHUNK_BATCH;
        while batch > most.max(SMALL_BATCH) {
            batch /= 2;
        }
        while batch > SMALL_BATCH {
            match buffers(batch) {
                None => return Err(memory),
                Some(bytes) if bytes as u64 <= budget / BUFFER_SHARE => break,
                Some(_) => batch /= 2,
            }
        }
        let gap_bytes = gap_bytes(options);
        let gap_bytes = if gap_bytes <= budget / BUFFER_SHARE { gap_bytes } else { 0 };
        Ok(Self { context, batch, gap_bytes })
    }

    /// As small as anything works with.
    fn least(model: &ModelFile, options: &LoadOptions) -> Self {
        let context = default_context(model, options.context);
        let context = if options.context == 0 { context.min(SMALL_CONTEXT) } else { context };
        Self { context, batch: SMALL_BATCH, gap_bytes: 0 }
    }
}

/// What reads in flight need to go through gaps.
fn gap_bytes(options: &LoadOptions) -> u64 {
    let io = options.stream.io();
    let gap = options.stream.curve.map_or(0, |curve| curve.gap_bytes());
    gap.min(io.max_read_bytes as u64) * io.depth as u64
}

fn needs(
    model: &ModelFile,
    pack: &Pack,
    options: &LoadOptions,
    sizes: Sizes,
    reading: &Reading<'_>,
) -> Result<(Needs, MlpSize), EngineError> {
    let (config, layers, context) = (model.config(), pack.layers(), sizes.context);
    let memory = || EngineError::Memory { bytes: None, context };
    let longest = layers.iter().map(|layer| u64::from(layer.segment_chunks)).max().unwrap_or(0);
    let mlp = mlp_size(layers, sizes.batch);
    let needs = Needs {
        process: process_bytes(model.weights_bytes()),
        resident: Tensors::resident_bytes(model),
        kv: kv_bytes(config, context).ok_or_else(memory)? as u64,
        buffers: (buffer_bytes(config, context, mlp).ok_or_else(memory)? as u64)
            .saturating_add(scratch_bytes(model, layers, options.threads, sizes))
            .saturating_add(options.reserve),
        io: IO_BYTES
            + reading_threads(options, reading.backend, pack.rows().is_some())
            + schedule_bytes(layers)
            + sizes.gap_bytes
            + reading.gpu_bytes
            + pack.rows().map_or(0, FlashRows::buffer_bytes),
        embedding: pack.rows().map(|rows| rows.stored_bytes()),
        frame: frame_bytes(layers) as u64,
        n_chunks: layers.iter().map(|layer| u64::from(layer.n_chunks)).sum(),
        min_frames: MIN_SEGMENTS * longest,
        max_cache: options.stream.cache_limit.unwrap_or(u64::MAX),
    };
    Ok((needs, mlp))
}

/// What threads that wait for reads hold, where the system has no better way. Rows of an embedding
/// have readers of their own.
fn reading_threads(options: &LoadOptions, backend: Option<&str>, has_rows: bool) -> u64 {
    let is_ring = match (backend, options.stream.backend) {
        (Some(name), _) => name == "io_uring",
        (None, kind) => matches!(kind, BackendKind::Auto | BackendKind::Uring),
    };
    let streams = if has_rows { 2 } else { 1 };
    if is_ring { 0 } else { streams * options.stream.depth as u64 * THREAD_BYTES }
}

/// What the schedule keeps of the segments that it is ahead.
fn schedule_bytes(layers: &[LayerLayout]) -> u64 {
    let longest = layers.iter().map(|layer| u64::from(layer.segment_chunks)).max().unwrap_or(0);
    WINDOW as u64 * longest * ENTRY_BYTES
}

/// What compute threads keep for themselves: tiles of weights, their products, attention's scores.
fn scratch_bytes(model: &ModelFile, layers: &[LayerLayout], threads: usize, sizes: Sizes) -> u64 {
    let config = model.config();
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let MlpSize::Chunks { neurons, .. } = mlp_size(layers, sizes.batch) else { return 0 };
    let width = config.d_model.max(config.n_heads.saturating_mul(config.head_dim));
    // Sixteen rows unpacked and as they are; two tiles of floats; two products of sixteen outputs
    // and a group of neurons for each token; four queries' scores.
    let each = [
        width.saturating_mul(16 * 4),
        neurons.saturating_mul(2 * 16 * 4),
        sizes.batch.saturating_mul(2 * 16 * 4 + 32 * 4),
        sizes.context.saturating_mul(4 * 4),
    ];
    let each = each.into_iter().fold(0usize, usize::saturating_add);
    (each as u64).saturating_mul(threads as u64)
}

/// What the process holds, and what the kernel holds for it.
fn process_bytes(weights: u64) -> u64 {
    let held = system::rss_anon().zip(system::rss_file());
    held.map_or(UNKNOWN_PROCESS, |(anon, file)| anon + file) + kernel_bytes(weights)
}

pub(crate) fn frame_bytes(layers: &[LayerLayout]) -> usize {
    layers.iter().map(|layer| layer.record_bytes).max().unwrap_or(0)
}

pub(crate) fn mlp_size(layers: &[LayerLayout], batch: usize) -> MlpSize {
    let segments = layers.iter().map(|layer| layer.n_segments() as usize).max();
    let neurons = layers.iter().map(|l| l.segment_chunks as usize * l.neurons_per_chunk).max();
    let (segments, neurons) = (segments.unwrap_or(0), neurons.unwrap_or(0));
    MlpSize::Chunks { batch, segments, neurons }
}

pub(crate) fn default_context(model: &ModelFile, asked: usize) -> usize {
    match asked {
        0 => model.config().context_len.min(DEFAULT_CONTEXT),
        n => n,
    }
}
