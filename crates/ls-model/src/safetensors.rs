//! Hugging Face safetensors: the header of one file, and the folder around it.

#![deny(clippy::indexing_slicing)]

mod error;
mod folder;
mod header;
mod names;

pub use error::SafetensorsError;
pub use folder::Folder;
pub use header::parse;

pub(crate) use folder::{TOKENIZER, open};
