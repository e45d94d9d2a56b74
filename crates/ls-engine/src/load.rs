//! From an opened model to weights in their places.

use ls_cache::{Cache, Layout, PolicyKind};
use ls_io::{BackendKind, Curve, FaultPlan, Stream};
use ls_model::pack::Pack;
use ls_model::{ModelFile, Tokenizer, TokenizerError};

use crate::budget::{Floor, Needs, Plan};
use crate::bytes::Bytes;
use crate::chunks::ChunkSource;
use crate::embedding::{Embedding, FlashRows};
use crate::gpu::{Device, Gpu, GpuError, Opened, Service};
use crate::needs::{self, Reading, Settled, default_context, frame_bytes, mlp_size};
use crate::reader::Reader;
use crate::state::{CHUNK_BATCH, MlpSize};
use crate::stream::{Prefetch, Source, Streamer};
use crate::tensors::Tensors;
use crate::weights::Weights;
use crate::{EngineError, LoadOptions};

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
    /// Most tokens of a prompt that go through the layers together, from 32 on; the budget may allow
    /// fewer. It changes how often a prompt reads what is not in memory, and no bit of its logits.
    pub prompt_batch: Option<usize>,
    /// The disk's cost of a read: gaps between chunks that cost less than another read are read
    /// through. Without it, only neighbours are read together.
    pub curve: Option<Curve>,
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
            prompt_batch: None,
            curve: None,
            fault: None,
        }
    }
}

impl StreamOptions {
    /// For reads of single extents.
    pub(crate) fn io(&self) -> ls_io::StreamOptions {
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
    pub gpu: Option<LoadedGpu>,
}

/// A GPU, and the plan while it computes, if there is a budget.
pub(crate) struct LoadedGpu {
    pub gpu: Gpu,
    pub plan: Option<Budgeted>,
}

/// A plan, and what it was made for.
#[derive(Clone, Debug)]
pub(crate) struct Budgeted {
    pub plan: Plan,
    pub needs: Needs,
    /// Whether a device has the cache's memory: it cannot become less.
    pub is_lent: bool,
}

impl Budgeted {
    /// From here on the needs are those of what was loaded: an embedding in memory stays there, and
    /// the cache does not grow.
    fn freeze(&mut self) {
        self.needs.resident = self.needs.resident.saturating_add(self.plan.embedding_bytes);
        self.needs.embedding = None;
        self.needs.io = self.needs.io.saturating_add(self.plan.gpu_bytes);
        self.needs.max_cache = self.plan.cache_bytes;
    }

