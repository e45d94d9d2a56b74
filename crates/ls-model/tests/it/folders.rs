//! Hugging Face folders.

use std::path::Path;

use ls_model::config::{Activation, Architecture, RopeLayout, RopeScaling};
use ls_model::{ModelError, ModelFile, Source, TensorType, safetensors};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Tiny, sentence};

/// A tensor to write: name, type's name, shape.
pub type HfTensor = (String, &'static str, Vec<usize>);

/// A small model as Hugging Face stores it.
pub struct HfTiny {
    tiny: Tiny,
    pub config: Value,
}

impl HfTiny {
    pub fn new(arch: &'static str) -> Self {
        let tiny = Tiny::new(arch);
        let model_type = if arch == "gemma3" { "gemma3_text" } else { arch };
        let act = if arch == "gemma3" { "gelu_pytorch_tanh" } else { "silu" };
        let config = json!({
            "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48,
            "intermediate_size": 160, "vocab_size": 40, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "tie_word_embeddings": true,
            "hidden_act": act,
        });
        Self { tiny, config }
    }

    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub fn tensors(&self) -> Vec<HfTensor> {
        let rename = |name: &str| {
            let gemma = self.tiny.arch == "gemma3";
            let before_mlp =
                if gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
            name.replace("token_embd", "model.embed_tokens")
                .replace("output_norm", "model.norm")
                .replace("blk.", "model.layers.")
                .replace("post_attention_norm", "post_attention_layernorm")
                .replace("post_ffw_norm", "post_feedforward_layernorm")
                .replace("attn_norm", "input_layernorm")
                .replace("ffn_norm", before_mlp)
                .replace("attn_q_norm", "self_attn.q_norm")
                .replace("attn_k_norm", "self_attn.k_norm")
                .replace("attn_output", "self_attn.o_proj")
                .replace("attn_q.", "self_attn.q_proj.")
                .replace("attn_k.", "self_attn.k_proj.")
                .replace("attn_v.", "self_attn.v_proj.")
                .replace("ffn_gate", "mlp.gate_proj")
                .replace("ffn_up", "mlp.up_proj")
                .replace("ffn_down", "mlp.down_proj")
        };
        let dtype = |dtype| if dtype == TensorType::F32 { "F32" } else { "BF16" };
        self.tiny.tensors().into_iter().map(|(n, s, t)| (rename(&n), dtype(t), s)).collect()
    }

    pub fn write(&self) -> TempDir {
        let dir = TempDir::new().unwrap();
        write(dir.path(), "config.json", self.config.to_string());
        write(dir.path(), "model.safetensors", safetensors_bytes(&self.tensors()));
        dir
    }

    fn open(&self) -> Result<ModelFile, ModelError> {
        ModelFile::open(self.write().path())
    }

    fn complaint(&self) -> String {
        let dir = self.write();
        sentence(&ModelFile::open(dir.path()).unwrap_err(), dir.path())
    }
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

fn with_header(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

/// A safetensors file of zeros.
pub fn safetensors_bytes(tensors: &[HfTensor]) -> Vec<u8> {
    let mut offset = 0;
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for (name, dtype, shape) in tensors {
        let size = if *dtype == "F32" { 4 } else { 2 };
        let end = offset + size * shape.iter().product::<usize>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]});
        header.insert(name.clone(), entry);
        offset = end;
    }
    with_header(&Value::Object(header).to_string(), offset)
}

#[test]
fn every_architecture_opens() {
    for (arch, expected) in [
        ("llama", Architecture::Llama),
        ("qwen2", Architecture::Qwen2),
        ("qwen3", Architecture::Qwen3),
        ("gemma3", Architecture::Gemma3),
    ] {
        let model = HfTiny::new(arch).open().unwrap();
        let config = model.config();
        assert_eq!(config.arch, expected);
        assert_eq!(config.rope.layout, RopeLayout::Halves);
        assert_eq!((config.rope.base, config.rope.dim), (50_000.0, 48));
        assert!(config.tied_output);
        assert_eq!(model.warnings(), []);
        let norm = model.require("blk.1.ffn_norm.weight", &[64]).unwrap();
        assert_eq!(norm.to_f32().unwrap(), [0.0; 64]);
        assert!(matches!(model.source(), Source::Safetensors(_)));
    }
}

