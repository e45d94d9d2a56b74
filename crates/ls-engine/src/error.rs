//! What can go wrong between a model's path and its answer.

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The context is full: no further token fits.
    #[error("the context of {limit} tokens is full; use a larger --context")]
    ContextFull {
        /// Tokens that the state was made for.
        limit: usize,
    },
}
