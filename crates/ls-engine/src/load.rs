//! From an opened model to weights in their places.

use ls_cache::{Cache, Layout, PolicyKind};
use ls_io::{BackendKind, FaultPlan, Stream};
use ls_model::pack::{LayerLayout, Pack};
use ls_model::{ModelFile, Tokenizer, TokenizerError};

use crate::budget::{Needs, Plan};
use crate::bytes::Bytes;
use crate::chunks::ChunkSource;
use crate::embedding::{Embedding, FlashRows};
use crate::reader::Reader;
use crate::state::{CHUNK_BATCH, MlpSize, buffer_bytes, kv_bytes};
use crate::stream::{Prefetch, Streamer};
use crate::tensors::Tensors;
use crate::weights::Weights;
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
const IO_BYTES: u64 = 3 << 20;

/// What the kernel holds for a process: page tables, files, threads.
const KERNEL_BYTES: u64 = 4 << 20;

/// What a process that cannot be asked is taken to hold before weights are loaded, in bytes.
const UNKNOWN_PROCESS: u64 = 48 << 20;

/// Segments of which frames must be there at once: one for each of two threads, and one that is
/// being read.
const MIN_SEGMENTS: u64 = 3;

/// How chunks are streamed and kept.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Which chunks the cache keeps.
    pub cache: PolicyKind,
    /// Whether reads run ahead.
    pub prefetch: Prefetch,
    /// The system's way to read.
    pub backend: BackendKind,
    /// Reads in flight at once.
    pub depth: usize,
    /// Most bytes that the cache may have, whatever the budget leaves for it.
    pub cache_limit: Option<u64>,
    /// Faults to inject: for tests, and to see a slower disk.
    pub fault: Option<FaultPlan>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        let io = ls_io::StreamOptions::default();
        Self {
            cache: PolicyKind::Lru,
            prefetch: Prefetch::default(),
            backend: io.backend,
            depth: io.depth,
            cache_limit: None,
            fault: None,
        }
    }
}

impl StreamOptions {
    fn io(&self) -> ls_io::StreamOptions {
        ls_io::StreamOptions {
            backend: self.backend,
            depth: self.depth,
            fault: self.fault.clone(),
            ..ls_io::StreamOptions::default()
        }
    }
}

/// Everything of a model in its place.
pub(crate) struct Loaded {
    pub weights: Weights,
    pub tokenizer: Tokenizer,
    pub chunks: Option<ChunkSource>,
    pub mlp: MlpSize,
    pub plan: Option<Budgeted>,
    pub context: usize,
}

/// A plan, and what it was made for.
#[derive(Debug)]
pub(crate) struct Budgeted {
    pub plan: Plan,
    pub needs: Needs,
}

impl Loaded {
    pub fn new(model: &ModelFile, options: &LoadOptions) -> Result<Self, EngineError> {
        match (model.pack(), options.budget) {
            (None, None) => Self::mapped_matrices(model, options),
            (None, Some(_)) => Err(EngineError::NotAPack { path: model.path().to_owned() }),
            (Some(pack), None) => Self::mapped_pack(model, pack, options),
            (Some(pack), Some(budget)) => Self::streamed(model, pack, budget, options),
        }
    }

    fn mapped_matrices(model: &ModelFile, options: &LoadOptions) -> Result<Self, EngineError> {
        let load = || Weights::load(&Tensors::mapped(model), model.config(), &[], None);
        let (tokenizer, weights) = with_tokenizer(model, load);
        let (mlp, context) = (MlpSize::Rows, default_context(model, options.context));
        let (tokenizer, weights) = (tokenizer?, weights?);
        Ok(Self { weights, tokenizer, chunks: None, mlp, plan: None, context })
    }

    fn mapped_pack(
        model: &ModelFile,
        pack: &Pack,
        options: &LoadOptions,
    ) -> Result<Self, EngineError> {
        let load = || {
            let rows = pack.rows().map(|rows| -> Result<_, EngineError> {
                let bytes = usize::try_from(rows.stored_bytes()).unwrap_or(usize::MAX);
                let records = model.share_range(rows.offset, bytes)?;
                Ok(Embedding::Records(*rows, Bytes::Mapped(records)))
            });
            let tensors = Tensors::mapped(model);
            Weights::load(&tensors, model.config(), pack.layers(), rows.transpose()?)
        };
        let (tokenizer, weights) = with_tokenizer(model, load);
        let chunks = Some(ChunkSource::map(model, pack.layers())?);
        let mlp = mlp_size(pack.layers(), CHUNK_BATCH);
        let context = default_context(model, options.context);
        let (tokenizer, weights) = (tokenizer?, weights?);
        Ok(Self { weights, tokenizer, chunks, mlp, plan: None, context })
    }

