//! What a pack says about how it was made.

use serde::{Deserialize, Serialize};

use super::ColumnType;

/// How a pack was made, for people and for tools. Nothing is computed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Facts {
    /// The program that made it.
    pub producer: String,
    /// The model's name.
    pub name: String,
    /// File or folder that it was made from, without the path to it.
    pub source_file: String,
    /// Bytes of the source's tensor files.
    pub source_bytes: u64,
    /// Size of chunks that was asked for.
    pub chunk_kib: u32,
    /// Types of the down columns, one for each layer.
    pub down: Vec<ColumnType>,
    /// Whether neurons lie in another order than in the source, in any layer.
    pub reordered: bool,
}
