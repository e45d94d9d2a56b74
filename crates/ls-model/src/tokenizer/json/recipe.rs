//! Normaliser, pre-tokenizer and post-processor of `tokenizer.json`, as far as decoders use them.

use serde_json::Value;

use super::super::error::TokenizerError;
use super::super::splitter::{Cut, Splitter};
use super::super::vocabulary::{Alphabet, PrefixScope, SpacePrefix};

/// How a text is prepared.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) alphabet: Alphabet,
    pub(super) prefix: SpacePrefix,
    pub(super) compose: bool,
    pub(super) splitter: Splitter,
}

impl Recipe {
    pub(super) fn read(normalizer: &Value, pre_tokenizer: &Value) -> Result<Self, TokenizerError> {
        let mut recipe = Self {
            alphabet: Alphabet::Characters,
            prefix: SpacePrefix::NEVER,
            compose: false,
            splitter: Splitter::whole(),
        };
        for step in steps(normalizer, "normalizers") {
            recipe.normalize(step)?;
        }
        for step in steps(pre_tokenizer, "pretokenizers") {
            recipe.pre_tokenize(step)?;
        }
        Ok(recipe)
    }

    fn normalize(&mut self, step: &Value) -> Result<(), TokenizerError> {
        match kind(step) {
            "NFC" => self.compose = true,
            "Prepend" if step["prepend"] == "▁" => self.prefix = SpacePrefix::EVERY,
            // Spaces are written visibly wherever the alphabet is not that of bytes.
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => return unsupported("normalizer", step, "NFC, Prepend ▁, Replace space by ▁"),
        }
        Ok(())
    }

    fn pre_tokenize(&mut self, step: &Value) -> Result<(), TokenizerError> {
        match kind(step) {
            "ByteLevel" => {
                self.alphabet = Alphabet::Bytes;
                if flag(step, "add_prefix_space", true) {
                    self.prefix = SpacePrefix { scope: PrefixScope::Every, only_if_absent: true };
                }
                if flag(step, "use_regex", true) {
                    self.splitter.push_gpt2()?;
                }
                Ok(())
            }
            "Digits" => {
                let individual = flag(step, "individual_digits", false);
                self.splitter.push(if individual { r"\p{N}" } else { r"\p{N}+" }, Cut::Around)
            }
            "Split" => self.split(step),
            "Metaspace" => self.metaspace(step),
            _ => unsupported("pre_tokenizer", step, "ByteLevel, Digits, Split, Metaspace"),
        }
    }

    fn split(&mut self, step: &Value) -> Result<(), TokenizerError> {
        let pattern = match (&step["pattern"]["Regex"], &step["pattern"]["String"]) {
            (Value::String(regex), _) => regex.clone(),
            (_, Value::String(text)) => literal(text),
            _ => {
                let place = "pre_tokenizer.pattern".into();
                return Err(TokenizerError::WrongType { place, expected: "a Regex or a String" });
            }
        };
        let cut = match (step["behavior"].as_str(), flag(step, "invert", false)) {
            (Some("Isolated"), _) => Cut::Around,
            // Keeps the matches and drops what is between them; patterns leave nothing between.
            (Some("Removed"), true) => Cut::Around,
            (Some("MergedWithPrevious"), false) => Cut::After,
            _ => return unsupported("pre_tokenizer", step, "Isolated or MergedWithPrevious"),
        };
        self.splitter.push(&pattern, cut)
    }

    fn metaspace(&mut self, step: &Value) -> Result<(), TokenizerError> {
        if !matches!(step["replacement"].as_str(), None | Some("▁")) {
            return unsupported("pre_tokenizer", step, "the replacement ▁");
        }
        let scope = match step["prepend_scheme"].as_str() {
            Some("never") => PrefixScope::Never,
            Some("first") => PrefixScope::First,
            Some(_) => PrefixScope::Every,
            None if flag(step, "add_prefix_space", true) => PrefixScope::Every,
            None => PrefixScope::Never,
        };
        self.prefix = SpacePrefix { scope, only_if_absent: true };
        if flag(step, "split", true) {
            self.splitter.push("▁[^▁]*|[^▁]+", Cut::Around)?;
        }
        Ok(())
    }
}

/// The tokens that a post-processor puts around a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Affixes {
    pub(super) before: Option<u32>,
    pub(super) after: Option<u32>,
}

impl Affixes {
    pub(super) fn read(post_processor: &Value) -> Result<Self, TokenizerError> {
        let mut affixes = Self::default();
        for step in steps(post_processor, "processors") {
            match kind(step) {
                // Changes offsets only.
                "ByteLevel" => {}
                "TemplateProcessing" => affixes = Self::template(step)?,
                _ => {
                    return unsupported("post_processor", step, "TemplateProcessing, ByteLevel");
                }
            }
        }
        Ok(affixes)
    }

    fn template(step: &Value) -> Result<Self, TokenizerError> {
        let mut affixes = Self::default();
        let mut is_behind_text = false;
        for part in step["single"].as_array().into_iter().flatten() {
            let Some(name) = part["SpecialToken"]["id"].as_str() else {
                is_behind_text = true;
                continue;
            };
            let place = || format!("post_processor.special_tokens.{name}");
            let expected = "a list of one token id";
            let ids = step["special_tokens"][name]["ids"].as_array();
            let id = ids.filter(|ids| ids.len() == 1).and_then(|ids| ids[0].as_u64());
            let id = id.and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| TokenizerError::WrongType { place: place(), expected })?;
            let side = if is_behind_text { &mut affixes.after } else { &mut affixes.before };
            if side.replace(id).is_some() {
                return unsupported("post_processor", step, "one token on each side of the text");
            }
        }
        Ok(affixes)
    }
}

/// The steps of a sequence, of a single step, or of nothing.
///
/// Sequences inside sequences come out one after another; the JSON parser bounds their depth.
fn steps<'v>(value: &'v Value, list: &str) -> Vec<&'v Value> {
    match value {
        Value::Null => Vec::new(),
        value if kind(value) == "Sequence" => {
            let inner = value[list].as_array().into_iter().flatten();
            inner.flat_map(|step| steps(step, list)).collect()
        }
        value => vec![value],
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or_default()
}

fn flag(step: &Value, key: &str, default: bool) -> bool {
    step[key].as_bool().unwrap_or(default)
}

/// A pattern that matches `text` itself.
fn literal(text: &str) -> String {
    text.chars().map(|c| format!(r"\x{{{:X}}}", u32::from(c))).collect()
}

fn unsupported<T>(place: &str, step: &Value, supported: &'static str) -> Result<T, TokenizerError> {
    const SHOWN: usize = 120;
    let found = step.to_string().chars().take(SHOWN).collect();
    Err(TokenizerError::Unsupported { place: place.into(), found, supported })
}
