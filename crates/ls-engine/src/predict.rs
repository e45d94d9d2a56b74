//! Predictors: which neurons of each MLP matter to a token, told from what enters it.
//!
//! A `.lspred` belongs to one pack, whose checksum it has. For each layer it holds a
//! [`LookupPredictor`], the norms of the down columns, and what was measured of the predictor on a
//! text: how much importance it misses by how much is kept, how the true importance of what it chooses
//! is spread, and what missed importance in this layer does to the model's output. From these
//! [`Predictors::plan`] says how much each layer should compute, so that the whole model computes a
//! given fraction.
//!
//! [`Predicted`] chooses by them in two steps. First the neurons with the highest expected importance
//! are taken, and their gates and ups are computed. Then their true importance is known, and the down
//! columns of those that turned out to matter little are left out. At the same number of bytes this
//! loses less than taking fewer neurons whole, since the second step makes no mistakes.
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | magic: `LSPRED`, 0, 0 |
//! | 8 | u32 | version: 1. A reader refuses every other |
//! | 12 | u32 | flags: none exist; a reader refuses any |
//! | 16 | u64 | [checksum](ls_model::pack::Pack::checksum) of the pack |
//! | 24 | u64 | checksum of the text that it was trained on, as in a [trace](crate::trace) |
//! | 32 | u32 | width of an MLP's input, d_model |
//! | 36 | u32 | layers |
//! | 40 | u64 | XXH3-64 of all before |
//! | 48 | for each layer | length n as u64, n bytes, then the XXH3-64 of both with the layer as seed |
//!
//! Behind the layers lies, in the same form, what was measured of the whole model when training ended: a
//! count (u32), then for each a fraction, the perplexity's rise and the divergence from dense (3 × f32).
//!
//! The bytes of a layer are: neurons (u32), bytes of the predictor (u32), weight (f32), missed importance
//! (21 × f32), spread (21 × 15 × f32), norms (f32 for each neuron), the predictor.

mod allocate;
mod choose;
mod error;
mod file;
mod measure;
mod traced;
mod train;

use std::path::Path;
use std::sync::Arc;

pub use ls_hash::LookupConfig;
use ls_hash::LookupPredictor;
use ls_model::ModelFile;

pub use allocate::KeepPlan;
pub use choose::Predicted;
pub(crate) use choose::{Scorer, least_of};
pub use error::PredictError;
pub use file::{Contents, PredictorWriter, decode};
pub use traced::{STAGES, TracedLayer, TracedMlp};
pub use train::{TrainError, TrainOptions, TrainProgress, TrainStage, Trained, train};

/// Fractions kept, at which a predictor is measured: 0, 1/20, …, 1.
pub const KEEPS: usize = 21;
/// Fractions of what is chosen, by true importance: 1/16, …, 15/16.
pub const SPREAD: usize = 15;

/// What a file of predictors is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictorInfo {
    /// Checksum of the pack.
    pub pack: u64,
    /// Checksum of the text.
    pub text: u64,
    /// Width of an MLP's input.
    pub d_model: u32,
    /// Layers.
    pub n_layers: u32,
}

/// A layer's predictor, and what is known of it.
#[derive(Clone, Debug)]
pub struct LayerPredictor {
    /// Scores neurons by what enters the MLP.
    pub predictor: LookupPredictor,
    /// Norm of each neuron's down column.
    pub norms: Arc<[f32]>,
    /// By how much the model's output suffers, in nats for all importance missed.
    pub weight: f32,
    /// Share of the importance that is missed when so much is kept.
    pub missed: [f32; KEEPS],
    /// True importance of the chosen neurons, as multiples of the least expected importance among
    /// them: `spread[i][j]` is what (j + 1)/16 of them do not exceed when i/20 are kept.
    pub spread: [[f32; SPREAD]; KEEPS],
}

/// What computing a fraction of the model was measured to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Fraction of the MLPs' bytes.
    pub fraction: f32,
    /// By what factor the perplexity is higher than dense, less 1.
    pub rise: f32,
    /// Mean divergence from dense, in nats.
    pub kl: f32,
}

/// The predictors of a pack.
#[derive(Clone, Debug)]
pub struct Predictors {
    info: PredictorInfo,
    layers: Vec<LayerPredictor>,
    costs: Vec<Cost>,
}

