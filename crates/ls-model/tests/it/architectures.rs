//! Configurations of GGUF models, and tensors that do not fit them.

use ls_model::config::{Activation, Architecture, RopeLayout, RopeScaling};
use ls_model::gguf::write::{OwnedValue, Writer};
use ls_model::{TensorType, Warning};

use crate::support::{Tiny, add_zeros, complaint, open};

#[test]
fn llama_has_interleaved_rope_and_may_have_a_window() {
    let tiny = Tiny::new("llama");
    let mut writer = tiny.writer();
    let config = open(&writer).unwrap().config().clone();
    assert_eq!(config.arch, Architecture::Llama);
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (4, 2, 48));
    assert_eq!((config.d_model, config.d_ff, config.vocab_size), (64, 160, 40));
    assert_eq!(config.rope.layout, RopeLayout::Interleaved);
    assert_eq!((config.rope.dim, config.rope.base), (48, 10_000.0));
    assert_eq!(config.rope.scaling, RopeScaling::None);
    assert_eq!(config.activation, Activation::Silu);
    assert_eq!(config.attention_scale, 1.0 / 48_f32.sqrt());
    assert!(config.tied_output);
    assert_eq!(config.window, [None, None]);
    writer.value("llama.attention.sliding_window", 16_u32);
    assert_eq!(open(&writer).unwrap().config().window, [Some(16), Some(16)]);
}

