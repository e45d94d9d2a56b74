//! Finding special tokens in a text.

use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::error::TokenizerError;
use super::table::TokenTable;
use super::vocabulary::{SpaceEater, TokenKind};

/// A stretch of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Bytes of text still to be tokenised. Never empty.
    Text(Range<usize>),
    /// A special token.
    Token(u32),
}

#[derive(Clone, Copy, Debug)]
struct Special {
    id: u32,
    /// Matched even where special tokens are not asked for.
    always: bool,
    eats_left: bool,
    eats_right: bool,
}

/// The tokens that are matched as a whole before a text is split.
///
/// Longer tokens go first over the whole text, wherever they stand: that is the order in which
/// llama.cpp takes them, and it differs from "leftmost first" where tokens overlap.
#[derive(Clone, Debug)]
pub(super) struct SpecialMatcher {
    /// Longest first, then by id.
    specials: Vec<Special>,
    /// Says which of them a text has at all. Vocabularies have thousands, texts a handful.
    automaton: AhoCorasick,
}

impl SpecialMatcher {
    pub(super) fn new(
        table: &TokenTable,
        kinds: &[TokenKind],
        eaters: &[SpaceEater],
    ) -> Result<Self, TokenizerError> {
        let mut specials: Vec<Special> = (0..)
            .zip(kinds)
            .filter_map(|(id, kind)| {
                let always = match kind {
                    TokenKind::UserDefined => true,
                    TokenKind::Control | TokenKind::Unknown => false,
                    TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => return None,
                };
                let is_text = table.get(id).is_some_and(|text| !text.is_empty());
                is_text.then_some(Special { id, always, eats_left: false, eats_right: false })
            })
            .collect();
        for special in &mut specials {
            if let Some(eater) = eaters.iter().find(|eater| eater.id == special.id) {
                (special.eats_left, special.eats_right) = (eater.left, eater.right);
            }
        }
        let text = |special: &Special| table.get(special.id).unwrap_or_default();
        specials.sort_by_key(|special| (std::cmp::Reverse(text(special).len()), special.id));
        let automaton = AhoCorasick::new(specials.iter().map(text)).map_err(|error| {
            TokenizerError::Pattern { pattern: "special tokens".into(), reason: error.to_string() }
        })?;
        Ok(Self { specials, automaton })
    }

    /// Cuts `text` at special tokens; at control tokens only if `parse_special`.
    pub(super) fn cut(&self, table: &TokenTable, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        push_text(&mut fragments, 0..text.len());
        for special in self.present(text) {
            if (special.always || parse_special)
                && let Some(token) = table.get(special.id)
            {
                fragments = cut_at(text, token, *special, fragments);
            }
        }
        fragments
    }

    /// The special tokens that occur in `text`, longest first.
    fn present(&self, text: &str) -> impl Iterator<Item = &Special> {
        let mut found = Vec::new();
        if !self.specials.is_empty() {
            found.resize(self.specials.len(), false);
            for hit in self.automaton.find_overlapping_iter(text) {
                found[hit.pattern().as_usize()] = true;
            }
        }
        self.specials.iter().zip(found).filter_map(|(special, found)| found.then_some(special))
    }
}

fn cut_at(text: &str, token: &str, special: Special, fragments: Vec<Fragment>) -> Vec<Fragment> {
    let mut cut = Vec::with_capacity(fragments.len());
    for fragment in fragments {
        let Fragment::Text(mut rest) = fragment else {
            cut.push(fragment);
            continue;
        };
        while let Some(at) = text[rest.clone()].find(token) {
            let (start, end) = (rest.start + at, rest.start + at + token.len());
            let mut before = rest.start..start;
            rest.start = end;
            if special.eats_left {
                before.end = before.start + text[before.clone()].trim_end().len();
            }
            if special.eats_right {
                rest.start = rest.end - text[rest.clone()].trim_start().len();
            }
            push_text(&mut cut, before);
            cut.push(Fragment::Token(special.id));
        }
        push_text(&mut cut, rest);
    }
    cut
}

fn push_text(fragments: &mut Vec<Fragment>, range: Range<usize>) {
    if !range.is_empty() {
        fragments.push(Fragment::Text(range));
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn cut(tokens: &[(&str, TokenKind)], text: &str, parse_special: bool) -> Vec<Fragment> {
        cut_with(tokens, &[], text, parse_special)
    }

    fn cut_with(
        tokens: &[(&str, TokenKind)],
        eaters: &[SpaceEater],
        text: &str,
        parse_special: bool,
    ) -> Vec<Fragment> {
        let (texts, kinds): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
        let table = TokenTable::new(&texts).unwrap();
        SpecialMatcher::new(&table, &kinds, eaters).unwrap().cut(&table, text, parse_special)
    }

    #[test]
    fn the_longest_token_wins_even_if_it_starts_later() {
        let tokens = [("ab", TokenKind::UserDefined), ("bcd", TokenKind::UserDefined)];
        assert_eq!(cut(&tokens, "abcdab", false), [Text(0..1), Token(1), Token(0)]);
    }

    #[test]
    fn control_tokens_are_found_on_request_only() {
        let tokens = [("<s>", TokenKind::Control), ("<t>", TokenKind::UserDefined)];
        assert_eq!(cut(&tokens, "a<s>b<t>", true), [Text(0..1), Token(0), Text(4..5), Token(1)]);
        assert_eq!(cut(&tokens, "a<s>b<t>", false), [Text(0..5), Token(1)]);
        assert_eq!(cut(&tokens, "", true), []);
    }

    #[test]
    fn normal_tokens_are_not_special() {
        assert_eq!(cut(&[("a", TokenKind::Normal)], "aa", true), [Text(0..2)]);
    }

    #[test]
    fn white_space_beside_a_token_can_be_dropped() {
        let eaters = [SpaceEater { id: 0, left: true, right: true }];
        let tokens = [("<m>", TokenKind::Control)];
        let fragments = cut_with(&tokens, &eaters, "a \n<m>\t b <m>  ", true);
        assert_eq!(fragments, [Text(0..1), Token(0), Text(8..9), Token(0)]);
    }
}
