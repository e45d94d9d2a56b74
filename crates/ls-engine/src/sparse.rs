//! Sparse computation: only some neurons of each MLP.
//!
//! Most of what an MLP adds for a token comes from some of its neurons, others for each token. A
//! [`Choose`] says which; it is one for the whole model, and each sequence has a [`Choosing`] of its
//! own from it. The engine hands it what enters an MLP, computes the neurons that it marks, and lets
//! it add what stands in for the others. Marks are bits, one for each neuron in the pack's order: who
//! chooses whole chunks sets all of a chunk's bits.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use ls_engine::{Choice, Engine, Grain, Keep, LoadOptions, Random};
//!
//! let engine = Engine::load(Path::new("model.lspack"), &LoadOptions::default())?;
//! let mut state = engine.new_state()?;
//! let chooser = Random::new(Keep::uniform(0.5), Grain::Neuron, 1);
//! engine.set_choice(&mut state, Some(Choice::new(Arc::new(chooser))))?;
//! engine.decode(&mut state, 1)?;
//! println!("{:?}", state.sparse_counts());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Under a budget the same chunks are read as in exact mode; only what is computed of them is less. To read
//! less too takes a [`Refiner`](crate::Refiner) in place of a choice. What a choice takes of memory is not part of
//! the plan: bits for a batch, and whatever the chooser holds.

mod choosers;
mod counts;
mod importance;
mod keep;
mod random;
mod run;

use std::fmt::Debug;
use std::sync::Arc;

use ls_cpu::{Cpu, Masks};

pub use choosers::{Hot, LastSet, Oracle};
pub use counts::SparseCounts;
pub(crate) use importance::column_norms;
pub use keep::{Grain, Keep};
pub use random::Random;
pub(crate) use run::{Phase, Sparse};

/// Chooses the neurons that each MLP computes for each token.
pub trait Choose: Send + Sync + Debug {
    /// Memory for one sequence of a model with these MLPs, by layer.
    ///
    /// # Errors
    ///
    /// If what it chooses by is not of this model.
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError>;

    /// What it has to know beside the inputs of the MLPs.
    fn needs(&self) -> Needs {
        Needs::Inputs
    }
}

/// Chooses for one sequence.
///
/// Logits have the same bits whatever the number of threads only if marks and compensation do.
pub trait Choosing: Send + Debug {
    /// Marks the neurons that `at.n` tokens compute: bits of row `t` of `masks` for token `t`. All
    /// are clear on entry. It must not allocate once it has seen a batch as large.
    fn choose(&mut self, cpu: &Cpu, at: &MlpInput<'_>, masks: &mut Masks);

    /// Adds to `out`, `[n, d_model]`, what stands in for the neurons that were left out. Called after
    /// the chosen ones were added, and before a norm of the sum, if the model has one.
    fn compensate(&mut self, _cpu: &Cpu, _at: &MlpInput<'_>, _masks: &Masks, _out: &mut [f32]) {}
}

/// What enters the MLP of a layer, for consecutive tokens.
#[derive(Clone, Copy, Debug)]
pub struct MlpInput<'a> {
    /// The layer.
    pub layer: usize,
    /// Tokens.
    pub n: usize,
    /// Position of the first one in the sequence. It goes back when a state is truncated, and may
    /// stay when a pass failed.
    pub position: usize,
    /// Their inputs after the norm, `[n, d_model]`.
    pub x: &'a [f32],
    /// True importance of each neuron for each of these tokens, `|act(gate) · up| · ‖down column‖`,
    /// `[n, d_ff]`: for [`Needs::Importance`] only.
    pub importance: Option<&'a [f32]>,
}

/// What a choice is made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Needs {
    /// What enters the MLPs.
    #[default]
    Inputs,
    /// The true importance of each neuron, for which all of them are computed before the choice: to
    /// measure what a perfect choice would give, not to be fast. Not possible under a budget, since
    /// each chunk is needed twice.
    Importance,
}

/// Sizes of a layer's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpShape {
    /// Width of its input and output.
    pub d_model: usize,
    /// Neurons.
    pub d_ff: usize,
    /// Neurons of each chunk but the last.
    pub neurons_per_chunk: usize,
}

impl MlpShape {
    /// Chunks.
    pub fn n_chunks(&self) -> usize {
        self.d_ff.div_ceil(self.neurons_per_chunk)
    }

    /// The neurons of a chunk.
    pub fn chunk(&self, chunk: usize) -> std::ops::Range<usize> {
        let first = (chunk * self.neurons_per_chunk).min(self.d_ff);
        first..(first + self.neurons_per_chunk).min(self.d_ff)
    }
}

/// How the tokens of a prompt are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// All neurons, as in exact mode: a prompt's tokens share the work of reading weights, and
    /// between them want nearly all.
    #[default]
    Dense,
    /// What is chosen for each token, as if it had been generated: what perplexity should measure.
    Sparse,
}

/// A sequence's way to choose.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Who chooses.
    pub chooser: Arc<dyn Choose>,
    /// Whether it chooses for prompts too.
    pub prompts: Prompts,
}

impl Choice {
    /// Chooses for tokens that are decoded one by one, with dense prompts.
    pub fn new(chooser: Arc<dyn Choose>) -> Self {
        Self { chooser, prompts: Prompts::Dense }
    }

    /// Chooses for every token.
    pub fn for_every_token(chooser: Arc<dyn Choose>) -> Self {
        Self { chooser, prompts: Prompts::Sparse }
    }
}

/// A choice that does not fit the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// Something is there for another number of layers.
    #[error("the choice is for {found} layers, but the model has {expected}")]
    Layers {
        /// Layers that there is something for.
        found: usize,
        /// Layers of the model.
        expected: usize,
    },
    /// Something is there for another number of neurons.
    #[error("layer {layer}: the choice is for {found} neurons, but there are {expected}")]
    Neurons {
        /// The layer.
        layer: usize,
        /// Neurons that there is something for.
        found: usize,
        /// Neurons of the layer.
        expected: usize,
    },
    /// A neuron that is not there.
    #[error("layer {layer}: neuron {neuron} is chosen, but there are {expected}")]
    UnknownNeuron {
        /// The layer.
        layer: usize,
        /// The neuron.
        neuron: usize,
        /// Neurons of the layer.
        expected: usize,
    },
    /// A fraction that is none.
    #[error("layer {layer}: {value} is no fraction of neurons to keep; it must be from 0 to 1")]
    Fraction {
        /// The layer.
        layer: usize,
        /// What was given.
        value: f64,
    },
}
