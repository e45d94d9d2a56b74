//! The engine on whole models: tiny generated ones, and real ones where they are.

#![allow(clippy::unwrap_used)]

mod consistency;
mod fidelity;
mod golden;
#[cfg(all(feature = "vulkan", not(any(target_feature = "crt-static", target_env = "musl"))))]
mod gpu;
mod hotness;
mod layerwise;
mod predict;
mod real;
mod refine;
mod sparse;
mod streaming;
mod trace;

use std::path::{Path, PathBuf};

use ls_engine::{Engine, LoadOptions};

fn fixtures() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    // Tests that run on another machine are told where their fixtures are.
    std::env::var_os("LEANSTREAM_FIXTURES").map_or_else(here, PathBuf::from)
}

fn json(path: impl AsRef<Path>) -> serde_json::Value {
    let path = fixtures().join(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn load(path: &Path, threads: usize) -> Engine {
    let options = LoadOptions { threads, context: 600, ..LoadOptions::default() };
    Engine::load(path, &options).unwrap_or_else(|e| panic!("{e}"))
}