#[test]
fn gemma3_norms_are_offset_and_windows_alternate() {
    let gemma = HfTiny::new("gemma3")
        .set("sliding_window", json!(16))
        .set("query_pre_attn_scalar", json!(64))
        .set("layer_types", json!(["sliding_attention", "full_attention"]));
    let config = gemma.open().unwrap().config().clone();
    assert_eq!((config.norm_weight_offset, config.embedding_scale), (1.0, 8.0));
    assert_eq!(config.attention_scale, 0.125);
    assert_eq!(config.activation, Activation::GeluTanh);
    assert_eq!(config.window, [Some(16), None]);
    assert_eq!(config.rope.local_base, 10_000.0);
}

#[test]
fn mistral_is_a_llama_with_a_window() {
    let config =
        HfTiny::new("llama").set("model_type", json!("mistral")).set("sliding_window", json!(16));
    assert_eq!(config.open().unwrap().config().window, [Some(16); 2]);
}

#[test]
fn qwen_uses_its_window_only_when_switched_on() {
    let qwen = |on: bool| {
        let qwen = HfTiny::new("qwen2").set("sliding_window", json!(16));
        qwen.set("use_sliding_window", json!(on)).set("max_window_layers", json!(1))
    };
    assert_eq!(qwen(false).open().unwrap().config().window, [None, None]);
    assert_eq!(qwen(true).open().unwrap().config().window, [None, Some(16)]);
}

#[test]
fn rope_scaling_is_understood_or_refused() {
    let scaled = |scaling: Value| HfTiny::new("llama").set("rope_scaling", scaling);
    let linear = scaled(json!({"type": "linear", "factor": 2.0})).open().unwrap();
    assert_eq!(linear.config().rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let llama3 = scaled(json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }));
    match &llama3.open().unwrap().config().rope.scaling {
        RopeScaling::Factors(factors) => {
            assert_eq!((factors.len(), factors[0], factors[23]), (24, 1.0, 8.0));
        }
        other => panic!("{other:?}"),
    }
    let yarn = scaled(json!({"rope_type": "yarn", "factor": 4.0})).open().unwrap_err();
    assert!(matches!(yarn, ModelError::Unsupported { .. }), "{yarn}");
}

#[test]
fn newer_files_keep_rope_in_one_object() {
    let gemma = HfTiny::new("gemma3").set(
        "rope_parameters",
        json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        }),
    );
    let rope = gemma.open().unwrap().config().rope.clone();
    assert_eq!((rope.base, rope.local_base), (1e6, 20_000.0));
    assert_eq!(rope.scaling, RopeScaling::Linear { factor: 8.0 });
    let llama = HfTiny::new("llama")
        .set("rope_parameters", json!({"rope_type": "default", "rope_theta": 7000.0}));
    assert_eq!(llama.open().unwrap().config().rope.base, 7_000.0);
}

#[test]
fn an_untied_head_must_be_there() {
    let untied = HfTiny::new("llama").set("tie_word_embeddings", json!(false));
    let error = untied.open().unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingTensor { tensor, .. } if tensor == "output.weight"),
        "{error}"
    );
    let dir = untied.write();
    let mut tensors = untied.tensors();
    tensors.push(("lm_head.weight".to_owned(), "F16", vec![40, 64]));
    write(dir.path(), "model.safetensors", safetensors_bytes(&tensors));
    let model = ModelFile::open(dir.path()).unwrap();
    assert!(!model.config().tied_output);
    assert_eq!(model.require("output.weight", &[40, 64]).unwrap().dtype, TensorType::F16);
}

