//! The tensors that each architecture has.

use std::collections::HashSet;
use std::path::Path;

use crate::TensorType;
use crate::config::{Architecture, Config};
use crate::error::{ModelError, Warning};
use crate::tensor::TensorInfo;
use crate::weights::Weights;

/// What a tensor is for, which says the types that it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Rows that are multiplied with: any type.
    Matrix,
    /// Norm weights, biases, frequency factors: floats.
    Vector,
}

/// A tensor that an architecture has.
#[derive(Debug)]
struct Expected {
    name: String,
    shape: Vec<usize>,
    role: Role,
    required: bool,
}

impl Expected {
    fn new(name: impl Into<String>, shape: &[usize], role: Role) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), role, required: true }
    }

    fn optional(mut self) -> Self {
        self.required = false;
        self
    }
}

/// Parts of a layer that change the answer wherever they exist. A file that has one which its
/// architecture lacks must be refused, not run without it.
const LAYER_PARTS: [&str; 25] = [
    "attn_norm.bias",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_output.bias",
    "attn_qkv.weight",
    "attn_qkv.bias",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "attn_q_norm.bias",
    "attn_k_norm.bias",
    "attn_sub_norm.weight",
    "attn_sinks.weight",
    "post_attention_norm.weight",
    "post_ffw_norm.weight",
    "ffn_norm.bias",
    "ffn_gate.bias",
    "ffn_up.bias",
    "ffn_down.bias",
    "ffn_sub_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
    "layer_output_scale.weight",
];
/// The same for tensors outside the layers.
const MODEL_PARTS: [&str; 3] = ["output.bias", "output_norm.bias", "token_embd_norm.weight"];
/// Precomputed from the configuration by old exports; the configuration says the same.
const REDUNDANT_SUFFIX: &str = "rotary_emb.inv_freq";

/// Checks that `weights` holds every tensor that `config` asks for, and returns what is odd.
pub(crate) fn check(
    config: &Config,
    weights: &Weights,
    path: &Path,
) -> Result<Vec<Warning>, ModelError> {
    let mut known = HashSet::new();
    for expected in expected(config) {
        if expected.required || weights.shape(&expected.name).is_some() {
            weights.check_shape(&expected.name, &expected.shape, path)?;
        }
        if let Some(info) = weights.info(&expected.name) {
            check_role(info, expected.role, weights)?;
        }
        known.insert(expected.name);
    }
    let mut warnings = Vec::new();
    for info in weights.infos().iter().filter(|info| !known.contains(&info.name)) {
        if changes_the_answer(&info.name, config) {
            let (path, tensor) = (weights.path_of(info).to_owned(), info.name.clone());
            return Err(ModelError::UnsupportedTensor { path, tensor });
        }
        if !info.name.ends_with(REDUNDANT_SUFFIX) {
            warnings.push(Warning::UnknownTensor { tensor: info.name.clone() });
        }
    }
    Ok(warnings)
}

/// Names of all tensors that a decoder of this configuration has or may have.
pub(crate) fn names(config: &Config) -> HashSet<String> {
    expected(config).map(|expected| expected.name).collect()
}

fn check_role(info: &TensorInfo, role: Role, weights: &Weights) -> Result<(), ModelError> {
    let float = matches!(info.dtype, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    if role == Role::Matrix || float {
        return Ok(());
    }
    Err(ModelError::Type {
        path: weights.path_of(info).to_owned(),
        tensor: info.name.clone(),
        expected: "F32, F16 or BF16",
        found: info.dtype,
    })
}

fn changes_the_answer(name: &str, config: &Config) -> bool {
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
    else {
        return MODEL_PARTS.contains(&name);
    };
    // Layers beyond the last are not computed at all.
    let computed = layer.parse().is_ok_and(|layer: usize| layer < config.n_layers);
    computed && LAYER_PARTS.contains(&part)
}

fn expected(config: &Config) -> impl Iterator<Item = Expected> {
    let model = [
        Expected::new("token_embd.weight", &[config.vocab_size, config.d_model], Role::Matrix),
        Expected::new("output_norm.weight", &[config.d_model], Role::Vector),
        head(config),
        Expected::new("rope_freqs.weight", &[config.rope.dim / 2], Role::Vector).optional(),
    ];
    model.into_iter().chain((0..config.n_layers).flat_map(|layer| layer_tensors(config, layer)))
}

fn head(config: &Config) -> Expected {
    let head = Expected::new("output.weight", &[config.vocab_size, config.d_model], Role::Matrix);
    if config.tied_output { head.optional() } else { head }
}

fn layer_tensors(config: &Config, layer: usize) -> Vec<Expected> {
    let (d, ff) = (config.d_model, config.d_ff);
    let (q, kv) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let tensor = |part: &str, shape: &[usize], role| {
        Expected::new(format!("blk.{layer}.{part}"), shape, role)
    };
    let matrix = |part, rows, cols| tensor(part, &[rows, cols], Role::Matrix);
    let vector = |part, len| tensor(part, &[len], Role::Vector);
    let mut tensors = vec![
        vector("attn_norm.weight", d),
        matrix("attn_q.weight", q, d),
        matrix("attn_k.weight", kv, d),
        matrix("attn_v.weight", kv, d),
        matrix("attn_output.weight", d, q),
        vector("ffn_norm.weight", d),
        matrix("ffn_gate.weight", ff, d),
        matrix("ffn_up.weight", ff, d),
        matrix("ffn_down.weight", d, ff),
    ];
    let biases =
        [("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)].map(|(p, n)| vector(p, n));
    let head_norms =
        ["attn_q_norm.weight", "attn_k_norm.weight"].map(|part| vector(part, config.head_dim));
    match config.arch {
        Architecture::Llama => tensors.extend(biases.map(Expected::optional)),
        Architecture::Qwen2 => tensors.extend(biases),
        Architecture::Qwen3 => tensors.extend(head_norms),
        Architecture::Gemma3 => {
            tensors.extend(head_norms);
            tensors.push(vector("post_attention_norm.weight", d));
            tensors.push(vector("post_ffw_norm.weight", d));
        }
    }
    tensors
}
