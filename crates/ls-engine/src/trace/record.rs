//! Recording a trace.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::TraceError;
use super::checkpoint;
use super::header::{TraceInfo, sample};
use super::write::TraceWriter;
use crate::{Engine, EngineError, Layerwise, Part, Position};

/// A place is saved so seldom that this is at most its share of the time, and not before so long.
const SAVE_SHARE: u32 = 20;
const SAVE_AFTER: Duration = Duration::from_secs(60);

/// How to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// Most bytes that the trace may have: of a longer text, fewer tokens are sampled.
    pub limit: u64,
    /// What tokens are sampled by.
    pub seed: u64,
    /// Go on with an interrupted recording of the same name, if there is one.
    pub resume: bool,
    /// Replace the trace, or an interrupted recording, of the same name.
    pub force: bool,
}

impl Default for RecordOptions {
    /// A GiB, and no file is replaced.
    fn default() -> Self {
        Self { limit: 1 << 30, seed: 0, resume: false, force: false }
    }
}

/// How far a recording has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordProgress {
    /// Where it is in the model.
    pub position: Position,
    /// Layers of the model.
    pub n_layers: usize,
    /// Multiplications that are done, roughly, and those in all.
    pub done: u64,
    /// See `done`.
    pub total: u64,
}

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What it is a trace of.
    pub info: TraceInfo,
    /// Bytes of the file.
    pub bytes: u64,
    /// Where it went on, if it was resumed.
    pub resumed: Option<Position>,
    /// Where it was interrupted; `None`: it is finished.
    pub stopped: Option<Position>,
}

/// Cuts a text into windows of `n_ctx` tokens, at most `max_tokens` in all. What does not fill a window is
/// one of its own, if it has at least [`ls_cpu::BATCH`] tokens. `bos` takes the place of each window's
/// first token, as in [`perplexity`](crate::perplexity()).
pub fn cut_into_windows(
    tokens: &[u32],
    n_ctx: usize,
    bos: Option<u32>,
    max_tokens: usize,
) -> Vec<Vec<u32>> {
    let tokens = &tokens[..tokens.len().min(max_tokens)];
    let windows = tokens.chunks(n_ctx.max(1)).filter(|w| w.len() >= ls_cpu::BATCH.min(n_ctx));
    let with_bos = |window: &[u32]| {
        let mut window = window.to_vec();
        if let (Some(bos), Some(first)) = (bos, window.first_mut()) {
            *first = bos;
        }
        window
    };
    windows.map(with_bos).collect()
}

/// Runs `windows` through the model, one layer at a time, and writes what enters its MLPs to `out`.
///
/// `progress` is asked after every window's attention and every group of tokens' MLP; on a `Break`, and
/// when weights cannot be read, the place is saved, so that a later call can resume it.
///
/// # Errors
///
/// If the model is no pack, files cannot be written, there is one that must not be replaced, or weights
/// cannot be read.
pub fn record(
    engine: &Engine,
    windows: &[Vec<u32>],
    out: &Path,
    options: &RecordOptions,
    progress: &mut dyn FnMut(&RecordProgress) -> ControlFlow<()>,
) -> Result<Recorded, TraceError> {
    let files = Files::of(out);
    files.check(options)?;
    let info = info(engine, windows, options)?;
    let (pass, trace, resumed) = match files.saved.exists() && options.resume {
        true => {
            let (at, residual) = checkpoint::load(&files.saved, &info)?;
            // A layer whose MLP has not begun is recorded again.
            let n_layers = at.layer + usize::from(at.part == Part::Mlp && at.done > 0);
            let pass = Layerwise::resume(engine, windows, at, residual)?;
            (pass, TraceWriter::resume(&files.part, &info, n_layers)?, Some(at))
        }
        false => {
            let pass = Layerwise::new(engine, windows)?;
            remove(&files.saved)?;
            (pass, TraceWriter::create(&files.part, &info)?, None)
        }
    };
    let work = Work::of(engine, pass.n_tokens());
    let mut recording = Recording { pass, trace, info, files, saved: Saved::new() };
    let finished = recording.run(&work, progress);
    let stopped = match finished {
        Ok(true) => None,
        Ok(false) => Some(recording.save()?),
        Err(error) => {
            // The first error is the one to report.
            let _ = recording.save();
            return Err(error);
        }
    };
    let bytes = recording.info.offset(recording.trace.n_layers());
    if stopped.is_none() {
        recording.finish()?;
    }
    Ok(Recorded { info: recording.info, bytes, resumed, stopped })
}

fn info(
    engine: &Engine,
    windows: &[Vec<u32>],
    options: &RecordOptions,
) -> Result<TraceInfo, TraceError> {
    let no_pack = || EngineError::NoChunks { path: engine.model().path().to_owned() };
    let pack = engine.model().pack().ok_or_else(no_pack)?.checksum();
    let mut text = Xxh3::new();
    for window in windows {
        text.update(&(window.len() as u64).to_le_bytes());
        window.iter().for_each(|token| text.update(&token.to_le_bytes()));
    }
    let n_tokens: usize = windows.iter().map(Vec::len).sum();
    let n_tokens = u32::try_from(n_tokens).map_err(|_| TraceError::TooLong { n_tokens })?;
    let config = engine.config();
    let too_large = |_| TraceError::TooLong { n_tokens: n_tokens as usize };
    let d_model = u32::try_from(config.d_model).map_err(too_large)?;
    let n_layers = u32::try_from(config.n_layers).map_err(too_large)?;
    let n = n_fitting(options.limit, d_model, n_layers).min(u64::from(n_tokens)) as u32;
    if n == 0 && n_tokens > 0 {
        let needed = TraceInfo::bytes(1, d_model, n_layers).unwrap_or(u64::MAX);
        return Err(TraceError::Limit { limit: options.limit, needed });
    }
    let sampled = sample(n_tokens, n, options.seed);
    let (seed, text) = (options.seed, text.digest());
    Ok(TraceInfo { pack, text, seed, n_tokens, sampled, d_model, n_layers })
}

