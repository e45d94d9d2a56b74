use std::fmt::Write;

use proptest::prelude::*;

use super::*;

/// Owns what a [`Vocabulary`] borrows.
#[derive(Clone, Debug)]
struct Tokens(Vec<(String, TokenKind)>);

impl Tokens {
    /// All 256 bytes, then `more`.
    fn byte_level(more: &[(&str, TokenKind)]) -> Self {
        let bytes = (0..=255).map(|byte| alphabet::char_of(byte).to_string());
        Self(bytes.map(|text| (text, TokenKind::Normal)).collect()).with(more)
    }

    /// `<unk>`, `<s>`, `</s>` and all 256 bytes as SentencePiece has them, then `more`.
    fn sentence_piece(more: &[(&str, TokenKind)]) -> Self {
        let special = [("<unk>", TokenKind::Unknown), ("<s>", TokenKind::Control)];
        let mut tokens = Self(Vec::new()).with(&special).with(&[("</s>", TokenKind::Control)]);
        for byte in 0..=255_u8 {
            let mut text = String::new();
            write!(text, "<0x{byte:02X}>").unwrap();
            tokens.0.push((text, TokenKind::Byte));
        }
        tokens.with(more)
    }

    fn with(mut self, more: &[(&str, TokenKind)]) -> Self {
        self.0.extend(more.iter().map(|(text, kind)| ((*text).to_owned(), *kind)));
        self
    }

    fn vocabulary<'a>(&'a self, merging: Merging<'a>) -> Vocabulary<'a> {
        Vocabulary {
            tokens: self.0.iter().map(|(text, _)| text.as_str()).collect(),
            kinds: self.0.iter().map(|(_, kind)| *kind).collect(),
            merging,
            splitter: Splitter::whole(),
            prefix: SpacePrefix::NEVER,
            compose: false,
            space_eaters: Vec::new(),
            special: SpecialTokens::default(),
        }
    }
}

const WORDS: [(&str, TokenKind); 8] = [
    ("he", TokenKind::Normal),
    ("ll", TokenKind::Normal),
    ("llo", TokenKind::Normal),
    ("hello", TokenKind::Normal),
    ("Ġhello", TokenKind::Normal),
    ("ĠĠ", TokenKind::Normal),
    ("<|im_end|>", TokenKind::Control),
    ("<tool>", TokenKind::UserDefined),
];

const MERGES: [(&str, &str); 6] =
    [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "hello"), ("Ġ", "Ġ")];

fn ranks(whole_words: bool) -> Merging<'static> {
    Merging::Ranks { merges: MERGES.to_vec(), alphabet: Alphabet::Bytes, whole_words }
}

fn byte_level() -> Tokenizer {
    let tokens = Tokens::byte_level(&WORDS);
    let mut vocabulary = tokens.vocabulary(ranks(false));
    vocabulary.splitter = Splitter::named("qwen2").unwrap();
    Tokenizer::new(&vocabulary).unwrap()
}

/// Characters a, b, ▁ and some of their pairs, with `scores` for the pairs.
fn scored(prefix: SpacePrefix, scores: &[f32]) -> Tokenizer {
    let words = ["▁", "a", "b", "ab", "ba", "aba", "▁a", "bb", "abab"];
    let words = words.map(|text| (text, TokenKind::Normal));
    let tokens = Tokens::sentence_piece(&words);
    let mut all = vec![0.0; tokens.0.len() - scores.len()];
    all.extend(scores);
    let mut vocabulary = tokens.vocabulary(Merging::Scores(all));
    vocabulary.prefix = prefix;
    let bos_eos = (Some(1), Some(2));
    (vocabulary.special.bos, vocabulary.special.eos) = bos_eos;
    vocabulary.special.add_bos = true;
    Tokenizer::new(&vocabulary).unwrap()
}

fn texts<'t>(tokenizer: &'t Tokenizer, ids: &[u32]) -> Vec<&'t str> {
    ids.iter().map(|id| tokenizer.token_text(*id).unwrap()).collect()
}

fn encode<'t>(tokenizer: &'t Tokenizer, text: &str, options: EncodeOptions) -> Vec<&'t str> {
    texts(tokenizer, &tokenizer.encode(text, options).unwrap())
}

