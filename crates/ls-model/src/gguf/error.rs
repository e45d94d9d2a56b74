//! What can be wrong with the bytes of a GGUF file.

use std::fmt;

use super::metadata::MetadataError;

/// A part of a GGUF file, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Magic, version and counts.
    Header,
    /// The name of the metadata entry with this index.
    KeyName(u64),
    /// The value of this metadata key.
    Key(String),
    /// The name of the tensor with this index.
    TensorName(u64),
    /// The entry of this tensor in the table of tensors.
    TensorInfo(String),
    /// The data of this tensor.
    TensorData(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::KeyName(idx) => write!(f, "the name of metadata key {idx}"),
            Self::Key(key) => write!(f, "metadata key {key:?}"),
            Self::TensorName(idx) => write!(f, "the name of tensor {idx}"),
            Self::TensorInfo(name) => write!(f, "the entry of tensor {name:?}"),
            Self::TensorData(name) => write!(f, "the data of tensor {name:?}"),
        }
    }
}

/// Bytes that are not a valid GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it begins with \"{}\", expected \"GGUF\"", found.escape_ascii())]
    Magic {
        /// The first bytes of the file, at most four.
        found: Vec<u8>,
    },
    /// The file was written for big-endian machines.
    #[error("a big-endian GGUF file (version {version}); convert it to little-endian")]
    BigEndian {
        /// Version, read as big-endian.
        version: u32,
    },
    /// A version of the format that is not known.
    #[error("GGUF version {found} is not supported, expected 2 or 3")]
    Version {
        /// Version in the file.
        found: u32,
    },
    /// Something reaches beyond the end of the file.
    #[error(
        "{place} needs {needed} bytes at offset {offset}, but the file has {file_len} bytes; \
         it is truncated or damaged"
    )]
    Truncated {
        /// What is cut.
        place: Place,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// Its length in bytes.
        needed: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// A count is larger than the file could hold.
    #[error("the header counts {found} {of}, but a file of {file_len} bytes holds at most {max}")]
    Count {
        /// What is counted.
        of: &'static str,
        /// The count.
        found: u64,
        /// What would fit.
        max: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The header is longer than any sensible one.
    #[error("{place} at offset {offset} makes the header longer than {limit} bytes")]
    HeaderTooLong {
        /// What is beyond the limit.
        place: Place,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// Longest header that is read, in bytes.
        limit: u64,
    },
    /// A name is not UTF-8 or longer than names are.
    #[error("{place} at offset {offset} is not a name: {reason}")]
    Name {
        /// Whose name.
        place: Place,
        /// Where it ends, in bytes from the start of the file.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A metadata value has a type that the format does not have.
    #[error("{place} has value type {found} at offset {offset}, expected 0 to 12")]
    ValueType {
        /// Whose value.
        place: Place,
        /// Where the type ends, in bytes from the start of the file.
        offset: u64,
        /// The type's number.
        found: u32,
    },
    /// Arrays of arrays of arrays …
    #[error("{place} nests arrays more than {limit} deep at offset {offset}")]
    Nesting {
        /// Whose value.
        place: Place,
        /// Where, in bytes from the start of the file.
        offset: u64,
        /// Deepest nesting that is read.
        limit: u32,
    },
    /// A metadata key appears twice.
    #[error("metadata key {key:?} appears twice, the second time at offset {offset}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one's value begins, in bytes from the start of the file.
        offset: u64,
    },
    /// A tensor's name appears twice.
    #[error("tensor {tensor:?} appears twice, the second time at offset {offset}")]
    DuplicateTensor {
        /// The tensor's name.
        tensor: String,
        /// Where the second entry begins, in bytes from the start of the file.
        offset: u64,
    },
    /// `general.alignment` is not usable.
    #[error("general.alignment is {found}, expected a power of two from 8 to {max}")]
    Alignment {
        /// The value.
        found: u64,
        /// The largest that is accepted.
        max: u64,
    },
    /// A tensor has too many dimensions, or none.
    #[error("tensor {tensor:?} has {found} dimensions, expected 1 to 4 (offset {offset})")]
    Dimensions {
        /// The tensor's name.
        tensor: String,
        /// Where the number lies, in bytes from the start of the file.
        offset: u64,
        /// The number of dimensions.
        found: u32,
    },
    /// A dimension is zero.
    #[error("tensor {tensor:?} has a dimension of zero: {shape:?} (offset {offset})")]
    ZeroDimension {
        /// The tensor's name.
        tensor: String,
        /// Where the dimensions begin, in bytes from the start of the file.
        offset: u64,
        /// The dimensions, outermost first.
        shape: Vec<u64>,
    },
    /// The dimensions multiply to more than can be addressed.
    #[error("tensor {tensor:?} is too large to address: {shape:?} (offset {offset})")]
    Overflow {
        /// The tensor's name.
        tensor: String,
        /// Where the dimensions begin, in bytes from the start of the file.
        offset: u64,
        /// The dimensions, outermost first.
        shape: Vec<u64>,
    },
    /// A tensor's type is not one that is computed with.
    #[error("unsupported type {found} in tensor {tensor:?} (offset {offset})")]
    UnsupportedType {
        /// The tensor's name.
        tensor: String,
        /// Where the type lies, in bytes from the start of the file.
        offset: u64,
        /// The type's name, or its number where it has no known name.
        found: String,
    },
    /// Rows of a quantised tensor are not whole blocks.
    #[error("tensor {tensor:?} has rows of {cols} elements, expected a multiple of {block_len}")]
    PartialBlock {
        /// The tensor's name.
        tensor: String,
        /// Elements of a row.
        cols: usize,
        /// Elements of a block.
        block_len: usize,
    },
    /// A tensor's data does not begin at a multiple of the alignment.
    #[error("tensor {tensor:?} has data offset {found}, expected a multiple of {alignment}")]
    Misaligned {
        /// The tensor's name.
        tensor: String,
        /// Offset, relative to the start of the data section.
        found: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors {first:?} and {second:?} overlap: {first:?} ends at {end}, {second:?} begins at {begin}"
    )]
    Overlap {
        /// Tensor with the lower offset.
        first: String,
        /// Tensor with the higher offset.
        second: String,
        /// End of the first, in bytes from the start of the file.
        end: u64,
        /// Begin of the second, in bytes from the start of the file.
        begin: u64,
    },
    /// A metadata value that reading depends on has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}
