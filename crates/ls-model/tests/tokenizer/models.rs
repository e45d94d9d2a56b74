//! Where the real models lie.

use std::path::PathBuf;

use ls_model::{ModelFile, Tokenizer};

/// Models by the names that fixtures use.
pub const MODELS: [(&str, &str); 4] = [
    ("smollm2", "smollm2-135m-q4_1.gguf"),
    ("qwen05", "qwen2.5-coder-0.5b-q4_k_m.gguf"),
    ("qwen15", "qwen2.5-coder-1.5b-q4_k_m.gguf"),
    ("gemma3", "gemma3-270m-q4_k_m.gguf"),
];

/// `LEANSTREAM_MODELS`, or the cache folder of this user.
fn folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = || var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    var("LEANSTREAM_MODELS").or_else(|| Some(cache()?.join("leanstream/models")))
}

/// Opens a model; says so and gives `None` where it is not on this machine.
pub fn open(name: &str) -> Option<ModelFile> {
    let (_, file) = MODELS.iter().find(|(known, _)| *known == name).expect("a known model");
    let path = folder()?.join(file);
    if !path.exists() {
        eprintln!("skipped {name}: {} is not there", path.display());
        return None;
    }
    Some(ModelFile::open(&path).expect("the model opens"))
}

pub fn tokenizer(name: &str) -> Option<Tokenizer> {
    open(name).map(|model| Tokenizer::from_model(&model).expect("the model has a tokenizer"))
}

/// A file of `fixtures/tokenizer`.
pub fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let here = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures").into();
    // Tests that run on another machine are told where their fixtures are.
    let folder = std::env::var("LEANSTREAM_FIXTURES").unwrap_or_else(|_| here());
    let bytes = std::fs::read(format!("{folder}/tokenizer/{name}")).expect("the fixture is there");
    serde_json::from_slice(&bytes).expect("the fixture is JSON of this shape")
}
