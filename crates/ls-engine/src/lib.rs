//! Joins model files and compute into load, prefill and decode.

mod error;
mod forward;
mod generate;
mod metrics;
mod model;
mod perplexity;
mod rng;
mod rotary;
mod sample;
mod state;
mod stop;
pub mod system;
mod weights;

pub use error::EngineError;
pub use generate::{Event, FinishReason, GenerateError, GenerateOptions, Generation, generate};
pub use metrics::{Metrics, PeakRss};
pub use model::{Engine, LoadOptions};
pub use perplexity::{Perplexity, PerplexityError, PerplexityOptions, n_chunks, perplexity};
pub use rng::Pcg32;
pub use sample::{SampleError, SampleParams, Sampler, argmax};
pub use state::State;
pub use stop::{Passed, StopFilter};
