//! Storage formats of weight matrices.

use std::fmt;

/// How the elements of a weight row are stored, byte for byte as GGUF has them.
///
/// Quantised rows are blocks of [`Format::block_len`] weights. Whatever the format, a block is
/// read as groups of 32 weights `w = scale · q + min`, with `q` an unsigned byte and one pair of
/// scale and min for each half group of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Format {
    /// Every format, in a fixed order.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Weights in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
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
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Whether rows are multiplied with quantised activations (integer dot products) and not
    /// with f32 ones.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `cols` weights; `None` if `cols` is not a whole number of blocks.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Largest `q` of the unpacked form: bounds how many products fit 16 bits.
    pub(crate) const fn q_bits(self) -> u32 {
        match self {
            Self::Q2_K => 2,
            Self::Q3_K => 3,
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => 5,
            Self::Q6_K => 6,
            _ => 8,
        }
    }

    /// The `q` of a weight that is zero, in formats whose min is always `-center · scale`; zero in
    /// formats with mins of their own.
    pub(crate) const fn center(self) -> u8 {
        match self {
            Self::Q3_K => 4,
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6_K => 32,
            Self::Q8_0 => 128,
            _ => 0,
        }
    }

    /// Whether the two halves of a group of 32 have scales of their own.
    pub(crate) const fn has_half_scales(self) -> bool {
        matches!(self, Self::Q2_K | Self::Q3_K | Self::Q6_K)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