#[test]
fn ranked_merges_make_words_and_bytes_the_rest() {
    let tokenizer = byte_level();
    let tokens = encode(&tokenizer, "hello  hello é<tool><|im_end|>", EncodeOptions::PROMPT);
    assert_eq!(tokens, ["hello", "Ġ", "Ġhello", "Ġ", "Ã", "©", "<tool>", "<|im_end|>"]);
    let tokens = encode(&tokenizer, "<|im_end|><tool>", EncodeOptions::TEXT);
    assert_eq!(tokens.len(), "<|im_end|>".len() + 1);
}

#[test]
fn words_are_taken_whole_only_where_the_model_does_so() {
    let tokens = Tokens::byte_level(&[("xyz", TokenKind::Normal)]);
    let count = |whole_words| {
        let merges = Vec::new();
        let merging = Merging::Ranks { merges, alphabet: Alphabet::Bytes, whole_words };
        let tokenizer = Tokenizer::new(&tokens.vocabulary(merging)).unwrap();
        tokenizer.encode("xyz", EncodeOptions::TEXT).unwrap().len()
    };
    assert_eq!((count(true), count(false)), (1, 3));
}

#[test]
fn bytes_without_a_token_are_dropped_or_become_the_unknown_token() {
    let tokens =
        Tokens(Vec::new()).with(&[("a", TokenKind::Normal), ("<unk>", TokenKind::Unknown)]);
    for (unknown, expected) in [(None, vec!["a"]), (Some(1), vec!["a", "<unk>"])] {
        let merges = Vec::new();
        let merging = Merging::Ranks { merges, alphabet: Alphabet::Bytes, whole_words: false };
        let mut vocabulary = tokens.vocabulary(merging);
        vocabulary.special.unknown = unknown;
        let tokenizer = Tokenizer::new(&vocabulary).unwrap();
        assert_eq!(encode(&tokenizer, "az", EncodeOptions::TEXT), expected);
    }
}

#[test]
fn scores_decide_and_ties_go_left() {
    // ab, ba, aba, ▁a, bb, abab
    let tokenizer = scored(SpacePrefix::NEVER, &[-1.0, -1.0, -5.0, -9.0, -2.0, -6.0]);
    assert_eq!(encode(&tokenizer, "aba", EncodeOptions::TEXT), ["aba"]);
    assert_eq!(encode(&tokenizer, "bab", EncodeOptions::TEXT), ["ba", "b"]);
    assert_eq!(encode(&tokenizer, "abab", EncodeOptions::TEXT), ["abab"]);
    assert_eq!(encode(&tokenizer, " a", EncodeOptions::TEXT), ["▁a"]);
}

#[test]
fn what_has_no_token_falls_back_to_bytes() {
    let tokenizer = scored(SpacePrefix::EVERY, &[]);
    let tokens = encode(&tokenizer, "é", EncodeOptions::PROMPT);
    assert_eq!(tokens, ["<s>", "▁", "<0xC3>", "<0xA9>"]);
    let ids = tokenizer.encode("é", EncodeOptions::PROMPT).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "é");
}

#[test]
fn the_space_in_front_is_taken_off_at_the_start_only() {
    let tokenizer = scored(SpacePrefix::EVERY, &[]);
    let ids = tokenizer.encode("a b", EncodeOptions::PROMPT).unwrap();
    assert_eq!(texts(&tokenizer, &ids), ["<s>", "▁a", "▁", "b"]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a b");
    let mut stream = tokenizer.stream(DecodeFrom::Middle);
    assert_eq!(stream.push(ids[1]).unwrap(), " a");
    let with_space = tokenizer.encode(" a", EncodeOptions::TEXT).unwrap();
    assert_eq!(tokenizer.decode(&with_space).unwrap(), " a");
    let tokenizer = scored(SpacePrefix::NEVER, &[]);
    let ids = tokenizer.encode(" a", EncodeOptions::TEXT).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), " a");
}

#[test]
fn bos_comes_exactly_once_and_eos_on_request() {
    let tokens = Tokens::sentence_piece(&[("a", TokenKind::Normal)]);
    let mut vocabulary = tokens.vocabulary(Merging::Scores(vec![0.0; tokens.0.len()]));
    vocabulary.special = SpecialTokens {
        bos: Some(1),
        eos: Some(2),
        add_bos: true,
        add_eos: true,
        ..SpecialTokens::default()
    };
    let both = Tokenizer::new(&vocabulary).unwrap();
    for text in ["a", "<s>a", "a</s>", "<s>a</s>"] {
        assert_eq!(encode(&both, text, EncodeOptions::PROMPT), ["<s>", "a", "</s>"]);
    }
    assert_eq!(encode(&both, "", EncodeOptions::PROMPT), ["<s>", "</s>"]);
    assert_eq!(encode(&both, "a", EncodeOptions::TEXT), ["a"]);
    vocabulary.special.add_bos = false;
    vocabulary.special.add_eos = false;
    let none = Tokenizer::new(&vocabulary).unwrap();
    assert_eq!(encode(&none, "a", EncodeOptions::PROMPT), ["a"]);
}

