//! What the writer writes, the reader reads.

use ls_model::TensorType;
use ls_model::gguf::write::{OwnedValue, WriteError, Writer};
use ls_model::gguf::{Metadata, parse};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::Tiny;

fn values() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i32>().prop_map(OwnedValue::I32),
        any::<f32>().prop_map(OwnedValue::F32),
        any::<bool>().prop_map(OwnedValue::Bool),
        any::<u64>().prop_map(OwnedValue::U64),
        any::<i64>().prop_map(OwnedValue::I64),
        any::<f64>().prop_map(OwnedValue::F64),
        ".{0,12}".prop_map(OwnedValue::String),
        vec(any::<bool>(), 0..5).prop_map(OwnedValue::Bools),
        vec(any::<u32>(), 0..5).prop_map(OwnedValue::U32s),
        vec(any::<i32>(), 0..5).prop_map(OwnedValue::I32s),
        vec(any::<f32>(), 0..5).prop_map(OwnedValue::F32s),
        vec(".{0,6}", 0..5).prop_map(OwnedValue::Strings),
    ]
}

/// Compares by bits, so that NaN equals itself.
fn holds(metadata: &Metadata, key: &str, value: &OwnedValue) -> bool {
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    match value {
        OwnedValue::U8(v) => metadata.require(key) == Ok(*v),
        OwnedValue::I8(v) => metadata.require(key) == Ok(*v),
        OwnedValue::U16(v) => metadata.require(key) == Ok(*v),
        OwnedValue::I16(v) => metadata.require(key) == Ok(*v),
        OwnedValue::U32(v) => metadata.require(key) == Ok(*v),
        OwnedValue::I32(v) => metadata.require(key) == Ok(*v),
        OwnedValue::U64(v) => metadata.require(key) == Ok(*v),
        OwnedValue::I64(v) => metadata.require(key) == Ok(*v),
        OwnedValue::Bool(v) => metadata.require(key) == Ok(*v),
        OwnedValue::F32(v) => metadata.require(key).map(f32::to_bits) == Ok(v.to_bits()),
        OwnedValue::F64(v) => metadata.require(key).map(f64::to_bits) == Ok(v.to_bits()),
        OwnedValue::String(v) => metadata.require(key) == Ok(v.as_str()),
        OwnedValue::Bools(v) => metadata.require(key).as_ref() == Ok(v),
        OwnedValue::U32s(v) => metadata.require(key).as_ref() == Ok(v),
        OwnedValue::I32s(v) => metadata.require(key).as_ref() == Ok(v),
        OwnedValue::F32s(v) => {
            metadata.require::<Vec<f32>>(key).map(|found| bits(&found)) == Ok(bits(v))
        }
        OwnedValue::Strings(v) => {
            metadata.require::<Vec<&str>>(key) == Ok(v.iter().map(String::as_str).collect())
        }
    }
}

fn tensors() -> impl Strategy<Value = (TensorType, Vec<usize>)> {
    let dtype = proptest::sample::select(TensorType::ALL.to_vec());
    (dtype, vec(1_usize..4, 0..4), 1_usize..4).prop_map(|(dtype, mut shape, blocks)| {
        shape.push(blocks * dtype.block_len());
        (dtype, shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reader_returns_what_the_writer_was_given(
        values in vec(values(), 0..8),
        tensors in vec(tensors(), 0..6),
        alignment in proptest::option::of(3_u32..9),
        fill in any::<u8>(),
    ) {
        let mut writer = Writer::new();
        for (idx, value) in values.iter().enumerate() {
            writer.value(&format!("key.{idx}"), value.clone());
        }
        if let Some(shift) = alignment {
            writer.alignment(1 << shift).unwrap();
        }
        let mut contents = Vec::new();
        for (idx, (dtype, shape)) in tensors.iter().enumerate() {
            let (cols, outer) = shape.split_last().unwrap();
            let n_bytes = dtype.row_bytes(*cols).unwrap() * outer.iter().product::<usize>();
            let data: Vec<u8> =
                (0..n_bytes).map(|byte| fill.wrapping_add((byte + idx * 31) as u8)).collect();
            writer.tensor(&format!("tensor.{idx}"), *dtype, shape, data.clone()).unwrap();
            contents.push(data);
        }
        let bytes = writer.to_bytes();
        let header = parse(&bytes).unwrap();
        for (idx, value) in values.iter().enumerate() {
            let key = format!("key.{idx}");
            prop_assert!(holds(&header.metadata, &key, value), "{key} = {value:?}");
        }
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for ((info, (dtype, shape)), data) in header.tensors.iter().zip(&tensors).zip(&contents) {
            prop_assert_eq!(info.dtype, *dtype);
            prop_assert_eq!(&info.shape, shape);
            let begin = info.offset() as usize;
            prop_assert_eq!(&bytes[begin..begin + info.n_bytes], data.as_slice());
        }
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = Writer::new();
    let mut add = |name: &str, dtype, shape: &[usize], n_bytes: usize| {
        writer.tensor(name, dtype, shape, vec![0; n_bytes]).map(|_| ()).unwrap_err()
    };
    let f32s = TensorType::F32;
    assert!(matches!(add("t", f32s, &[], 0), WriteError::Shape { .. }));
    assert!(matches!(add("t", f32s, &[0, 4], 0), WriteError::Shape { .. }));
    assert!(matches!(add("t", f32s, &[1; 5], 4), WriteError::Shape { .. }));
    assert!(matches!(add("t", TensorType::Q4_K, &[128], 72), WriteError::Shape { .. }));
    assert!(matches!(add("t", f32s, &[2], 7), WriteError::DataLen { expected: 8, found: 7, .. }));
    writer.tensor("t", f32s, &[1], vec![0; 4]).unwrap();
    let twice = writer.tensor("t", f32s, &[1], vec![0; 4]).map(|_| ()).unwrap_err();
    assert!(matches!(twice, WriteError::Duplicate { .. }));
    assert!(matches!(writer.alignment(48).map(|_| ()), Err(WriteError::Alignment { .. })));
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Tiny::new("llama").writer();
    let path = dir.path().join("model.gguf");
    writer.write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), writer.to_bytes());
    // Renaming a file over a folder fails: the temporary file must be gone then.
    let taken = dir.path().join("taken");
    std::fs::create_dir_all(taken.join("inner")).unwrap();
    writer.write(&taken).unwrap_err();
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["model.gguf", "taken"]);
}
