//! What can be wrong with a model file.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::TensorType;
use crate::gguf::{GgufError, MetadataError};
use crate::pack::PackFileError;
use crate::safetensors::SafetensorsError;

/// Errors of reading and writing model files.
///
/// Each says which file, what in it, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither a regular file nor a folder, where a file was expected.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A folder that holds no Hugging Face model.
    #[error("{} is a folder without config.json; expected a .gguf file or a safetensors folder", path.display())]
    NotAModelFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A git-lfs pointer lies where the file should be.
    #[error("{} is a git-lfs pointer, not the file itself; fetch it with `git lfs pull`", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// Not a valid GGUF file.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: GgufError,
    },
    /// Not a valid safetensors file.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: SafetensorsError,
    },
    /// Not a valid pack.
    #[error("{}: {source}", path.display())]
    Pack {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: PackFileError,
    },
    /// A JSON file that does not parse.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file is larger than such files are.
    #[error("{} has {found} bytes; at most {limit} are read", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Most bytes that are read.
        limit: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// Metadata that is needed is missing or of another type.
    #[error("{}: {source}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// Which key, and why.
        source: MetadataError,
    },
    /// A setting in a JSON file is missing or of another type.
    #[error("{}: {key:?} is {found}, expected {expected}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The setting's name.
        key: String,
        /// What was expected.
        expected: &'static str,
        /// What was found, shortened.
        found: String,
    },
    /// A value that no working model has.
    #[error("{}: {key} is {found}, expected {expected}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The value's key in the file.
        key: String,
        /// Values that are accepted.
        expected: String,
        /// The value.
        found: String,
    },
    /// A model family that is not known.
    #[error("{}: unsupported architecture {found:?}; supported: llama, mistral (as llama), qwen2, qwen3, gemma3", path.display())]
    UnsupportedArchitecture {
        /// The file.
        path: PathBuf,
        /// The family's name in the file.
        found: String,
    },
    /// A feature that is not computed with; ignoring it would give wrong answers.
    #[error("{}: {key} = {found} is not supported{hint}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key that asks for it.
        key: String,
        /// The key's value.
        found: String,
        /// What would be supported, or nothing.
        hint: &'static str,
    },
    /// A tensor whose effect is not computed; ignoring it would give wrong answers.
    #[error("{}: tensor {tensor:?} changes what the model computes and is not supported", path.display())]
    UnsupportedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// One file of a split model is not there.
    #[error("{} is missing: {} is one of {n_shards} parts, and all must lie in one folder", missing.display(), path.display())]
    MissingShard {
        /// The file that was opened.
        path: PathBuf,
        /// The file that is not there.
        missing: PathBuf,
        /// Number of parts.
        n_shards: usize,
    },
    /// A part of a split model whose name does not say which.
    #[error("{} is one of {n_shards} parts, but its name does not end in -00001-of-{n_shards:05}.gguf; give it its original name", path.display())]
    ShardName {
        /// The file.
        path: PathBuf,
        /// Number of parts.
        n_shards: usize,
    },
    /// Parts of a split model that do not belong together.
    #[error("{}: {key} is {found}, expected {expected}; the parts are not of one model", path.display())]
    ShardMismatch {
        /// The file.
        path: PathBuf,
        /// The key that differs.
        key: &'static str,
        /// What the other parts say.
        expected: u64,
        /// What this part says.
        found: u64,
    },
    /// A tensor is in two files, or two of its names mean the same.
    #[error("{}: tensor {tensor:?} is there twice", path.display())]
    DuplicateTensor {
        /// The file with the second one.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// The index says that a tensor is in a file, but it is not.
    #[error("{}: tensor {tensor:?} is not there, though the index says so", path.display())]
    MissingFromShard {
        /// The file that should hold it.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor that the architecture needs is not there.
    #[error("{}: tensor {tensor:?} is missing, expected with shape {expected:?}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape that it should have, outermost first.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("{}: tensor {tensor:?} has shape {found:?}, expected {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape that it should have, outermost first.
        expected: Vec<usize>,
        /// The shape that it has.
        found: Vec<usize>,
    },
    /// A tensor has a type that it must not have.
    #[error("{}: tensor {tensor:?} is of type {found}, expected {expected}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Types that are accepted.
        expected: &'static str,
        /// The type that it has.
        found: TensorType,
    },
    /// A tensor that was asked for in one piece is stored in many.
    #[error("{}: tensor {tensor:?} is there, but in pieces; see the layout of the pack", path.display())]
    Scattered {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
    /// Bytes were asked for that the file does not have.
    #[error("{} has {file_len} bytes; {n_bytes} at offset {offset} are not there", path.display())]
    OutOfFile {
        /// The file.
        path: PathBuf,
        /// First byte that was asked for.
        offset: u64,
        /// Bytes that were asked for.
        n_bytes: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// The file was cut after it was opened.
    #[error("{}: tensor {tensor:?} ends at byte {end}, but the file was cut from {expected} to {found} bytes since it was opened; open it again", path.display())]
    Shrank {
        /// The file.
        path: PathBuf,
        /// The tensor that was asked for.
        tensor: String,
        /// End of its data, in bytes from the start of the file.
        end: u64,
        /// Length when opened, in bytes.
        expected: u64,
        /// Length now, in bytes.
        found: u64,
    },
}

/// Something odd in a model file that does not keep it from working.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A tensor that the architecture does not have; it is ignored.
    UnknownTensor {
        /// The tensor's name.
        tensor: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTensor { tensor } => {
                write!(f, "tensor {tensor:?} is unknown to this architecture and ignored")
            }
        }
    }
}
