//! What can go wrong between a model's path and its answer.

use std::path::PathBuf;

use ls_model::{ModelError, TokenizerError};

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
    /// There is nothing to compute logits after.
    #[error("no tokens: the prompt is empty and the model has no BOS token")]
    NoTokens,
}
