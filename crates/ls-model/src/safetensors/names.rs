//! Tensor names: from Hugging Face's to GGUF's.

use crate::config::Architecture;

/// GGUF's name of the tensor that a Hugging Face model calls `name`; `None` for a tensor that
/// has none.
pub(super) fn to_gguf(name: &str, arch: Architecture) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let (stem, kind) = name.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let stem = match stem {
        "embed_tokens" => "token_embd".to_owned(),
        "norm" => "output_norm".to_owned(),
        "lm_head" => "output".to_owned(),
        _ => {
            let (layer, part) = stem.strip_prefix("layers.")?.split_once('.')?;
            let layer: u32 = layer.parse().ok()?;
            format!("blk.{layer}.{}", layer_part(part, arch)?)
        }
    };
    Some(format!("{stem}.{kind}"))
}

fn layer_part(part: &str, arch: Architecture) -> Option<&'static str> {
    let gemma = arch == Architecture::Gemma3;
    Some(match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        // The same name, but before the MLP in most families and after attention in Gemma.
        "post_attention_layernorm" if gemma => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_architecture() {
        let llama = |name| to_gguf(name, Architecture::Llama);
        assert_eq!(llama("model.embed_tokens.weight").unwrap(), "token_embd.weight");
        assert_eq!(llama("lm_head.weight").unwrap(), "output.weight");
        assert_eq!(llama("model.norm.weight").unwrap(), "output_norm.weight");
        assert_eq!(llama("model.layers.7.self_attn.q_proj.bias").unwrap(), "blk.7.attn_q.bias");
        let norm = "model.layers.0.post_attention_layernorm.weight";
        assert_eq!(llama(norm).unwrap(), "blk.0.ffn_norm.weight");
        let gemma = to_gguf(norm, Architecture::Gemma3).unwrap();
        assert_eq!(gemma, "blk.0.post_attention_norm.weight");
        assert_eq!(llama("model.layers.0.self_attn.rotary_emb.inv_freq"), None);
        assert_eq!(llama("vision.tower.weight"), None);
        assert_eq!(llama("model.layers.x.mlp.up_proj.weight"), None);
    }
}
