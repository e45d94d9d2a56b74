//! CPU compute for quantised language models.

mod attention;
mod elementwise;
mod error;
mod format;
mod isa;
mod matmul;
mod matrix;
mod mlp;
mod pool;
mod quant;
mod simd;
mod tile;

pub use attention::{AttentionShape, KvCache};
pub use elementwise::{Gate, Pairing, add, rms_norm, rms_norm_in_place, rope};
pub use error::ShapeError;
pub use format::Format;
pub use isa::Isa;
pub use matmul::{Cpu, Product};
pub use matrix::{Activations, Matrix};
pub use pool::Pool;
pub use quant::{GROUP, Q8Ref, Q8Rows, dequantize_row};
