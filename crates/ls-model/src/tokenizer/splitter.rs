//! Pre-tokenisation: cutting a text into the words inside which merging happens.
//!
//! Patterns end in `\s+(?!\S)|\s+`: white space up to, but without, the last blank before a word,
//! which belongs to that word. That is the only look-around in use, and it is done by hand here, so
//! that the pattern is a regular one and is matched in linear time whatever the text.

use std::ops::Range;

use regex_automata::meta::Regex;

use super::error::TokenizerError;

const CONTRACTIONS: &str = r"'s|'t|'re|'ve|'m|'ll|'d";
const ANY_CASE_CONTRACTIONS: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]";
const LOOKAHEAD: &str = r"|\s+(?!\S)";

/// Steps of one splitter; real ones have at most four.
const MAX_STEPS: usize = 16;

/// Largest automaton that a pattern may make. Patterns come with model files, and a few characters
/// can ask for gigabytes.
const MAX_NFA_BYTES: usize = 10 << 20;

/// Index of the pattern for white space behind the pattern for everything else.
const BLANKS: usize = 1;

/// What becomes of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Matches and the text between them are words.
    Around,
    /// A word ends at the end of a match.
    After,
}

#[derive(Clone, Debug)]
struct Step {
    regex: Regex,
    cut: Cut,
}

/// Cuts a text into words, one step inside the words of the step before.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    steps: Vec<Step>,
}

impl Splitter {
    /// The whole text is one word.
    pub const fn whole() -> Self {
        Self { steps: Vec::new() }
    }

    /// The splitter that `tokenizer.ggml.pre` names.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`]: another pattern would give other ids, silently.
    pub fn named(name: &str) -> Result<Self, TokenizerError> {
        let patterns = match family(name) {
            Some(Family::Gpt2) => vec![gpt2()],
            Some(Family::Digits) => vec![r"\p{N}".into(), gpt2()],
            Some(Family::Llama3) => vec![llama3(r"\p{N}{1,3}")],
            Some(Family::Qwen2) => vec![llama3(r"\p{N}")],
            Some(Family::Default) => vec![
                r"[\p{P}\$\+<=>\^~\|]+".into(),
                gpt2(),
                r"\p{N}+".into(),
                "[0-9][0-9][0-9]".into(),
            ],
            None => {
                let known = NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                return Err(TokenizerError::UnknownPreTokenizer { name: name.into(), known });
            }
        };
        let mut splitter = Self::whole();
        for pattern in patterns {
            splitter.push(&pattern, Cut::Around)?;
        }
        Ok(splitter)
    }

    /// Whether the tokenizer of this name takes a word that is a token whole.
    pub fn takes_whole_words(name: &str) -> bool {
        family(name) == Some(Family::Llama3) && !matches!(name, "dbrx" | "smaug-bpe")
    }

    /// Adds a step that cuts at the matches of `pattern`.
    ///
    /// # Errors
    /// [`TokenizerError::Pattern`] for a malformed or huge pattern, look-around other than the
    /// usual ending, or more than 16 steps.
    pub fn push(&mut self, pattern: &str, cut: Cut) -> Result<(), TokenizerError> {
        if self.steps.len() == MAX_STEPS {
            let reason = format!("it is more than the {MAX_STEPS}th step");
            return Err(TokenizerError::Pattern { pattern: pattern.into(), reason });
        }
        let without_plain = pattern.strip_suffix(r"|\s+").unwrap_or(pattern);
        let config = Regex::config().nfa_size_limit(Some(MAX_NFA_BYTES));
        let mut builder = Regex::builder();
        builder.configure(config);
        let regex = match without_plain.strip_suffix(LOOKAHEAD) {
            Some(words) => builder.build_many(&[words, r"\s+"]),
            None => builder.build(pattern),
        };
        let regex = regex.map_err(|error| TokenizerError::Pattern {
            pattern: pattern.into(),
            reason: match error.syntax_error() {
                Some(syntax) => syntax.to_string(),
                None => error.to_string(),
            },
        })?;
        self.steps.push(Step { regex, cut });
        Ok(())
    }

    /// GPT-2's own step, which others build upon.
    ///
    /// # Errors
    /// None in practice; the pattern is compiled as any other.
    pub fn push_gpt2(&mut self) -> Result<(), TokenizerError> {
        self.push(&gpt2(), Cut::Around)
    }

    /// Calls `word` with the words of `text` in order. They are not empty and make up the text.
    pub(super) fn for_each<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        split(&self.steps, text, word);
    }
}

fn split<'t>(steps: &[Step], text: &'t str, word: &mut impl FnMut(&'t str)) {
    if text.is_empty() {
        return;
    }
    let Some((step, rest)) = steps.split_first() else {
        return word(text);
    };
    let mut done = 0;
    let mut at = 0;
    while let Some(range) = step.next_match(text, at) {
        at = range.end;
        match step.cut {
            Cut::Around => {
                split(rest, &text[done..range.start], word);
                split(rest, &text[range.clone()], word);
            }
            Cut::After => split(rest, &text[done..range.end], word),
        }
        done = range.end;
    }
    split(rest, &text[done..], word);
}

