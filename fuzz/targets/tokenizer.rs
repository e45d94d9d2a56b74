//! Any text on a fixed vocabulary; any vocabulary; any `tokenizer.json`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use ls_model::Tokenizer;
use ls_model::tokenizer::{
    Alphabet, DecodeFrom, EncodeOptions, HuggingFaceFiles, Merging, PrefixScope, SpaceEater,
    SpacePrefix, SpecialTokens, Splitter, TokenKind, Vocabulary,
};

const WORDS: [&str; 8] = ["he", "ll", "llo", "hello", "Ġhello", "ĠĠ", "ÃĤ", "<|im_end|>"];
const MERGES: [(&str, &str); 7] =
    [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "hello"), ("Ġ", "Ġ"), ("Ã", "Ĥ")];
const NAMES: [&str; 5] = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"];
const KINDS: [TokenKind; 6] = [
    TokenKind::Normal,
    TokenKind::Unknown,
    TokenKind::Control,
    TokenKind::UserDefined,
    TokenKind::Unused,
    TokenKind::Byte,
];

/// Compiled once: that takes longer than everything else.
static SPLITTERS: LazyLock<Vec<Splitter>> = LazyLock::new(|| {
    let named = |name| Splitter::named(name).expect("the name is known");
    std::iter::once(Splitter::whole()).chain(NAMES.into_iter().map(named)).collect()
});

/// Byte-level tokenizers that can express every text, one for each splitter.
static FIXED: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let bytes: Vec<String> = byte_characters();
    let mut tokens: Vec<&str> = bytes.iter().map(String::as_str).collect();
    tokens.extend(WORDS);
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    kinds[tokens.len() - 1] = TokenKind::Control;
    let build = |splitter: &Splitter| {
        let vocabulary = Vocabulary {
            tokens: tokens.clone(),
            kinds: kinds.clone(),
            merging: ranks(MERGES.to_vec(), Alphabet::Bytes, false),
            splitter: splitter.clone(),
            prefix: SpacePrefix::NEVER,
            compose: false,
            space_eaters: Vec::new(),
            special: SpecialTokens::default(),
        };
        Tokenizer::new(&vocabulary).expect("the vocabulary is sound")
    };
    SPLITTERS.iter().map(build).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, rest)) = bytes.split_first() else { return };
    match mode % 3 {
        0 => {
            let text = String::from_utf8_lossy(rest);
            for tokenizer in FIXED.iter() {
                let ids = tokenizer.encode(&text, EncodeOptions::TEXT).expect("the text is short");
                assert_eq!(tokenizer.decode(&ids).expect("the ids are its own"), text);
                exercise(tokenizer, &text);
            }
        }
        1 => drop(any_vocabulary(&mut Unstructured::new(rest))),
        _ => {
            let files = HuggingFaceFiles {
                tokenizer: rest,
                tokenizer_config: None,
                generation_config: None,
            };
            if let Ok(tokenizer) = Tokenizer::from_hugging_face(&files) {
                exercise(&tokenizer, "Hello, <|im_end|> wörld 123\n\n  x");
            }
        }
    }
});

/// The 256 characters of the byte alphabet, in any order.
fn byte_characters() -> Vec<String> {
    let printable = (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF);
    let codes = printable.chain(0x100..0x144);
    codes.filter_map(char::from_u32).map(String::from).collect()
}

fn ranks<'a>(merges: Vec<(&'a str, &'a str)>, alphabet: Alphabet, whole_words: bool) -> Merging<'a> {
    Merging::Ranks { merges, alphabet, whole_words }
}

fn any_vocabulary(input: &mut Unstructured<'_>) -> Result<()> {
    let n_tokens = input.int_in_range(0..=40)?;
    let mut tokens: Vec<&str> = Vec::new();
    let mut kinds = Vec::new();
    for _ in 0..n_tokens {
        tokens.push(input.arbitrary()?);
        kinds.push(*input.choose(&KINDS)?);
    }
    let merging = if input.arbitrary()? {
        let n_scores = if input.ratio(9, 10)? { n_tokens } else { input.int_in_range(0..=41)? };
        Merging::Scores((0..n_scores).map(|_| input.arbitrary()).collect::<Result<_>>()?)
    } else {
        let alphabet = *input.choose(&[Alphabet::Bytes, Alphabet::Characters])?;
        let mut merges = Vec::new();
        for _ in 0..input.int_in_range(0..=20)? {
            // A merge that makes a token is likely to be sound.
            let joined = if tokens.is_empty() { "" } else { *input.choose(&tokens)? };
            let cut = input.int_in_range(0..=joined.len())?;
            merges.extend(joined.split_at_checked(cut));
        }
        ranks(merges, alphabet, input.arbitrary()?)
    };
    let id = |input: &mut Unstructured<'_>| -> Result<Option<u32>> {
        Ok(if input.arbitrary()? { Some(input.int_in_range(0..=n_tokens as u32)?) } else { None })
    };
    let scopes = [PrefixScope::Never, PrefixScope::First, PrefixScope::Every];
    let vocabulary = Vocabulary {
        merging,
        splitter: input.choose(&SPLITTERS)?.clone(),
        prefix: SpacePrefix {
            scope: *input.choose(&scopes)?,
            only_if_absent: input.arbitrary()?,
        },
        compose: input.arbitrary()?,
        space_eaters: vec![SpaceEater {
            id: input.int_in_range(0..=41)?,
            left: input.arbitrary()?,
            right: input.arbitrary()?,
        }],
        special: SpecialTokens {
            bos: id(input)?,
            eos: id(input)?,
            unknown: id(input)?,
            end_of_generation: id(input)?.into_iter().collect(),
            add_bos: input.arbitrary()?,
            add_eos: input.arbitrary()?,
        },
        tokens,
        kinds,
    };
    let text = String::from_utf8_lossy(input.peek_bytes(input.len()).unwrap_or_default());
    if let Ok(tokenizer) = Tokenizer::new(&vocabulary) {
        exercise(&tokenizer, &text);
        exercise(&tokenizer, &vocabulary.tokens.concat());
    }
    Ok(())
}

/// Encodes in every way; ids are in range, and streaming gives what decoding gives.
fn exercise(tokenizer: &Tokenizer, text: &str) {
    for add_special in [false, true] {
        for parse_special in [false, true] {
            let options = EncodeOptions { add_special, parse_special };
            let ids = tokenizer.encode(text, options).expect("the text is short");
            let decoded = tokenizer.decode(&ids).expect("the ids are its own");
            let mut stream = tokenizer.stream(DecodeFrom::Start);
            let mut streamed = String::new();
            for id in ids {
                streamed.push_str(stream.push(id).expect("the id is its own"));
            }
            streamed.push_str(stream.finish());
            assert_eq!(streamed, decoded);
        }
    }
}
