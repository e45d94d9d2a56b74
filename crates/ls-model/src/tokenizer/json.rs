//! Tokenizers from Hugging Face's `tokenizer.json` and the files beside it.

mod file;
mod recipe;

use serde_json::{Map, Value};

use super::error::TokenizerError;
use super::vocabulary::{Merging, SpaceEater, SpecialTokens, TokenKind, Vocabulary};
use super::{Tokenizer, byte_token};
use file::{AddedToken, TokenizerFile};
use recipe::{Affixes, Recipe};

/// Ids that may be missing from the list before the file is taken for damaged.
const MAX_UNUSED_IDS: usize = 1 << 16;

/// The contents of the files that describe a tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`: which tokens are BOS and EOS, and whether they are added.
    pub tokenizer_config: Option<&'a Map<String, Value>>,
    /// `generation_config.json`: further tokens that end an answer.
    pub generation_config: Option<&'a Map<String, Value>>,
}

impl Tokenizer {
    /// Builds the tokenizer of a Hugging Face model: BPE, byte-level or with byte fallback.
    ///
    /// # Errors
    /// Malformed files; another model than BPE; a step of normalisation or pre-tokenisation that
    /// is not implemented.
    pub fn from_hugging_face(files: &HuggingFaceFiles<'_>) -> Result<Self, TokenizerError> {
        let file: TokenizerFile<'_> =
            serde_json::from_slice(files.tokenizer).map_err(TokenizerError::Json)?;
        check_model(&file)?;

        let recipe = Recipe::read(&file.normalizer, &file.pre_tokenizer)?;
        let affixes = Affixes::read(&file.post_processor)?;
        let tokens = ordered_tokens(&file)?;
        let kinds = kinds(&file, &tokens);
        let special = roles(&file, &tokens, affixes, files)?;
        Self::new(&Vocabulary {
            kinds,
            merging: Merging::Ranks {
                merges: merges(&file)?,
                alphabet: recipe.alphabet,
                whole_words: file.model.ignore_merges,
            },
            splitter: recipe.splitter,
            prefix: recipe.prefix,
            compose: recipe.compose,
            space_eaters: space_eaters(&file),
            special,
            tokens,
        })
    }
}

fn check_model(file: &TokenizerFile<'_>) -> Result<(), TokenizerError> {
    let unsupported = |place: &str, found: &str, supported| {
        Err(TokenizerError::Unsupported { place: place.into(), found: found.into(), supported })
    };
    let model = &file.model;
    if let Some(kind) = model.kind.as_deref().filter(|kind| *kind != "BPE") {
        return unsupported("model.type", kind, "BPE");
    }
    let affixes = [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (place, affix) in affixes {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return unsupported(place, affix, "none");
        }
    }
    match file.added_tokens.iter().find(|token| token.single_word) {
        Some(token) => unsupported("added_tokens.single_word", &token.content, "false"),
        None => Ok(()),
    }
}

/// Texts by id; ids that the file skips get an empty one.
fn ordered_tokens<'f>(file: &'f TokenizerFile<'_>) -> Result<Vec<&'f str>, TokenizerError> {
    let vocab = file.model.vocab.iter().map(|(text, id)| (text.as_ref(), *id));
    let added = file.added_tokens.iter().map(|token| (token.content.as_ref(), token.id));
    let n_listed = file.model.vocab.len() + file.added_tokens.len();
    let n_tokens = vocab.clone().chain(added.clone()).map(|(_, id)| id as usize + 1).max();
    let n_tokens = n_tokens.unwrap_or_default();
    if n_tokens > n_listed + MAX_UNUSED_IDS {
        return Err(TokenizerError::VocabularyTooLarge {
            what: "the highest token id",
            found: n_tokens as u64 - 1,
            limit: (n_listed + MAX_UNUSED_IDS) as u64 - 1,
        });
    }
    let mut tokens = vec![""; n_tokens];
    for (text, id) in vocab {
        let other = std::mem::replace(&mut tokens[id as usize], text);
        if !other.is_empty() {
            return Err(shared_id(id, other, text));
        }
    }
    for (text, id) in added {
        let other = std::mem::replace(&mut tokens[id as usize], text);
        if !other.is_empty() && other != text {
            return Err(shared_id(id, other, text));
        }
    }
    Ok(tokens)
}

