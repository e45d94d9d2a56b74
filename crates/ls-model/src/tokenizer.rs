//! Text to token ids and back.
//!
//! One engine serves the two kinds of vocabulary that decoders use: SentencePiece-style BPE with
//! scores and byte fallback, and byte-level BPE with ranked merges. It is built from GGUF metadata
//! or from Hugging Face's `tokenizer.json`, and gives the ids that llama.cpp gives.
//!
//! ```
//! use ls_model::tokenizer::*;
//!
//! let vocabulary = Vocabulary {
//!     tokens: vec!["l", "o", "Ġ", "lo", "Ġlo", "<|im_end|>"],
//!     kinds: [vec![TokenKind::Normal; 5], vec![TokenKind::Control]].concat(),
//!     merging: Merging::Ranks {
//!         merges: vec![("l", "o"), ("Ġ", "lo")],
//!         alphabet: Alphabet::Bytes,
//!         whole_words: false,
//!     },
//!     splitter: Splitter::named("qwen2")?,
//!     prefix: SpacePrefix::NEVER,
//!     compose: false,
//!     space_eaters: vec![],
//!     special: SpecialTokens::default(),
//! };
//! let tokenizer = Tokenizer::new(&vocabulary)?;
//! let ids = tokenizer.encode("lo lo<|im_end|>", EncodeOptions::PROMPT)?;
//! assert_eq!(ids, [3, 4, 5]);
//! assert!(tokenizer.is_end_of_generation(5));
//! assert_eq!(tokenizer.decode(&ids)?, "lo lo");
//! # Ok::<(), TokenizerError>(())
//! ```

mod alphabet;
mod error;
mod gguf;
mod json;
mod merge;
mod model;
mod normalizer;
mod special;
mod splitter;
mod stream;
mod table;
mod vocabulary;

pub use error::TokenizerError;
pub use json::HuggingFaceFiles;
pub use splitter::{Cut, Splitter};
pub use stream::{DecodeFrom, DetokenizeStream};
pub use vocabulary::{
    Alphabet, Merging, PrefixScope, SpaceEater, SpacePrefix, SpecialTokens, TokenKind, Vocabulary,
};

use crate::{ModelFile, Source};
use model::{Model, Scratch};
use normalizer::{Normalizer, SPACE};
use special::{Fragment, SpecialMatcher};
use table::TokenTable;

/// Tokens that end an answer in the models that have them, whatever else the file says.
const ENDS_OF_GENERATION: &[&str] = &[
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Longest text that is encoded at once. Normalisation can triple it, and offsets are 32 bits.
const MAX_TEXT_BYTES: usize = 1 << 30;

/// What [`Tokenizer::encode`] adds and recognises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS and EOS as the model asks for them.
    pub add_special: bool,
    /// Read control tokens in the text as tokens. Leave it off for text from untrusted hands.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// A whole prompt, such as a rendered chat template.
    pub const PROMPT: Self = Self { add_special: true, parse_special: true };
    /// Plain text, to which nothing is added.
    pub const TEXT: Self = Self { add_special: false, parse_special: false };
}

