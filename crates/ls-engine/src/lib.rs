//! Joins model files and compute into load, prefill and decode.

mod error;
mod forward;
mod model;
mod rotary;
mod state;
mod weights;

pub use error::EngineError;
pub use model::{Engine, LoadOptions};
pub use state::State;
