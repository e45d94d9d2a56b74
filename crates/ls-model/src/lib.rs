//! Reads model files: GGUF, safetensors and packs, configuration, tokenizer, chat template. Writes
//! packs.
//!
//! It is not an engine: tensors are handed out as the bytes that the file has, and computing with
//! them is the caller's affair.
//!
//! ```no_run
//! use ls_model::ModelFile;
//!
//! let model = ModelFile::open("model.gguf")?;
//! let config = model.config();
//! let embedding = model.require("token_embd.weight", &[config.vocab_size, config.d_model])?;
//! println!("{}: {} layers, embedding in {}", config.name, config.n_layers, embedding.dtype);
//! # Ok::<(), ls_model::ModelError>(())
//! ```
//!
//! # What holds
//! - No byte of a file is trusted. Lengths, counts and offsets are compared with what is there
//!   before they are used, and memory is allocated in proportion to the file at most. Damage is
//!   a [`ModelError`] that names file, place, what was expected and what was found.
//! - Headers are read into memory; tensor data is mapped read-only and never copied.
//! - A [`ModelFile`] that opened has every tensor that its architecture needs, in the right shape:
//!   in one piece, or, in a [`pack`], in records whose places are known.
//! - A feature that would change the answer and is not supported is an error, never ignored.
//!
//! # What is asked of the user
//! Do not write to a model file or cut it while it is open; replace it by renaming another over
//! it. A cut is noticed when a tensor is handed out ([`ModelFile::tensor`]) and by
//! [`ModelFile::check_whole`]. One that happens between that and the reading of the tensor's bytes
//! ends the process with SIGBUS, as for every program that maps files.

pub mod config;
mod dtype;
mod error;
mod file;
pub mod gguf;
mod json;
mod map;
pub mod pack;
pub mod safetensors;
mod schema;
mod shared;
pub mod template;
mod tensor;
pub mod tokenizer;
mod weights;

pub use config::Config;
pub use dtype::TensorType;
pub use error::{ModelError, Warning};
pub use file::{ModelFile, Source};
pub use shared::{SharedBytes, SharedTensor};
pub use template::ChatTemplate;
pub use tensor::{Tensor, TensorInfo};
pub use tokenizer::{Tokenizer, TokenizerError};