impl Predictors {
    /// Opens the predictors of `model`, which is a pack, from the file at `path`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is damaged, or is of another pack.
    pub fn open(path: &Path, model: &ModelFile) -> Result<Self, PredictError> {
        let (info, layers, costs) = file::read(path)?;
        let no_pack = || PredictError::NoPack { path: model.path().to_owned() };
        let pack = model.pack().ok_or_else(no_pack)?;
        let other = |what| Err(PredictError::Other { path: path.to_owned(), what });
        if info.pack != pack.checksum() {
            return other("pack");
        }
        if layers.len() != pack.layers().len() || costs.is_none() {
            return Err(PredictError::Unfinished {
                path: path.to_owned(),
                n_layers: pack.layers().len(),
                found: layers.len(),
            });
        }
        for (layer, layout) in layers.iter().zip(pack.layers()) {
            let shape = layer.predictor.shape();
            if (shape.n_inputs, shape.n_outputs) != (layout.d_model, layout.d_ff) {
                return other("shape");
            }
        }
        Ok(Self { info, layers, costs: costs.unwrap_or_default() })
    }

    /// What computing fractions of the model was measured to cost, ascending.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// The least fraction whose perplexity was measured to rise by `rise` at most; `None` if none did.
    pub fn fraction_for(&self, rise: f64) -> Option<f64> {
        // Between two measurements the rise is taken to be linear; a rise by noise above a larger one
        // of less is no reason to compute more.
        let mut found = None;
        let mut above: Option<Cost> = None;
        for cost in self.costs.iter().rev() {
            if f64::from(cost.rise) > rise {
                if let Some(at) = above {
                    let (low, high) = (f64::from(cost.rise), f64::from(at.rise));
                    let share = ((low - rise) / (low - high).max(1e-9)).clamp(0.0, 1.0);
                    let (from, to) = (f64::from(cost.fraction), f64::from(at.fraction));
                    found = Some(from + (to - from) * share);
                }
                break;
            }
            found = Some(f64::from(cost.fraction));
            above = Some(*cost);
        }
        found
    }

    /// These predictors, which are of `from`, for `to`: the same model, packed with its neurons in another order
    /// or in chunks of another size. They score each neuron as before.
    ///
    /// # Errors
    ///
    /// [`PredictError::NoPack`] and [`PredictError::OtherModel`] if these are no two packs of one model.
    pub fn for_other_pack(&self, from: &ModelFile, to: &ModelFile) -> Result<Self, PredictError> {
        let pack = |model: &'_ ModelFile| model.path().to_owned();
        let none = |model| PredictError::NoPack { path: pack(model) };
        let old = from.pack().ok_or_else(|| none(from))?;
        let new = to.pack().ok_or_else(|| none(to))?;
        let source = |of: &ls_model::pack::Pack| {
            let facts = of.facts();
            (facts.name.clone(), facts.source_file.clone(), facts.source_bytes)
        };
        let sizes = |of: &ls_model::pack::Pack| -> Vec<_> {
            of.layers().iter().map(|layer| (layer.d_model, layer.d_ff)).collect()
        };
        if source(old) != source(new) || sizes(old) != sizes(new) {
            return Err(PredictError::OtherModel { from: pack(from), to: pack(to) });
        }
        let moved = |(i, layer): (usize, &LayerPredictor)| {
            let order = moves(layer.norms.len(), old.order(i), new.order(i));
            let predictor = layer.predictor.reordered(&order);
            let predictor = predictor.expect("packs check their orders when they are opened");
            let norms = order.iter().map(|i| layer.norms[*i as usize]).collect();
            LayerPredictor { predictor, norms, ..layer.clone() }
        };
        let layers = self.layers.iter().enumerate().map(moved).collect();
        let info = PredictorInfo { pack: new.checksum(), ..self.info };
        Ok(Self { info, layers, costs: self.costs.clone() })
    }

    /// Puts predictors together.
    pub(crate) fn new(info: PredictorInfo, layers: Vec<LayerPredictor>, costs: Vec<Cost>) -> Self {
        Self { info, layers, costs }
    }

    /// What they are of.
    pub fn info(&self) -> &PredictorInfo {
        &self.info
    }

    /// Those of each layer.
    pub fn layers(&self) -> &[LayerPredictor] {
        &self.layers
    }

    /// Neurons of the widest layer.
    pub fn d_ff(&self) -> usize {
        self.layers.iter().map(|layer| layer.norms.len()).max().unwrap_or(0)
    }

    /// Bytes that they take in memory.
    pub fn n_bytes(&self) -> usize {
        let layer = |l: &LayerPredictor| l.predictor.n_bytes() + l.norms.len() * 4;
        self.layers.iter().map(layer).sum()
    }

    /// Writes them to `path`, which is replaced when all is there.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PredictError> {
        file::write(path, &self.info, &self.layers, &self.costs)
    }
}

/// Where each neuron of the order `to` lies in the order `from`; both name the source's neurons.
fn moves(n: usize, from: Option<&[u32]>, to: Option<&[u32]>) -> Vec<u32> {
    let mut place: Vec<u32> = (0..n as u32).collect();
    if let Some(from) = from {
        from.iter().zip(0..).for_each(|(source, i)| place[*source as usize] = i);
    }
    match to {
        Some(to) => to.iter().map(|source| place[*source as usize]).collect(),
        None => place,
    }
}
