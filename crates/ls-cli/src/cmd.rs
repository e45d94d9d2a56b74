//! The commands, and what several of them do.

pub mod bench;
pub mod calibrate;
pub mod chat;
pub mod doctor;
mod fidelity;
pub mod inspect;
mod load;
pub mod pack;
pub mod perplexity;
pub mod run;
pub mod train;

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use ls_engine::{Engine, Plan, State, system};
use ls_model::config::{Architecture, Config};
use ls_model::pack::is_pack;

use crate::output;
use crate::streaming::StreamReport;

/// Every neuron is computed.
pub const MODE: &str = "exact";
/// The fraction of neurons that is computed.
pub const KEEP: f64 = 1.0;

/// A state for one sequence, unless its keys and values cannot fit the memory that is there;
/// then `remedy` says what to do.
fn new_state(engine: &Engine, asked: Option<u64>, remedy: &str) -> anyhow::Result<State> {
    // A plan has counted keys and values already.
    if engine.plan().is_none() {
        check_memory(engine.config(), asked, system::memory().available_bytes, remedy)?;
    }
    Ok(engine.new_state()?)
}

/// Says on standard error where the bytes of a budget go.
fn note_plan(plan: &Plan) {
    let parts = [
        ("program", plan.process_bytes),
        ("resident weights", plan.resident_bytes),
        ("keys and values", plan.kv_bytes),
        ("buffers", plan.buffer_bytes),
        ("streaming", plan.io_bytes),
        ("embedding", plan.embedding_bytes),
        ("GPU", plan.gpu_bytes),
        ("cache", plan.cache_bytes),
    ]
    .into_iter();
    let parts: Vec<String> = parts
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| format!("{name} {}", output::bytes(n)))
        .collect();
    output::note(format_args!(
        "budget {}: {}; {} of {} of chunks are read for each token",
        output::bytes(plan.budget_bytes),
        parts.join(", "),
        output::bytes(plan.streamed_bytes()),
        output::bytes(plan.chunk_bytes),
    ));
}

/// Says on standard error what was streamed.
fn note_stream(report: &StreamReport) {
    let value = |value: Option<f64>| value.unwrap_or(0.0);
    output::note(format_args!(
        "streamed {} for each token in reads of {:.0} KiB, {:.1} at once, {:.0} MB/s ({}); waited \
         {:.1} ms for each token; of wanted bytes {:.1} % were read, {:.1} % came late",
        output::bytes(value(report.bytes_per_token) as u64),
        value(report.read_kib),
        value(report.io_depth),
        value(report.disk_mb_per_s),
        report.io.unwrap_or("-"),
        value(report.stall_ms_per_token),
        100.0 * value(report.demand_miss_ratio),
        100.0 * value(report.stall_miss_ratio),
    ));
}

/// Whether keys and values fit; without knowledge of the memory they are taken to.
fn check_memory(
    config: &Config,
    asked: Option<u64>,
    available: Option<u64>,
    remedy: &str,
) -> anyhow::Result<()> {
    let Some(available) = available else { return Ok(()) };
    let context = context(config, asked);
    let needed = kv_bytes_per_token(config).saturating_mul(context);
    let article = if asked.is_some() { "a" } else { "the default" };
    anyhow::ensure!(
        needed <= available,
        "{article} context of {context} tokens needs {} for keys and values, but {} of memory is \
         available; {remedy}",
        output::bytes(needed),
        output::bytes(available)
    );
    Ok(())
}

/// Tokens of context when neither user nor model ask for fewer.
const DEFAULT_CONTEXT: u64 = 4096;

/// Tokens of context that a model is loaded with.
fn context(config: &Config, asked: Option<u64>) -> u64 {
    asked.unwrap_or(DEFAULT_CONTEXT.min(config.context_len as u64))
}

/// Bytes of keys and values that a token of context takes, as f16.
fn kv_bytes_per_token(config: &Config) -> u64 {
    const ELEMENT_BYTES: u64 = 2;
    let per_layer = 2 * config.n_kv_heads as u64 * config.head_dim as u64 * ELEMENT_BYTES;
    per_layer * config.n_layers as u64
}

/// Finds what no model is before it is opened: opening a pipe would wait for someone to write.
fn check_path(path: &Path) -> anyhow::Result<()> {
    // What cannot be looked at is left to the opening, which says why.
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let name = path.display();
    anyhow::ensure!(
        metadata.is_file() || metadata.is_dir(),
        "{name} is neither a file nor a folder; expected a .gguf or .lspack file or a safetensors folder"
    );
    anyhow::ensure!(
        metadata.is_dir() || metadata.len() > 0,
        "{name} is empty; fetch the model again"
    );
    Ok(())
}

/// Refuses a model that is no pack.
pub fn require_pack(path: &Path) -> anyhow::Result<()> {
    check_path(path)?;
    let name = path.display();
    // What cannot be opened is left to the opening, which says why.
    anyhow::ensure!(
        is_pack(path) || !path.exists(),
        "{name} is no pack; make one with leanstream pack {name}"
    );
    Ok(())
}

/// The text of a file, without a line break at its end, which is the editor's and not the text's.
fn read_text(path: &Path) -> anyhow::Result<String> {
    read_start(path, u64::MAX)
}

/// As [`read_text`], of a file that is longer than `limit` bytes as many whole characters as fit.
fn read_start(path: &Path, limit: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 == limit {
        let cut = std::str::from_utf8(&bytes).map_err(|e| (e.error_len(), e.valid_up_to()));
        if let Err((None, valid)) = cut {
            bytes.truncate(valid);
        }
    }
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
        std::fs::write(&path, "aäöü").unwrap();
        for (limit, text) in [(7, "aäöü"), (6, "aäö"), (5, "aäö"), (1, "a"), (0, "")] {
            assert_eq!(read_start(&path, limit).unwrap(), text);
        }
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = read_text(&path).unwrap_err().to_string();
        assert!(error.contains("not UTF-8 text at byte 2"), "{error}");
    }

    #[test]
    fn keys_and_values_must_fit_the_memory_that_is_known() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
        let model = ls_model::ModelFile::open(path).unwrap();
        let config = model.config();
        let needed = kv_bytes_per_token(config) * config.context_len as u64;
        let check = |asked, available| check_memory(config, asked, available, "use less");
        check(None, Some(needed)).unwrap();
        check(Some(u64::MAX), None).unwrap();
        let error = check(None, Some(needed - 1)).unwrap_err().to_string();
        assert!(error.starts_with("the default context of 256 tokens needs"), "{error}");
        let error = check(Some(257), Some(needed)).unwrap_err().to_string();
        assert!(error.starts_with("a context of 257 tokens needs"), "{error}");
        assert!(error.ends_with("is available; use less"), "{error}");
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
