//! Tensors of a model file.

use crate::TensorType;

/// A tensor's name, type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name, as GGUF has it: `blk.0.attn_q.weight`.
    pub name: String,
    /// Element type.
    pub dtype: TensorType,
    /// Dimensions, outermost first: a matrix is `[rows, cols]`.
    pub shape: Vec<usize>,
    /// Bytes of data.
    pub n_bytes: usize,
    /// Which file of the model holds it.
    pub(crate) file_idx: usize,
    /// Where its data begins, in bytes from the start of that file.
    pub(crate) offset: u64,
}

impl TensorInfo {
    /// Where the data begins, in bytes from the start of its file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Index of the file that holds it, into [`ModelFile::files`](crate::ModelFile::files).
    pub fn file_idx(&self) -> usize {
        self.file_idx
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A tensor with its data, borrowed from the mapped file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tensor<'a> {
    /// Name, as GGUF has it: `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// Element type.
    pub dtype: TensorType,
    /// Dimensions, outermost first: a matrix is `[rows, cols]`.
    pub shape: &'a [usize],
    /// Rows one after the other, little-endian. No alignment is promised: read elements from
    /// their bytes.
    pub data: &'a [u8],
}

impl Tensor<'_> {
    /// All elements as `f32`, or `None` when the type is quantised.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        self.dtype.to_f32(self.data)
    }
}
