//! What callers can get wrong about shapes.

use crate::{ColumnFormat, Format};

/// A matrix whose parts do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Rows of quantised formats are whole blocks.
    #[error("{cols} columns are not a whole number of {format} blocks of {}", format.block_len())]
    PartialBlock {
        /// The format.
        format: Format,
        /// Columns asked for.
        cols: usize,
    },
    /// Columns of quantised formats are whole groups.
    #[error("{len} values are not a whole number of {format} groups of {}", format.group_len())]
    PartialGroup {
        /// The format.
        format: ColumnFormat,
        /// Values in a column.
        len: usize,
    },
    /// The bytes are not those of `rows` rows.
    #[error("{rows} × {cols} weights in {format} are {expected} bytes, not {found}")]
    Length {
        /// The format.
        format: Format,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
        /// Bytes that the shape needs (saturated).
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}