/// Tokens that fit `limit` bytes.
fn n_fitting(limit: u64, d_model: u32, n_layers: u32) -> u64 {
    let Some(fixed) = TraceInfo::bytes(0, d_model, n_layers) else { return 0 };
    let each = TraceInfo::bytes(1, d_model, n_layers).map(|one| one - fixed);
    let left = limit.saturating_sub(fixed);
    each.map_or(0, |each| left / each)
}

/// The trace, and what it is while it is recorded.
#[derive(Debug)]
struct Files {
    out: PathBuf,
    part: PathBuf,
    saved: PathBuf,
}

impl Files {
    fn of(out: &Path) -> Self {
        let beside = |end: &str| {
            let mut name = out.file_name().unwrap_or_default().to_owned();
            name.push(end);
            out.with_file_name(name)
        };
        Self { out: out.to_owned(), part: beside(".part"), saved: beside(".resume") }
    }

    /// Refuses to replace what must not be.
    fn check(&self, options: &RecordOptions) -> Result<(), TraceError> {
        if options.force {
            return Ok(());
        }
        if self.out.exists() {
            return Err(TraceError::Exists { path: self.out.clone() });
        }
        if self.saved.exists() && !options.resume {
            return Err(TraceError::Unfinished { path: self.saved.clone() });
        }
        Ok(())
    }
}

/// Multiplications of a token in a layer, for a progress that is as even as time.
struct Work {
    attention: u64,
    mlp: u64,
    n_tokens: u64,
    n_layers: usize,
}

impl Work {
    fn of(engine: &Engine, n_tokens: usize) -> Self {
        let config = engine.config();
        let width = 2 * (config.n_heads + config.n_kv_heads) * config.head_dim;
        Self {
            attention: (config.d_model * width) as u64,
            mlp: (3 * config.d_model * config.d_ff) as u64,
            n_tokens: n_tokens as u64,
            n_layers: config.n_layers,
        }
    }

    fn at(&self, position: Position) -> RecordProgress {
        let layer = self.n_tokens.saturating_mul(self.attention + self.mlp);
        let part = match position.part {
            Part::Attention => self.attention.saturating_mul(position.done as u64),
            Part::Mlp => self
                .attention
                .saturating_mul(self.n_tokens)
                .saturating_add(self.mlp.saturating_mul(position.done as u64)),
        };
        RecordProgress {
            position,
            n_layers: self.n_layers,
            done: layer.saturating_mul(position.layer as u64).saturating_add(part),
            // The last MLP is not computed: nothing comes after it.
            total: layer
                .saturating_mul(self.n_layers as u64)
                .saturating_sub(self.mlp.saturating_mul(self.n_tokens)),
        }
    }
}

/// When the place was saved last, and how long that took.
struct Saved {
    at: Instant,
    took: Duration,
}

impl Saved {
    fn new() -> Self {
        Self { at: Instant::now(), took: Duration::ZERO }
    }

    fn is_due(&self) -> bool {
        self.at.elapsed() >= SAVE_AFTER.max(self.took.saturating_mul(SAVE_SHARE))
    }
}

struct Recording<'a> {
    pass: Layerwise<'a>,
    trace: TraceWriter,
    info: TraceInfo,
    files: Files,
    saved: Saved,
}

impl Recording<'_> {
    /// Whether it came to the end.
    fn run(
        &mut self,
        work: &Work,
        progress: &mut dyn FnMut(&RecordProgress) -> ControlFlow<()>,
    ) -> Result<bool, TraceError> {
        loop {
            let position = self.pass.position();
            let entering = position.layer + usize::from(position.part == Part::Mlp);
            if self.trace.n_layers() < entering {
                self.trace.layer(self.pass.residual())?;
            }
            let is_over = progress(&work.at(position)).is_break();
            if self.trace.n_layers() == work.n_layers {
                return Ok(true);
            }
            if is_over {
                return Ok(false);
            }
            if self.saved.is_due() {
                self.save()?;
            }
            self.pass.step()?;
        }
    }

    fn save(&mut self) -> Result<Position, TraceError> {
        let start = Instant::now();
        // The layers first: the place says that they are there.
        self.trace.sync()?;
        let position = self.pass.position();
        checkpoint::save(&self.files.saved, &self.info, position, self.pass.residual())?;
        self.saved = Saved { at: Instant::now(), took: start.elapsed() };
        Ok(position)
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        self.trace.sync()?;
        let Files { out, part, saved } = &self.files;
        fs::rename(part, out).map_err(TraceError::io(out))?;
        remove(saved)
    }
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> Result<(), TraceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(TraceError::io(path)(error))
        }
        _ => Ok(()),
    }
}
