//! What happens to a text before it is cut into words.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::vocabulary::{Alphabet, PrefixScope, SpacePrefix};

/// SentencePiece's visible space, U+2581.
pub(super) const SPACE: char = '▁';

/// Composition, the space in front, and the alphabet's way to write a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normalizer {
    pub(super) alphabet: Alphabet,
    pub(super) prefix: SpacePrefix,
    pub(super) compose: bool,
}

impl Normalizer {
    /// `is_first`: whether `text` begins the input.
    pub(super) fn apply<'t>(&self, text: &'t str, is_first: bool) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        if self.compose && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            text = Cow::Owned(text.nfc().collect());
        }
        let prefix = if self.takes_prefix(&text, is_first) { " " } else { "" };
        match self.alphabet {
            Alphabet::Characters => Cow::Owned(visible_spaces(prefix, &text)),
            Alphabet::Bytes if prefix.is_empty() => text,
            Alphabet::Bytes => Cow::Owned(format!("{prefix}{text}")),
        }
    }

    fn takes_prefix(&self, text: &str, is_first: bool) -> bool {
        let in_scope = match self.prefix.scope {
            PrefixScope::Never => false,
            PrefixScope::First => is_first,
            PrefixScope::Every => true,
        };
        in_scope && !(self.prefix.only_if_absent && text.starts_with([' ', SPACE]))
    }
}

fn visible_spaces(prefix: &str, text: &str) -> String {
    let n_spaces = prefix.len() + text.bytes().filter(|&byte| byte == b' ').count();
    let mut visible = String::with_capacity(text.len() + n_spaces * SPACE.len_utf8());
    let spaced = prefix.chars().chain(text.chars());
    visible.extend(spaced.map(|c| if c == ' ' { SPACE } else { c }));
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(alphabet: Alphabet, prefix: SpacePrefix, text: &str, is_first: bool) -> String {
        Normalizer { alphabet, prefix, compose: true }.apply(text, is_first).into_owned()
    }

    #[test]
    fn spaces_become_visible_in_one_alphabet_only() {
        assert_eq!(apply(Alphabet::Characters, SpacePrefix::EVERY, "a b", false), "▁a▁b");
        assert_eq!(apply(Alphabet::Characters, SpacePrefix::NEVER, " a", true), "▁a");
        assert_eq!(apply(Alphabet::Bytes, SpacePrefix::NEVER, " a", true), " a");
    }

    #[test]
    fn the_prefix_keeps_to_its_scope() {
        let first = SpacePrefix { scope: PrefixScope::First, only_if_absent: true };
        assert_eq!(apply(Alphabet::Bytes, first, "a", true), " a");
        assert_eq!(apply(Alphabet::Bytes, first, " a", true), " a");
        assert_eq!(apply(Alphabet::Bytes, first, "a", false), "a");
    }

    #[test]
    fn characters_are_composed() {
        assert_eq!(apply(Alphabet::Bytes, SpacePrefix::NEVER, "e\u{301}", true), "é");
    }
}
