//! Files that are damaged at random, or cut while they are open.

use ls_model::gguf::parse;
use ls_model::{ModelError, ModelFile, safetensors};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::folders::{HfTiny, safetensors_bytes};
use crate::support::{Tiny, open_bytes};

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

/// The most that all tests together, which run side by side, may ever have allocated. The files
/// that they read have less than 10 MB.
const MOST_ALLOCATED: f32 = 256.0;

fn allocates_little() -> bool {
    crate::ALLOCATED.peak_usage_as_mb() < MOST_ALLOCATED
}

/// Writes `bytes` over the file at a place that is a fraction of its length.
fn overwrite(file: &mut [u8], at: f64, bytes: &[u8]) {
    let begin = (at * file.len() as f64) as usize;
    for (old, new) in file[begin..].iter_mut().zip(bytes) {
        *old = *new;
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_damaged_gguf_file_opens_or_fails_but_never_panics(
        // Most of the file is data, which cannot be wrong: aim at the header.
        changes in vec((0.0..0.12, vec(any::<u8>(), 1..9)), 1..4),
        keep in prop_oneof![Just(1.0), 0.0..1.0],
    ) {
        let mut bytes = Tiny::new("gemma3").writer().to_bytes();
        for (at, new) in &changes {
            overwrite(&mut bytes, *at, new);
        }
        bytes.truncate((keep * bytes.len() as f64) as usize);
        if let Ok(model) = open_bytes(&bytes) {
            for info in model.tensors() {
                let tensor = model.tensor(&info.name).unwrap().unwrap();
                prop_assert_eq!(tensor.data.len(), info.n_bytes);
            }
        }
        if let Ok(header) = parse(&bytes) {
            for info in header.tensors {
                prop_assert!(info.offset() + info.n_bytes as u64 <= bytes.len() as u64);
            }
        }
        prop_assert!(allocates_little());
    }

    #[test]
    fn random_bytes_after_the_magic_never_panic(tail in vec(any::<u8>(), 0..200)) {
        let bytes = [b"GGUF\x03\0\0\0".as_slice(), &tail].concat();
        prop_assert!(parse(&bytes).is_err() || bytes.len() >= 24);
        prop_assert!(allocates_little());
    }

    #[test]
    fn a_damaged_safetensors_file_never_panics(
        changes in vec((0.0..0.2, vec(any::<u8>(), 1..4)), 1..4),
        keep in prop_oneof![Just(1.0), 0.0..1.0],
    ) {
        let mut bytes = safetensors_bytes(&HfTiny::new("llama").tensors());
        for (at, new) in &changes {
            overwrite(&mut bytes, *at, new);
        }
        bytes.truncate((keep * bytes.len() as f64) as usize);
        if let Ok(tensors) = safetensors::parse(&bytes) {
            for info in tensors {
                prop_assert!(info.offset() + info.n_bytes as u64 <= bytes.len() as u64);
            }
        }
        prop_assert!(allocates_little());
    }
}

#[test]
fn a_file_that_is_cut_while_open_gives_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let writer = Tiny::new("llama").writer();
    writer.write(&path).unwrap();
    let model = ModelFile::open(&path).unwrap();
    model.check_whole().unwrap();
    let len = model.size_bytes();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(len / 2).unwrap();
    let last = model.tensors().last().unwrap().name.clone();
    match model.tensor(&last) {
        Err(ModelError::Shrank { tensor, expected, found, .. }) => {
            assert_eq!((tensor, expected, found), (last.clone(), len, len / 2));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(model.check_whole(), Err(ModelError::Shrank { .. })));
    let first = model.tensors().first().unwrap().name.clone();
    assert!(model.tensor(&first).unwrap().is_some(), "what is still there can still be read");
    // Metadata is not read from the mapping.
    assert_eq!(model.config().name, "tiny");
    assert_eq!(model.chat_template(), None);
}

#[test]
fn paths_that_are_no_model_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let absent = ModelFile::open(dir.path().join("absent.gguf")).unwrap_err();
    assert!(matches!(absent, ModelError::Io { action: "open", .. }), "{absent}");
    let folder = ModelFile::open(dir.path()).unwrap_err();
    assert!(matches!(folder, ModelError::NotAModelFolder { .. }), "{folder}");
}
