//! Configuration from the metadata of a GGUF file.

use std::path::Path;

use super::check::{
    self, KeyNames, MAX_CONTEXT, MAX_FF, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, count,
    divide, positive, unsupported, wrong,
};
use super::{Activation, Architecture, Config, Rope, RopeLayout, RopeScaling};
use crate::ModelError;
use crate::gguf::{FromValue, Metadata, Value};
use crate::weights::Weights;

/// Every sixth layer of gemma3 attends to all positions.
pub(super) const GEMMA3_PATTERN: usize = 6;
/// RoPE base of gemma3's layers with a sliding window.
pub(super) const GEMMA3_LOCAL_BASE: f32 = 10_000.0;
const DEFAULT_ROPE_BASE: f32 = 10_000.0;
/// The one gemma3 whose attention scale does not follow from the size of its heads is known by
/// its number of layers: files do not say it.
const GEMMA3_27B_LAYERS: usize = 62;

/// Reads the configuration of a GGUF model.
pub(crate) fn from_gguf(
    metadata: &Metadata,
    weights: &Weights,
    path: &Path,
) -> Result<Config, ModelError> {
    let name: &str = metadata.require("general.architecture").map_err(at(path))?;
    let arch = match name {
        "llama" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        "gemma3" => Architecture::Gemma3,
        other => {
            let (path, found) = (path.to_owned(), other.to_owned());
            return Err(ModelError::UnsupportedArchitecture { path, found });
        }
    };
    let keys = Keys { metadata, prefix: name, path };
    keys.refuse_unsupported()?;
    let config = keys.config(arch, weights)?;
    let kv = keys.key("attention.head_count_kv");
    let (head_dim, rope) = (keys.key("attention.key_length"), keys.key("rope.dimension_count"));
    let eps = keys.key("attention.layer_norm_rms_epsilon");
    let names = KeyNames { n_kv_heads: &kv, head_dim: &head_dim, rope_dim: &rope, norm_eps: &eps };
    check::check(&config, names, path)?;
    Ok(config)
}

fn at(path: &Path) -> impl Fn(crate::gguf::MetadataError) -> ModelError {
    move |source| ModelError::Metadata { path: path.to_owned(), source }
}

/// The metadata keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'a str,
    path: &'a Path,
}

