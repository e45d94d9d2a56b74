//! A loaded model.
use std::path::Path;

use ls_model::Config;

use crate::{EngineError, State};

/// How to load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Compute threads; 0: one for each core that the process may use.
    pub threads: usize,
    /// Tokens of context; 0: the model's own, at most 4096.
    pub context: usize,
}

/// A model that is ready to compute.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// Opens the model at `path` and prepares it.
    pub fn load(_path: &Path, _options: &LoadOptions) -> Result<Self, EngineError> {
        todo!()
    }
    /// Shapes and choices.
    pub fn config(&self) -> &Config {
        todo!()
    }
    /// Compute threads.
    pub fn threads(&self) -> usize {
        todo!()
    }
    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        todo!()
    }
    /// A state for one sequence; all of its memory is allocated here.
    pub fn new_state(&self) -> Result<State, EngineError> {
        todo!()
    }
    /// Appends `tokens` and returns the logits after the last of them, `[vocab_size]`.
    pub fn prefill<'s>(
        &self,
        _state: &'s mut State,
        _tokens: &[u32],
    ) -> Result<&'s [f32], EngineError> {
        todo!()
    }
    /// Appends `tokens` and hands `each` the logits after token `i`, for `i` from `from` on.
    pub fn prefill_each(
        &self,
        _state: &mut State,
        _tokens: &[u32],
        _from: usize,
        _each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        todo!()
    }
    /// Appends one token and returns the logits after it, `[vocab_size]`.
    pub fn decode<'s>(&self, _state: &'s mut State, _token: u32) -> Result<&'s [f32], EngineError> {
        todo!()
    }
}
