//! Small models of every architecture, and bytes put together by hand.

use std::path::Path;

use ls_model::gguf::write::Writer;
use ls_model::{ModelError, ModelFile, TensorType};
use tempfile::TempDir;

/// Sizes of a small model, chosen so that no two of them can be mixed up.
#[derive(Clone, Debug)]
pub struct Tiny {
    pub arch: &'static str,
    pub n_layers: usize,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    pub vocab: usize,
    pub matrix: TensorType,
}

impl Tiny {
    pub fn new(arch: &'static str) -> Self {
        Self {
            arch,
            n_layers: 2,
            d_model: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 48,
            d_ff: 160,
            vocab: 40,
            matrix: TensorType::F16,
        }
    }

    /// Every tensor of the model: GGUF name, shape, type.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, TensorType)> {
        let (d, ff) = (self.d_model, self.d_ff);
        let (q, kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let (m, f) = (self.matrix, TensorType::F32);
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![self.vocab, d], m),
            ("output_norm.weight".to_owned(), vec![d], f),
        ];
        for layer in 0..self.n_layers {
            let mut parts = vec![
                ("attn_norm.weight", vec![d], f),
                ("attn_q.weight", vec![q, d], m),
                ("attn_k.weight", vec![kv, d], m),
                ("attn_v.weight", vec![kv, d], m),
                ("attn_output.weight", vec![d, q], m),
                ("ffn_norm.weight", vec![d], f),
                ("ffn_gate.weight", vec![ff, d], m),
                ("ffn_up.weight", vec![ff, d], m),
                ("ffn_down.weight", vec![d, ff], m),
            ];
            if self.arch == "qwen2" {
                parts.push(("attn_q.bias", vec![q], f));
                parts.push(("attn_k.bias", vec![kv], f));
                parts.push(("attn_v.bias", vec![kv], f));
            }
            if matches!(self.arch, "qwen3" | "gemma3") {
                parts.push(("attn_q_norm.weight", vec![self.head_dim], f));
                parts.push(("attn_k_norm.weight", vec![self.head_dim], f));
            }
            if self.arch == "gemma3" {
                parts.push(("post_attention_norm.weight", vec![d], f));
                parts.push(("post_ffw_norm.weight", vec![d], f));
            }
            let named = parts.into_iter().map(|(p, s, t)| (format!("blk.{layer}.{p}"), s, t));
            tensors.extend(named);
        }
        tensors
    }

    /// The metadata that a model needs, and no tensors.
    pub fn metadata(&self) -> Writer<'static> {
        let mut writer = Writer::new();
        writer.value("general.architecture", self.arch);
        writer.value("general.name", "tiny");
        let mut value = |key: &str, value: usize| {
            writer.value(&format!("{}.{key}", self.arch), value as u32);
        };
        value("block_count", self.n_layers);
        value("embedding_length", self.d_model);
        value("attention.head_count", self.n_heads);
        value("attention.head_count_kv", self.n_kv_heads);
        value("attention.key_length", self.head_dim);
        value("attention.value_length", self.head_dim);
        value("feed_forward_length", self.d_ff);
        value("context_length", 128);
        writer.value(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), 1e-5_f32);
        let tokens: Vec<String> = (0..self.vocab).map(|idx| format!("t{idx}")).collect();
        writer.value("tokenizer.ggml.tokens", tokens);
        writer
    }

    /// The whole model.
    pub fn writer(&self) -> Writer<'static> {
        let mut writer = self.metadata();
        for (name, shape, dtype) in self.tensors() {
            add_zeros(&mut writer, &name, dtype, &shape);
        }
        writer
    }
}

pub fn add_zeros(writer: &mut Writer<'static>, name: &str, dtype: TensorType, shape: &[usize]) {
    let (cols, outer) = shape.split_last().unwrap();
    let n_bytes = dtype.row_bytes(*cols).unwrap() * outer.iter().product::<usize>();
    writer.tensor(name, dtype, shape, vec![0; n_bytes]).unwrap();
}

/// Writes the bytes to `tiny.gguf` of a new folder and opens them.
pub fn open_bytes(bytes: &[u8]) -> Result<ModelFile, ModelError> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, bytes).unwrap();
    ModelFile::open(&path)
}

/// Opens what the writer holds.
pub fn open(writer: &Writer<'_>) -> Result<ModelFile, ModelError> {
    open_bytes(&writer.to_bytes())
}

/// The error's sentence, without the folder that it happened in.
pub fn sentence(error: &ModelError, dir: &Path) -> String {
    error
        .to_string()
        .replace(&format!("{}/", dir.display()), "")
        .replace(&dir.display().to_string(), "DIR")
}

/// The sentence of what goes wrong with a file of these bytes.
pub fn complaint(bytes: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, bytes).unwrap();
    match ModelFile::open(&path) {
        Ok(_) => "opened".to_owned(),
        Err(error) => sentence(&error, dir.path()),
    }
}

/// A GGUF file put together by hand, so that every field can be wrong.
#[derive(Clone, Debug)]
pub struct Raw {
    pub magic: [u8; 4],
    pub version: u32,
    pub n_tensors: Option<u64>,
    pub n_keys: Option<u64>,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub data: usize,
}

impl Raw {
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            n_tensors: None,
            n_keys: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: 0,
        }
    }

    pub fn key(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        let mut bytes = string(key);
        bytes.extend(value_type.to_le_bytes());
        bytes.extend(value);
        self.keys.push(bytes);
        self
    }

    /// `dims` as the file has them: innermost first.
    pub fn tensor(mut self, name: &str, dims: &[u64], dtype: u32, offset: u64) -> Self {
        let mut bytes = string(name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(dtype.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        self.tensors.push(bytes);
        self
    }

    pub fn data(mut self, n_bytes: usize) -> Self {
        self.data = n_bytes;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.tensors).for_each(|part| out.extend(part));
        if self.data > 0 {
            out.resize(out.len().next_multiple_of(32) + self.data, 0);
        }
        out
    }
}

pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
