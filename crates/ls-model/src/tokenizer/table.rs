//! The texts of all tokens, and the way back from a text to its id.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::error::TokenizerError;

/// Token texts in one string, indexed by id, with a hash index over them.
///
/// One allocation for a quarter of a million texts keeps loading cheap.
#[derive(Clone)]
pub(super) struct TokenTable {
    text: String,
    /// `ends[id]` is where token `id` ends; it starts where its predecessor ends.
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl TokenTable {
    /// Stores `tokens` in the order of their ids. Empty texts are kept but are never found.
    ///
    /// # Errors
    /// No tokens, texts beyond 4 GiB in all, or two equal texts.
    pub(super) fn new(tokens: &[&str]) -> Result<Self, TokenizerError> {
        if tokens.is_empty() {
            return Err(TokenizerError::EmptyVocabulary);
        }
        check_limit("the number of tokens", tokens.len())?;
        let total = tokens.iter().map(|t| t.len()).sum();
        check_limit("the text of all tokens", total)?;

        let mut table = Self {
            text: String::with_capacity(total),
            ends: Vec::with_capacity(tokens.len()),
            index: HashTable::with_capacity(tokens.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for token in tokens {
            table.push(token)?;
        }
        Ok(table)
    }

    fn push(&mut self, token: &str) -> Result<(), TokenizerError> {
        if let Some(first) = self.id(token) {
            let second = self.ends.len() as u32;
            return Err(TokenizerError::DuplicateToken { first, second, text: token.to_owned() });
        }
        let id = self.ends.len() as u32;
        self.text.push_str(token);
        self.ends.push(self.text.len() as u32);
        if !token.is_empty() {
            let Self { text, ends, index, hasher } = self;
            index.insert_unique(hasher.hash_one(token.as_bytes()), id, |&id| {
                hasher.hash_one(slice(text, ends, id).as_bytes())
            });
        }
        Ok(())
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of token `id`.
    pub(super) fn get(&self, id: u32) -> Option<&str> {
        ((id as usize) < self.ends.len()).then(|| slice(&self.text, &self.ends, id))
    }

    /// The token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.index.find(hash, |&id| slice(&self.text, &self.ends, id) == text).copied()
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenTable").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The text of a token that is known to exist.
fn slice<'t>(text: &'t str, ends: &[u32], id: u32) -> &'t str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &text[start as usize..ends[id] as usize]
}

fn check_limit(what: &'static str, found: usize) -> Result<(), TokenizerError> {
    // The last value is kept free: it marks "no token" and "no symbol".
    let limit = u64::from(u32::MAX) - 1;
    let found = found as u64;
    if found > limit {
        return Err(TokenizerError::VocabularyTooLarge { what, found, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_ids_are_found() {
        let table = TokenTable::new(&["a", "", "bc", "", "é"]).unwrap();
        assert_eq!(table.len(), 5);
        assert_eq!(table.get(2), Some("bc"));
        assert_eq!(table.get(5), None);
        assert_eq!(table.id("é"), Some(4));
        assert_eq!(table.id(""), None);
        assert_eq!(table.id("b"), None);
    }

    #[test]
    fn a_repeated_text_is_named() {
        let error = TokenTable::new(&["a", "b", "a"]).unwrap_err();
        assert_eq!(error.to_string(), "tokens 0 and 2 are both \"a\"");
        assert!(matches!(TokenTable::new(&[]), Err(TokenizerError::EmptyVocabulary)));
    }
}
