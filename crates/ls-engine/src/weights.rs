//! The weights of a decoder, in the file's own bytes.

use ls_cpu::{Format, Matrix};
use ls_model::{Config, ModelFile, SharedBytes, TensorType};

use crate::EngineError;

/// A weight matrix that lives in the mapped file.
#[derive(Debug)]
pub(crate) struct Weight {
    format: Format,
    rows: usize,
    cols: usize,
    data: SharedBytes,
}

impl Weight {
    fn load(model: &ModelFile, name: &str) -> Result<Self, EngineError> {
        let tensor = model.share(name)?.ok_or_else(|| missing(name))?;
        let (rows, cols) = match *tensor.shape {
            [rows, cols] => (rows, cols),
            _ => (1, tensor.shape.iter().product()),
        };
        let weight = Self { format: format(tensor.dtype), rows, cols, data: tensor.data };
        Matrix::new(weight.format, rows, cols, &weight.data)
            .map_err(|source| EngineError::Shape { tensor: name.to_owned(), source })?;
        Ok(weight)
    }

    /// The matrix, `[rows, cols]`.
    pub fn view(&self) -> Matrix<'_> {
        Matrix::new(self.format, self.rows, self.cols, &self.data).expect("checked when loaded")
    }
}

/// One decoder layer. Shapes: `q` is `[n_heads · head_dim, d_model]`, `k` and `v`
/// `[n_kv_heads · head_dim, d_model]`, `o` `[d_model, n_heads · head_dim]`, `gate` and `up`
/// `[d_ff, d_model]`, `down` `[d_model, d_ff]`.
#[derive(Debug)]
pub(crate) struct Layer {
    pub attn_norm: Vec<f32>,
    pub q: Weight,
    pub k: Weight,
    pub v: Weight,
    pub o: Weight,
    pub q_bias: Option<Vec<f32>>,
    pub k_bias: Option<Vec<f32>>,
    pub v_bias: Option<Vec<f32>>,
    /// `[head_dim]`, applied to each head.
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub post_attn_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    pub gate: Weight,
    pub up: Weight,
    pub down: Weight,
    pub post_ffn_norm: Option<Vec<f32>>,
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, d_model]`
    pub embedding: Weight,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// `[vocab_size, d_model]`; `None`: the embedding.
    pub output: Option<Weight>,
}

impl Weights {
    pub fn load(model: &ModelFile, config: &Config) -> Result<Self, EngineError> {
        let norm = |name: &str| -> Result<Vec<f32>, EngineError> {
            let mut weights = floats(model, name)?;
            weights.iter_mut().for_each(|w| *w += config.norm_weight_offset);
            Ok(weights)
        };
        let layer = |i: usize| -> Result<Layer, EngineError> {
            let name = |part: &str| format!("blk.{i}.{part}");
            let weight = |part: &str| Weight::load(model, &name(&format!("{part}.weight")));
            let norm = |part: &str| norm(&name(&format!("{part}.weight")));
            let has = |part: &str| has_tensor(model, &name(part));
            let maybe_norm =
                |part: &str| has(&format!("{part}.weight")).then(|| norm(part)).transpose();
            let maybe_bias = |part: &str| {
                let part = format!("{part}.bias");
                has(&part).then(|| floats(model, &name(&part))).transpose()
            };
            Ok(Layer {
                attn_norm: norm("attn_norm")?,
                q: weight("attn_q")?,
                k: weight("attn_k")?,
                v: weight("attn_v")?,
                o: weight("attn_output")?,
                q_bias: maybe_bias("attn_q")?,
                k_bias: maybe_bias("attn_k")?,
                v_bias: maybe_bias("attn_v")?,
                q_norm: maybe_norm("attn_q_norm")?,
                k_norm: maybe_norm("attn_k_norm")?,
                post_attn_norm: maybe_norm("post_attention_norm")?,
                ffn_norm: norm("ffn_norm")?,
                gate: weight("ffn_gate")?,
                up: weight("ffn_up")?,
                down: weight("ffn_down")?,
                post_ffn_norm: maybe_norm("post_ffw_norm")?,
            })
        };
        Ok(Self {
            embedding: Weight::load(model, "token_embd.weight")?,
            layers: (0..config.n_layers).map(layer).collect::<Result<_, _>>()?,
            output_norm: norm("output_norm.weight")?,
            output: (!config.tied_output)
                .then(|| Weight::load(model, "output.weight"))
                .transpose()?,
        })
    }

    /// The output head.
    pub fn head(&self) -> Matrix<'_> {
        self.output.as_ref().unwrap_or(&self.embedding).view()
    }
}

fn missing(name: &str) -> EngineError {
    EngineError::MissingTensor { tensor: name.to_owned() }
}

fn has_tensor(model: &ModelFile, name: &str) -> bool {
    model.tensors().iter().any(|info| info.name == name)
}

fn floats(model: &ModelFile, name: &str) -> Result<Vec<f32>, EngineError> {
    let tensor = model.tensor(name)?.ok_or_else(|| missing(name))?;
    tensor
        .to_f32()
        .ok_or_else(|| EngineError::NotFloats { tensor: name.to_owned(), dtype: tensor.dtype })
}

/// Model files and compute name the same formats, but know nothing of one another.
fn format(dtype: TensorType) -> Format {
    match dtype {
        TensorType::F32 => Format::F32,
        TensorType::F16 => Format::F16,
        TensorType::BF16 => Format::BF16,
        TensorType::Q4_0 => Format::Q4_0,
        TensorType::Q4_1 => Format::Q4_1,
        TensorType::Q5_0 => Format::Q5_0,
        TensorType::Q5_1 => Format::Q5_1,
        TensorType::Q8_0 => Format::Q8_0,
        TensorType::Q2_K => Format::Q2_K,
        TensorType::Q3_K => Format::Q3_K,
        TensorType::Q4_K => Format::Q4_K,
        TensorType::Q5_K => Format::Q5_K,
        TensorType::Q6_K => Format::Q6_K,
    }
}
