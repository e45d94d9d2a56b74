//! Configuration from config.json of a Hugging Face folder.

use super::check::{
    self, KeyNames, MAX_CONTEXT, MAX_FF, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, count,
    divide, positive, unsupported, wrong,
};
use super::gguf::{GEMMA3_LOCAL_BASE, GEMMA3_PATTERN, every_nth_full};
use super::rope::Llama3;
use super::{Activation, Architecture, Config, Rope, RopeLayout, RopeScaling};
use crate::ModelError;
use crate::json::Settings;
use crate::safetensors::Folder;

/// Names of RoPE parameters for the two kinds of layers in newer files.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const LAYER_TYPES: &str = "layer_types";

/// Reads the configuration of a Hugging Face folder.
pub(crate) fn from_folder(folder: &Folder) -> Result<Config, ModelError> {
    let settings = &folder.config;
    let arch = architecture(settings)?;
    let reader = Reader { settings, arch };
    reader.refuse_unsupported()?;
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let config = reader.config(name)?;
    let names = KeyNames {
        n_kv_heads: "num_key_value_heads",
        head_dim: "head_dim",
        rope_dim: "partial_rotary_factor",
        norm_eps: "rms_norm_eps",
    };
    check::check(&config, names, &settings.path)?;
    Ok(config)
}

fn architecture(settings: &Settings) -> Result<Architecture, ModelError> {
    let Some(found) = settings.str("model_type")? else {
        return Err(settings.wrong("model_type", "the name of a model family"));
    };
    Ok(match found {
        "llama" | "mistral" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        "gemma3_text" => Architecture::Gemma3,
        other => {
            let (path, found) = (settings.path.clone(), other.to_owned());
            return Err(ModelError::UnsupportedArchitecture { path, found });
        }
    })
}

struct Reader<'a> {
    settings: &'a Settings,
    arch: Architecture,
}