fn shared_id(id: u32, first: &str, second: &str) -> TokenizerError {
    TokenizerError::SharedId { id, first: first.into(), second: second.into() }
}

fn kinds(file: &TokenizerFile<'_>, tokens: &[&str]) -> Vec<TokenKind> {
    let is_byte = |text| file.model.byte_fallback && byte_token(text).is_some();
    let mut kinds: Vec<_> = tokens
        .iter()
        .map(|text| match *text {
            "" => TokenKind::Unused,
            text if is_byte(text) => TokenKind::Byte,
            _ => TokenKind::Normal,
        })
        .collect();
    for AddedToken { id, special, .. } in &file.added_tokens {
        kinds[*id as usize] = if *special { TokenKind::Control } else { TokenKind::UserDefined };
    }
    kinds
}

fn merges<'f>(file: &'f TokenizerFile<'_>) -> Result<Vec<(&'f str, &'f str)>, TokenizerError> {
    let split = |(index, merge): (usize, &'f file::MergeEntry<'_>)| {
        merge.split().ok_or_else(|| TokenizerError::MalformedMerge { index, text: merge.text() })
    };
    file.model.merges.iter().enumerate().map(split).collect()
}

fn space_eaters(file: &TokenizerFile<'_>) -> Vec<SpaceEater> {
    let eaters = file.added_tokens.iter().filter(|token| token.lstrip || token.rstrip);
    eaters.map(|t| SpaceEater { id: t.id, left: t.lstrip, right: t.rstrip }).collect()
}

fn roles(
    file: &TokenizerFile<'_>,
    tokens: &[&str],
    affixes: Affixes,
    files: &HuggingFaceFiles<'_>,
) -> Result<SpecialTokens, TokenizerError> {
    let find = |text: &str| (0..).zip(tokens).find(|(_, token)| **token == text).map(|(id, _)| id);
    let named = |key: &str| {
        let value = files.tokenizer_config?.get(key)?;
        let text = value.as_str().or_else(|| value["content"].as_str());
        text.filter(|text| !text.is_empty()).and_then(find)
    };
    let bos = affixes.before.or_else(|| named("bos_token"));
    let eos = named("eos_token").or(affixes.after);
    let unknown = file.model.unk_token.as_deref().and_then(find);
    let flag = |key: &str, default| {
        let value = files.tokenizer_config.and_then(|config| config.get(key));
        value.and_then(Value::as_bool).unwrap_or(default)
    };
    let ends = files.generation_config.and_then(|config| config.get("eos_token_id"));
    Ok(SpecialTokens {
        bos,
        eos,
        unknown,
        end_of_generation: end_ids(ends.unwrap_or(&Value::Null), tokens.len())?,
        add_bos: flag("add_bos_token", affixes.before.is_some()) && bos.is_some(),
        add_eos: flag("add_eos_token", affixes.after.is_some()) && eos.is_some(),
    })
}

/// One id, a list of ids, or nothing.
fn end_ids(value: &Value, vocab_size: usize) -> Result<Vec<u32>, TokenizerError> {
    const PLACE: &str = "generation_config.json: eos_token_id";
    let ids = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(ids) => ids.as_slice(),
        id => std::slice::from_ref(id),
    };
    let expected = "a token id or a list of token ids";
    let wrong = || TokenizerError::WrongType { place: PLACE.into(), expected };
    let ids = ids.iter().map(|id| id.as_u64().ok_or_else(wrong));
    ids.map(|id| {
        let id = id?;
        let small = u32::try_from(id).ok().filter(|small| (*small as usize) < vocab_size);
        small.ok_or(TokenizerError::SpecialOutOfRange { place: PLACE.into(), id, vocab_size })
    })
    .collect()
}

#[cfg(test)]
mod tests;