    /// Whether a `plan` for `bytes` leaves the cache that a device has.
    pub(crate) fn check_lent(&self, bytes: u64, plan: &Plan) -> Result<(), EngineError> {
        if plan.cache_bytes >= self.plan.cache_bytes {
            return Ok(());
        }
        let min_frames = self.plan.cache_bytes / self.plan.frame_bytes;
        let floor = Box::new(Floor::new(&Needs { min_frames, ..self.needs.clone() }));
        Err(EngineError::Budget { budget_bytes: bytes, floor })
    }
}

impl Loaded {
    pub fn new(model: &ModelFile, options: &LoadOptions) -> Result<Self, EngineError> {
        match (model.pack(), options.budget) {
            (None, _) if matches!(options.device, Device::Vulkan(_)) => {
                Err(GpuError::NeedsPack { path: model.path().to_owned() }.into())
            }
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
        Ok(Self { weights, tokenizer, chunks: None, mlp, plan: None, context, gpu: None })
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
        let chunks = ChunkSource::map(model, pack.layers())?;
        let mlp = mlp_size(pack.layers(), CHUNK_BATCH);
        let context = default_context(model, options.context);
        let (tokenizer, weights) = (tokenizer?, weights?);
        let gpu = match open_gpu(model, pack, options)? {
            None => None,
            Some(Err(failed)) => Some(LoadedGpu { gpu: failed, plan: None }),
            Some(Ok(opened)) => {
                let gpu = serve(&opened, pack, u64::MAX, &chunks, None)?;
                if gpu.holds_all() && gpu.in_service() {
                    // The same bytes need not stay in memory twice.
                    model.release_pages();
                }
                Some(LoadedGpu { gpu, plan: None })
            }
        };
        Ok(Self { weights, tokenizer, chunks: Some(chunks), mlp, plan: None, context, gpu })
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
        // Before anything is counted: what a driver holds is the program's own.
        let gpu = match open_gpu(model, pack, options)? {
            Some(Ok(opened)) => match Service::rehearse(&opened, pack.layers()) {
                Ok(()) => Some(Ok(opened)),
                Err(error) if error.is_fault() => Some(Err(Gpu::failed(opened.name(), &error))),
                Err(error) => return Err(error.into()),
            },
            other => other,
        };
        let reader = Reader::open(model.path(), &options.stream.io())?;
        let opened = gpu.as_ref().and_then(|gpu| gpu.as_ref().ok());
        let placed = Placed::new(model, (pack, budget, options), opened, &reader)?;
        let Placed { settled, streamer, in_place, copy_reason } = placed;
        let plan = &settled.budgeted.plan;
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
        let chunks = ChunkSource::Streamed(Box::new(streamer));
        let Settled { mut budgeted, mlp, context, .. } = settled;
        let gpu = match gpu {
            None => None,
            Some(Err(failed)) => Some(LoadedGpu { gpu: failed, plan: None }),
            Some(Ok(opened)) => {
                let mut loaded = match in_place {
                    Some(service) => serve_in_place(&opened, service, &chunks, &budgeted)?,
                    None => serve_streamed(&opened, pack, &chunks, &budgeted)?,
                };
                loaded.gpu = loaded.gpu.copying_for(copy_reason.as_ref());
                Some(loaded)
            }
        };
        budgeted.freeze();
        let (chunks, plan) = (Some(chunks), Some(budgeted));
        Ok(Self { weights, tokenizer, chunks, mlp, plan, context, gpu })
    }
}

/// A divided budget, and the streaming within it.
struct Placed {
    settled: Settled,
    streamer: Streamer,
    /// A GPU that reads chunks where the streaming puts them.
    in_place: Option<Service>,
    /// Why it does not, if it should be able to.
    copy_reason: Option<GpuError>,
}

impl Placed {
    /// A GPU that shares the host's memory gets the cache's before anything is in it; if the driver
    /// does not take it, room is made for copies.
    fn new(
        model: &ModelFile,
        (pack, budget, options): (&Pack, u64, &LoadOptions),
        opened: Option<&Opened>,
        reader: &Reader,
    ) -> Result<Self, EngineError> {
        let place = |in_place| -> Result<_, EngineError> {
            let gpu_bytes = |opened: &Opened| opened.host_bytes(pack.layers(), in_place);
            let gpu_bytes = opened.map_or(0, gpu_bytes);
            let reading = Reading { backend: Some(reader.stream().backend()), gpu_bytes };
            let settled = needs::settle(model, pack, budget, options, &reading)?;
            let plan = &settled.budgeted.plan;
            let streamer = streamer(model, pack, plan, options, settled.curve)?;
            Ok((settled, streamer))
        };
        let mut copy_reason = None;
        if let Some(opened) = opened.filter(|opened| opened.can_be_in_place()) {
            let (settled, streamer) = place(true)?;
            match Service::in_place(opened, pack.layers(), streamer.cache().lend()) {
                Ok(service) => {
                    return Ok(Self { settled, streamer, in_place: Some(service), copy_reason });
                }
                Err(error) => copy_reason = Some(error),
            }
        }
        let (settled, streamer) = place(false)?;
        Ok(Self { settled, streamer, in_place: None, copy_reason })
    }
}

/// The GPU that is asked for; an error in it is one that failed before it was in service.
fn open_gpu(
    model: &ModelFile,
    pack: &Pack,
    options: &LoadOptions,
) -> Result<Option<Result<Opened, Gpu>>, EngineError> {
    let Device::Vulkan(vulkan) = &options.device else { return Ok(None) };
    let opened = Opened::new(vulkan, model.config(), pack.layers())?;
    Ok(Some(opened.map_err(|(name, error)| Gpu::failed(name, &error))))
}

/// Brings up to `wanted` chunks from `chunks` to the GPU. One that fails there is not in service.
fn serve(
    opened: &Opened,
    pack: &Pack,
    wanted: u64,
    chunks: &ChunkSource,
    cache: Option<(u64, u64)>,
) -> Result<Gpu, EngineError> {
    let service = Service::new(opened, pack.layers(), wanted).map_err(EngineError::from);
    take_up(opened, service, chunks, cache)
}

/// Brings what the GPU holds to it and tries it out.
fn take_up(
    opened: &Opened,
    service: Result<Service, EngineError>,
    chunks: &ChunkSource,
    cache: Option<(u64, u64)>,
) -> Result<Gpu, EngineError> {
    let filled = service.and_then(|mut service| service.fill(chunks).map(|()| service));
    match filled {
        Ok(service) => {
            if let Some(streamer) = chunks.streamer() {
                streamer.hold(service.held());
            }
            Ok(Gpu::new(service, cache))
        }
        Err(EngineError::Gpu(error)) if error.is_fault() => Ok(Gpu::failed(opened.name(), &error)),
        Err(error) => Err(error),
    }
}

/// A GPU that computes in place: the cache is the same as for the CPU.
fn serve_in_place(
    opened: &Opened,
    service: Service,
    chunks: &ChunkSource,
    cpu: &Budgeted,
) -> Result<LoadedGpu, EngineError> {
    let mut plan = Budgeted { is_lent: true, ..cpu.clone() };
    let cache = Some((cpu.plan.cache_bytes, cpu.plan.transit_frames));
    let gpu = take_up(opened, Ok(service), chunks, cache)?;
    plan.freeze();
    Ok(LoadedGpu { gpu, plan: Some(plan) })
}

/// As [`serve`], within a budget.
fn serve_streamed(
    opened: &Opened,
    pack: &Pack,
    chunks: &ChunkSource,
    cpu: &Budgeted,
) -> Result<LoadedGpu, EngineError> {
    let mut plan = cpu.clone();
    let wanted = match opened.is_in_host_memory() {
        true => plan.plan.give_to_gpu(cpu.needs.min_frames),
        false => u64::MAX,
    };
    let set_cache = |plan: &Plan| {
        if let Some(streamer) = chunks.streamer() {
            streamer.set_cache(plan.cache_bytes, plan.transit_frames);
        }
    };
    set_cache(&plan.plan);
    let cache = Some((cpu.plan.cache_bytes, cpu.plan.transit_frames));
    let gpu = serve(opened, pack, wanted, chunks, cache)?;
    if !gpu.in_service() {
        set_cache(&cpu.plan);
    } else if opened.is_in_host_memory() {
        plan.plan.gpu_bytes = gpu.held_bytes();
    } else {
        plan.plan.chunk_bytes -= gpu.held_bytes().min(plan.plan.chunk_bytes);
    }
    plan.freeze();
    Ok(LoadedGpu { gpu, plan: Some(plan) })
}

fn streamer(
    model: &ModelFile,
    pack: &Pack,
    plan: &Plan,
    options: &LoadOptions,
    curve: Option<Curve>,
) -> Result<Streamer, EngineError> {
    let layers = pack.layers();
    let layout = Layout {
        frame_bytes: frame_bytes(layers),
        groups: layers.iter().map(|layer| layer.n_chunks).collect(),
    };
    let cache = Cache::new(layout, plan.cache_bytes, options.stream.cache)?;
    let transit = usize::try_from(plan.transit_frames).unwrap_or(usize::MAX);
    let io = ls_io::StreamOptions { curve, ..options.stream.io() };
    let open = |completed| Ok(Stream::open(model.path(), &io, completed)?);
    let source = Source {
        depth: options.stream.depth,
        curve: options.stream.curve,
        is_ordered: pack.facts().reordered,
    };
    let how = (source, options.stream.prefetch);
    Streamer::new(layers.to_vec(), cache, transit, how, open)
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
