//! The configuration of a decoder: shapes and the choices in which architectures differ.
//!
//! A [`Config`] says everything that the forward pass has to know beyond the tensors, so that
//! compute code branches on values and never on the architecture's name.

mod check;
mod folder;
mod gguf;
mod rope;

use serde::Serialize;

pub(crate) use folder::from_folder;
pub(crate) use gguf::from_gguf;

/// The model families that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// Elements 2i and 2i+1 (GGUF's llama tensors).
    Interleaved,
    /// Elements i and i + head_dim/2 (Qwen, Gemma, and every safetensors folder).
    Halves,
}

/// How rotary frequencies are changed for longer contexts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Frequencies as the base gives them.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Frequency i is divided by element i: the tensor `rope_freqs.weight`, or what a Llama-3
    /// configuration computes to. Shape `[rope_dim / 2]`.
    Factors(Vec<f32>),
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Pairing of elements.
    pub layout: RopeLayout,
    /// Rotated elements of each head; the rest pass unchanged.
    pub dim: usize,
    /// Base of the layers with full attention.
    pub base: f32,
    /// Base of the layers with a sliding window. They take no scaling when `local_unscaled`.
    pub local_base: f32,
    /// Whether layers with a sliding window ignore `scaling` (gemma3).
    pub local_unscaled: bool,
    /// Frequency scaling.
    pub scaling: RopeScaling,
}

/// The MLP's gate activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · sigmoid(x): SwiGLU.
    Silu,
    /// GELU in its tanh approximation: GeGLU.
    GeluTanh,
}

/// Shapes and choices of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Model family.
    pub arch: Architecture,
    /// Human name from the file, or its file name.
    pub name: String,
    /// Decoder layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements of one head (may differ from `d_model / n_heads`).
    pub head_dim: usize,
    /// Neurons of one MLP.
    pub d_ff: usize,
    /// Rows of the token embedding.
    pub vocab_size: usize,
    /// Context length that the model was trained for.
    pub context_len: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Added to every norm weight (1.0 for gemma3 from safetensors, otherwise 0.0).
    pub norm_weight_offset: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// For each layer, the number of latest positions that it attends to; `None`: all of them.
    pub window: Vec<Option<usize>>,
    /// Gate activation.
    pub activation: Activation,
    /// Factor on token embeddings (gemma3: sqrt(d_model), otherwise 1.0).
    pub embedding_scale: f32,
    /// Factor on query · key.
    pub attention_scale: f32,
    /// Whether the output head is the token embedding.
    pub tied_output: bool,
}
