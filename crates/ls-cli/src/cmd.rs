//! The commands, and what several of them do.

pub mod bench;
pub mod chat;
pub mod doctor;
pub mod inspect;
pub mod perplexity;
pub mod run;

use std::path::Path;

use anyhow::Context;
use ls_engine::{Engine, LoadOptions, State, system};
use ls_model::config::{Architecture, Config};

use crate::output;

/// What every result says about how it was computed; there is one way so far.
pub const DEVICE: &str = "cpu";
/// Every neuron is computed.
pub const MODE: &str = "exact";
/// The fraction of neurons that is computed.
pub const KEEP: f64 = 1.0;

/// Loads the model at `path`.
fn load(path: &Path, context: Option<u64>, threads: Option<u16>) -> anyhow::Result<Engine> {
    let spinner = output::spinner(format!("loading {}", path.display()));
    let options = LoadOptions {
        threads: threads.map_or_else(|| system::cores().usable, usize::from),
        context: context.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        ..LoadOptions::default()
    };
    let engine = Engine::load(path, &options);
    spinner.finish_and_clear();
    Ok(engine?)
}

/// A state for one sequence, unless its keys and values cannot fit the memory that is there.
fn new_state(engine: &Engine, context: Option<u64>) -> anyhow::Result<State> {
    if let (Some(context), Some(available)) = (context, system::memory().available_bytes) {
        let needed = kv_bytes_per_token(engine.config()).saturating_mul(context);
        anyhow::ensure!(
            needed <= available,
            "a context of {context} tokens needs {} for keys and values, but {} of memory is \
             available; use a smaller --context",
            output::bytes(needed),
            output::bytes(available)
        );
    }
    Ok(engine.new_state()?)
}

/// Bytes of keys and values that a token of context takes, as f16.
fn kv_bytes_per_token(config: &Config) -> u64 {
    const ELEMENT_BYTES: u64 = 2;
    let per_layer = 2 * config.n_kv_heads as u64 * config.head_dim as u64 * ELEMENT_BYTES;
    per_layer * config.n_layers as u64
}

/// The text of a file, without a line break at its end, which is the editor's and not the text's.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow::anyhow!(
            "{} is not UTF-8 text at byte {offset}; convert it to UTF-8 first",
            path.display()
        )
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// A model's name in a result: its file name without the extension.
fn model_name(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The name of a model family, as files write it.
fn architecture_name(architecture: Architecture) -> String {
    format!("{architecture:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        for (bytes, text) in [("a\n\n", "a\n"), ("a\r\n", "a"), ("a", "a"), ("", "")] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read_text(&path).unwrap(), text);
        }
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("not UTF-8 text at byte 2"), "{error}");
    }

    #[test]
    fn names_lose_the_extension_of_files_only() {
        assert_eq!(model_name(Path::new("a/qwen2.5-0.5b.gguf")), "qwen2.5-0.5b");
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model-1.5");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(model_name(&folder), "model-1.5");
    }
}
