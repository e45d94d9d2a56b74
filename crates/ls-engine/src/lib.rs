//! Joins model files and compute into load, prefill and decode.

mod error;
mod model;
mod state;

pub use error::EngineError;
pub use model::{Engine, LoadOptions};
pub use state::State;
