//! Predicts which outputs of a layer matter, from features that are known earlier.
mod error;
mod format;
mod isa;
mod predictor;
mod project;
mod rng;
mod score;
mod select;
mod simd;
mod state;

pub use error::HashError;
pub use isa::Isa;
pub use predictor::{Form, Norm, Predictor, Shape};
pub use project::WeightType;
pub use select::{Mask, Pool, Selector, chunk_scores, priorities_u8};
pub use state::State;
