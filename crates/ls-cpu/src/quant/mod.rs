//! Quantised weights and activations.

mod activations;
mod unpack;

pub(crate) use activations::{Q8Mut, Q8Split, quantize};
pub use activations::{Q8Ref, Q8Rows};
pub use unpack::dequantize_row;
pub(crate) use unpack::{Unpacked, unpack_block};

/// Elements of one activation group: they share a scale.
pub const GROUP: usize = 32;