/// Splits the model over two files with an index.
fn sharded() -> TempDir {
    let tiny = HfTiny::new("llama");
    let dir = tiny.write();
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let tensors = tiny.tensors();
    let (first, second) = tensors.split_at(7);
    let mut map = serde_json::Map::new();
    for (name, part) in [("a.safetensors", first), ("b.safetensors", second)] {
        write(dir.path(), name, safetensors_bytes(part));
        map.extend(part.iter().map(|(tensor, ..)| (tensor.clone(), json!(name))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    write(dir.path(), "model.safetensors.index.json", index);
    dir
}

#[test]
fn an_index_joins_files() {
    let dir = sharded();
    let model = ModelFile::open(dir.path()).unwrap();
    assert_eq!(model.files().len(), 2);
    assert_eq!(model.tensors().len(), HfTiny::new("llama").tensors().len());
}

#[test]
fn faults_of_folders_are_named() {
    let mut sentences = Vec::new();
    let mut complain = |change: &dyn Fn(&Path)| {
        let dir = sharded();
        change(dir.path());
        sentences.push(sentence(&ModelFile::open(dir.path()).unwrap_err(), dir.path()));
    };
    complain(&|dir| std::fs::remove_file(dir.join("b.safetensors")).unwrap());
    complain(&|dir| write(dir, "b.safetensors", safetensors_bytes(&[])));
    complain(&|dir| {
        std::fs::copy(dir.join("a.safetensors"), dir.join("c.safetensors")).unwrap();
        let index = json!({"weight_map": {
            "model.norm.weight": "a.safetensors", "model.embed_tokens.weight": "c.safetensors",
        }});
        write(dir, "model.safetensors.index.json", index.to_string());
    });
    complain(&|dir| {
        let index = json!({"weight_map": {"model.norm.weight": "../a.safetensors"}});
        write(dir, "model.safetensors.index.json", index.to_string());
    });
    complain(&|dir| write(dir, "a.safetensors", "version https://git-lfs.github.com/spec/v1\n"));
    complain(&|dir| write(dir, "config.json", "{\"model_type\": "));
    complain(&|dir| write(dir, "config.json", "{}"));
    let mut setting = |key: &str, value: Value| {
        sentences.push(HfTiny::new("llama").set(key, value).complaint());
    };
    setting("model_type", json!("mixtral"));
    setting("num_local_experts", json!(8));
    setting("hidden_size", json!("wide"));
    setting("num_hidden_layers", json!(-2));
    setting("num_hidden_layers", json!(1e9 as u64));
    setting("num_key_value_heads", json!(3));
    setting("vocab_size", json!(41));
    setting("hidden_act", json!("relu"));
    setting("partial_rotary_factor", json!(1.5));
    setting("quantization_config", json!({"bits": 4}));
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn faults_of_safetensors_headers_are_named() {
    let one = |entry: &str, n_data| with_header(&format!("{{\"t\":{entry}}}"), n_data);
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let good = entry("F32", "[2]", 0, 8);
    let cases = [
        ("empty", vec![]),
        ("length beyond the file", 100_u64.to_le_bytes().to_vec()),
        ("absurd length", u64::MAX.to_le_bytes().to_vec()),
        ("not JSON", with_header("nonsense", 0)),
        ("not an object", with_header("[]", 0)),
        ("deeply nested", with_header(&"[".repeat(100_000), 0)),
        ("no shape", one(r#"{"dtype":"F32","data_offsets":[0,8]}"#, 8)),
        ("negative", one(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#, 8)),
        ("integers", one(&entry("I64", "[1]", 0, 8), 8)),
        ("float8", one(&entry("F8_E4M3", "[8]", 0, 8), 8)),
        ("overflow", one(&entry("F32", "[4294967296,4294967296]", 0, 8), 8)),
        ("nine dimensions", one(&entry("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4), 8)),
        ("wrong length", one(&entry("F32", "[3]", 0, 8), 8)),
        ("backwards", one(&entry("F32", "[2]", 8, 0), 8)),
        ("beyond the end", one(&good, 7)),
        ("near the top", one(&entry("F32", "[2]", u64::MAX - 8, u64::MAX), 8)),
        ("twice", with_header(&format!("{{\"t\":{good},\"t\":{good}}}"), 8)),
        ("overlap", with_header(&format!("{{\"t\":{good},\"u\":{good}}}"), 8)),
    ];
    let sentences: Vec<String> = cases
        .iter()
        .map(|(case, bytes)| format!("{case}: {}", safetensors::parse(bytes).unwrap_err()))
        .collect();
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn chat_templates_are_found() {
    let template = |files: &[(&str, &str)]| {
        let dir = HfTiny::new("llama").write();
        files.iter().for_each(|(name, text)| write(dir.path(), name, text));
        ModelFile::open(dir.path()).unwrap().chat_template().map(str::to_owned)
    };
    let config = "tokenizer_config.json";
    assert_eq!(template(&[]), None);
    assert_eq!(template(&[(config, r#"{"chat_template": "A"}"#)]).unwrap(), "A");
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "T"},
                                      {"name": "default", "template": "D"}]}"#;
    assert_eq!(template(&[(config, named)]).unwrap(), "D");
    let both = [(config, r#"{"chat_template": "A"}"#), ("chat_template.jinja", "J")];
    assert_eq!(template(&both).unwrap(), "J");
}

#[test]
fn tokenizer_json_is_handed_on() {
    let dir = HfTiny::new("llama").write();
    let read = || {
        let model = ModelFile::open(dir.path()).unwrap();
        let Source::Safetensors(folder) = model.source() else { panic!("not a folder") };
        folder.read_tokenizer()
    };
    assert_eq!(read().unwrap(), None);
    write(dir.path(), "tokenizer.json", "{}");
    assert_eq!(read().unwrap().unwrap(), b"{}");
    write(dir.path(), "tokenizer.json", "version https://git-lfs.github.com/spec/v1\n");
    assert!(matches!(read(), Err(ModelError::LfsPointer { .. })));
}
