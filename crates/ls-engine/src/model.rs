//! A loaded model.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use ls_cpu::{Cpu, Isa};
use ls_model::pack::LayerLayout;
use ls_model::{Config, ModelFile, Tokenizer};
use parking_lot::Mutex;

use crate::budget::Plan;
use crate::chunks::ChunkSource;
use crate::forward::Forward;
use crate::gpu::{Device, DeviceStatus, Gpu};
use crate::load::{Budgeted, Loaded, LoadedGpu, StreamOptions};
use crate::refine::Refined;
use crate::rotary::Frequencies;
use crate::sparse::{MlpShape, Needs, Phase, Prompts, Sparse, column_norms};
use crate::state::{Buffers, LOGIT_ROWS, MlpSize};
use crate::weights::{ChunkedMlp, Layer, Mlp, Weights};
use crate::{Choice, EngineError, Refiner, SparseCounts, State, StreamStats};

/// More threads than any machine has cores for; far more would exhaust the process.
const MAX_THREADS: usize = 1024;

/// How to load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Bytes that the process may hold in all. A pack's chunks are streamed then, so far as they
    /// do not fit. `None`: weights stay in the mapped file, for the system to keep in memory.
    pub budget: Option<u64>,
    /// How chunks are streamed and kept.
    pub stream: StreamOptions,
    /// Bytes of the budget that are left to the caller.
    pub reserve: u64,
    /// Compute threads; 0: one for each core that the process may use.
    pub threads: usize,
    /// Tokens of context; 0: the model's own, at most 4096, or fewer under a small budget.
    pub context: usize,
    /// Kernels; `None`: the best that the processor has.
    pub isa: Option<Isa>,
    /// Where MLPs are computed.
    pub device: Device,
}

/// A model that is ready to compute.
///
/// It is shared by reference; each sequence has a [`State`] of its own.
#[derive(Debug)]
pub struct Engine {
    model: ModelFile,
    weights: Weights,
    tokenizer: Tokenizer,
    cpu: Cpu,
    frequencies: [Frequencies; 2],
    context: usize,
    /// `None`: no pack.
    chunks: Option<ChunkSource>,
    mlp: MlpSize,
    /// `None`: no budget.
    plan: Option<Mutex<Budgeted>>,
    /// `None`: none was asked for.
    gpu: Option<Gpu>,
    /// While a GPU is in service; `None`: no budget.
    gpu_plan: Option<Mutex<Budgeted>>,
    /// Once someone asked for them.
    column_norms: OnceLock<Arc<Vec<Vec<f32>>>>,
}

