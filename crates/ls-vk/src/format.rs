//! How weights are stored: rows as GGUF has them, columns as packs have them.

use std::fmt;

/// Values that share a scale in columns, and that a thread handles at once in rows.
pub const GROUP: usize = 32;

/// Storage of a gate or up row, byte for byte as in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
#[repr(u32)]
pub enum RowFormat {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    Q4_0 = 3,
    Q4_1 = 4,
    Q5_0 = 5,
    Q5_1 = 6,
    Q8_0 = 7,
    Q4_K = 8,
    Q5_K = 9,
    Q6_K = 10,
}

impl RowFormat {
    /// Every format, in a fixed order.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Weights in one block of the format.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            _ => 32,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Whether weights are integers with scales.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `d` weights; `None` if they are not whole blocks.
    pub fn row_bytes(self, d: usize) -> Option<usize> {
        if !d.is_multiple_of(self.block_len()) {
            return None;
        }
        (d / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Storage of a down column.
///
/// The quantised ones are groups of 32 values `d · q`; a column is the f16 `d` of all its groups,
/// then the integers of each group, half of their range added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ColumnFormat {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    Q8 = 3,
    Q6 = 4,
    Q5 = 5,
    Q4 = 6,
}

impl ColumnFormat {
    /// Every format, in a fixed order.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::BF16, Self::Q8, Self::Q6, Self::Q5, Self::Q4];

    /// Bytes of 32 values, scale included.
    pub const fn group_bytes(self) -> usize {
        match self {
            Self::F32 => 128,
            Self::F16 | Self::BF16 => 64,
            Self::Q8 => 34,
            Self::Q6 => 26,
            Self::Q5 => 22,
            Self::Q4 => 18,
        }
    }

    /// Whether values are integers that share a scale.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Bytes of a column of `d` values; `None` if they are not whole groups of 32.
    pub fn column_bytes(self, d: usize) -> Option<usize> {
        if !d.is_multiple_of(GROUP) {
            return None;
        }
        (d / GROUP).checked_mul(self.group_bytes())
    }
}

impl fmt::Display for ColumnFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_file_formats() {
        assert_eq!(RowFormat::Q4_0.row_bytes(4096), Some(2304));
        assert_eq!(RowFormat::Q6_K.row_bytes(512), Some(420));
        assert_eq!(RowFormat::Q4_K.row_bytes(96), None);
        assert_eq!(ColumnFormat::Q6.column_bytes(1536), Some(1248));
        assert_eq!(ColumnFormat::F16.column_bytes(64), Some(128));
        assert_eq!(ColumnFormat::Q4.column_bytes(40), None);
    }
}
