//! CPU compute for quantised language models.
//!
//! Weights are multiplied where they lie, in the formats of GGUF; kernels for AVX-512 VNNI, AVX2 and
//! NEON with dot products are chosen at run time, beside a scalar form that defines the arithmetic.
//! It knows nothing of files, tokenizers or architectures: a caller hands in bytes and shapes.
//!
//! ```
//! use ls_cpu::{Activations, Cpu, Format, Isa, Matrix};
//!
//! // Two rows of four weights, as a file would hold them.
//! let bytes: Vec<u8> =
//!     [1.0f32, 2.0, 3.0, 4.0, 0.5, 0.5, 0.5, 0.5].iter().flat_map(|w| w.to_le_bytes()).collect();
//! let matrix = Matrix::new(Format::F32, 2, 4, &bytes)?;
//!
//! let cpu = Cpu::new(2, Isa::detect())?;
//! let mut x = Activations::new(1, 4);
//! x.fill(&cpu, 1, &|_row, values| values.copy_from_slice(&[1.0, 0.0, 0.0, 2.0]));
//! let mut out = [0.0; 2];
//! cpu.matmul(matrix, &x, 1, &mut out);
//! assert_eq!(out, [9.0, 1.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//! - Quantised rows are multiplied with activations of 8 bits, a scale for each group of 32
//!   ([`Activations`]); float rows with f32.
//! - Each output is computed whole by one thread: the number of threads changes no bit.
//! - Norms, gates and softmax give the same bits on every instruction set; products differ in the
//!   order of their sums.
//! - In the steady state nothing is allocated: threads keep their scratch memory.
//! - Shapes that do not fit are panics, stated with each function: they are the caller's mistakes,
//!   never a file's. Only [`Matrix::new`], which sees a file's bytes, returns an error.

mod attention;
mod chosen;
mod chunk;
mod column;
mod elementwise;
mod error;
mod format;
mod group;
mod isa;
mod mask;
mod matmul;
mod matrix;
mod mlp;
mod pool;
mod quant;
mod simd;
mod tile;

pub use attention::{AttentionShape, KvCache};
pub use chosen::Touched;
pub use chunk::{Chunk, ChunkShape};
pub use column::{ColumnFormat, dequantize_column, quantize_column};
pub use elementwise::{Gate, Pairing, add, rms_norm, rms_norm_in_place, rope};
pub use error::ShapeError;
pub use format::Format;
pub use isa::Isa;
pub use mask::{Mask, Masks, set_range};
pub use matmul::{BATCH, Cpu, Product};
pub use matrix::{Activations, Matrix};
pub use pool::Pool;
pub use quant::{GROUP, Q8Ref, Q8Rows, dequantize_row};
