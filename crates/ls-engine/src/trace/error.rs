//! What can be wrong with a trace or its recording.

use std::io;
use std::path::{Path, PathBuf};

use crate::EngineError;

/// Errors of reading and recording traces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Not a file of this kind.
    #[error("{} is no {what}: it begins with {found:02x?}", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Written by another version, or with features that are not known.
    #[error("{}: {what} {found} is not known; this program reads {expected}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version or flags.
        what: &'static str,
        /// What the file says.
        found: u32,
        /// What can be read.
        expected: u32,
    },
    /// The file does not have the length that its header asks for.
    #[error("{} has {found} bytes, expected {expected}; record it again", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that it should have; of a file that is cut within its header, at least so many.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The bytes are not those that were written.
    #[error("{}: {part} is damaged: its checksum is {found:016x}, expected {expected:016x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The part.
        part: String,
        /// The checksum in the file.
        expected: u64,
        /// The checksum that the bytes have.
        found: u64,
    },
    /// A number that none of its kind is.
    #[error("{}: {what} is {found}, which cannot be", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// A layer that the trace does not have.
    #[error("layer {layer} is not in the trace, which has {n_layers}")]
    NoLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the trace.
        n_layers: usize,
    },
    /// The trace was made with something else.
    #[error("{} was made with another {what}; record it anew", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Not even one token fits the limit.
    #[error("a trace of {limit} bytes is too small; one token takes {needed}")]
    Limit {
        /// The limit asked for.
        limit: u64,
        /// The smallest one.
        needed: u64,
    },
    /// More tokens than a trace can count.
    #[error("{n_tokens} tokens are more than a trace can count; use fewer")]
    TooLong {
        /// Tokens of all windows.
        n_tokens: usize,
    },
    /// There is such a file already.
    #[error("{} exists already; remove it, or choose another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A recording of this name was interrupted.
    #[error("{} is an unfinished recording; resume it, or remove it", path.display())]
    Unfinished {
        /// Its file.
        path: PathBuf,
    },
    /// The model could not be computed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl TraceError {
    /// For `map_err` of operations on the file at `path`.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}
