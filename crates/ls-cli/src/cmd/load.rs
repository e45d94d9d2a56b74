//! From a path and a budget to an engine.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use ls_engine::{Device, Engine, FaultPlan, LoadOptions, Prefetch, StreamOptions, system};
use ls_model::ModelFile;
use ls_model::pack::is_pack;

use super::{check_memory, check_path, context, kv_bytes_per_token, pack};
use crate::args::{CachePolicy, StreamArgs};
use crate::size::Budget;
use crate::{disk, folder, output};

/// What a run needs beside weights, keys and values, roughly, in bytes.
const OTHER_BYTES: u64 = 128 << 20;

/// Loads the model at `path`, for the processor alone, beside something that needs `reserve` bytes of
/// the budget. One that does not fit the budget is streamed, and packed first if it is no pack. `remedy`
/// says what to do if the context is too long.
pub fn load_beside(
    reserve: u64,
    path: &Path,
    asked_context: Option<u64>,
    threads: Option<u16>,
    stream: &StreamArgs,
    remedy: &str,
) -> anyhow::Result<Engine> {
    load_on(Device::Cpu, reserve, path, asked_context, threads, stream, remedy)
}

/// As [`load_beside`], with MLPs on `device`.
pub fn load_on(
    device: Device,
    reserve: u64,
    path: &Path,
    asked_context: Option<u64>,
    threads: Option<u16>,
    stream: &StreamArgs,
    remedy: &str,
) -> anyhow::Result<Engine> {
    check_path(path)?;
    let threads = threads.map_or_else(|| system::cores().usable, usize::from);
    let (path, budget) = place(path, asked_context, threads, stream.budget, reserve, remedy)?;
    let (backend, depth) = (stream.io.kind(), usize::from(stream.io_depth));
    let curve = budget.and_then(|_| disk::known_curve(&path, backend, depth));
    let fault = stream.disk_rate.map(|rate| FaultPlan::slow(rate, Duration::ZERO));
    let curve = stream.disk_rate.map_or(curve, |rate| Some(disk::no_faster(curve, rate)));
    let spinner = output::spinner(format!("loading {}", path.display()));
    let options = LoadOptions {
        threads,
        context: asked_context.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        budget,
        reserve,
        stream: StreamOptions {
            cache: stream.cache.unwrap_or(CachePolicy::Lru).kind(),
            prefetch: if stream.no_prefetch { Prefetch::Off } else { Prefetch::On },
            backend,
            depth,
            curve,
            fault,
            ..StreamOptions::default()
        },
        device,
        ..LoadOptions::default()
    };
    let engine = Engine::load(&path, &options);
    spinner.finish_and_clear();
    let engine = engine?;
    for notice in engine.stream_stats().iter().flat_map(|stats| &stats.notices) {
        output::note(notice);
    }
    if let Some(notice) = engine.device().notice {
        output::note(notice);
    }
    if asked_context.is_none() {
        note_smaller_context(&engine);
    }
    Ok(engine)
}

/// Says so when the budget left less room for keys and values than there is otherwise.
fn note_smaller_context(engine: &Engine) {
    let usual = context(engine.config(), None);
    if (engine.context() as u64) < usual {
        output::note(format_args!(
            "the budget leaves room for a context of {} tokens, not {usual}; --context sets another",
            engine.context()
        ));
    }
}

/// What to load, and the budget to load it with; `None`: in memory.
fn place(
    path: &Path,
    asked_context: Option<u64>,
    threads: usize,
    budget: Budget,
    reserve: u64,
    remedy: &str,
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
    let needed = [model.weights_bytes(), kv, OTHER_BYTES, reserve].into_iter();
    let needed = needed.fold(0, u64::saturating_add);
    if needed <= bytes {
        return Ok((path.to_owned(), None));
    }
    if asked_context.is_some() {
        // No packing helps then.
        check_memory(model.config(), asked_context, Some(bytes), remedy)?;
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
    let resident = resident_bytes(&model);
    anyhow::ensure!(
        resident < bytes,
        "{why}, and {} of its weights cannot be streamed; give it more memory, or use a smaller \
         model",
        output::bytes(resident)
    );
    let packed = cached_pack(&model)?;
    if ModelFile::open(&packed).is_ok() {
        output::note(format_args!("{why}: streaming from {}", packed.display()));
    } else {
        output::note(format_args!("{why}: packing it once, as {}", packed.display()));
        pack::pack_for_cache(&model, &packed, threads)?;
    }
    Ok((packed, Some(bytes)))
}

/// Bytes of weights that stay in memory when the model is packed.
fn resident_bytes(model: &ModelFile) -> u64 {
    let is_streamed = |name: &str| {
        let of_mlp = ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"];
        let is_row = name == "token_embd.weight" && !model.config().tied_output;
        is_row || of_mlp.iter().any(|end| name.ends_with(end))
    };
    let resident = model.tensors().iter().filter(|info| !is_streamed(&info.name));
    resident.map(|info| info.n_bytes as u64).sum()
}

/// Where the pack of `model` is kept. Another model of its name has another place, and so has the
/// same one after a change.
fn cached_pack(model: &ModelFile) -> anyhow::Result<PathBuf> {
    let folder =
        folder::cache().context("there is no home folder to keep a pack in")?.join("packs");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut hash = Fnv::default();
    for file in model.files() {
        let metadata = std::fs::metadata(file)?;
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        hash.add(file.canonicalize()?.as_os_str().as_encoded_bytes());
        hash.add(&metadata.len().to_le_bytes());
        hash.add(&modified.as_nanos().to_le_bytes());
    }
    Ok(folder.join(format!("{}-{:016x}.lspack", super::model_name(model.path()), hash.0)))
}

/// FNV-1a, which is the same in every version of the program.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
