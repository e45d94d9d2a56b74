//! Why a pack could not be written.

use std::io;
use std::path::PathBuf;

use super::{ColumnType, MAX_CHUNK_KIB, MIN_CHUNK_KIB};
use crate::ModelError;

/// Errors of [`write`](super::write). `E` is what the caller's columns can fail with.
///
/// Whatever it is, no file was left behind or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError<E> {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The caller could not make the columns of a layer.
    #[error("the down matrix of layer {layer} cannot be converted: {source}")]
    Columns {
        /// The layer.
        layer: usize,
        /// The caller's error.
        source: E,
    },
    /// The columns of a layer have another length than the layer asks for.
    #[error("the columns of layer {layer} have {found} bytes, expected {expected}")]
    ColumnsLen {
        /// The layer.
        layer: usize,
        /// Neurons × bytes of a column.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The model is a pack already.
    #[error("{} is a pack already; pack the model that it was made from", path.display())]
    IsPack {
        /// The model.
        path: PathBuf,
    },
    /// Chunks of this size are not made.
    #[error("chunks of {found} KiB cannot be made; choose {MIN_CHUNK_KIB} to {MAX_CHUNK_KIB}")]
    ChunkSize {
        /// The size asked for.
        found: usize,
    },
    /// Columns of this type cannot have that many values.
    #[error("layer {layer} cannot have columns of type {down}: {d_model} values are no whole number of groups of {}", down.group_len())]
    ColumnType {
        /// The layer.
        layer: usize,
        /// The type asked for.
        down: ColumnType,
        /// Values of a column.
        d_model: usize,
    },
    /// Options that are given for each layer are not as many as there are layers.
    #[error("{what} are given for {found} layers, but the model has {expected}")]
    LayerCount {
        /// Which options.
        what: &'static str,
        /// Layers of the model.
        expected: usize,
        /// Layers that the options are for.
        found: usize,
    },
    /// An order of neurons does not name each of them once.
    #[error("the order of layer {layer} does not name each of its {d_ff} neurons once")]
    Order {
        /// The layer.
        layer: usize,
        /// Neurons of the layer.
        d_ff: usize,
    },
    /// Sizes that a pack cannot hold.
    #[error("the sizes of {what} are too large for a pack")]
    TooLarge {
        /// Whose sizes.
        what: String,
    },
    /// There is a file of this name, and it was not asked to replace it.
    #[error("{} exists already; choose another name, or force its replacement", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The pack would replace the model that it is made from.
    #[error("{} is the model itself; choose another name for the pack", path.display())]
    OntoSource {
        /// The file.
        path: PathBuf,
    },
    /// The disk is too full.
    #[error(
        "{} needs {needed} bytes{}; free some space or choose another folder",
        path.display(),
        free.map_or(", and the disk is full".to_owned(), |free| format!(", but the disk has {free} free"))
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes of the whole pack.
        needed: u64,
        /// Bytes that are free; `None` when the system did not say beforehand.
        free: Option<u64>,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The caller's progress function said to stop.
    #[error("packing was stopped")]
    Stopped,
}
