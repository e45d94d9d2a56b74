//! Metadata alone, as the bytes of a GGUF file without tensors.

use super::error::GgufError;
use super::metadata::Metadata;
use super::parse::parse_prefix;
use super::value::{Array, Value};

/// Keys that speak of files which an image does not come with.
const SPLIT: &str = "split.";

/// A GGUF file with all of `metadata` but what says how its file was split, and with no tensor.
pub(crate) fn image(metadata: &Metadata) -> Vec<u8> {
    let kept = || metadata.iter().filter(|(key, _)| !key.starts_with(SPLIT));
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend((kept().count() as u64).to_le_bytes());
    for (key, value) in kept() {
        put_string(&mut out, key.as_bytes());
        out.extend(value.value_type().code().to_le_bytes());
        put_value(&mut out, &value);
    }
    out
}

/// The metadata of an image. Keeps `bytes` and makes no copy of them.
pub(crate) fn parse_image(bytes: Vec<u8>) -> Result<Metadata, GgufError> {
    let layout = parse_prefix(&bytes, bytes.len() as u64)?;
    Ok(layout.into_header(bytes).metadata)
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match *value {
        Value::U8(v) => out.push(v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(v.into()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::String(text) => put_string(out, text),
        Value::Array(Array { element, len, bytes }) => {
            out.extend(element.code().to_le_bytes());
            out.extend((len as u64).to_le_bytes());
            out.extend(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{parse, write::OwnedValue, write::Writer};

    #[test]
    fn an_image_has_every_key_but_those_of_the_split() {
        let mut writer = Writer::new();
        let values: [OwnedValue; 17] = [
            1_u8.into(),
            OwnedValue::I8(-2),
            OwnedValue::U16(3),
            OwnedValue::I16(-4),
            5_u32.into(),
            (-6_i32).into(),
            7.5_f32.into(),
            true.into(),
            "text".into(),
            8_u64.into(),
            (-9_i64).into(),
            1e300_f64.into(),
            vec![true, false].into(),
            vec![1_u32].into(),
            vec![-1_i32].into(),
            vec![0.5_f32].into(),
            vec!["a".to_owned(), String::new()].into(),
        ];
        for (idx, value) in values.into_iter().enumerate() {
            writer.value(&format!("key.{idx}"), value);
        }
        let expected = parse(&writer.to_bytes()).unwrap().metadata;
        writer.value("split.count", 3_u16).value("split.no", 0_u16);
        let split = parse(&writer.to_bytes()).unwrap().metadata;
        let found = parse_image(image(&split)).unwrap();
        assert!(found.iter().eq(expected.iter()));
        assert!(
            found
                .iter()
                .map(|(_, v)| v.to_string())
                .eq(expected.iter().map(|(_, v)| v.to_string()))
        );
    }
}
