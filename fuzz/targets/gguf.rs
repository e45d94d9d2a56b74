//! Any bytes as a GGUF file: parsed, its metadata asked for, and opened as a model.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ls_model::ModelFile;
use ls_model::gguf::{Header, parse};

/// Where inputs that parse are put to be opened.
static FILE: LazyLock<tempfile::NamedTempFile> = LazyLock::new(|| {
    let memory = std::path::Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::NamedTempFile::new_in(memory)
    } else {
        tempfile::NamedTempFile::new()
    };
    made.expect("a temporary file can be made")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = parse(bytes) else { return };
    for info in &header.tensors {
        let end = info.offset() + info.n_bytes as u64;
        assert!(end <= bytes.len() as u64, "{} lies outside the file", info.name);
    }
    ask(&header);
    std::fs::write(FILE.path(), bytes).expect("the temporary file can be written");
    let Ok(model) = ModelFile::open(FILE.path()) else { return };
    for info in model.tensors() {
        let tensor = model.tensor(&info.name).expect("the file was not cut").expect("it is listed");
        assert_eq!(tensor.data.len(), info.n_bytes);
    }
});

/// Asks for every key as every kind of type.
fn ask(header: &Header) {
    let metadata = &header.metadata;
    for (key, value) in metadata.iter() {
        let _ = value.to_string();
        let _ = metadata.get::<u64>(key);
        let _ = metadata.get::<f32>(key);
        let _ = metadata.get::<&str>(key);
        let _ = metadata.get::<Vec<&str>>(key);
        let _ = metadata.get::<Vec<i32>>(key);
        let _ = metadata.get::<Vec<f32>>(key);
    }
}