impl Engine {
    /// Opens the model at `path` and prepares it. Weights stay in the mapped file, unless there is
    /// a budget.
    ///
    /// # Errors
    ///
    /// If the files are not a model that is understood, the budget is too small or for no pack, or
    /// the system refuses a thread.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, EngineError> {
        let model = ModelFile::open(path)?;
        let config = model.config();
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        if threads > MAX_THREADS {
            let source = std::io::Error::other(format!("{MAX_THREADS} at most"));
            return Err(EngineError::Threads { threads, source });
        }
        let cpu = Cpu::new(threads, options.isa.unwrap_or_else(Isa::detect))
            .map_err(|source| EngineError::Threads { threads, source })?;
        let loaded = Loaded::new(&model, options)?;
        let frequencies = [Frequencies::full(&config.rope), Frequencies::local(&config.rope)];
        let Loaded { weights, tokenizer, chunks, mlp, plan, context, gpu } = loaded;
        let plan = plan.map(Mutex::new);
        let (gpu, gpu_plan) = match gpu {
            Some(LoadedGpu { gpu, plan }) => (Some(gpu), plan.map(Mutex::new)),
            None => (None, None),
        };
        let column_norms = OnceLock::new();
        Ok(Self {
            weights,
            tokenizer,
            cpu,
            frequencies,
            context,
            chunks,
            mlp,
            plan,
            gpu,
            gpu_plan,
            model,
            column_norms,
        })
    }

    /// Shapes and choices.
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// The opened files.
    pub fn model(&self) -> &ModelFile {
        &self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that a state has room for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Compute threads.
    pub fn threads(&self) -> usize {
        self.cpu.pool().threads()
    }

    /// The threads and kernels that it computes with.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weights_bytes()
    }

    /// Where the bytes of the budget go; `None` without one.
    pub fn plan(&self) -> Option<Plan> {
        self.budgeted().map(|budgeted| budgeted.lock().plan)
    }

    /// The plan that holds now.
    fn budgeted(&self) -> Option<&Mutex<Budgeted>> {
        self.gpu_plan.as_ref().filter(|_| self.uses_gpu()).or(self.plan.as_ref())
    }

    /// Where MLPs are computed now.
    pub fn device(&self) -> DeviceStatus {
        self.gpu.as_ref().map_or_else(DeviceStatus::cpu, Gpu::status)
    }

    fn uses_gpu(&self) -> bool {
        self.gpu.as_ref().is_some_and(Gpu::in_service)
    }

    /// Whether the CPU has all weights at hand, which `what` needs.
    pub(crate) fn check_on_cpu(&self, what: &'static str) -> Result<(), EngineError> {
        if self.uses_gpu() { Err(EngineError::OnlyOnCpu { what }) } else { Ok(()) }
    }

    /// Changes the budget, also while tokens are computed. Chunks that have no place any more are
    /// dropped at once, those in use as soon as they are not; the memory goes back to the system.
    /// The cache never grows beyond what the budget at loading gave it. What a GPU holds stays, and so
    /// does a cache that a GPU reads in place.
    ///
    /// # Errors
    ///
    /// If the engine was loaded without a budget, or this one is below the smallest that it needs, with
    /// what stays; then nothing changes.
    pub fn set_budget(&self, bytes: u64) -> Result<Plan, EngineError> {
        let streamer = self.chunks.as_ref().and_then(ChunkSource::streamer);
        let Some((budgeted, streamer)) = self.budgeted().zip(streamer) else {
            return Err(EngineError::NoBudget);
        };
        let mut budgeted = budgeted.lock();
        let mut plan = Plan::new(bytes, &budgeted.needs)?;
        if budgeted.is_lent {
            budgeted.check_lent(bytes, &plan)?;
        }
        // What a GPU holds was counted with the needs.
        plan.gpu_bytes = budgeted.plan.gpu_bytes;
        plan.io_bytes -= plan.gpu_bytes;
        plan.chunk_bytes = budgeted.plan.chunk_bytes;
        if let Some((gpu, cpu)) = self.gpu.as_ref().zip(self.plan.as_ref())
            && gpu.in_service()
        {
            // For when the GPU is no more.
            let mut cpu = cpu.lock();
            cpu.plan = Plan::new(bytes, &cpu.needs)?;
            gpu.set_cache(cpu.plan.cache_bytes, cpu.plan.transit_frames);
        }
        streamer.set_cache(plan.cache_bytes, plan.transit_frames);
        budgeted.plan = plan;
        Ok(plan)
    }

    /// What streaming did so far; `None` when weights stay in the mapped file.
    pub fn stream_stats(&self) -> Option<StreamStats> {
        let streamer = self.chunks.as_ref()?.streamer()?;
        Some(StreamStats::of(streamer, &self.weights.embedding))
    }

    /// A state for one sequence; all of its memory is allocated here.
    ///
    /// # Errors
    ///
    /// If it would take more memory than the system gives.
    pub fn new_state(&self) -> Result<State, EngineError> {
        let state = State::new(self.config(), self.context, self.mlp)?;
        self.cpu.reserve(self.context);
        Ok(state)
    }

    /// From now on `state` computes what is chosen for it; `None`: everything. Its counts begin anew.
    ///
    /// # Errors
    ///
    /// If the model is no pack, the choice does not fit it or needs what a budget does not allow, or
    /// weights could not be read; the state is as before.
    pub fn set_choice(&self, state: &mut State, choice: Option<Choice>) -> Result<(), EngineError> {
        let Some(choice) = choice else {
            state.sparse = None;
            state.refined = None;
            return Ok(());
        };
        self.check_on_cpu("a choice of neurons")?;
        let path = || self.model.path().to_owned();
        let source = self.chunks.as_ref();
        let source = source.ok_or_else(|| EngineError::SparseNeedsPack { path: path() })?;
        let shapes = self.mlp_shapes();
        let choosing = choice.chooser.begin(&shapes)?;
        let norms = match choice.chooser.needs() {
            Needs::Inputs => None,
            Needs::Importance if source.streamer().is_some() => {
                return Err(EngineError::ImportanceNeedsMemory { path: path() });
            }
            Needs::Importance => Some(self.column_norms()?),
        };
        let batch = self.mlp.batch().min(state.capacity);
        let d_ff = shapes.iter().map(|shape| shape.d_ff).max().unwrap_or(0);
        state.refined = None;
        state.sparse = Some(Box::new(Sparse::new(choosing, choice.prompts, norms, d_ff, batch)));
        Ok(())
    }

    /// From now on `refiner` streams and computes the tokens of `state` that are generated, and those of
    /// prompts if `prompts` says so; `None`: none. Any choice is forgotten, and counts begin anew.
    ///
    /// # Errors
    ///
    /// If the engine streams nothing.
    pub fn set_refiner(
        &self,
        state: &mut State,
        refiner: Option<(Arc<Refiner>, Prompts)>,
    ) -> Result<(), EngineError> {
        if refiner.is_some() {
            self.check_on_cpu("a choice of chunks")?;
        }
        if refiner.is_some() && !self.is_streaming() {
            return Err(EngineError::NoBudget);
        }
        state.sparse = None;
        state.refined = refiner.map(|(refiner, prompts)| {
            Box::new(Refined { refiner, prompts, counts: SparseCounts::default() })
        });
        Ok(())
    }

    /// Sizes of each layer's MLP, if it is a pack's; empty otherwise.
    pub fn mlp_shapes(&self) -> Vec<MlpShape> {
        let chunked = |layer: &Layer| match &layer.mlp {
            Mlp::Rows { .. } => None,
            Mlp::Chunks(ChunkedMlp { layout, .. }) => Some(MlpShape {
                d_model: layout.d_model,
                d_ff: layout.d_ff,
                neurons_per_chunk: layout.neurons_per_chunk,
            }),
        };
        self.weights.layers.iter().filter_map(chunked).collect()
    }

    /// The share of gates and ups in the bytes of a pack's neurons; 0 if it is no pack.
    pub fn row_share(&self) -> f64 {
        let layers = self.model.pack().map_or(&[][..], |pack| pack.layers());
        let sum = |bytes: fn(&LayerLayout) -> u64| layers.iter().map(bytes).sum::<u64>() as f64;
        let all = sum(LayerLayout::useful_bytes);
        let columns = sum(|layer| (layer.d_ff * layer.column_bytes()) as u64);
        if all > 0.0 { 1.0 - columns / all } else { 0.0 }
    }

    /// Euclidean norms of the down columns, by layer and by neuron in the pack's order. The first call
    /// reads all chunks.
    ///
    /// # Errors
    ///
    /// If the model is no pack, or a chunk could not be read or is damaged.
    pub fn column_norms(&self) -> Result<Arc<Vec<Vec<f32>>>, EngineError> {
        if let Some(norms) = self.column_norms.get() {
            return Ok(norms.clone());
        }
        self.check_on_cpu("the norm of a column")?;
        let path = || self.model.path().to_owned();
        let source = self.chunks.as_ref();
        let source = source.ok_or_else(|| EngineError::SparseNeedsPack { path: path() })?;
        self.model.check_whole()?;
        let norms = Arc::new(column_norms(&self.cpu, source, &self.weights)?);
        Ok(self.column_norms.get_or_init(|| norms).clone())
    }

    /// Appends `tokens` and returns the logits after the last of them, `[vocab_size]`.
    ///
    /// # Errors
    ///
    /// If `tokens` is empty, one of them is unknown or they do not fit, or weights could not be read;
    /// the state is as before.
    pub fn prefill<'s>(
        &self,
        state: &'s mut State,
        tokens: &[u32],
    ) -> Result<&'s [f32], EngineError> {
        self.append(state, tokens, Phase::Prompt)
    }

    fn append<'s>(
        &self,
        state: &'s mut State,
        tokens: &[u32],
        phase: Phase,
    ) -> Result<&'s [f32], EngineError> {
        self.check(state, tokens)?;
        let (forward, before) = (self.forward(), state.len);
        let mut last = 0;
        for batch in batches(tokens.len(), self.mlp.batch().min(state.capacity)) {
            last = batch.len();
            if let Err(error) = forward.tokens(state, &tokens[batch], phase) {
                state.truncate(before);
                return Err(error);
            }
        }
        forward.logits(&mut state.buffers, last - 1..last, &mut state.logits);
        Ok(&state.logits)
    }

    /// Appends `tokens` and hands `each` the logits after token `i`, for `i` from `from` on.
    ///
    /// # Errors
    ///
    /// As [`Engine::prefill`].
    pub fn prefill_each(
        &self,
        state: &mut State,
        tokens: &[u32],
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.check(state, tokens)?;
        let forward = self.forward();
        let before = state.len;
        for batch in batches(tokens.len(), self.mlp.batch().min(state.capacity)) {
            if let Err(error) = forward.tokens(state, &tokens[batch.clone()], Phase::Prompt) {
                state.truncate(before);
                return Err(error);
            }
            self.each_logits(&mut state.buffers, batch, from, each);
        }
        Ok(())
    }

    /// Appends `tokens` to the sequence; the residual streams that leave the last layer, of tokens from
    /// `from` on, go to `out`, `[tokens − from, d_model]`.
    pub(crate) fn prefill_residual(
        &self,
        state: &mut State,
        tokens: &[u32],
        from: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        self.check(state, tokens)?;
        let (forward, d, before) = (self.forward(), self.config().d_model, state.len);
        for batch in batches(tokens.len(), self.mlp.batch().min(state.capacity)) {
            if let Err(error) = forward.tokens(state, &tokens[batch.clone()], Phase::Prompt) {
                state.truncate(before);
                return Err(error);
            }
            let first = from.clamp(batch.start, batch.end);
            let x = &state.buffers.x[(first - batch.start) * d..batch.len() * d];
            if !x.is_empty() {
                out[(first - from) * d..][..x.len()].copy_from_slice(x);
            }
        }
        Ok(())
    }

    /// Logits, `[n, vocab_size]`, of residual streams that left the last layer, `[n, d_model]`, at most
    /// [`LOGIT_ROWS`] and as many as a batch has. The buffers of `state` are used.
    pub(crate) fn residual_logits(&self, state: &mut State, x: &[f32], out: &mut [f32]) {
        let b = &mut state.buffers;
        b.x[..x.len()].copy_from_slice(x);
        self.forward().logits(b, 0..x.len() / self.config().d_model, out);
    }

    /// The logits after each token of a batch that is in the buffers: of those of `batch` that are
    /// `from` or later.
    pub(crate) fn each_logits(
        &self,
        b: &mut Buffers,
        batch: std::ops::Range<usize>,
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) {
        let (forward, vocab_size) = (self.forward(), self.config().vocab_size);
        let first = from.saturating_sub(batch.start).min(batch.len());
        let mut logits = Vec::new();
        // Of few rows only when few are asked for: those round otherwise.
        for rows in batches(batch.len() - first, LOGIT_ROWS) {
            let rows = first + rows.start..first + rows.end;
            logits.resize(rows.len() * vocab_size, 0.0);
            forward.logits(b, rows.clone(), &mut logits);
            for (i, logits) in rows.zip(logits.chunks_exact(vocab_size)) {
                each(batch.start + i, logits);
            }
        }
    }

    /// Appends one token and returns the logits after it, `[vocab_size]`. Allocates nothing, unless
    /// weights are streamed or a GPU computes.
    ///
    /// # Errors
    ///
    /// If the token is unknown or does not fit, or weights could not be read; the state is as before.
    pub fn decode<'s>(&self, state: &'s mut State, token: u32) -> Result<&'s [f32], EngineError> {
        self.append(state, &[token], Phase::Decode)
    }

    /// A state with keys and values of one layer, for `capacity` tokens.
    pub(crate) fn one_layer_state(&self, capacity: usize) -> Result<State, EngineError> {
        let state = State::of_layers(self.config(), 1, capacity, self.mlp)?;
        self.cpu.reserve(capacity);
        Ok(state)
    }

    /// Tokens that go through a layer together.
    pub(crate) fn batch(&self) -> usize {
        self.mlp.batch()
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn chunks(&self) -> Option<&ChunkSource> {
        self.chunks.as_ref()
    }

    /// Whether chunks are read as they are needed.
    pub(crate) fn is_streaming(&self) -> bool {
        self.chunks.as_ref().and_then(ChunkSource::streamer).is_some()
    }

    pub(crate) fn forward(&self) -> Forward<'_> {
        Forward {
            cpu: &self.cpu,
            config: self.config(),
            weights: &self.weights,
            chunks: self.chunks.as_ref(),
            gpu: self.gpu.as_ref(),
            frequencies: &self.frequencies,
        }
    }

    fn check(&self, state: &State, tokens: &[u32]) -> Result<(), EngineError> {
        self.check_tokens(tokens)?;
        if tokens.len() > state.capacity - state.len {
            return Err(EngineError::ContextFull { limit: state.capacity });
        }
        self.check_whole()
    }

    /// Whether there are tokens, and the model has all of them.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let vocab_size = self.config().vocab_size;
        if tokens.is_empty() {
            return Err(EngineError::NoTokens);
        }
        match tokens.iter().find(|t| **t as usize >= vocab_size) {
            Some(&token) => Err(EngineError::UnknownToken { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// The weights are read from the mapped file: were it cut, the process would be killed.
    pub(crate) fn check_whole(&self) -> Result<(), EngineError> {
        Ok(self.model.check_whole()?)
    }
}

/// Cuts `n` tokens into batches of `batch`, none of which is shorter than [`ls_cpu::BATCH`] if the
/// tokens are not.
///
/// Shorter batches are computed another way, which rounds otherwise. So the bits of a prompt's
/// logits do not depend on how large batches are, which a budget decides. Batches begin at multiples
/// of four, as attention's groups of queries do.
pub(crate) fn batches(n: usize, batch: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let rest = n % batch;
    let needs_more = n > batch && rest > 0 && rest < ls_cpu::BATCH;
    let last = if needs_more { n - rest - ls_cpu::BATCH } else { n };
    let mut start = 0;
    std::iter::from_fn(move || {
        let limit = if start < last { last } else { n };
        let end = (start + batch).min(limit);
        let range = start..end;
        start = end;
        (!range.is_empty()).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_is_short_unless_the_prompt_is() {
        for batch in [32, 64, 256, 512] {
            for n in 1..2000 {
                let all: Vec<_> = batches(n, batch).collect();
                assert_eq!(all.first().unwrap().start, 0);
                assert_eq!(all.last().unwrap().end, n);
                assert!(all.windows(2).all(|w| w[0].end == w[1].start));
                assert!(all.iter().all(|b| b.len() <= batch && b.start.is_multiple_of(4)));
                let shortest = all.iter().map(ExactSizeIterator::len).min().unwrap();
                assert!(shortest >= ls_cpu::BATCH.min(n), "{n} by {batch}: {all:?}");
            }
        }
        assert_eq!(batches(9, 9).count(), 1);
    }
}
