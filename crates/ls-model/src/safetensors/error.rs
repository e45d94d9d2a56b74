//! What can be wrong with the bytes of a safetensors file.

/// Bytes that are not a valid safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// Something reaches beyond the end of the file.
    #[error(
        "{what} needs {needed} bytes at offset {offset}, but the file has {file_len} bytes; \
         it is truncated or damaged"
    )]
    Truncated {
        /// What is cut.
        what: &'static str,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// Its length in bytes.
        needed: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The header is longer than any sensible one.
    #[error("the header claims {found} bytes; at most {limit} are read")]
    HeaderTooLong {
        /// Length that the file gives, in bytes.
        found: u64,
        /// Most bytes that are read.
        limit: u64,
    },
    /// The header is not the JSON that it should be.
    #[error("the header at offset 8 is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A tensor's name appears twice.
    #[error("tensor {tensor:?} appears twice in the header")]
    DuplicateTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor's type is not one that is computed with.
    #[error("unsupported type {found} in tensor {tensor:?}; supported: F32, F16, BF16")]
    UnsupportedType {
        /// The tensor's name.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// The dimensions multiply to more than can be addressed.
    #[error("tensor {tensor:?} is too large to address: {shape:?}")]
    Overflow {
        /// The tensor's name.
        tensor: String,
        /// Its shape, outermost first.
        shape: Vec<u64>,
    },
    /// A tensor has more dimensions than any weight has.
    #[error("tensor {tensor:?} has {found} dimensions, expected at most {limit}")]
    Dimensions {
        /// The tensor's name.
        tensor: String,
        /// Number of dimensions.
        found: usize,
        /// Most that are accepted.
        limit: usize,
    },
    /// Offsets and shape disagree.
    #[error(
        "tensor {tensor:?} has data offsets {begin}..{end}, expected a length of {expected} bytes"
    )]
    DataLen {
        /// The tensor's name.
        tensor: String,
        /// Bytes that type and shape ask for.
        expected: u64,
        /// First offset, relative to the data section.
        begin: u64,
        /// Second offset.
        end: u64,
    },
    /// A tensor's data lies beyond the end of the file.
    #[error(
        "tensor {tensor:?} ends at byte {end} of the data, which begins at offset {data_start}, \
         but the file has {file_len} bytes; it is truncated or damaged"
    )]
    OutOfFile {
        /// The tensor's name.
        tensor: String,
        /// Where its data ends, relative to the data section.
        end: u64,
        /// Where the data section begins, in bytes from the start of the file.
        data_start: u64,
        /// Length of the file in bytes.
        file_len: u64,
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
}
