//! Joins model files and compute into load, prefill and decode.
//!
//! An [`Engine`] is a loaded model: it never changes and can be shared. A [`State`] is one sequence
//! with all the memory that its tokens need. It knows nothing of command lines or terminals, prints
//! nothing and keeps nothing global.
//!
//! ```
//! use std::path::Path;
//!
//! use ls_engine::{Engine, LoadOptions, argmax};
//! use ls_model::tokenizer::EncodeOptions;
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
//! let engine = Engine::load(Path::new(model), &LoadOptions::default())?;
//! let mut state = engine.new_state()?;
//! let prompt = engine.tokenizer().encode("The Rust", EncodeOptions::PROMPT)?;
//! let mut next = argmax(engine.prefill(&mut state, &prompt)?)?;
//! for _ in 0..8 {
//!     print!("{}", engine.tokenizer().decode(&[next])?);
//!     next = argmax(engine.decode(&mut state, next)?)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`generate`] does this with sampling, stop strings, and text that never ends in half a
//! character; [`perplexity`] measures as llama.cpp's tool does.
//!
//! # What holds
//! - Weights stay in the mapped file, or under a budget in memory that is read past the page cache; no
//!   dequantised copy of a matrix exists.
//! - Every neuron is computed, unless a state is given a [`Choice`] or a [`Refiner`]: see [`sparse`] and [`refine`].
//! - [`Engine::decode`] allocates nothing, unless weights are streamed or a GPU computes.
//! - A pack gives the same bits whatever the budget, the cache, the reads or the number of threads,
//!   unless a GPU computes its MLPs ([`Device`]): then bits depend on the GPU and on what it holds.
//!   A [`Refiner`] sums in the order in which chunks come, so its last bits differ from run to run.
//! - A call that is refused leaves the state as it was.

mod budget;
mod bytes;
mod chunked;
#[cfg_attr(
    not(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl")))),
    allow(dead_code) // what only a GPU asks for
)]
mod chunks;
mod completions;
mod embedding;
mod error;
mod fidelity;
mod forward;
mod generate;
mod gpu;
mod hotness;
mod layerwise;
mod load;
mod metrics;
mod model;
mod needs;
mod neurons;
mod pack;
mod perplexity;
pub mod predict;
mod reader;
pub mod refine;
mod rng;
mod rotary;
mod sample;
pub mod sparse;
mod state;
mod stop;
#[cfg_attr(
    not(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl")))),
    allow(dead_code) // what only a GPU asks for
)]
mod stream;
mod stream_stats;
pub mod system;
mod tensors;
pub mod trace;
mod weights;

pub use budget::{Floor, Plan};
pub use completions::{Agreement, completions};
pub use error::EngineError;
pub use fidelity::{Compared, Fidelity, Predictions, fidelity, fidelity_bytes};
pub use generate::{Event, FinishReason, GenerateError, GenerateOptions, Generation, generate};
pub use gpu::{Control, Device, DeviceStatus, GpuError, GpuFault, Profile, VulkanOptions};
pub use hotness::{HotnessProgress, hotness};
pub use layerwise::{Layerwise, Part, Position, layerwise_bytes};
pub use load::StreamOptions;
pub use ls_cache::PolicyKind;
pub use ls_io::{BackendKind, Curve, FaultPlan};
pub use metrics::{Metrics, PeakRss};
pub use model::{Engine, LoadOptions};
pub use needs::{plan_for, smallest_budget};
pub use neurons::MlpRows;
pub use pack::{default_column_type, down_types, pack};
pub use perplexity::{Perplexity, PerplexityError, PerplexityOptions, n_chunks, perplexity};
pub use refine::{RefineOptions, Refiner};
pub use rng::Pcg32;
pub use sample::{SampleError, SampleParams, Sampler, argmax};
pub use sparse::{Choice, Grain, Hot, Keep, LastSet, Oracle, Prompts, Random, SparseCounts};
pub use state::State;
pub use stop::{Passed, StopFilter};
pub use stream::{Prefetch, StreamCounts};
pub use stream_stats::StreamStats;

/// The README's example is compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
