//! Typed getters over metadata.

use ls_model::gguf::write::Writer;
use ls_model::gguf::{Metadata, MetadataError, parse};

use crate::support::{Raw, string};

fn metadata() -> Metadata {
    let mut writer = Writer::new();
    writer
        .value("count", 7_u32)
        .value("negative", -7_i32)
        .value("large", u64::MAX)
        .value("eps", 0.5_f32)
        .value("flag", true)
        .value("text", "naïve")
        .value("scores", vec![0.25_f32, -1.0])
        .value("types", vec![1_i32, 3])
        .value("tokens", vec!["<s>".to_owned(), String::new(), "é".to_owned()]);
    parse(&writer.to_bytes()).unwrap().metadata
}

#[test]
fn values_come_back_as_the_type_that_is_asked_for() {
    let m = metadata();
    assert_eq!(m.require::<u64>("count"), Ok(7));
    assert_eq!(m.require::<usize>("count"), Ok(7));
    assert_eq!(m.require::<i32>("negative"), Ok(-7));
    assert_eq!(m.require::<f32>("eps"), Ok(0.5));
    assert_eq!(m.require::<bool>("flag"), Ok(true));
    assert_eq!(m.require::<&str>("text"), Ok("naïve"));
    assert_eq!(m.require::<Vec<f32>>("scores"), Ok(vec![0.25, -1.0]));
    assert_eq!(m.require::<Vec<i32>>("types"), Ok(vec![1, 3]));
    assert_eq!(m.require::<Vec<&str>>("tokens"), Ok(vec!["<s>", "", "é"]));
    assert_eq!(m.get::<u32>("absent"), Ok(None));
    assert!(m.contains("flag") && !m.contains("absent"));
    assert_eq!(m.iter().len(), 9);
}

#[test]
fn errors_name_key_expected_and_found() {
    let m = metadata();
    let sentences = [
        m.require::<u32>("absent").unwrap_err().to_string(),
        m.require::<u32>("text").unwrap_err().to_string(),
        m.require::<u32>("negative").unwrap_err().to_string(),
        m.require::<u32>("large").unwrap_err().to_string(),
        m.require::<&str>("count").unwrap_err().to_string(),
        m.require::<Vec<f32>>("tokens").unwrap_err().to_string(),
        m.require::<Vec<&str>>("types").unwrap_err().to_string(),
        m.require::<f32>("scores").unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn strings_that_are_not_utf8_fail_only_when_asked_for() {
    let mut bad = string("ab");
    *bad.last_mut().unwrap() = 0xff;
    let tokens = [&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &string("ok"), &bad].concat();
    let raw = Raw::new().key("name", 8, &bad).key("tokens", 9, &tokens);
    let m = parse(&raw.bytes()).unwrap().metadata;
    let at = |key: &str, index| MetadataError::NotUtf8 { key: key.to_owned(), index };
    assert_eq!(m.get::<&str>("name"), Err(at("name", 0)));
    assert_eq!(m.get::<Vec<&str>>("tokens"), Err(at("tokens", 1)));
}
