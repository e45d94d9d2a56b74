//! The weights of a decoder, in the file's own bytes.

use ls_cpu::{Chunk, ChunkShape, ColumnFormat, Format, Matrix};
use ls_model::pack::{ColumnType, LayerLayout};
use ls_model::{Config, TensorType};

use crate::EngineError;
use crate::bytes::Bytes;
use crate::embedding::Embedding;
use crate::tensors::Tensors;

/// A weight matrix in the mapped file, or in memory that was read from it.
#[derive(Debug)]
pub(crate) struct Weight {
    format: Format,
    rows: usize,
    cols: usize,
    data: Bytes,
}

impl Weight {
    pub fn load(tensors: &Tensors<'_>, name: &str) -> Result<Self, EngineError> {
        let tensor = tensors.require(name)?;
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

/// The gated MLP of a layer.
#[derive(Debug)]
pub(crate) enum Mlp {
    /// Matrices by row: `gate` and `up` `[d_ff, d_model]`, `down` `[d_model, d_ff]`.
    Rows { gate: Weight, up: Weight, down: Weight },
    /// Chunks of neurons, which lie elsewhere.
    Chunks(ChunkedMlp),
}

/// An MLP whose weights are chunks.
#[derive(Debug)]
pub(crate) struct ChunkedMlp {
    pub layout: LayerLayout,
    pub shape: ChunkShape,
}

impl ChunkedMlp {
    fn new(layer: usize, layout: LayerLayout) -> Result<Self, EngineError> {
        let formats = (format(layout.gate), format(layout.up), column_format(layout.down));
        let shape =
            ChunkShape::new(layout.d_model, formats, (layout.up_at, layout.down_at)).map_err(
                |source| EngineError::Shape { tensor: format!("chunks of layer {layer}"), source },
            )?;
        Ok(Self { layout, shape })
    }

    /// The neurons of a segment.
    pub fn neurons(&self, segment: u32) -> std::ops::Range<usize> {
        let chunks = self.layout.segment(segment);
        self.layout.neurons(chunks.start).start..self.layout.neurons(chunks.end).start
    }

    /// The chunks of a segment, of whose records they are.
    pub fn chunks<'r>(
        &self,
        segment: u32,
        records: impl Iterator<Item = &'r [u8]>,
    ) -> impl Iterator<Item = Chunk<'r>> {
        let layout = self.layout;
        layout
            .segment(segment)
            .zip(records)
            .map(move |(chunk, bytes)| Chunk { bytes, n_neurons: layout.neurons_in(chunk) })
    }
}

/// Packs and compute name the same formats, but know nothing of one another.
pub(crate) fn column_format(column: ColumnType) -> ColumnFormat {
    match column {
        ColumnType::F32 => ColumnFormat::F32,
        ColumnType::F16 => ColumnFormat::F16,
        ColumnType::BF16 => ColumnFormat::BF16,
        ColumnType::Q8 => ColumnFormat::Q8,
        ColumnType::Q6 => ColumnFormat::Q6,
        ColumnType::Q5 => ColumnFormat::Q5,
        ColumnType::Q4 => ColumnFormat::Q4,
    }
}

/// One decoder layer. Shapes: `q` is `[n_heads · head_dim, d_model]`, `k` and `v`
/// `[n_kv_heads · head_dim, d_model]`, `o` `[d_model, n_heads · head_dim]`.
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
    pub mlp: Mlp,
    pub post_ffn_norm: Option<Vec<f32>>,
}

/// All weights.
#[derive(Debug)]
pub(crate) struct Weights {
    /// `[vocab_size, d_model]`
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// `[vocab_size, d_model]`; `None`: the embedding.
    pub output: Option<Weight>,
}

impl Weights {
    /// Loads all layers. `layouts` are those of the MLPs' chunks, none if they are matrices;
    /// `embedding` the token embedding, if it does not come from a tensor.
    pub fn load(
        tensors: &Tensors<'_>,
        config: &Config,
        layouts: &[LayerLayout],
        embedding: Option<Embedding>,
    ) -> Result<Self, EngineError> {
        let norm = |name: &str| -> Result<Vec<f32>, EngineError> {
            let mut weights = tensors.floats(name)?;
            weights.iter_mut().for_each(|w| *w += config.norm_weight_offset);
            Ok(weights)
        };
        let layer = |i: usize| -> Result<Layer, EngineError> {
            let name = |part: &str| format!("blk.{i}.{part}");
            let weight = |part: &str| Weight::load(tensors, &name(&format!("{part}.weight")));
            let norm = |part: &str| norm(&name(&format!("{part}.weight")));
            let has = |part: &str| tensors.has(&name(part));
            let maybe_norm =
                |part: &str| has(&format!("{part}.weight")).then(|| norm(part)).transpose();
            let maybe_bias = |part: &str| {
                let part = format!("{part}.bias");
                has(&part).then(|| tensors.floats(&name(&part))).transpose()
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
                mlp: match layouts.get(i) {
                    Some(layout) => Mlp::Chunks(ChunkedMlp::new(i, *layout)?),
                    None => Mlp::Rows {
                        gate: weight("ffn_gate")?,
                        up: weight("ffn_up")?,
                        down: weight("ffn_down")?,
                    },
                },
                post_ffn_norm: maybe_norm("post_ffw_norm")?,
            })
        };
        Ok(Self {
            embedding: match embedding {
                Some(embedding) => embedding,
                None => Embedding::Matrix(Weight::load(tensors, "token_embd.weight")?),
            },
            layers: (0..config.n_layers).map(layer).collect::<Result<_, _>>()?,
            output_norm: norm("output_norm.weight")?,
            output: (!config.tied_output)
                .then(|| Weight::load(tensors, "output.weight"))
                .transpose()?,
        })
    }

    /// The output head.
    pub fn head(&self) -> Matrix<'_> {
        match (&self.output, &self.embedding) {
            (Some(output), _) | (None, Embedding::Matrix(output)) => output.view(),
            _ => unreachable!("an embedding that is the output head is a matrix"),
        }
    }
}

/// Model files and compute name the same formats, but know nothing of one another.
pub(crate) fn format(dtype: TensorType) -> Format {
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
