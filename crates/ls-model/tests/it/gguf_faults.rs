//! Each way in which the bytes of a GGUF file can be wrong, and the sentence that says so.

use std::fmt::Write;

use ls_model::gguf::{GgufError, parse};

use crate::support::{Raw, Tiny, complaint, open, string};

const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;

fn alignment(value: u32) -> Raw {
    Raw::new().key("general.alignment", U32, &value.to_le_bytes()).tensor("t", &[8], F32, 0)
}

fn array(element: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&element.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

fn nested(depth: usize) -> Vec<u8> {
    let innermost = array(0, 1, &[7]);
    (0..depth).fold(innermost, |inner, _| array(ARRAY, 1, &inner))
}

/// A string of 1 GiB, in a file of 160 bytes.
fn long_string() -> Vec<u8> {
    let mut bytes = Raw::new().key("general.name", STRING, &(1_u64 << 30).to_le_bytes()).bytes();
    bytes.resize(160, b'x');
    bytes
}

#[test]
fn every_fault_is_named() {
    let t = |dims: &[u64], dtype, offset| Raw::new().tensor("t", dims, dtype, offset);
    let tiny = Tiny::new("llama").writer().to_bytes();
    let big_endian = {
        let mut bytes = tiny.clone();
        bytes[4..8].reverse();
        bytes
    };
    let mut counts = Raw::new();
    counts.n_tensors = Some(u64::MAX);
    let mut keys = Raw::new();
    keys.n_keys = Some(1 << 40);
    let mut version_1 = Raw::new();
    version_1.version = 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty file", vec![]),
        ("three bytes", b"GGU".to_vec()),
        ("another format", b"PK\x03\x04 and so on".to_vec()),
        (
            "git-lfs pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n".to_vec(),
        ),
        ("big-endian", big_endian),
        ("version 1", version_1.bytes()),
        ("header cut", tiny[..20].to_vec()),
        ("tensor count", counts.bytes()),
        ("key count", keys.bytes()),
        ("string of 1 GiB", long_string()),
        (
            "name of 1 GiB",
            [
                Raw { n_keys: Some(1), data: 0, ..Raw::new() }.bytes(),
                (1_u64 << 30).to_le_bytes().to_vec(),
            ]
            .concat(),
        ),
        ("array beyond the file", Raw::new().key("a", ARRAY, &array(U32, 1 << 61, &[])).bytes()),
        (
            "strings beyond the file",
            Raw::new().key("a", ARRAY, &array(STRING, 1 << 61, &[])).bytes(),
        ),
        ("nested arrays", Raw::new().key("a", ARRAY, &nested(9)).bytes()),
        ("value type 13", Raw::new().key("a", 13, &[0; 8]).bytes()),
        ("empty key", Raw::new().key("", U32, &[0; 4]).bytes()),
        ("key twice", Raw::new().key("a", U32, &[0; 4]).key("a", U32, &[0; 4]).bytes()),
        ("alignment 0", alignment(0).data(32).bytes()),
        ("alignment 3", alignment(3).data(32).bytes()),
        ("alignment 2^30", alignment(1 << 30).data(32).bytes()),
        ("alignment is text", Raw::new().key("general.alignment", STRING, &string("32")).bytes()),
        ("no dimensions", t(&[], F32, 0).data(32).bytes()),
        ("five dimensions", t(&[1; 5], F32, 0).data(32).bytes()),
        ("zero dimension", t(&[8, 0], F32, 0).data(32).bytes()),
        ("overflow in elements", t(&[1 << 40, 1 << 40], F32, 0).data(32).bytes()),
        ("overflow in bytes", t(&[1 << 31, 1 << 32], F32, 0).data(32).bytes()),
        ("partial block", t(&[33, 2], 2, 0).data(64).bytes()),
        ("offset near the top", t(&[8], F32, u64::MAX - 31).data(32).bytes()),
        ("misaligned offset", t(&[8], F32, 8).data(64).bytes()),
        ("beyond the end", t(&[8], F32, 32).data(32).bytes()),
        ("tensor twice", t(&[8], F32, 0).tensor("t", &[8], F32, 32).data(64).bytes()),
        ("overlap", t(&[16], F32, 0).tensor("u", &[8], F32, 32).data(64).bytes()),
        ("type IQ2_XXS", t(&[256], 16, 0).data(96).bytes()),
        ("type TQ1_0", t(&[256], 34, 0).data(96).bytes()),
        ("type MXFP4", t(&[32], 39, 0).data(32).bytes()),
        ("type 99", t(&[32], 99, 0).data(32).bytes()),
        ("no architecture", t(&[8], F32, 0).data(32).bytes()),
        ("truncated by one byte", tiny[..tiny.len() - 1].to_vec()),
    ];
    let mut sentences = String::new();
    for (case, bytes) in cases {
        writeln!(sentences, "{case}: {}", complaint(&bytes)).unwrap();
    }
    insta::assert_snapshot!(sentences);
}

#[test]
fn truncated_anywhere_is_an_error() {
    let bytes = Tiny::new("gemma3").writer().to_bytes();
    for len in 0..bytes.len() {
        let error = parse(&bytes[..len]).unwrap_err();
        let cut = matches!(error, GgufError::Truncated { .. } | GgufError::Count { .. });
        assert!(cut || (len < 4 && matches!(error, GgufError::Magic { .. })), "{len}: {error}");
    }
}

#[test]
fn a_header_longer_than_the_first_read_is_read_in_full() {
    let mut writer = Tiny::new("llama").writer();
    writer.value("tokenizer.chat_template", "x".repeat(9 << 20));
    let model = open(&writer).unwrap();
    assert_eq!(model.chat_template().unwrap().len(), 9 << 20);
    assert_eq!(model.config().vocab_size, 40);
}

#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = Tiny::new("llama").writer().to_bytes();
    let v3 = parse(&bytes).unwrap();
    bytes[4] = 2;
    let v2 = parse(&bytes).unwrap();
    assert_eq!((v2.version, v3.version), (2, 3));
    assert_eq!(v2.tensors, v3.tensors);
}

#[test]
fn gaps_between_tensors_are_allowed() {
    let raw = Raw::new().tensor("t", &[8], F32, 64).tensor("u", &[8], F32, 0).data(96);
    let header = parse(&raw.bytes()).unwrap();
    assert_eq!(header.tensors[0].offset(), header.tensors[1].offset() + 64);
}
