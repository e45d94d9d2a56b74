//! How the columns of down matrices are stored.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a down matrix's columns.
///
/// `F32`, `F16` and `BF16` hold plain values. The others hold groups of [`ColumnType::GROUP_LEN`]
/// values along the hidden size; what the bytes of a group mean is between the one who makes the
/// columns and the one who computes with them: a pack knows their size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ColumnType {
    F32,
    F16,
    BF16,
    Q8,
    Q6,
    Q5,
    Q4,
}

impl ColumnType {
    /// Every type, in a fixed order.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::BF16, Self::Q8, Self::Q6, Self::Q5, Self::Q4];

    /// Values in one group of a quantised type.
    pub const GROUP_LEN: usize = 32;

    /// Values in one group; 1 for plain values.
    pub const fn group_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8 | Self::Q6 | Self::Q5 | Self::Q4 => Self::GROUP_LEN,
        }
    }

    /// Bytes of one group.
    pub const fn group_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8 => 34,
            Self::Q6 => 26,
            Self::Q5 => 22,
            Self::Q4 => 18,
        }
    }

    /// Bytes of a column of `d_model` values, or `None` when `d_model` is not a whole number of
    /// groups or the size overflows.
    pub fn column_bytes(self, d_model: usize) -> Option<usize> {
        if !d_model.is_multiple_of(self.group_len()) {
            return None;
        }
        (d_model / self.group_len()).checked_mul(self.group_bytes())
    }

    /// The type's name, as in `Q6`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8 => "Q8",
            Self::Q6 => "Q6",
            Self::Q5 => "Q5",
            Self::Q4 => "Q4",
        }
    }

    /// The number that stands for the type in a file.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::BF16 => 2,
            Self::Q4 => 4,
            Self::Q5 => 5,
            Self::Q6 => 6,
            Self::Q8 => 8,
        }
    }

    /// The type that a number stands for.
    pub(super) fn from_code(found: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == found)
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_match_both_ways() {
        for dtype in ColumnType::ALL {
            assert_eq!(ColumnType::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(ColumnType::from_code(3), None);
    }

    #[test]
    fn columns_are_whole_groups() {
        assert_eq!(ColumnType::Q6.column_bytes(1536), Some(1248));
        assert_eq!(ColumnType::Q8.column_bytes(64), Some(68));
        assert_eq!(ColumnType::Q4.column_bytes(63), None);
        assert_eq!(ColumnType::BF16.column_bytes(3), Some(6));
        assert_eq!(ColumnType::F32.column_bytes(usize::MAX), None);
    }
}