impl<'a> Keys<'a> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    fn get<T: FromValue<'a>>(&self, suffix: &str) -> Result<Option<T>, ModelError> {
        self.metadata.get(&self.key(suffix)).map_err(at(self.path))
    }

    fn require<T: FromValue<'a>>(&self, suffix: &str) -> Result<T, ModelError> {
        self.metadata.require(&self.key(suffix)).map_err(at(self.path))
    }

    fn count(&self, suffix: &str, max: usize) -> Result<usize, ModelError> {
        count(self.path, &self.key(suffix), self.require(suffix)?, max)
    }

    fn count_or(&self, suffix: &str, max: usize, default: usize) -> Result<usize, ModelError> {
        match self.get(suffix)? {
            Some(value) => count(self.path, &self.key(suffix), value, max),
            None => Ok(default),
        }
    }

    fn positive_or(&self, suffix: &str, default: f32) -> Result<f32, ModelError> {
        match self.get(suffix)? {
            Some(value) => positive(self.path, &self.key(suffix), value),
            None => Ok(default),
        }
    }

    /// A count that may be given once or for each layer; layers that differ are not supported.
    fn uniform(&self, suffix: &str, max: usize) -> Result<Option<usize>, ModelError> {
        let key = self.key(suffix);
        let Some(Value::Array(_)) = self.metadata.value(&key) else {
            return self.get(suffix)?.map(|value| count(self.path, &key, value, max)).transpose();
        };
        let layers: Vec<u32> = self.require(suffix)?;
        let first = layers.first().copied().unwrap_or(0);
        if layers.iter().any(|value| *value != first) {
            let hint = "; all layers must be alike";
            return Err(unsupported(self.path, &key, "different for each layer", hint));
        }
        count(self.path, &key, first.into(), max).map(Some)
    }

    fn uniform_required(&self, suffix: &str, max: usize) -> Result<usize, ModelError> {
        match self.uniform(suffix, max)? {
            Some(value) => Ok(value),
            None => self.count(suffix, max),
        }
    }

    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        let experts: u64 = self.get("expert_count")?.unwrap_or(0);
        if experts > 0 {
            let hint = "; only dense models are";
            return Err(unsupported(self.path, &self.key("expert_count"), experts, hint));
        }
        for suffix in ["attn_logit_softcapping", "final_logit_softcapping"] {
            let cap: f32 = self.get(suffix)?.unwrap_or(0.0);
            if cap != 0.0 {
                return Err(unsupported(self.path, &self.key(suffix), cap, ""));
            }
        }
        Ok(())
    }

    fn config(&self, arch: Architecture, weights: &Weights) -> Result<Config, ModelError> {
        let n_layers = self.count("block_count", MAX_LAYERS)?;
        let d_model = self.count("embedding_length", MAX_WIDTH)?;
        let n_heads = self.uniform_required("attention.head_count", MAX_HEADS)?;
        let head_dim = self.head_dim(d_model, n_heads)?;
        let window = self.window(arch, n_layers)?;
        let gemma = arch == Architecture::Gemma3;
        Ok(Config {
            arch,
            name: self.name()?,
            n_layers,
            d_model,
            n_heads,
            n_kv_heads: self.uniform("attention.head_count_kv", MAX_HEADS)?.unwrap_or(n_heads),
            head_dim,
            d_ff: self.uniform_required("feed_forward_length", MAX_FF)?,
            vocab_size: self.vocab_size(d_model, weights)?,
            context_len: self.count("context_length", MAX_CONTEXT)?,
            norm_eps: positive(
                self.path,
                &self.key("attention.layer_norm_rms_epsilon"),
                self.require("attention.layer_norm_rms_epsilon")?,
            )?,
            // Converters to GGUF add gemma's 1.0 to the weights.
            norm_weight_offset: 0.0,
            rope: self.rope(arch, head_dim, weights)?,
            window,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            embedding_scale: if gemma { (d_model as f32).sqrt() } else { 1.0 },
            attention_scale: self.attention_scale(arch, n_layers, d_model, n_heads, head_dim)?,
            tied_output: weights.info("output.weight").is_none(),
        })
    }

    fn name(&self) -> Result<String, ModelError> {
        let name: Option<&str> = self.metadata.get("general.name").map_err(at(self.path))?;
        let stem = || self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(name.filter(|name| !name.is_empty()).map_or_else(stem, str::to_owned))
    }

    fn head_dim(&self, d_model: usize, n_heads: usize) -> Result<usize, ModelError> {
        let key = self.get("attention.key_length")?;
        let value = self.get("attention.value_length")?;
        let by_width = || divide(self.path, &self.key("attention.head_count"), d_model, n_heads);
        let length = |suffix: &str, given: Option<u64>| match given {
            Some(given) => count(self.path, &self.key(suffix), given, MAX_WIDTH),
            None => by_width(),
        };
        let head_dim = length("attention.key_length", key)?;
        let value_dim = length("attention.value_length", value)?;
        if head_dim != value_dim {
            let expected = format!("{head_dim}, the length of keys");
            let key = self.key("attention.value_length");
            return Err(wrong(self.path, &key, value_dim, expected));
        }
        Ok(head_dim)
    }

    /// Rows of the token embedding. The tokenizer may have fewer tokens, but not more.
    fn vocab_size(&self, d_model: usize, weights: &Weights) -> Result<usize, ModelError> {
        let key = "tokenizer.ggml.tokens";
        let n_tokens = match self.metadata.value(key) {
            Some(Value::Array(tokens)) => tokens.len(),
            _ => 0,
        };
        let name = "token_embd.weight";
        let rows = match weights.shape(name) {
            Some([rows, cols]) if *cols == d_model => *rows,
            _ => {
                let rows = self.count_or("vocab_size", MAX_VOCAB, n_tokens)?;
                weights.check_shape(name, &[rows, d_model], self.path)?;
                rows
            }
        };
        if n_tokens > rows {
            let expected = format!("at most {rows}, the rows of {name}");
            return Err(wrong(self.path, key, format!("{n_tokens} tokens"), expected));
        }
        count(self.path, &self.key("vocab_size"), rows as u64, MAX_VOCAB)
    }

    fn attention_scale(
        &self,
        arch: Architecture,
        n_layers: usize,
        d_model: usize,
        n_heads: usize,
        head_dim: usize,
    ) -> Result<f32, ModelError> {
        let per_head = if arch == Architecture::Gemma3 && n_layers == GEMMA3_27B_LAYERS {
            d_model as f32 / n_heads as f32
        } else {
            head_dim as f32
        };
        self.positive_or("attention.scale", 1.0 / per_head.sqrt())
    }

    fn window(
        &self,
        arch: Architecture,
        n_layers: usize,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let all = vec![None; n_layers];
        // Converters copy the key for Qwen although its models switch the window off.
        if !matches!(arch, Architecture::Llama | Architecture::Gemma3) {
            return Ok(all);
        }
        let suffix = "attention.sliding_window";
        let size = match self.get(suffix)? {
            None | Some(0) => return Ok(all),
            Some(size) => count(self.path, &self.key(suffix), size, MAX_CONTEXT)?,
        };
        if arch == Architecture::Llama {
            return Ok(vec![Some(size); n_layers]);
        }
        self.gemma3_window(size, n_layers)
    }

    fn gemma3_window(
        &self,
        size: usize,
        n_layers: usize,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let suffix = "attention.sliding_window_pattern";
        let key = self.key(suffix);
        if let Some(Value::Array(_)) = self.metadata.value(&key) {
            let local: Vec<bool> = self.require(suffix)?;
            if local.len() != n_layers {
                let (found, expected) = (format!("{} values", local.len()), n_layers.to_string());
                return Err(wrong(self.path, &key, found, expected));
            }
            return Ok(local.into_iter().map(|local| local.then_some(size)).collect());
        }
        let pattern = self.count_or(suffix, MAX_LAYERS, GEMMA3_PATTERN)?;
        Ok(every_nth_full(n_layers, pattern, size))
    }

    fn rope(
        &self,
        arch: Architecture,
        head_dim: usize,
        weights: &Weights,
    ) -> Result<Rope, ModelError> {
        let gemma = arch == Architecture::Gemma3;
        let base = self.positive_or("rope.freq_base", DEFAULT_ROPE_BASE)?;
        let local_base = if gemma { GEMMA3_LOCAL_BASE } else { base };
        let dim = self.count_or("rope.dimension_count", MAX_WIDTH, head_dim)?;
        Ok(Rope {
            layout: match arch {
                Architecture::Llama => RopeLayout::Interleaved,
                _ => RopeLayout::Halves,
            },
            dim,
            base,
            local_base: self.positive_or("rope.freq_base_swa", local_base)?,
            local_unscaled: gemma,
            scaling: self.rope_scaling(weights, dim)?,
        })
    }

    fn rope_scaling(&self, weights: &Weights, dim: usize) -> Result<RopeScaling, ModelError> {
        let linear = self.linear_factor()?;
        let name = "rope_freqs.weight";
        if weights.info(name).is_none() {
            return Ok(if linear == 1.0 {
                RopeScaling::None
            } else {
                RopeScaling::Linear { factor: linear }
            });
        }
        let info = weights.require(name, &[dim / 2], self.path)?;
        let factors = weights.load(info)?.to_f32().ok_or_else(|| ModelError::Type {
            path: self.path.to_owned(),
            tensor: name.to_owned(),
            expected: "F32, F16 or BF16",
            found: info.dtype,
        })?;
        for factor in &factors {
            positive(self.path, name, *factor)?;
        }
        Ok(RopeScaling::Factors(factors.into_iter().map(|factor| factor * linear).collect()))
    }

    fn linear_factor(&self) -> Result<f32, ModelError> {
        let kind: Option<&str> = self.get("rope.scaling.type")?;
        match kind {
            Some("none") => Ok(1.0),
            None | Some("linear") => {
                // Older files have the factor under the second name; zero stands for none.
                let old: f32 = self.get("rope.scale_linear")?.unwrap_or(0.0);
                let factor = self.get("rope.scaling.factor")?.unwrap_or(old);
                let factor = if factor == 0.0 { 1.0 } else { factor };
                positive(self.path, &self.key("rope.scaling.factor"), factor)
            }
            Some(other) => {
                let hint = "; \"linear\", \"none\" and the tensor rope_freqs.weight are";
                Err(unsupported(self.path, &self.key("rope.scaling.type"), other, hint))
            }
        }
    }
}

/// A window of `size` in all layers but every `n`th.
pub(super) fn every_nth_full(n_layers: usize, n: usize, size: usize) -> Vec<Option<usize>> {
    (1..=n_layers).map(|layer| (!layer.is_multiple_of(n)).then_some(size)).collect()
}
