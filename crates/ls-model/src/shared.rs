//! Tensors that keep their file mapped for as long as they live.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

use crate::TensorType;

/// Bytes of a mapped file, kept mapped by this handle.
///
/// Unlike the bytes of a [`Tensor`](crate::Tensor) they borrow from nothing, so that a structure
/// can hold a model and its weights side by side. Before a stretch of work on them, call
/// [`ModelFile::check_whole`](crate::ModelFile::check_whole).
#[derive(Clone)]
pub struct SharedBytes {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Bytes `range` of `map`, if it has them.
    pub(crate) fn new(map: Arc<Mmap>, range: Range<usize>) -> Option<Self> {
        map.get(range.clone())?;
        Some(Self { map, range })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({:?})", self.range)
    }
}

/// A tensor that keeps its file mapped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SharedTensor {
    /// Element type.
    pub dtype: TensorType,
    /// Dimensions, outermost first: a matrix is `[rows, cols]`.
    pub shape: Vec<usize>,
    /// Rows one after the other, as in [`Tensor::data`](crate::Tensor::data).
    pub data: SharedBytes,
}