    fn streamed(
        model: &ModelFile,
        pack: &Pack,
        budget: u64,
        options: &LoadOptions,
    ) -> Result<Self, EngineError> {
        let tokenizer = tokenizer(model)?;
        // What was read so far came through the page cache; from here on nothing does.
        model.release_pages();
        let (budgeted, mlp, context) = plan(model, pack, budget, options)?;
        let plan = &budgeted.plan;
        let io = options.stream.io();
        let reader = Reader::open(model.path(), &io)?;
        let tensors = Tensors::read(model, pack, &reader)?;
        let embedding = match pack.rows() {
            None => None,
            Some(rows) if plan.embedding_bytes > 0 => {
                let bytes = reader.read_one(rows.offset, rows.stored_bytes())?;
                let len = bytes.len();
                Some(Embedding::Records(*rows, Bytes::Owned(bytes.into(), len)))
            }
            Some(rows) => Some(Embedding::Flash(Box::new(FlashRows::new(reader, *rows)?))),
        };
        let weights = Weights::load(&tensors, model.config(), pack.layers(), embedding)?;
        let streamer = streamer(model, pack, plan, options)?;
        let chunks = Some(ChunkSource::Streamed(Box::new(streamer)));
        Ok(Self { weights, tokenizer, chunks, mlp, plan: Some(budgeted), context })
    }
}

fn streamer(
    model: &ModelFile,
    pack: &Pack,
    plan: &Plan,
    options: &LoadOptions,
) -> Result<Streamer, EngineError> {
    let layers = pack.layers();
    let layout = Layout {
        frame_bytes: frame_bytes(layers),
        groups: layers.iter().map(|layer| layer.n_chunks).collect(),
    };
    let cache = Cache::new(layout, plan.cache_bytes, options.stream.cache)?;
    let transit = usize::try_from(plan.transit_frames).unwrap_or(usize::MAX);
    let open = |completed| Ok(Stream::open(model.path(), &options.stream.io(), completed)?);
    Streamer::new(layers.to_vec(), cache, transit, options.stream.prefetch, open)
}

/// Divides the budget, and settles the context if it is left to us.
fn plan(
    model: &ModelFile,
    pack: &Pack,
    budget: u64,
    options: &LoadOptions,
) -> Result<(Budgeted, MlpSize, usize), EngineError> {
    let (config, layers) = (model.config(), pack.layers());
    let kv = |context| kv_bytes(config, context).map_or(u64::MAX, |bytes| bytes as u64);
    let mut context = default_context(model, options.context);
    while options.context == 0 && context > SMALL_CONTEXT && kv(context) > budget / KV_SHARE {
        context = (context / 2).max(SMALL_CONTEXT);
    }
    let longest = layers.iter().map(|layer| u64::from(layer.segment_chunks)).max().unwrap_or(0);
    let memory = || EngineError::Memory { bytes: None, context };
    let mut batch = CHUNK_BATCH;
    let (mlp, buffers) = loop {
        let mlp = mlp_size(layers, batch);
        let bytes = buffer_bytes(config, context, mlp).ok_or_else(memory)? as u64;
        if batch == SMALL_BATCH || bytes <= budget / BUFFER_SHARE {
            break (mlp, bytes);
        }
        batch /= 2;
    };
    let needs = Needs {
        process: process_bytes(),
        resident: Tensors::resident_bytes(model),
        kv: kv_bytes(config, context).ok_or_else(memory)? as u64,
        buffers,
        io: IO_BYTES + pack.rows().map_or(0, FlashRows::buffer_bytes),
        embedding: pack.rows().map(|rows| rows.stored_bytes()),
        frame: frame_bytes(layers) as u64,
        n_chunks: layers.iter().map(|layer| u64::from(layer.n_chunks)).sum(),
        min_frames: MIN_SEGMENTS * longest,
        max_cache: options.stream.cache_limit.unwrap_or(u64::MAX),
    };
    let plan = Plan::new(budget, &needs)?;
    Ok((Budgeted { plan, needs }, mlp, context))
}

/// What the process holds, and what the kernel holds for it.
fn process_bytes() -> u64 {
    let held = system::rss_anon().zip(system::rss_file());
    held.map_or(UNKNOWN_PROCESS, |(anon, file)| anon + file) + KERNEL_BYTES
}

fn frame_bytes(layers: &[LayerLayout]) -> usize {
    layers.iter().map(|layer| layer.record_bytes).max().unwrap_or(0)
}

fn mlp_size(layers: &[LayerLayout], batch: usize) -> MlpSize {
    let segments = layers.iter().map(|layer| layer.n_segments() as usize).max();
    let neurons = layers.iter().map(|l| l.segment_chunks as usize * l.neurons_per_chunk).max();
    let (segments, neurons) = (segments.unwrap_or(0), neurons.unwrap_or(0));
    MlpSize::Chunks { batch, segments, neurons }
}

fn default_context(model: &ModelFile, asked: usize) -> usize {
    match asked {
        0 => model.config().context_len.min(DEFAULT_CONTEXT),
        n => n,
    }
}

fn tokenizer(model: &ModelFile) -> Result<Tokenizer, EngineError> {
    Tokenizer::from_model(model).map_err(|source| failed_tokenizer(model, source))
}

fn failed_tokenizer(model: &ModelFile, source: TokenizerError) -> EngineError {
    EngineError::Tokenizer { path: model.path().to_owned(), source }
}

/// Tokenizer and `load`, side by side: the first takes as long as everything else together.
fn with_tokenizer<T>(
    model: &ModelFile,
    load: impl FnOnce() -> T,
) -> (Result<Tokenizer, EngineError>, T) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || tokenizer(model));
        let loaded = load();
        let tokenizer = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // No thread to be had: one after the other, then.
            Err(_) => tokenizer(model),
        };
        (tokenizer, loaded)
    })
}
