//! Predicts which outputs of a layer matter, from features that are known earlier.
mod baseline;
mod error;
mod format;
mod isa;
mod predictor;
mod project;
mod report;
mod rng;
mod samples;
mod score;
mod select;
mod simd;
mod state;
pub mod synthetic;
mod train;

pub use baseline::{Hash, LastSet, LowRank, Oracle, Random, Row, Scorer, StaticHot};
pub use error::HashError;
pub use isa::Isa;
pub use predictor::{Form, Norm, Predictor, Shape};
pub use project::WeightType;
pub use report::{Line, Report};
pub use samples::{Matrices, Pick, Samples};
pub use select::{Mask, Pool, Selector, chunk_scores, priorities_u8};
pub use state::State;
pub use train::{Progress, TrainConfig, Trainer};
