//! CPU compute for quantised language models.

mod format;
mod isa;
mod pool;
mod quant;
mod simd;
mod tile;

pub use format::Format;
pub use isa::Isa;
pub use pool::Pool;
pub use quant::{GROUP, Q8Ref, Q8Rows, dequantize_row};