#[test]
fn a_character_waits_until_it_is_whole() {
    let tokenizer = byte_level();
    let mut stream = tokenizer.stream(DecodeFrom::Middle);
    let bytes = "é€😀".as_bytes();
    let pieces: Vec<String> =
        bytes.iter().map(|byte| stream.push(u32::from(*byte)).unwrap().to_owned()).collect();
    assert_eq!(pieces, ["", "é", "", "", "€", "", "", "", "😀"]);
    assert_eq!(stream.finish(), "");
}

#[test]
fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
    let tokenizer = byte_level();
    let mut stream = tokenizer.stream(DecodeFrom::Middle);
    let mut push = |byte: u8| stream.push(u32::from(byte)).unwrap().to_owned();
    assert_eq!(push(0xFF), "\u{fffd}");
    assert_eq!(push(0xE2), "");
    assert_eq!(push(b'x'), "\u{fffd}x");
    assert_eq!(push(0xE2), "");
    assert_eq!(push(0x82), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.push(u32::from(b'y')).unwrap(), "y");
}

#[test]
fn control_tokens_are_silent_and_bytes_are_told_apart() {
    let tokenizer = byte_level();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    assert_eq!(
        tokenizer.decode(&[id("hello"), id("<|im_end|>"), id("<tool>")]).unwrap(),
        "hello<tool>"
    );
    assert_eq!(tokenizer.token_bytes(id("Ġhello")).unwrap(), b" hello");
    assert_eq!(tokenizer.token_bytes(0xC3).unwrap(), [0xC3]);
    assert_eq!(tokenizer.token_bytes(id("<|im_end|>")).unwrap(), b"");
    assert_eq!(tokenizer.token_bytes(100_000), None);
    assert!(tokenizer.is_end_of_generation(id("<|im_end|>")));
    assert!(!tokenizer.is_end_of_generation(id("<tool>")));
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let tokenizer = byte_level();
    let error = tokenizer.decode(&[5, u32::MAX]).unwrap_err();
    assert!(matches!(error, TokenizerError::UnknownId { id: u32::MAX, .. }), "{error}");
    let mut stream = tokenizer.stream(DecodeFrom::Middle);
    stream.push(0xC3).unwrap();
    assert!(stream.push(tokenizer.vocab_size() as u32).is_err());
    assert_eq!(stream.push(0xA9).unwrap(), "é");
}

#[test]
fn contradictions_in_a_vocabulary_are_named() {
    type Break = fn(&mut Vocabulary<'_>);
    let breaks: [(Break, &str); 8] = [
        (|v| v.tokens.clear(), "the vocabulary is empty"),
        (|v| v.tokens[4] = v.tokens[3], "tokens 3 and 4 are both"),
        (|v| v.kinds.truncate(7), "`tokenizer.ggml.token_type` has 7 elements for 264 tokens"),
        (|v| v.kinds[0] = TokenKind::Byte, "byte token 0 is \"Ā\""),
        (|v| v.special.bos = Some(264), "`BOS` is 264, but the vocabulary has 264 tokens"),
        (|v| v.special.end_of_generation = vec![0, 999], "`end of generation` is 999"),
        (|v| v.special.add_eos = true, "adds EOS to every text, but none is defined"),
        (|v| v.merging = Merging::Scores(vec![0.0]), "`tokenizer.ggml.scores` has 1 elements"),
    ];
    let tokens = Tokens::byte_level(&WORDS);
    for (break_it, expected) in breaks {
        let mut vocabulary = tokens.vocabulary(ranks(false));
        break_it(&mut vocabulary);
        let error = Tokenizer::new(&vocabulary).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
    }
}

#[test]
fn merges_and_scores_that_make_no_sense_are_named() {
    let tokens = Tokens::byte_level(&WORDS);
    let fail = |merging| Tokenizer::new(&tokens.vocabulary(merging)).unwrap_err().to_string();
    for (merge, missing) in [(("h", "中"), "h中"), (("", "h"), ""), (("h", "h"), "hh")] {
        let merges = vec![MERGES[0], merge];
        let error = fail(Merging::Ranks { merges, alphabet: Alphabet::Bytes, whole_words: false });
        assert!(error.contains(&format!("merge 1 needs the token {missing:?}")), "{error}");
    }
    let mut scores = vec![0.0; tokens.0.len()];
    scores[9] = f32::NAN;
    assert_eq!(fail(Merging::Scores(scores)), "the score of token 9 is not a number");
}

#[test]
fn tokenizers_can_be_shared_between_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<Tokenizer>();
}

