//! Tokenizers from GGUF metadata.

use super::error::TokenizerError;
use super::splitter::Splitter;
use super::vocabulary::{Alphabet, Merging, SpacePrefix, SpecialTokens, TokenKind, Vocabulary};
use super::{ENDS_OF_GENERATION, Tokenizer, split_merge};
use crate::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";

/// Which tokenizer `tokenizer.ggml.model` names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `llama`: SentencePiece's BPE.
    SentencePiece,
    /// `gpt2`: byte-level BPE.
    ByteLevel,
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes under `tokenizer.ggml`.
    ///
    /// What a file leaves out is as llama.cpp assumes it: SentencePiece models begin with BOS
    /// (token 1) and a space, byte-level ones with BOS only if their pre-tokenizer is Llama 3's.
    /// Ids of special tokens that lie outside the vocabulary count as absent.
    ///
    /// # Errors
    /// A missing or malformed key; another kind of tokenizer than `llama` and `gpt2`; an unknown
    /// pre-tokenizer; a vocabulary that contradicts itself.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let kind = kind(metadata)?;
        let tokens: Vec<&str> = metadata.require(TOKENS)?;
        // Files without the key predate it.
        let pre = metadata.get("tokenizer.ggml.pre")?.unwrap_or("default");
        let special = roles(metadata, kind, pre, tokens.len())?;
        let vocabulary = Vocabulary {
            kinds: kinds(metadata, &tokens)?,
            merging: merging(metadata, kind, pre)?,
            splitter: match kind {
                Kind::SentencePiece => Splitter::whole(),
                Kind::ByteLevel => Splitter::named(pre)?,
            },
            prefix: prefix(metadata, kind)?,
            compose: false,
            space_eaters: Vec::new(),
            special,
            tokens,
        };
        Self::new(&vocabulary)
    }
}

fn kind(metadata: &Metadata) -> Result<Kind, TokenizerError> {
    match metadata.require(MODEL)? {
        "llama" => Ok(Kind::SentencePiece),
        "gpt2" => Ok(Kind::ByteLevel),
        found => Err(TokenizerError::Unsupported {
            place: MODEL.into(),
            found: found.into(),
            supported: "llama, gpt2",
        }),
    }
}

fn merging<'m>(
    metadata: &'m Metadata,
    kind: Kind,
    pre: &str,
) -> Result<Merging<'m>, TokenizerError> {
    match kind {
        Kind::SentencePiece => Ok(Merging::Scores(metadata.require("tokenizer.ggml.scores")?)),
        Kind::ByteLevel => {
            let merges: Vec<&str> = metadata.require("tokenizer.ggml.merges")?;
            let split = |(index, text): (usize, &'m str)| {
                let malformed = || TokenizerError::MalformedMerge { index, text: text.into() };
                split_merge(text).ok_or_else(malformed)
            };
            Ok(Merging::Ranks {
                merges: merges.into_iter().enumerate().map(split).collect::<Result<_, _>>()?,
                alphabet: Alphabet::Bytes,
                whole_words: Splitter::takes_whole_words(pre),
            })
        }
    }
}

fn prefix(metadata: &Metadata, kind: Kind) -> Result<SpacePrefix, TokenizerError> {
    let add_space = metadata.get("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    Ok(match kind {
        Kind::SentencePiece if add_space => SpacePrefix::EVERY,
        Kind::SentencePiece | Kind::ByteLevel => SpacePrefix::NEVER,
    })
}

fn kinds(metadata: &Metadata, tokens: &[&str]) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(codes) = metadata.get::<Vec<i32>>("tokenizer.ggml.token_type")? else {
        return Ok(Vec::new());
    };
    let mut kinds: Vec<_> = codes.into_iter().map(kind_of_code).collect();
    // Some converters leave these plain; a prompt's turns would then not end.
    for (kind, token) in kinds.iter_mut().zip(tokens) {
        if *kind == TokenKind::Normal && ENDS_OF_GENERATION.contains(token) {
            *kind = TokenKind::Control;
        }
    }
    Ok(kinds)
}

fn kind_of_code(code: i32) -> TokenKind {
    match code {
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => TokenKind::Normal,
    }
}

fn roles(
    metadata: &Metadata,
    kind: Kind,
    pre: &str,
    n_tokens: usize,
) -> Result<SpecialTokens, TokenizerError> {
    let id = |name: &str, default: Option<u32>| -> Result<Option<u32>, TokenizerError> {
        let id = metadata.get::<u32>(&format!("tokenizer.ggml.{name}_token_id"))?;
        let exists = |id: &u32| (*id as usize) < n_tokens;
        Ok(id.filter(exists).or(default.filter(exists)))
    };
    let (bos, eos, unknown) = match kind {
        Kind::SentencePiece => (Some(1), Some(2), Some(0)),
        Kind::ByteLevel => (None, None, None),
    };
    let bos = id("bos", bos)?;
    let eos = id("eos", eos)?;
    let unknown = match kind {
        Kind::SentencePiece => id("unknown", unknown)?,
        // Byte-level vocabularies drop what they cannot express.
        Kind::ByteLevel => None,
    };
    let ends = [id("eot", None)?, id("eom", None)?].into_iter().flatten();
    let adds_bos = kind == Kind::SentencePiece || Splitter::takes_whole_words(pre);
    let flag = |name: &str, default| -> Result<bool, TokenizerError> {
        Ok(metadata.get(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    };
    Ok(SpecialTokens {
        bos,
        eos,
        unknown,
        end_of_generation: ends.collect(),
        add_bos: flag("bos", adds_bos)? && bos.is_some(),
        add_eos: flag("eos", false)? && eos.is_some(),
    })
}

#[cfg(test)]
mod tests;