#[test]
fn head_size_defaults_to_width_over_heads() {
    let tiny = Tiny { head_dim: 16, ..Tiny::new("llama") };
    let mut writer = Writer::new();
    for (key, value) in [
        ("block_count", 2_u32),
        ("embedding_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("feed_forward_length", 160),
        ("context_length", 128),
    ] {
        writer.value(&format!("llama.{key}"), value);
    }
    writer.value("general.architecture", "llama");
    writer.value("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    for (name, shape, dtype) in tiny.tensors() {
        add_zeros(&mut writer, &name, dtype, &shape);
    }
    let model = open(&writer).unwrap();
    assert_eq!(model.config().head_dim, 16);
    assert_eq!(model.config().name, "tiny", "the file's name, since it gives none");
}

#[test]
fn an_output_head_is_used_when_there_is_one() {
    let tiny = Tiny::new("qwen2");
    let mut writer = tiny.writer();
    add_zeros(&mut writer, "output.weight", TensorType::Q8_0, &[tiny.vocab, tiny.d_model]);
    let model = open(&writer).unwrap();
    assert!(!model.config().tied_output);
    assert_eq!(model.config().rope.layout, RopeLayout::Halves);
    assert_eq!(model.require("output.weight", &[40, 64]).unwrap().dtype, TensorType::Q8_0);
}

#[test]
fn rope_is_scaled_by_key_or_tensor() {
    let tiny = Tiny::new("llama");
    let mut linear = tiny.writer();
    linear.value("llama.rope.scaling.type", "linear").value("llama.rope.scaling.factor", 4_f32);
    let scaling = open(&linear).unwrap().config().rope.scaling.clone();
    assert_eq!(scaling, RopeScaling::Linear { factor: 4.0 });

    let mut factors = tiny.writer();
    let values: Vec<f32> = (1..=24).map(|v| v as f32).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    factors.tensor("rope_freqs.weight", TensorType::F32, &[24], bytes).unwrap();
    let model = open(&factors).unwrap();
    assert_eq!(model.config().rope.scaling, RopeScaling::Factors(values));
    assert_eq!(model.warnings(), []);
}

#[test]
fn gemma3_alternates_windows_and_scales_embeddings() {
    let tiny = Tiny { n_layers: 13, ..Tiny::new("gemma3") };
    let mut writer = tiny.writer();
    writer.value("gemma3.attention.sliding_window", 16_u32);
    writer.value("gemma3.rope.freq_base", 1_000_000_f32);
    let config = open(&writer).unwrap().config().clone();
    let full: Vec<usize> = (0..13).filter(|layer| config.window[*layer].is_none()).collect();
    assert_eq!(full, [5, 11]);
    assert_eq!(config.window[0], Some(16));
    assert_eq!((config.rope.base, config.rope.local_base), (1_000_000.0, 10_000.0));
    assert!(config.rope.local_unscaled);
    assert_eq!(config.activation, Activation::GeluTanh);
    assert_eq!((config.embedding_scale, config.norm_weight_offset), (8.0, 0.0));
}

#[test]
fn qwen3_has_head_norms() {
    let model = open(&Tiny::new("qwen3").writer()).unwrap();
    assert_eq!(model.config().arch, Architecture::Qwen3);
    assert!(model.tensor("blk.1.attn_k_norm.weight").unwrap().is_some());
}

#[test]
fn every_tensor_type_is_read() {
    for matrix in TensorType::ALL {
        // Rows of whole blocks in every type.
        let tiny = Tiny { d_model: 256, head_dim: 64, d_ff: 512, matrix, ..Tiny::new("llama") };
        let model = open(&tiny.writer()).unwrap();
        let down = model.require("blk.0.ffn_down.weight", &[256, 512]).unwrap();
        assert_eq!(down.dtype, matrix);
        assert_eq!(down.data.len(), 256 * matrix.row_bytes(512).unwrap());
    }
}

#[test]
fn unknown_tensors_are_warned_of() {
    let mut writer = Tiny::new("llama").writer();
    add_zeros(&mut writer, "extra.weight", TensorType::F32, &[3]);
    add_zeros(&mut writer, "blk.0.novelty", TensorType::F32, &[3]);
    let model = open(&writer).unwrap();
    let warning = |tensor: &str| Warning::UnknownTensor { tensor: tensor.to_owned() };
    assert_eq!(model.warnings(), [warning("extra.weight"), warning("blk.0.novelty")]);
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let mut sentences = Vec::new();
    let mut refuse = |key: &str, value: OwnedValue| {
        let mut writer = Tiny::new("llama").writer();
        writer.value(key, value);
        sentences.push(complaint(&writer.to_bytes()));
    };
    refuse("general.architecture", "mamba".into());
    refuse("general.architecture", 7_u32.into());
    refuse("llama.block_count", 0_u32.into());
    refuse("llama.block_count", u64::MAX.into());
    refuse("llama.block_count", OwnedValue::I32(-1));
    refuse("llama.block_count", 3_u32.into());
    refuse("llama.context_length", 0_u32.into());
    refuse("llama.attention.head_count", 3_u32.into());
    refuse("llama.attention.head_count_kv", 3_u32.into());
    refuse("llama.attention.head_count_kv", 0_u32.into());
    refuse("llama.attention.head_count_kv", vec![2_u32, 4].into());
    refuse("llama.attention.key_length", 16_u32.into());
    refuse("llama.embedding_length", 128_u32.into());
    refuse("llama.feed_forward_length", 159_u32.into());
    refuse("llama.attention.layer_norm_rms_epsilon", f32::NAN.into());
    refuse("llama.attention.layer_norm_rms_epsilon", 2_f32.into());
    refuse("llama.rope.freq_base", 0_f32.into());
    refuse("llama.rope.dimension_count", 33_u32.into());
    refuse("llama.rope.dimension_count", 64_u32.into());
    refuse("llama.rope.scaling.type", "yarn".into());
    refuse("llama.expert_count", 8_u32.into());
    refuse("tokenizer.ggml.tokens", vec![String::from("a"); 41].into());
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let build = |arch, change: &dyn Fn(&str, &mut Vec<usize>, &mut TensorType) -> bool| {
        let tiny = Tiny::new(arch);
        let mut writer = tiny.metadata();
        for (name, mut shape, mut dtype) in tiny.tensors() {
            if change(&name, &mut shape, &mut dtype) {
                add_zeros(&mut writer, &name, dtype, &shape);
            }
        }
        complaint(&writer.to_bytes())
    };
    let without = |arch, gone: &str| build(arch, &|name, _, _| name != gone);
    let extra = |name: &str, shape: &[usize]| {
        let mut writer = Tiny::new("llama").writer();
        add_zeros(&mut writer, name, TensorType::F32, shape);
        complaint(&writer.to_bytes())
    };
    let sentences = [
        without("llama", "blk.1.ffn_up.weight"),
        without("llama", "token_embd.weight"),
        without("qwen2", "blk.0.attn_v.bias"),
        without("qwen3", "blk.0.attn_q_norm.weight"),
        without("gemma3", "blk.1.post_ffw_norm.weight"),
        build("llama", &|name, shape, _| {
            if name == "blk.1.attn_k.weight" {
                shape.reverse();
            }
            true
        }),
        build("llama", &|name, _, dtype| {
            if name == "output_norm.weight" {
                *dtype = TensorType::Q8_0;
            }
            true
        }),
        extra("blk.0.attn_q.bias", &[64]),
        extra("blk.0.attn_output.bias", &[64]),
        extra("rope_freqs.weight", &[15]),
    ];
    insta::assert_snapshot!(sentences.join("\n"));
}
