//! What can be wrong with a file of predictors.

use std::io;
use std::path::PathBuf;

/// Errors of reading and writing predictors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Not a file of this kind.
    #[error("{} is no file of predictors: it begins with {found:02x?}", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
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
    /// Bytes are missing, or there are too many.
    #[error("{}: {part} ends early or has bytes too many; train it again", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Where.
        part: String,
    },
    /// The bytes are not those that were written.
    #[error("{}: {part} is damaged: its checksum is {found:016x}, expected {expected:016x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Where.
        part: String,
        /// The checksum in the file.
        expected: u64,
        /// That of the bytes.
        found: u64,
    },
    /// A number that none of its kind is.
    #[error("{}: {what} of layer {layer} is no number that it can be", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which number.
        what: &'static str,
        /// The layer.
        layer: usize,
    },
    /// A predictor's own bytes are wrong.
    #[error("{}: the predictor of layer {layer}: {source}", path.display())]
    Predictor {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: usize,
        /// What is wrong.
        source: ls_hash::HashError,
    },
    /// Made for something else.
    #[error("{} was trained for another {what}; train it again for this one", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Predictors of one model are of no use to another.
    #[error("{} and {} are not packs of the same model file", from.display(), to.display())]
    OtherModel {
        /// The pack whose predictors there are.
        from: PathBuf,
        /// The one that needs some.
        to: PathBuf,
    },
    /// The training was not finished.
    #[error("{} has predictors of {found} of {n_layers} layers; finish it with --resume", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// Layers of the pack.
        n_layers: usize,
        /// Layers in the file.
        found: usize,
    },
    /// The model is no pack.
    #[error("{} is no pack; make one with `leanstream pack`", path.display())]
    NoPack {
        /// The model.
        path: PathBuf,
    },
}
