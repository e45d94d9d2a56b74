//! What can be wrong with the bytes of a pack.

use crate::gguf::Short;

/// Bytes that are not a valid pack, or one that this program does not know.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackFileError {
    /// The first bytes are others.
    #[error("not a pack: it begins with \"{}\"", found.escape_ascii())]
    Magic {
        /// The first bytes of the file, at most eight.
        found: Vec<u8>,
    },
    /// A version of the format that is not known.
    #[error(
        "the pack has version {found} of the format, and this program reads version {supported}; \
         use a newer program, or pack the model again"
    )]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that is read.
        supported: u32,
    },
    /// The pack uses a feature that is not known.
    #[error("the pack needs features {found:#x} that this program does not have; use a newer one")]
    Flags {
        /// Flags in the file.
        found: u32,
    },
    /// The file has another length than it should have.
    #[error("the file has {found} bytes, expected {expected}; it is truncated or damaged")]
    Length {
        /// Length that the header asks for.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// Bytes are not those that were written.
    #[error(
        "{what} at offset {offset} is damaged: its checksum is {found:016x}, expected {expected:016x}"
    )]
    Sum {
        /// What is damaged.
        what: String,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// The checksum in the file.
        expected: u64,
        /// The checksum that the bytes have.
        found: u64,
    },
    /// A count or a length is larger than in any real pack.
    #[error("the pack has {found} {what}; at most {limit} are read")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count.
        found: u64,
        /// Most that are accepted.
        limit: u64,
    },
    /// A section cannot lie where the header says.
    #[error("the {section} section, {n_bytes} bytes at offset {offset}, is wrong: {reason}")]
    Section {
        /// The section's name.
        section: &'static str,
        /// Where it begins, in bytes from the start of the file.
        offset: u64,
        /// Its length in bytes.
        n_bytes: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A section that every pack has is not there.
    #[error("the {section} section is missing")]
    MissingSection {
        /// The section's name.
        section: &'static str,
    },
    /// Something ends before all of it was read.
    #[error("{what} ends too early: {needed} bytes are needed at its byte {offset}")]
    Short {
        /// What ends.
        what: &'static str,
        /// Where the bytes are needed, from its start.
        offset: u64,
        /// How many.
        needed: u64,
    },
    /// An entry of the directory or of the metadata is not possible.
    #[error("the entry of {what} is wrong: {reason}")]
    Entry {
        /// Whose entry.
        what: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A piece of metadata that every pack has is not there.
    #[error("the metadata lacks {blob:?}")]
    MissingBlob {
        /// Its name.
        blob: &'static str,
    },
    /// The facts about the pack do not parse.
    #[error("the facts about the pack are not valid: {0}")]
    Facts(#[source] serde_json::Error),
    /// A tensor that is needed while opening is damaged.
    #[error(transparent)]
    Tensor(#[from] super::TensorDamage),
}

impl PackFileError {
    /// Makes the error of a [`Cursor`](crate::gguf::Cursor) in `what`.
    pub(super) fn short(what: &'static str) -> impl Fn(Short) -> Self {
        move |Short { offset, needed }| Self::Short { what, offset, needed }
    }
}
