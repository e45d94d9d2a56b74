//! Predicts which outputs of a layer matter, from features that are known earlier, by bit
//! operations.
//!
//! A predictor hashes the features to bits, which may be hashed again (further *stacks*), and
//! compares the bits with binary codes of each output: `offset + Σ scale · (bits · code)`, where a
//! product of bits is a XOR and a count. It has one such estimate for an output, or two, which are
//! multiplied as a gated MLP multiplies gate and up ([`Form`]). All of that is learnt end to end;
//! on the way back, signs count as clipped identities.
//!
//! It is not an engine: it knows no models, files, caches or GPUs. Any features and importances
//! will do.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ls_hash::{Mask, Selector, Shape, TrainConfig, Trainer, synthetic::Synthetic};
//!
//! // Made-up data of a gated MLP: 64 features, 96 outputs.
//! let data = Synthetic { n_inputs: 64, n_outputs: 96, ..Synthetic::default() }.rows(600);
//! let samples = data.samples()?;
//!
//! let config = TrainConfig { n_steps: 20, batch: 64, ..TrainConfig::default() };
//! let mut trainer = Trainer::new(Shape::new(64, 96), config, &samples)?;
//! let _ = trainer.train(&samples, |_progress| ControlFlow::Continue(()));
//! let predictor = trainer.finish(&samples)?;
//!
//! let mut state = predictor.state();
//! let mut selector = Selector::default();
//! let mut mask = Mask::new();
//! predictor.set(&mut state, &[0.5; 64]);
//! assert_eq!(selector.top_k(state.scores(), 48, &mut mask), 48);
//! // A part of the features has become better known.
//! let mut delta = [0.0; 64];
//! delta[..8].fill(-1.0);
//! predictor.update(&mut state, &delta);
//! selector.top_k(state.scores(), 48, &mut mask);
//! assert_eq!(mask.count_ones(), 48);
//! # Ok::<(), ls_hash::HashError>(())
//! ```
//!
//! # What it costs
//! Each first bit reads some blocks of 32 features, with weights of one byte or of −1, 0 and 1
//! ([`Shape::blocks_per_bit`], [`WeightType`]). An output takes `bits / 8` bytes for each code,
//! and 2 bytes for each scale, offset and gain. [`Predictor::n_bytes`] counts all of it. Codes of
//! eight outputs lie interleaved, and are read once from front to back.
//!
//! # What holds
//! - The same predictor gives the same scores on every processor, by whatever [`Isa`].
//! - [`Predictor::update`] leaves exactly the scores that [`Predictor::set`] gives for the sum.
//! - Predicting and selecting do not allocate, once a [`State`], [`Selector`] and [`Mask`] are there.
//! - The same samples, shape and settings train the same predictor on any number of threads, at
//!   once or saved and resumed. Other kinds of processors may round otherwise.
//! - [`Predictor::from_bytes`] gives an error or a sound predictor, whatever the bytes.

mod baseline;
mod error;
mod format;
mod isa;
pub mod lookup;
mod predictor;
mod project;
mod report;
mod rng;
mod samples;
mod score;
mod select;
mod shape;
mod simd;
mod state;
pub mod synthetic;
mod train;

pub use baseline::{Hash, LastSet, Lookup, LowRank, Oracle, Random, Row, Scorer, StaticHot};
pub use error::HashError;
pub use isa::Isa;
pub use lookup::{
    FeatureKind, GatedLayer, LayerData, LookupConfig, LookupPart, LookupPredictor,
    LookupProjection, LookupShape, LookupState, LookupTrainer,
};
pub use predictor::Predictor;
pub use project::WeightType;
pub use report::{Line, Report};
pub use samples::{Matrices, Pick, Samples};
pub use select::{Mask, Pool, Selector, chunk_scores, priorities_u8};
pub use shape::{Form, Norm, Shape};
pub use state::State;
pub use train::{Progress, TrainConfig, Trainer};
