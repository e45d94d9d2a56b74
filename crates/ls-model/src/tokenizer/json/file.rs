//! The parts of `tokenizer.json` as they are written, borrowed from the file's bytes.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The whole file.
#[derive(Debug, serde::Deserialize)]
pub(super) struct TokenizerFile<'a> {
    #[serde(borrow, default)]
    pub(super) added_tokens: Vec<AddedToken<'a>>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    pub(super) model: ModelFile<'a>,
}

/// A token that is matched as a whole.
#[derive(Debug, serde::Deserialize)]
pub(super) struct AddedToken<'a> {
    pub(super) id: u32,
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// The vocabulary and its merges.
#[derive(Debug, serde::Deserialize)]
pub(super) struct ModelFile<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) unk_token: Option<String>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(borrow, deserialize_with = "vocab")]
    pub(super) vocab: Vec<(Cow<'a, str>, u32)>,
    #[serde(borrow, default)]
    pub(super) merges: Vec<MergeEntry<'a>>,
}

/// A string that borrows where it has no escapes.
#[derive(Debug, serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// `"left right"` in older files, `["left", "right"]` in newer ones.
#[derive(Debug)]
pub(super) enum MergeEntry<'a> {
    Joined(Cow<'a, str>),
    Pair(Cow<'a, str>, Cow<'a, str>),
}

impl MergeEntry<'_> {
    /// Both sides; `None` if there are not two.
    pub(super) fn split(&self) -> Option<(&str, &str)> {
        match self {
            Self::Joined(text) => super::super::split_merge(text),
            Self::Pair(left, right) => Some((left, right)),
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Joined(text) => text.clone().into_owned(),
            Self::Pair(left, right) => format!("{left} {right}"),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeEntry<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = MergeEntry<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge as a string or as a pair of strings")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(MergeEntry::Joined(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(MergeEntry::Joined(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let missing = |n| de::Error::invalid_length(n, &self);
                let Text(left) = seq.next_element()?.ok_or_else(|| missing(0))?;
                let Text(right) = seq.next_element()?.ok_or_else(|| missing(1))?;
                Ok(MergeEntry::Pair(left, right))
            }
        }

        deserializer.deserialize_any(EntryVisitor)
    }
}

/// A BPE vocabulary, text to id. A list, as other models have it, is read past, so that the error
/// can name the model instead of a type in its middle.
fn vocab<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(Cow<'a, str>, u32)>, D::Error> {
    struct VocabVisitor;

    impl<'de> Visitor<'de> for VocabVisitor {
        type Value = Vec<(Cow<'de, str>, u32)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map from tokens to ids")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut vocab = Vec::new();
            while let Some((Text(text), id)) = map.next_entry()? {
                vocab.push((text, id));
            }
            Ok(vocab)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Vec::new())
        }
    }

    deserializer.deserialize_any(VocabVisitor)
}