impl Step {
    /// The next match that is not empty.
    fn next_match(&self, text: &str, mut at: usize) -> Option<Range<usize>> {
        while at < text.len() {
            let found = self.regex.find(regex_automata::Input::new(text).range(at..))?;
            if !found.is_empty() {
                let blanks = found.pattern().as_usize() == BLANKS;
                return Some(if blanks { shrink(text, found.range()) } else { found.range() });
            }
            // An empty match cuts nothing: look behind the next character.
            at = found.end() + text[found.end()..].chars().next()?.len_utf8();
        }
        None
    }
}

/// Leaves the last of several blanks to the word behind them.
fn shrink(text: &str, range: Range<usize>) -> Range<usize> {
    if range.end == text.len() {
        return range;
    }
    let last = text[range.clone()].chars().next_back().map_or(0, char::len_utf8);
    if last == range.len() { range } else { range.start..range.end - last }
}

/// Names that share their patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Gpt2,
    /// GPT-2 with every digit on its own.
    Digits,
    Llama3,
    Qwen2,
    Default,
}

const NAMES: &[(&str, Family)] = &[
    ("default", Family::Default),
    ("gpt-2", Family::Gpt2),
    ("phi-2", Family::Gpt2),
    ("roberta-bpe", Family::Gpt2),
    ("mpt", Family::Gpt2),
    ("olmo", Family::Gpt2),
    ("jais", Family::Gpt2),
    ("gigachat", Family::Gpt2),
    ("trillion", Family::Gpt2),
    ("starcoder", Family::Digits),
    ("refact", Family::Digits),
    ("command-r", Family::Digits),
    ("smollm", Family::Digits),
    ("codeshell", Family::Digits),
    ("exaone", Family::Digits),
    ("minerva-7b", Family::Digits),
    ("llama-bpe", Family::Llama3),
    ("llama3", Family::Llama3),
    ("llama-v3", Family::Llama3),
    ("falcon3", Family::Llama3),
    ("dbrx", Family::Llama3),
    ("smaug-bpe", Family::Llama3),
    ("qwen2", Family::Qwen2),
    ("stablelm2", Family::Qwen2),
    ("megrez", Family::Qwen2),
    ("deepseek-r1-qwen", Family::Qwen2),
];

fn family(name: &str) -> Option<Family> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, family)| *family)
}

fn gpt2() -> String {
    format!(r"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+")
}

/// `digits`: how many digits stay together.
fn llama3(digits: &str) -> String {
    format!(
        r"{ANY_CASE_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(splitter: &Splitter, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        splitter.for_each(text, &mut |word| words.push(word));
        words
    }

    fn named<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        words(&Splitter::named(name).unwrap(), text)
    }

    #[test]
    fn gpt2_leaves_one_blank_to_the_word() {
        let expected = ["I", "'ll", "  ", " go", " \t", "\n", "now", "!?", " 123", "  "];
        assert_eq!(named("gpt-2", "I'll   go \t\nnow!? 123  "), expected);
    }

    #[test]
    fn smollm_cuts_digits_first() {
        assert_eq!(named("smollm", "in 1984, x2"), ["in", " ", "1", "9", "8", "4", ",", " x", "2"]);
    }

    #[test]
    fn llama3_groups_three_digits_and_keeps_newlines_together() {
        let expected = ["I", "'LL", " pay", " ", "123", "45", "\n \n", "  ", "\tx", "()\n", "y"];
        assert_eq!(named("llama-bpe", "I'LL pay 12345\n \n  \tx()\ny"), expected);
    }

    #[test]
    fn qwen2_cuts_each_digit() {
        assert_eq!(named("qwen2", "a  42\r\n  b"), ["a", " ", " ", "4", "2", "\r\n", " ", " b"]);
    }

    #[test]
    fn default_cuts_punctuation_and_digits() {
        assert_eq!(named("default", "x+=12345 ok"), ["x", "+=", "123", "45", " ok"]);
    }

    #[test]
    fn long_runs_of_blanks_take_linear_time() {
        let text = " ".repeat(1 << 20) + "x";
        assert_eq!(named("qwen2", &text).len(), 2);
        let text = " \n".repeat(1 << 19) + " x";
        assert_eq!(named("llama-bpe", &text).len(), 2);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Splitter::named("qwen9").unwrap_err().to_string();
        assert!(error.contains("qwen9") && error.contains("llama-bpe"), "{error}");
    }

    #[test]
    fn other_look_around_is_refused() {
        let error = Splitter::whole().push(r"a(?=b)", Cut::Around).unwrap_err();
        assert!(matches!(error, TokenizerError::Pattern { .. }), "{error}");
    }

    #[test]
    fn hostile_patterns_are_refused() {
        let mut splitter = Splitter::whole();
        let error = splitter.push(r"((\p{L}{99}){99}){99}", Cut::Around).unwrap_err().to_string();
        assert!(error.contains("size limit"), "{error}");
        for _ in 0..MAX_STEPS {
            splitter.push("a", Cut::Around).unwrap();
        }
        assert!(splitter.push("a", Cut::Around).is_err());
    }

    #[test]
    fn empty_matches_cut_nothing() {
        let mut splitter = Splitter::whole();
        splitter.push("b*", Cut::Around).unwrap();
        assert_eq!(words(&splitter, "äbbc"), ["ä", "bb", "c"]);
    }

    #[test]
    fn a_cut_after_keeps_text_and_match_together() {
        let mut splitter = Splitter::whole();
        splitter.push(" ", Cut::After).unwrap();
        assert_eq!(words(&splitter, "a b  c"), ["a ", "b ", " ", "c"]);
    }
}