/// Joins the best pair again and again, looking at every pair each time.
fn merge_slowly(
    tokenizer: &Tokenizer,
    text: &str,
    score: impl Fn(&str) -> Option<f32>,
) -> Vec<u32> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let joined = parts.windows(2).map(|pair| pair.concat()).enumerate();
        let candidates = joined.filter_map(|(idx, text)| Some((idx, score(&text)?)));
        let better =
            |best: (usize, f32), next: (usize, f32)| if next.1 > best.1 { next } else { best };
        let Some((idx, _)) = candidates.reduce(better) else { break };
        let right = parts.remove(idx + 1);
        parts[idx].push_str(&right);
    }
    parts.iter().map(|part| tokenizer.token_id(part).unwrap()).collect()
}

proptest! {
    #[test]
    fn the_queue_merges_as_the_definition_does(
        text in "[ab▁]{0,24}",
        scores in proptest::collection::vec((-3_i8..3).prop_map(f32::from), 6),
    ) {
        let tokenizer = scored(SpacePrefix::NEVER, &scores);
        let words = ["ab", "ba", "aba", "▁a", "bb", "abab"];
        let score = |text: &str| words.iter().position(|word| *word == text).map(|idx| scores[idx]);
        let expected = merge_slowly(&tokenizer, &text, score);
        prop_assert_eq!(tokenizer.encode(&text, EncodeOptions::TEXT).unwrap(), expected);
    }

    #[test]
    fn ranked_merges_follow_the_definition(text in "[helo ]{0,24}") {
        let tokens = Tokens::byte_level(&WORDS);
        let tokenizer = Tokenizer::new(&tokens.vocabulary(ranks(false))).unwrap();
        // As a score the rank only has to fall; a pair's joined text tells it from all others here.
        let score = |text: &str| {
            let rank = MERGES.iter().position(|(left, right)| format!("{left}{right}") == text)?;
            Some(-(rank as f32))
        };
        let expected = merge_slowly(&tokenizer, &text.replace(' ', "Ġ"), score);
        prop_assert_eq!(tokenizer.encode(&text, EncodeOptions::TEXT).unwrap(), expected);
    }

    #[test]
    fn decoding_undoes_encoding(text in any::<String>()) {
        for tokenizer in [byte_level(), scored(SpacePrefix::EVERY, &[])] {
            let ids = tokenizer.encode(&text, EncodeOptions::TEXT).unwrap();
            let spaces = tokenizer.token_id("▁").is_some();
            let expected = if spaces { text.replace('▁', " ") } else { text.clone() };
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), expected);
        }
    }

    #[test]
    fn streams_give_what_decoding_gives(ids in proptest::collection::vec(0_u32..264, 0..40)) {
        let tokenizer = byte_level();
        let mut stream = tokenizer.stream(DecodeFrom::Start);
        let mut streamed = String::new();
        let mut bytes = Vec::new();
        for id in &ids {
            streamed.push_str(stream.push(*id).unwrap());
            bytes.extend(tokenizer.token_bytes(*id).unwrap());
        }
        streamed.push_str(stream.finish());
        prop_assert_eq!(&streamed, &tokenizer.decode(&ids).unwrap());
        prop_assert_eq!(streamed, String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn streamed_text_has_no_replacement_characters(text in any::<String>()) {
        prop_assume!(!text.contains('\u{fffd}'));
        let tokenizer = byte_level();
        let mut stream = tokenizer.stream(DecodeFrom::Start);
        for id in tokenizer.encode(&text, EncodeOptions::TEXT).unwrap() {
            prop_assert!(!stream.push(id).unwrap().contains(char::REPLACEMENT_CHARACTER));
        }
        prop_assert_eq!(stream.finish(), "");
    }
}