/// A vocabulary with its rules. Immutable, so it can be shared between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    table: TokenTable,
    kinds: Vec<TokenKind>,
    model: Model,
    normalizer: Normalizer,
    splitter: Splitter,
    specials: SpecialMatcher,
    roles: SpecialTokens,
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// # Errors
    /// Whatever contradicts itself in the vocabulary; see [`TokenizerError`].
    pub fn new(vocabulary: &Vocabulary<'_>) -> Result<Self, TokenizerError> {
        let table = TokenTable::new(&vocabulary.tokens)?;
        let kinds = checked_kinds(&table, &vocabulary.kinds)?;
        let roles = checked_roles(&table, &kinds, &vocabulary.special)?;
        let model = Model::new(&table, &vocabulary.merging, roles.unknown)?;
        let specials = SpecialMatcher::new(&table, &kinds, &vocabulary.space_eaters)?;
        let normalizer = Normalizer {
            alphabet: model.alphabet(),
            prefix: vocabulary.prefix,
            compose: vocabulary.compose,
        };
        let splitter = vocabulary.splitter.clone();
        Ok(Self { table, kinds, model, normalizer, splitter, specials, roles })
    }

    /// Builds the tokenizer of an open model.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`] and [`Tokenizer::from_hugging_face`]; or the folder's
    /// `tokenizer.json` is missing or cannot be read.
    pub fn from_model(model: &ModelFile) -> Result<Self, TokenizerError> {
        match model.source() {
            Source::Gguf(metadata) => Self::from_gguf(metadata),
            Source::Safetensors(folder) => {
                let tokenizer = folder.read_tokenizer().map_err(Box::new)?;
                let path = folder.tokenizer_path();
                let tokenizer = tokenizer.ok_or(TokenizerError::NoTokenizer { path })?;
                Self::from_hugging_face(&HuggingFaceFiles {
                    tokenizer: &tokenizer,
                    tokenizer_config: folder.tokenizer_config(),
                    generation_config: folder.generation_config(),
                })
            }
        }
    }

    /// The ids of `text`.
    ///
    /// BOS is added once: not again before a text whose own first token is BOS.
    ///
    /// # Errors
    /// [`TokenizerError::TextTooLong`] beyond 1 GiB.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            let (bytes, limit) = (text.len(), MAX_TEXT_BYTES);
            return Err(TokenizerError::TextTooLong { bytes, limit });
        }
        let bos = self.roles.bos.filter(|_| options.add_special && self.roles.add_bos);
        let eos = self.roles.eos.filter(|_| options.add_special && self.roles.add_eos);
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let fragments = self.specials.cut(&self.table, text, options.parse_special);
        if bos.is_some_and(|bos| fragments.first() != Some(&Fragment::Token(bos))) {
            ids.extend(bos);
        }
        let ends_in_eos = eos.is_some_and(|eos| fragments.last() == Some(&Fragment::Token(eos)));
        let mut scratch = Scratch::default();
        for fragment in fragments {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(range) => {
                    let is_first = range.start == 0;
                    let text = self.normalizer.apply(&text[range], is_first);
                    self.splitter.for_each(&text, &mut |word| {
                        self.model.encode(&self.table, word, &mut scratch, &mut ids);
                    });
                }
            }
        }
        if !ends_in_eos {
            ids.extend(eos);
        }
        Ok(ids)
    }

    /// The text of `ids`, read as a text from its start. Control tokens give nothing; bytes that
    /// are no UTF-8 give U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.stream(DecodeFrom::Start).collect(ids)
    }

    /// Decodes tokens one by one.
    pub fn stream(&self, from: DecodeFrom) -> DetokenizeStream<'_> {
        DetokenizeStream::new(self, from)
    }

    /// The bytes of text that a token stands for: none for a control token. `None` for an id that
    /// does not exist.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_bytes(id, &mut bytes).ok().map(|()| bytes)
    }

    /// A token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.table.get(id)
    }

    /// What a token is for.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The token that the vocabulary writes as `text`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.table.id(text)
    }

    /// Number of tokens. The model's output may be longer by rows without meaning.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// Whether encoding with `add_special` begins with BOS.
    pub fn adds_bos(&self) -> bool {
        self.roles.add_bos
    }

    /// Whether an answer ends with this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.eos == Some(id) || self.roles.end_of_generation.binary_search(&id).is_ok()
    }

    /// Whether encoding puts a space before a text.
    fn has_prefix(&self) -> bool {
        self.normalizer.prefix.scope != PrefixScope::Never
    }

    /// Appends the bytes that a token stands for.
    fn write_bytes(&self, id: u32, bytes: &mut Vec<u8>) -> Result<(), TokenizerError> {
        let vocab_size = self.vocab_size();
        let unknown = TokenizerError::UnknownId { id, vocab_size };
        let (Some(text), Some(kind)) = (self.token_text(id), self.token_kind(id)) else {
            return Err(unknown);
        };
        match (kind, self.normalizer.alphabet) {
            (TokenKind::Control | TokenKind::Unknown | TokenKind::Unused, _) => {}
            (TokenKind::Byte, _) => bytes.extend(byte_token(text)),
            (TokenKind::Normal, Alphabet::Bytes) => write_byte_level(text, bytes),
            (TokenKind::UserDefined, Alphabet::Bytes) => bytes.extend_from_slice(text.as_bytes()),
            (TokenKind::Normal | TokenKind::UserDefined, Alphabet::Characters) => {
                write_visible_spaces(text, bytes);
            }
        }
        Ok(())
    }
}

