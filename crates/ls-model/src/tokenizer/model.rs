//! From the words of a text to token ids: the two ways of merging, and the fallback to bytes.

use hashbrown::HashMap;

use super::alphabet;
use super::error::TokenizerError;
use super::merge::{Merge, Merger, NONE, Rule, Symbol};
use super::table::TokenTable;
use super::vocabulary::{Alphabet, Merging};

/// Buffers that words share.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    merger: Merger,
    word: String,
}

/// Turns words into ids.
#[derive(Clone, Debug)]
pub(super) struct Model {
    merging: Rules,
    /// The token of each byte, [`NONE`] where the vocabulary has none.
    bytes: Vec<u32>,
    unknown: Option<u32>,
}

#[derive(Clone, Debug)]
enum Rules {
    Scores(ScoreRule),
    Ranks { pairs: PairRule, alphabet: Alphabet, whole_words: bool },
}

impl Model {
    /// # Errors
    /// Scores that are missing or not numbers; merges outside the vocabulary.
    pub(super) fn new(
        table: &TokenTable,
        merging: &Merging<'_>,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let merging = match merging {
            Merging::Scores(scores) => Rules::Scores(ScoreRule::new(table, scores)?),
            Merging::Ranks { merges, alphabet, whole_words } => Rules::Ranks {
                pairs: PairRule::new(table, merges)?,
                alphabet: *alphabet,
                whole_words: *whole_words,
            },
        };
        let mut model = Self { merging, bytes: Vec::new(), unknown };
        model.bytes = (0..=255).map(|byte| model.find_byte(table, byte)).collect();
        Ok(model)
    }

    /// The characters in which tokens are written.
    pub(super) fn alphabet(&self) -> Alphabet {
        match self.merging {
            Rules::Scores(_) => Alphabet::Characters,
            Rules::Ranks { alphabet, .. } => alphabet,
        }
    }

    /// Appends the ids of `word`.
    pub(super) fn encode(
        &self,
        table: &TokenTable,
        word: &str,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        match &self.merging {
            Rules::Scores(scores) => {
                let rule = ScoredTexts { table, rule: scores };
                self.encode_characters(table, word, &rule, scratch, ids);
            }
            Rules::Ranks { pairs, alphabet, whole_words } => {
                if *whole_words && let Some(id) = whole(table, word, *alphabet, &mut scratch.word) {
                    ids.push(id);
                    return;
                }
                match alphabet {
                    Alphabet::Characters => {
                        self.encode_characters(table, word, pairs, scratch, ids);
                    }
                    Alphabet::Bytes => self.encode_bytes(word, pairs, scratch, ids),
                }
            }
        }
    }

    fn encode_characters(
        &self,
        table: &TokenTable,
        word: &str,
        rule: &impl Rule,
        Scratch { merger, .. }: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        merger.clear();
        let mut buf = [0; 4];
        for c in word.chars() {
            let text = c.encode_utf8(&mut buf);
            merger.push(table.id(text).unwrap_or(NONE), text.len() as u32);
        }
        merger.run(word, rule);
        for symbol in merger.symbols() {
            if symbol.id == NONE {
                self.fall_back(&word[symbol.range()], ids);
            } else {
                ids.push(symbol.id);
            }
        }
    }

    fn encode_bytes(
        &self,
        word: &str,
        rule: &PairRule,
        Scratch { merger, .. }: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        merger.clear();
        for byte in word.bytes() {
            merger.push(self.bytes[usize::from(byte)], 1);
        }
        merger.run(word, rule);
        // A byte that has no token merges with nothing, so what has no id is one byte.
        ids.extend(merger.symbols().filter_map(|symbol| match symbol.id {
            NONE => self.unknown,
            id => Some(id),
        }));
    }

    /// Writes a text that is no token byte by byte, or as the unknown token.
    fn fall_back(&self, text: &str, ids: &mut Vec<u32>) {
        let has_token = |byte: u8| self.bytes[usize::from(byte)] != NONE;
        if text.bytes().all(has_token) {
            ids.extend(text.bytes().map(|byte| self.bytes[usize::from(byte)]));
        } else {
            ids.extend(self.unknown);
        }
    }

    fn find_byte(&self, table: &TokenTable, byte: u8) -> u32 {
        let text = match self.alphabet() {
            Alphabet::Characters => format!("<0x{byte:02X}>"),
            Alphabet::Bytes => alphabet::char_of(byte).to_string(),
        };
        table.id(&text).unwrap_or(NONE)
    }
}

/// The token that a whole word is.
fn whole(table: &TokenTable, word: &str, alphabet: Alphabet, buf: &mut String) -> Option<u32> {
    match alphabet {
        Alphabet::Characters => table.id(word),
        Alphabet::Bytes => {
            buf.clear();
            buf.extend(word.bytes().map(alphabet::char_of));
            table.id(buf)
        }
    }
}

/// Neighbours join if the list of merges has the pair.
#[derive(Clone, Debug)]
struct PairRule(HashMap<u64, Merge>);

impl PairRule {
    fn new(table: &TokenTable, merges: &[(&str, &str)]) -> Result<Self, TokenizerError> {
        let mut pairs = HashMap::with_capacity(merges.len());
        let mut joined = String::new();
        let mut next = 0;
        for (index, (left, right)) in merges.iter().enumerate() {
            let find = |text: &str| {
                let unknown = || TokenizerError::MergeOfUnknownToken { index, text: text.into() };
                table.id(text).ok_or_else(unknown)
            };
            joined.clear();
            joined.extend([*left, *right]);
            // Vocabularies list what merges make in the order of the merges.
            let id = if table.get(next) == Some(&joined) { next } else { find(&joined)? };
            next = id + 1;
            let merge = Merge { priority: index as u32, id };
            // Of a pair that is listed twice, the first, better rank counts.
            pairs.entry(pair(find(left)?, find(right)?)).or_insert(merge);
        }
        Ok(Self(pairs))
    }
}

impl Rule for PairRule {
    fn merge(&self, _text: &str, left: &Symbol, right: &Symbol) -> Option<Merge> {
        self.0.get(&pair(left.id, right.id)).copied()
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The priority of every token, from its score.
#[derive(Clone, Debug)]
struct ScoreRule(Vec<u32>);

impl ScoreRule {
    fn new(table: &TokenTable, scores: &[f32]) -> Result<Self, TokenizerError> {
        if scores.len() != table.len() {
            return Err(TokenizerError::LengthMismatch {
                place: "tokenizer.ggml.scores",
                expected: table.len(),
                found: scores.len(),
            });
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::InvalidScore { id: id as u32 });
        }
        Ok(Self(scores.iter().map(|&score| priority(score)).collect()))
    }
}

/// Maps scores to integers in falling order.
fn priority(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0, which compares equal.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Neighbours join if their joined text is a token.
struct ScoredTexts<'m> {
    table: &'m TokenTable,
    rule: &'m ScoreRule,
}

impl Rule for ScoredTexts<'_> {
    fn merge(&self, text: &str, left: &Symbol, right: &Symbol) -> Option<Merge> {
        let id = self.table.id(&text[left.start as usize..right.end()])?;
        Some(Merge { priority: self.rule.0[id as usize], id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_fall_as_scores_rise() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -0.0, 1e-40, 3.0, f32::INFINITY];
        assert!(scores.windows(2).all(|pair| priority(pair[0]) > priority(pair[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