impl Reader<'_> {
    fn count(&self, key: &str, max: usize) -> Result<usize, ModelError> {
        self.opt_count(key, max)?.ok_or_else(|| self.settings.wrong(key, "a whole number"))
    }

    fn opt_count(&self, key: &str, max: usize) -> Result<Option<usize>, ModelError> {
        let value = self.settings.u64(key)?;
        value.map(|value| count(&self.settings.path, key, value, max)).transpose()
    }

    fn positive(&self, settings: &Settings, key: &str) -> Result<f32, ModelError> {
        let value = settings.f32(key)?.ok_or_else(|| settings.wrong(key, "a number"))?;
        positive(&settings.path, key, value)
    }

    fn positive_or(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        let value = self.settings.f32(key)?.unwrap_or(default);
        positive(&self.settings.path, key, value)
    }

    fn gemma(&self) -> bool {
        self.arch == Architecture::Gemma3
    }

    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        let path = &self.settings.path;
        for key in ["num_local_experts", "num_experts"] {
            let experts = self.settings.u64(key)?.unwrap_or(0);
            if experts > 0 {
                return Err(unsupported(path, key, experts, "; only dense models are"));
            }
        }
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = self.settings.f32(key)? {
                return Err(unsupported(path, key, cap, ""));
            }
        }
        if self.settings.get("quantization_config").is_some() {
            let hint = "; take the model in F32, F16 or BF16, or as GGUF";
            return Err(unsupported(path, "quantization_config", "present", hint));
        }
        let (wanted, default) = if self.gemma() {
            (["gelu_pytorch_tanh", "gelu_tanh"], "gelu_pytorch_tanh")
        } else {
            (["silu", "swish"], "silu")
        };
        for key in ["hidden_act", "hidden_activation"] {
            let found = self.settings.str(key)?.unwrap_or(default);
            if !wanted.contains(&found) {
                return Err(unsupported(path, key, found, ""));
            }
        }
        Ok(())
    }

    fn config(&self, name: String) -> Result<Config, ModelError> {
        let n_layers = self.count("num_hidden_layers", MAX_LAYERS)?;
        let d_model = self.count("hidden_size", MAX_WIDTH)?;
        let n_heads = self.count("num_attention_heads", MAX_HEADS)?;
        let head_dim = match self.opt_count("head_dim", MAX_WIDTH)? {
            Some(head_dim) => head_dim,
            None => divide(&self.settings.path, "num_attention_heads", d_model, n_heads)?,
        };
        let gemma = self.gemma();
        let scale_from = if gemma {
            self.positive_or("query_pre_attn_scalar", head_dim as f32)?
        } else {
            head_dim as f32
        };
        Ok(Config {
            arch: self.arch,
            name,
            n_layers,
            d_model,
            n_heads,
            n_kv_heads: self.opt_count("num_key_value_heads", MAX_HEADS)?.unwrap_or(n_heads),
            head_dim,
            d_ff: self.count("intermediate_size", MAX_FF)?,
            vocab_size: self.count("vocab_size", MAX_VOCAB)?,
            context_len: self.count("max_position_embeddings", MAX_CONTEXT)?,
            norm_eps: self.positive_or("rms_norm_eps", 1e-6)?,
            norm_weight_offset: if gemma { 1.0 } else { 0.0 },
            rope: self.rope(head_dim)?,
            window: self.window(n_layers)?,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            embedding_scale: if gemma { (d_model as f32).sqrt() } else { 1.0 },
            attention_scale: 1.0 / scale_from.sqrt(),
            tied_output: self.settings.bool("tie_word_embeddings")?.unwrap_or(gemma),
        })
    }

    fn window(&self, n_layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
        let all = vec![None; n_layers];
        let qwen = matches!(self.arch, Architecture::Qwen2 | Architecture::Qwen3);
        // Qwen gives a size even where its switch, which is off unless given, says not to use it.
        if qwen && !self.settings.bool("use_sliding_window")?.unwrap_or(false) {
            return Ok(all);
        }
        let Some(size) = self.opt_count("sliding_window", MAX_CONTEXT)? else { return Ok(all) };
        if let Some(types) = self.settings.array(LAYER_TYPES)? {
            return self.window_by_type(types, n_layers, size);
        }
        match self.arch {
            Architecture::Llama => Ok(vec![Some(size); n_layers]),
            Architecture::Gemma3 => {
                let old = self.opt_count("sliding_window_pattern", MAX_LAYERS)?;
                let new = self.opt_count("_sliding_window_pattern", MAX_LAYERS)?;
                Ok(every_nth_full(n_layers, old.or(new).unwrap_or(GEMMA3_PATTERN), size))
            }
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let first = self.settings.u64("max_window_layers")?.unwrap_or(28);
                Ok((0..n_layers as u64).map(|layer| (layer >= first).then_some(size)).collect())
            }
        }
    }

    fn window_by_type(
        &self,
        types: &[serde_json::Value],
        n_layers: usize,
        size: usize,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        let path = &self.settings.path;
        if types.len() != n_layers {
            let (found, expected) = (format!("{} types", types.len()), n_layers.to_string());
            return Err(wrong(path, LAYER_TYPES, found, expected));
        }
        let window = |layer_type: &serde_json::Value| match layer_type.as_str() {
            Some(SLIDING) => Ok(Some(size)),
            Some(FULL) => Ok(None),
            _ => Err(unsupported(path, LAYER_TYPES, layer_type, "")),
        };
        types.iter().map(window).collect()
    }

    fn rope(&self, head_dim: usize) -> Result<Rope, ModelError> {
        // Newer files keep all parameters in one object, for gemma3 one for each kind of layer.
        let parameters = self.settings.object("rope_parameters")?;
        let nested = |key| match &parameters {
            Some(parameters) => parameters.object(key),
            None => Ok(None),
        };
        let (full, sliding) = (nested(FULL)?, nested(SLIDING)?);
        let full = full.or(parameters.clone());
        let base_in = |settings: &Option<Settings>| match settings {
            Some(settings) => settings.f32("rope_theta"),
            None => Ok(None),
        };
        let path = &self.settings.path;
        let default_base = if self.gemma() { 1_000_000.0 } else { 10_000.0 };
        let base = match base_in(&full)? {
            Some(base) => positive(path, "rope_theta", base)?,
            None => self.positive_or("rope_theta", default_base)?,
        };
        let local_base = match base_in(&sliding)? {
            Some(base) => positive(path, "rope_theta", base)?,
            None if self.gemma() => self.positive_or("rope_local_base_freq", GEMMA3_LOCAL_BASE)?,
            None => base,
        };
        let partial = self.positive_or("partial_rotary_factor", 1.0)?;
        if partial > 1.0 {
            return Err(wrong(path, "partial_rotary_factor", partial, "at most 1".to_owned()));
        }
        let dim = (head_dim as f32 * partial) as usize;
        let scaling = match full.or(self.settings.object("rope_scaling")?) {
            Some(scaling) => self.scaling(&scaling, base, dim)?,
            None => RopeScaling::None,
        };
        Ok(Rope {
            layout: RopeLayout::Halves,
            dim,
            base,
            local_base,
            local_unscaled: self.gemma(),
            scaling,
        })
    }

    fn scaling(
        &self,
        scaling: &Settings,
        base: f32,
        dim: usize,
    ) -> Result<RopeScaling, ModelError> {
        let kind = match scaling.str("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.str("type")?,
        };
        match kind {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: self.positive(scaling, "factor")? }),
            Some("llama3") => {
                let llama3 = Llama3 {
                    factor: self.positive(scaling, "factor")?,
                    low_freq_factor: self.positive(scaling, "low_freq_factor")?,
                    high_freq_factor: self.positive(scaling, "high_freq_factor")?,
                    original_context: self.positive(scaling, "original_max_position_embeddings")?,
                };
                if llama3.high_freq_factor <= llama3.low_freq_factor {
                    let expected = format!("above low_freq_factor {}", llama3.low_freq_factor);
                    let found = llama3.high_freq_factor;
                    return Err(wrong(&scaling.path, "high_freq_factor", found, expected));
                }
                Ok(RopeScaling::Factors(llama3.factors(base, dim)))
            }
            Some(other) => {
                let hint = "; \"default\", \"linear\" and \"llama3\" are";
                Err(unsupported(&scaling.path, "rope_scaling", other, hint))
            }
        }
    }
}
