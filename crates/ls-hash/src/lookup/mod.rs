//! Predictors that look coded weights up in tables of the features.

pub(crate) mod expect;
mod fit;
mod format;
mod layer;
mod predictor;
mod shape;
mod state;
pub(crate) mod tables;
pub(crate) mod tune;

pub use layer::{GatedLayer, LayerData};
pub use predictor::LookupPredictor;
pub use shape::{FeatureKind, LookupShape};
pub use state::{LookupPart, LookupProjection, LookupState};
pub use tune::{LookupConfig, LookupTrainer};
