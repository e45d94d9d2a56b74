//! What can go wrong between a model's path and its answer.

use std::path::PathBuf;
use std::sync::Arc;

use ls_model::pack::{ChunkDamage, RowDamage, TensorDamage};
use ls_model::{ModelError, TokenizerError};

use crate::budget::Floor;
use crate::gpu::GpuError;
use crate::sparse::ChoiceError;
use crate::stream::ReadFailure;

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model's files cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's tokenizer cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong with its tokenizer.
        source: TokenizerError,
    },
    /// A tensor that the configuration calls for is not there.
    #[error("tensor {tensor} is missing; the file is incomplete, fetch or convert it again")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor's data does not have the size that its shape needs.
    #[error("tensor {tensor}: {source}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        source: ls_cpu::ShapeError,
    },
    /// A norm or bias is not stored as floats.
    #[error("tensor {tensor} is stored as {dtype}; norms and biases must be F32, F16 or BF16")]
    NotFloats {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: ls_model::TensorType,
    },
    /// The system refused a thread.
    #[error("cannot start {threads} threads: {source}; try fewer threads")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The state of a sequence does not fit in memory.
    #[error("a context of {context} tokens takes {}, which the system does not give; choose a smaller context", bytes.map_or("more bytes than can be counted".to_owned(), |b| format!("{b} bytes")))]
    Memory {
        /// Bytes that it would take, if they can be counted.
        bytes: Option<usize>,
        /// Tokens of context asked for.
        context: usize,
    },
    /// A budget that not even the smallest plan fits.
    #[error("a budget of {budget_bytes} bytes is too small: {floor}")]
    Budget {
        /// The budget asked for.
        budget_bytes: u64,
        /// What the smallest one consists of.
        floor: Box<Floor>,
    },
    /// Without a budget from the start there is nothing to change.
    #[error("the model was loaded without a budget, which cannot be set later; load it with one")]
    NoBudget,
    /// Weights can only be streamed from a pack.
    #[error("{} is no pack; only packs can be run within a budget, so pack it first", path.display())]
    NotAPack {
        /// The model.
        path: PathBuf,
    },
    /// What needs neurons one by one needs a pack, in which they lie so.
    #[error("{} is no pack; pack it first, so that its neurons can be taken one by one", path.display())]
    NoChunks {
        /// The model.
        path: PathBuf,
    },
    /// The controller of streaming refused its settings, or what it was told.
    #[error("streaming chosen chunks: {0}")]
    Schedule(#[from] ls_sched::SchedError),
    /// A pass through the layers cannot go on from a saved place.
    #[error("cannot go on from what was saved: {reason}; begin anew")]
    Resume {
        /// Why.
        reason: &'static str,
    },
    /// Neurons can only be chosen from a pack.
    #[error("{} is no pack; only a pack's neurons can be chosen, so pack it first", path.display())]
    SparseNeedsPack {
        /// The model.
        path: PathBuf,
    },
    /// A choice that needs the importance of every neuron, under a budget.
    #[error(
        "a choice by true importance takes each chunk twice, which a budget does not allow; \
         load {} without one", path.display()
    )]
    ImportanceNeedsMemory {
        /// The pack.
        path: PathBuf,
    },
    /// A GPU cannot be used, or does not compute.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// What is only computed on the CPU, with an engine whose weights a GPU has.
    #[error("{what} is computed on the CPU only; load the model without a GPU")]
    OnlyOnCpu {
        /// What was asked for.
        what: &'static str,
    },
    /// A choice that is for another model, or none at all.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The system has no memory for something that the plan has room for.
    #[error("cannot allocate {bytes} bytes: {source}")]
    Allocate {
        /// Bytes asked for.
        bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The pack cannot be opened for streaming.
    #[error(transparent)]
    Io(#[from] ls_io::IoError),
    /// The cache cannot be made.
    #[error(transparent)]
    Cache(#[from] ls_cache::CacheError),
    /// A chunk could not be read.
    #[error("layer {layer}, chunk {chunk}: {cause}")]
    ChunkRead {
        /// The layer.
        layer: u32,
        /// The chunk of that layer.
        chunk: u32,
        /// Why.
        cause: Arc<ls_io::ReadError>,
    },
    /// A chunk's bytes are not what was packed.
    #[error(transparent)]
    ChunkDamage(#[from] ChunkDamage),
    /// Embedding rows are not what was packed.
    #[error(transparent)]
    RowDamage(#[from] RowDamage),
    /// A tensor's bytes are not what was packed.
    #[error(transparent)]
    TensorDamage(#[from] TensorDamage),
    /// A tensor or embedding row could not be read.
    #[error(transparent)]
    Read(ls_io::ReadError),
    /// A chunk did not come in time.
    #[error(
        "layer {layer}, chunk {chunk} was not read within {seconds} seconds; is the disk alive?"
    )]
    LateRead {
        /// The layer.
        layer: u32,
        /// The chunk of that layer.
        chunk: u32,
        /// How long was waited.
        seconds: u64,
    },
    /// Tensors or embedding rows did not come in time.
    #[error("{}: nothing was read within {seconds} seconds; is the disk alive?", path.display())]
    SlowDisk {
        /// The pack.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// The context is full: no further token fits.
    #[error("the context of {limit} tokens is full; use a larger context")]
    ContextFull {
        /// Tokens that the state was made for.
        limit: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not in the model's vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A logit is not a number, or all are −∞.
    #[error(
        "the logits are not finite; the model's weights are damaged, or not what they should be"
    )]
    NotFinite,
    /// There is nothing to compute logits after.
    #[error("no tokens: the prompt is empty and the model has no BOS token")]
    NoTokens,
}

impl From<ReadFailure> for EngineError {
    fn from(ReadFailure { layer, chunk, cause }: ReadFailure) -> Self {
        Self::ChunkRead { layer, chunk, cause }
    }
}
