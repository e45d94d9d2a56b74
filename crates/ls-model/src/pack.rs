//! Packs: models laid out for reading the MLP's neurons from flash, a few at a time.
//!
//! A `.lspack` is one file, made once from a GGUF file or a safetensors folder. Attention, norms
//! and the output head lie in it as they did in the source. The three matrices of each MLP are
//! regrouped by neuron into chunks: records that are read at once and carry their own checksum.
//! The rows of the token embedding are records too, where it is not the output head as well.
//! The layout, to the last field, is in `docs/format.md`.
//!
//! Nothing is computed here. Gate and up rows are the source's bytes; the columns of the down
//! matrix, which in the source runs the other way, are made by the caller of [`write()`] and read by
//! whoever computes with them.
//!
//! ```
//! # use std::convert::Infallible;
//! # use std::ops::ControlFlow;
//! # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/f32.gguf");
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.lspack");
//! use ls_model::ModelFile;
//! use ls_model::pack::{ColumnType, Columns, PackOptions, verify_chunk, write};
//!
//! let model = ModelFile::open(source)?;
//! let (d_ff, d_model) = (model.config().d_ff, model.config().d_model);
//! let options = PackOptions { down: ColumnType::F32, ..PackOptions::default() };
//! // A real caller transposes ffn_down of this layer here.
//! let mut columns = |_layer| Ok::<_, Infallible>(Columns::new(vec![0; d_ff * d_model * 4]));
//! write(&model, &path, &options, &mut columns, &mut |_| ControlFlow::Continue(()))?;
//!
//! let packed = ModelFile::open(&path)?;
//! assert_eq!(packed.config(), model.config());
//! let layout = &packed.pack().expect("it is a pack").layers()[0];
//! let record = packed.share_range(layout.chunk_offset(0), layout.record_bytes)?;
//! verify_chunk(&record, 0, 0)?;
//! let gate = model.require("blk.0.ffn_gate.weight", &[d_ff, d_model])?;
//! assert!(gate.data.starts_with(&record[layout.gate(0)]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//! - A pack that opened has every tensor, row and neuron that its configuration asks for, in its
//!   place in the file. Opening reads neither tensors nor records.
//! - Each tensor, row record and chunk record has a checksum; who reads one can verify it.
//! - The file appears whole under its name or not at all, and carries all settings of the source.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod blobs;
mod checksum;
mod column;
mod directory;
mod facts;
mod file_error;
mod header;
mod layout;
mod plan;
mod read;
mod rows;
mod sink;
mod size;
mod write;
mod write_error;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use checksum::{ChunkDamage, RowDamage, TensorDamage, verify_chunk, verify_rows};
pub use column::ColumnType;
pub use facts::Facts;
pub use file_error::PackFileError;
pub use layout::LayerLayout;
pub use plan::PackOptions;
pub use read::Pack;
pub use rows::RowLayout;
pub use write::{Columns, Progress, Summary, write};
pub use write_error::PackError;

pub(crate) use read::{Blob, open};

/// Sections, tensors and records begin at multiples of this many bytes, so that they can be read
/// past the page cache. What is read so must also have a length that is a multiple of it.
pub const ALIGN: usize = 4096;
/// Smallest size of chunks that can be asked for.
pub const MIN_CHUNK_KIB: usize = 4;
/// Largest size of chunks that can be asked for.
pub const MAX_CHUNK_KIB: usize = 1024;
/// Size of chunks unless another is asked for: what flash reads nearly as fast as longer ones.
pub const DEFAULT_CHUNK_KIB: usize = 16;

/// Whether the file at `path` begins as a pack does, whatever its name. It may still be damaged.
pub fn is_pack(path: impl AsRef<Path>) -> bool {
    let mut start = [0; header::MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == header::MAGIC
}
