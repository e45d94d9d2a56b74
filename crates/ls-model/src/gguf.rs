//! GGUF files: reading, validated to the last offset, and writing.
//!
//! The header is read into memory and parsed in place; tensor data stays in the mapped file.
//! Nothing in a file is trusted: each length and offset is compared with what is there before it
//! is used, and what is allocated is in proportion to the bytes that are really there.

#![deny(clippy::indexing_slicing)]

mod cursor;
mod error;
mod image;
mod metadata;
mod open;
mod parse;
mod types;
mod value;
pub mod write;

pub use error::{GgufError, Place};
pub use metadata::{FromValue, Metadata, MetadataError, Mismatch};
pub use parse::{Header, parse};
pub use value::{Array, Value, ValueType};

pub(crate) use cursor::{Cursor, Short};
pub(crate) use image::{image, parse_image};
pub(crate) use open::open;
pub(crate) use parse::first_overlap;
pub(crate) use types::{code as type_code, from_code as type_from_code};
