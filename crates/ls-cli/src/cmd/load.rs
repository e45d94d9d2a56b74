//! From a path and a budget to an engine.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use ls_engine::{Engine, LoadOptions, Prefetch, StreamOptions, system};
use ls_model::ModelFile;
use ls_model::pack::is_pack;

use super::{check_path, context, kv_bytes_per_token, pack};
use crate::args::StreamArgs;
use crate::output;
use crate::size::Budget;

/// What a run needs beside weights, keys and values, roughly, in bytes.
const OTHER_BYTES: u64 = 128 << 20;

/// Loads the model at `path`. One that does not fit the budget is streamed, and packed first if
/// it is no pack.
pub fn load(
    path: &Path,
    asked_context: Option<u64>,
    threads: Option<u16>,
    stream: &StreamArgs,
) -> anyhow::Result<Engine> {
    check_path(path)?;
    let threads = threads.map_or_else(|| system::cores().usable, usize::from);
    let (path, budget) = place(path, asked_context, threads, stream.budget)?;
    let spinner = output::spinner(format!("loading {}", path.display()));
    let options = LoadOptions {
        threads,
        context: asked_context.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        budget,
        stream: StreamOptions {
            cache: stream.cache.kind(),
            prefetch: if stream.no_prefetch { Prefetch::Off } else { Prefetch::On },
            backend: stream.io.kind(),
            depth: usize::from(stream.io_depth),
            ..StreamOptions::default()
        },
        ..LoadOptions::default()
    };
    let engine = Engine::load(&path, &options);
    spinner.finish_and_clear();
    let engine = engine?;
    for notice in engine.stream_stats().iter().flat_map(|stats| &stats.notices) {
        output::note(notice);
    }
    Ok(engine)
}

/// What to load, and the budget to load it with; `None`: in memory.
fn place(
    path: &Path,
    asked_context: Option<u64>,
    threads: usize,
    budget: Budget,
) -> anyhow::Result<(PathBuf, Option<u64>)> {
    let bytes = match budget {
        Budget::None => return Ok((path.to_owned(), None)),
        Budget::Bytes(bytes) if is_pack(path) => return Ok((path.to_owned(), Some(bytes))),
        Budget::Bytes(bytes) => bytes,
        // The rest is left to others, and to what was not counted.
        Budget::Auto => match system::memory().available_bytes {
            Some(available) => available - available / 16,
            None => return Ok((path.to_owned(), None)),
        },
    };
    let model = ModelFile::open(path)?;
    let kv =
        kv_bytes_per_token(model.config()).saturating_mul(context(model.config(), asked_context));
    let needed = model.weights_bytes().saturating_add(kv).saturating_add(OTHER_BYTES);
    if needed <= bytes {
        return Ok((path.to_owned(), None));
    }
    let why = format!(
        "{} and its context need {}, more than the {} of {}",
        path.display(),
        output::bytes(needed),
        output::bytes(bytes),
        if budget == Budget::Auto { "memory that is available" } else { "the budget" },
    );
    if is_pack(path) {
        output::note(format_args!("{why}: streaming"));
        return Ok((path.to_owned(), Some(bytes)));
    }
    let packed = cached_pack(path)?;
    if ModelFile::open(&packed).is_ok() {
        output::note(format_args!("{why}: streaming from {}", packed.display()));
    } else {
        output::note(format_args!("{why}: packing it once, as {}", packed.display()));
        pack::pack_for_cache(&model, &packed, threads)?;
    }
    Ok((packed, Some(bytes)))
}

/// Where the pack of the model at `path` is kept. Another file of its name has another place.
fn cached_pack(path: &Path) -> anyhow::Result<PathBuf> {
    let metadata = std::fs::metadata(path)?;
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = format!("{}-{:x}-{modified:x}.lspack", super::model_name(path), metadata.len());
    let folder = match std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => std::env::home_dir()
            .context("there is no home folder to keep a pack in")?
            .join(".cache"),
    };
    let folder = folder.join("leanstream/packs");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    Ok(folder.join(name))
}
