use crate::gguf::write::Writer;
use crate::gguf::{Metadata, parse};
use crate::tokenizer::{EncodeOptions, Tokenizer, TokenizerError};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A small byte-level model.
fn gpt2() -> Writer<'static> {
    let mut writer = Writer::new();
    writer.value("tokenizer.ggml.model", "gpt2");
    writer.value("tokenizer.ggml.pre", "qwen2");
    writer.value("tokenizer.ggml.tokens", strings(&["<bos>", "a", "b", "ab", "Ġ", "<|im_end|>"]));
    writer.value("tokenizer.ggml.token_type", vec![3, 1, 1, 1, 1, 1]);
    writer.value("tokenizer.ggml.merges", strings(&["a b"]));
    writer.value("tokenizer.ggml.bos_token_id", 0_u32);
    writer
}

/// A small SentencePiece model.
fn llama() -> Writer<'static> {
    let mut writer = Writer::new();
    writer.value("tokenizer.ggml.model", "llama");
    writer.value("tokenizer.ggml.tokens", strings(&["<unk>", "<s>", "</s>", "▁", "a", "▁a"]));
    writer.value("tokenizer.ggml.token_type", vec![2, 3, 3, 1, 1, 1]);
    writer.value("tokenizer.ggml.scores", vec![0.0_f32, 0.0, 0.0, -1.0, -2.0, -3.0]);
    writer
}

fn metadata(writer: &Writer<'_>) -> Metadata {
    parse(&writer.to_bytes()).unwrap().metadata
}

fn load(writer: &Writer<'_>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&metadata(writer))
}

fn prompt(writer: &Writer<'_>, text: &str) -> Vec<u32> {
    load(writer).unwrap().encode(text, EncodeOptions::PROMPT).unwrap()
}

#[test]
fn byte_level_models_add_no_bos_unless_told() {
    assert_eq!(prompt(&gpt2(), "ab a"), [3, 4, 1]);
    assert_eq!(prompt(gpt2().value("tokenizer.ggml.add_bos_token", true), "ab"), [0, 3]);
    assert_eq!(prompt(gpt2().value("tokenizer.ggml.pre", "llama-bpe"), "ab"), [0, 3]);
}

#[test]
fn sentence_piece_models_begin_with_bos_and_a_space() {
    assert_eq!(prompt(&llama(), "a a"), [1, 5, 5]);
    assert_eq!(prompt(llama().value("tokenizer.ggml.add_bos_token", false), "a"), [5]);
    assert_eq!(prompt(llama().value("tokenizer.ggml.add_space_prefix", false), "a"), [1, 4]);
    assert_eq!(prompt(llama().value("tokenizer.ggml.add_eos_token", true), "a"), [1, 5, 2]);
    assert_eq!(prompt(&llama(), "z"), [1, 3, 0]);
}

#[test]
fn ends_of_turns_are_control_tokens_whatever_the_file_says() {
    let tokenizer = load(&gpt2()).unwrap();
    assert_eq!(tokenizer.encode("a<|im_end|>", EncodeOptions::PROMPT).unwrap(), [1, 5]);
    assert!(tokenizer.is_end_of_generation(5));
    assert_eq!(tokenizer.eos(), None);
    let with_eot = load(gpt2().value("tokenizer.ggml.eot_token_id", 3_u32)).unwrap();
    assert!(with_eot.is_end_of_generation(3));
}

#[test]
fn special_ids_outside_the_vocabulary_count_as_absent() {
    let tokenizer = load(gpt2().value("tokenizer.ggml.bos_token_id", 6_u32)).unwrap();
    assert_eq!(tokenizer.bos(), None);
}

#[test]
fn a_file_without_a_pre_tokenizer_gets_the_default_one() {
    let mut writer = Writer::new();
    writer.value("tokenizer.ggml.model", "gpt2");
    writer.value("tokenizer.ggml.tokens", strings(&["1", "2", "12"]));
    writer.value("tokenizer.ggml.merges", strings(&["1 2"]));
    assert_eq!(prompt(&writer, "1212"), [2, 0, 1]);
}

#[test]
fn faults_are_named() {
    type Change = fn(&mut Writer<'_>);
    let gpt2_faults: [(Change, &str); 7] = [
        (
            |w| {
                w.value("tokenizer.ggml.model", "t5");
            },
            "`tokenizer.ggml.model` is `t5`",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.model", 7_u32);
            },
            "tokenizer.ggml.model",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.pre", "qwen99");
            },
            "unknown pre-tokenizer `qwen99`",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.merges", strings(&["a b", "ab"]));
            },
            "merge 1 is \"ab\", expected two tokens",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.merges", strings(&["b a"]));
            },
            "merge 0 needs the token \"ba\"",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.tokens", Vec::<String>::new());
            },
            "vocabulary is empty",
        ),
        (
            |w| {
                w.value("tokenizer.ggml.token_type", vec![1]);
            },
            "`tokenizer.ggml.token_type` has 1 elements for 6 tokens",
        ),
    ];
    for (change, expected) in gpt2_faults {
        let mut writer = gpt2();
        change(&mut writer);
        let error = load(&writer).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
    }
}

#[test]
fn missing_arrays_are_named() {
    let error = Tokenizer::from_gguf(&Metadata::default()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.model"), "{error}");
    for (model, missing) in [("gpt2", "tokenizer.ggml.merges"), ("llama", "tokenizer.ggml.scores")]
    {
        let mut writer = Writer::new();
        writer.value("tokenizer.ggml.model", model);
        let error = load(&writer).unwrap_err().to_string();
        assert!(error.contains("tokenizer.ggml.tokens"), "{error}");
        writer.value("tokenizer.ggml.tokens", strings(&["a"]));
        let error = load(&writer).unwrap_err().to_string();
        assert!(error.contains(missing), "{error}");
    }
}

#[test]
fn tokens_that_are_not_utf8_are_named() {
    let mut bytes = gpt2().to_bytes();
    let at = bytes.windows(10).position(|window| window == b"<|im_end|>").unwrap();
    bytes[at] = 0xFF;
    let error = Tokenizer::from_gguf(&parse(&bytes).unwrap().metadata).unwrap_err().to_string();
    assert!(error.contains("string 5 is not valid UTF-8"), "{error}");
}
