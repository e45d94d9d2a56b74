use serde_json::{Value, json};

use super::HuggingFaceFiles;
use crate::tokenizer::{EncodeOptions, Tokenizer, TokenizerError};

/// As Qwen's and Llama 3's: a regular expression, then bytes.
fn byte_level() -> Value {
    let vocab = ["a", "b", "ab", "Ġ", "Ġa", "1", "é"];
    let vocab: serde_json::Map<_, _> =
        vocab.iter().zip(0..).map(|(text, id)| ((*text).to_owned(), json!(id))).collect();
    json!({
        "added_tokens": [
            {"id": 8, "content": "<|im_end|>", "special": true},
            {"id": 9, "content": "<t>", "special": false, "lstrip": true, "rstrip": true},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {
                "Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|\\s+(?!\\S)|\\s+",
            }},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "post_processor": {"type": "ByteLevel"},
        "model": {
            "type": "BPE", "vocab": vocab, "merges": ["a b", ["Ġ", "a"]],
        },
    })
}

/// As Llama 2's and Gemma's: visible spaces and byte fallback.
fn sentence_piece() -> Value {
    let vocab = json!({
        "<unk>": 0, "<s>": 1, "</s>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "▁a": 7,
    });
    json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true},
            {"id": 1, "content": "<s>", "special": true},
            {"id": 2, "content": "</s>", "special": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
            "vocab": vocab, "merges": [["▁", "a"]],
        },
    })
}

fn load(tokenizer: &Value) -> Result<Tokenizer, TokenizerError> {
    load_with(tokenizer, &json!({}), &json!({}))
}

fn load_with(
    tokenizer: &Value,
    config: &Value,
    generation: &Value,
) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_hugging_face(&HuggingFaceFiles {
        tokenizer: tokenizer.to_string().as_bytes(),
        tokenizer_config: config.as_object(),
        generation_config: generation.as_object(),
    })
}

fn prompt(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions::PROMPT).unwrap()
}

#[test]
fn byte_level_models_encode_and_decode() {
    let tokenizer = load(&byte_level()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 10);
    assert_eq!(prompt(&tokenizer, "ab a  a11<|im_end|>"), [2, 4, 3, 4, 5, 5, 8]);
    assert_eq!(prompt(&tokenizer, "a <t> b"), [0, 9, 1]);
    assert_eq!(tokenizer.decode(&[2, 4, 8]).unwrap(), "ab a");
    assert!(tokenizer.is_end_of_generation(8));
    assert_eq!(tokenizer.token_text(7), Some(""));
}

#[test]
fn visible_spaces_and_byte_fallback_work() {
    let tokenizer = load(&sentence_piece()).unwrap();
    assert_eq!(prompt(&tokenizer, "a aé"), [1, 7, 7, 3, 4]);
    assert_eq!(prompt(&tokenizer, "z"), [1, 5, 0]);
    assert_eq!(tokenizer.decode(&[1, 7, 7, 3, 4]).unwrap(), "a aé");
}

#[test]
fn metaspace_is_the_newer_way_to_write_the_same() {
    let mut file = sentence_piece();
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] = json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false,
    });
    let tokenizer = load(&file).unwrap();
    assert_eq!(prompt(&tokenizer, "a a</s>a"), [1, 7, 7, 2, 6]);
    assert_eq!(prompt(&tokenizer, " a"), [1, 7]);
}

#[test]
fn the_configuration_decides_on_bos() {
    let file = sentence_piece();
    let bos = |config| prompt(&load_with(&file, &config, &json!({})).unwrap(), "a");
    assert_eq!(bos(json!({})), [1, 7]);
    assert_eq!(bos(json!({"add_bos_token": false})), [7]);
    let both = json!({"add_eos_token": true, "eos_token": {"content": "</s>"}});
    assert_eq!(bos(both), [1, 7, 2]);
    let qwen = json!({"add_bos_token": false, "bos_token": null, "eos_token": "<|im_end|>"});
    let tokenizer = load_with(&byte_level(), &qwen, &json!({})).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, Some(8)));
}

#[test]
fn the_generation_configuration_names_further_ends() {
    let load = |ids| load_with(&byte_level(), &json!({}), &json!({"eos_token_id": ids}));
    assert!(load(json!([5, 8])).unwrap().is_end_of_generation(5));
    assert!(load(json!(5)).unwrap().is_end_of_generation(5));
    assert!(!load(json!(null)).unwrap().is_end_of_generation(5));
    let error = load(json!([99])).unwrap_err().to_string();
    assert!(error.contains("eos_token_id` is 99"), "{error}");
    assert!(matches!(load(json!("x")), Err(TokenizerError::WrongType { .. })));
}

#[test]
fn faults_are_named() {
    type Change = fn(&mut Value);
    let faults: [(Change, &str); 10] = [
        (|f| f["model"]["type"] = json!("WordPiece"), "`model.type` is `WordPiece`"),
        (
            |f| f["model"] = json!({"type": "Unigram", "vocab": [["a", -1.0]]}),
            "`model.type` is `Unigram`",
        ),
        (|f| f["model"]["end_of_word_suffix"] = json!("</w>"), "model.end_of_word_suffix"),
        (|f| f["model"]["vocab"] = json!({}), "merge 0 needs the token \"ab\""),
        (|f| f["model"]["vocab"]["z"] = json!(0), "token id 0 is both"),
        (|f| f["model"]["vocab"]["z"] = json!(u32::MAX), "the highest token id is 4294967295"),
        (|f| f["model"]["merges"][0] = json!("ab"), "merge 0 is \"ab\""),
        (|f| f["added_tokens"][0]["single_word"] = json!(true), "added_tokens.single_word"),
        (|f| f["normalizer"] = json!({"type": "Lowercase"}), "`normalizer` is `{\"type\""),
        (
            |f| {
                f["pre_tokenizer"] =
                    json!({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "a(?=b)"}})
            },
            "the tokenizer's pattern `a(?=b)` cannot be used",
        ),
    ];
    for (change, expected) in faults {
        let mut file = byte_level();
        change(&mut file);
        let error = load(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
    }
}

#[test]
fn malformed_json_is_refused_with_its_place() {
    for text in ["", "[]", "{\"model\": {\"vocab\": 1}}", "{\"model\": {\"vocab\": {\"a\": -1}}}"] {
        let files = HuggingFaceFiles {
            tokenizer: text.as_bytes(),
            tokenizer_config: None,
            generation_config: None,
        };
        let error = Tokenizer::from_hugging_face(&files).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