/// Both sides of a merge. Tokens hold no space, except that one may be a space itself.
fn split_merge(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?.len_utf8();
    let space = first + text[first..].find(' ')?;
    let (left, right) = (&text[..space], &text[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// The byte of a token `<0xHH>`.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn write_byte_level(text: &str, bytes: &mut Vec<u8>) {
    let mut buf = [0; 4];
    for c in text.chars() {
        match alphabet::byte_of(c) {
            Some(byte) => bytes.push(byte),
            // Outside the alphabet a character can only stand for itself.
            None => bytes.extend_from_slice(c.encode_utf8(&mut buf).as_bytes()),
        }
    }
}

fn write_visible_spaces(text: &str, bytes: &mut Vec<u8>) {
    for (idx, part) in text.split(SPACE).enumerate() {
        if idx > 0 {
            bytes.push(b' ');
        }
        bytes.extend_from_slice(part.as_bytes());
    }
}

fn checked_kinds(
    table: &TokenTable,
    kinds: &[TokenKind],
) -> Result<Vec<TokenKind>, TokenizerError> {
    if kinds.is_empty() {
        return Ok(vec![TokenKind::Normal; table.len()]);
    }
    if kinds.len() != table.len() {
        return Err(TokenizerError::LengthMismatch {
            place: "tokenizer.ggml.token_type",
            expected: table.len(),
            found: kinds.len(),
        });
    }
    for (id, _) in (0..).zip(kinds).filter(|(_, kind)| **kind == TokenKind::Byte) {
        let text = table.get(id).unwrap_or_default();
        if byte_token(text).is_none() {
            return Err(TokenizerError::MalformedByteToken { id, text: text.into() });
        }
    }
    Ok(kinds.to_vec())
}

fn checked_roles(
    table: &TokenTable,
    kinds: &[TokenKind],
    special: &SpecialTokens,
) -> Result<SpecialTokens, TokenizerError> {
    let mut roles = special.clone();
    let named = [("BOS", roles.bos), ("EOS", roles.eos), ("unknown token", roles.unknown)];
    let ends = roles.end_of_generation.iter().map(|id| ("end of generation", Some(*id)));
    for (place, id) in named.into_iter().chain(ends) {
        if let Some(id) = id.filter(|id| *id as usize >= table.len()) {
            let (place, id, vocab_size) = (place.to_owned(), u64::from(id), table.len());
            return Err(TokenizerError::SpecialOutOfRange { place, id, vocab_size });
        }
    }
    for (token, add, id) in [("BOS", roles.add_bos, roles.bos), ("EOS", roles.add_eos, roles.eos)] {
        if add && id.is_none() {
            return Err(TokenizerError::NoSuchSpecial { token });
        }
    }
    let is_special =
        |id: &u32| matches!(kinds[*id as usize], TokenKind::Control | TokenKind::UserDefined);
    let by_text = ENDS_OF_GENERATION.iter().filter_map(|text| table.id(text)).filter(is_special);
    roles.end_of_generation.extend(by_text);
    roles.end_of_generation.sort_unstable();
    roles.end_of_generation.dedup();
    Ok(roles)
}

#[cfg(test)]
mod tests;
