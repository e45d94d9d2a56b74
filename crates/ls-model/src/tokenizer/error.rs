//! What can be wrong with a tokenizer's data or with a request to it.

use std::path::PathBuf;

use crate::ModelError;
use crate::gguf::MetadataError;

/// An error of [`Tokenizer`](super::Tokenizer).
///
/// `place` fields name the metadata key or the JSON path that holds the fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The folder has no tokenizer.
    #[error("{} is missing; a model folder needs it", path.display())]
    NoTokenizer {
        /// Where it should lie.
        path: PathBuf,
    },
    /// The tokenizer's file cannot be read.
    #[error(transparent)]
    File(#[from] Box<ModelError>),
    /// A metadata key is missing or malformed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A value has another type than the format says.
    #[error("`{place}` is not {expected}")]
    WrongType {
        /// Key or path.
        place: String,
        /// What stands there in a good file.
        expected: &'static str,
    },
    /// `tokenizer.json` is malformed.
    #[error("`tokenizer.json` is not a tokenizer: {0}")]
    Json(#[source] serde_json::Error),
    /// The tokenizer is of a kind that is not implemented.
    #[error("unsupported tokenizer: `{place}` is `{found}`; supported: {supported}")]
    Unsupported {
        /// Key or path.
        place: String,
        /// What the file asks for.
        found: String,
        /// What it could ask for.
        supported: &'static str,
    },
    /// The pre-tokenizer's name is unknown. Guessing one would give wrong ids silently.
    #[error("unknown pre-tokenizer `{name}`; known: {known}")]
    UnknownPreTokenizer {
        /// `tokenizer.ggml.pre`.
        name: String,
        /// The names that are understood.
        known: String,
    },
    /// A pattern of the tokenizer cannot be compiled.
    #[error("the tokenizer's pattern `{pattern}` cannot be used: {reason}")]
    Pattern {
        /// The regular expression.
        pattern: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// There is not one token.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// More tokens or more text than 32-bit indices reach, or ids far beyond the list.
    #[error("the vocabulary is too large: {what} is {found}, at most {limit} is possible")]
    VocabularyTooLarge {
        /// The quantity.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Its bound.
        limit: u64,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// Lower id.
        first: u32,
        /// Higher id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// Two tokens claim the same id.
    #[error("token id {id} is both {first:?} and {second:?}")]
    SharedId {
        /// The id.
        id: u32,
        /// One text.
        first: String,
        /// The other.
        second: String,
    },
    /// Arrays that describe the same tokens differ in length.
    #[error("`{place}` has {found} elements for {expected} tokens")]
    LengthMismatch {
        /// The array.
        place: &'static str,
        /// Tokens in the vocabulary.
        expected: usize,
        /// Elements in the array.
        found: usize,
    },
    /// A score is not a number.
    #[error("the score of token {id} is not a number")]
    InvalidScore {
        /// Token.
        id: u32,
    },
    /// A token of kind byte is not written as `<0xHH>`.
    #[error("byte token {id} is {text:?}, expected <0x00> to <0xFF>")]
    MalformedByteToken {
        /// Token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A merge is not two parts with a space between them.
    #[error("merge {index} is {text:?}, expected two tokens with a space between them")]
    MalformedMerge {
        /// Position in the list of merges.
        index: usize,
        /// The entry.
        text: String,
    },
    /// A merge names, or makes, something that is not in the vocabulary.
    #[error("merge {index} needs the token {text:?}, which the vocabulary lacks")]
    MergeOfUnknownToken {
        /// Position in the list of merges.
        index: usize,
        /// The missing token.
        text: String,
    },
    /// A special token's id points past the vocabulary.
    #[error("`{place}` is {id}, but the vocabulary has {vocab_size} tokens")]
    SpecialOutOfRange {
        /// Key or path.
        place: String,
        /// The id.
        id: u64,
        /// Tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The tokenizer is told to add a token that it does not have.
    #[error("the tokenizer adds {token} to every text, but none is defined")]
    NoSuchSpecial {
        /// `BOS` or `EOS`.
        token: &'static str,
    },
    /// An id to decode is not in the vocabulary.
    #[error("token id {id} is out of range: the vocabulary has {vocab_size} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A text is too long to index.
    #[error("a text of {bytes} bytes is too long, at most {limit} can be encoded at once")]
    TextTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
}
