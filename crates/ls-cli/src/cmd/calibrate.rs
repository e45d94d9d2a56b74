//! `leanstream calibrate`: records what a text shows of a model's MLPs.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use ls_engine::trace::{RecordOptions, RecordProgress, Recorded, cut_into_windows, record};
use ls_engine::{Engine, Position, layerwise_bytes};
use ls_model::ModelFile;
use ls_model::tokenizer::EncodeOptions;
use serde::Serialize;

use super::load::load_beside;
use crate::args::CalibrateArgs;
use crate::interrupt::Interrupted;
use crate::streaming::{Since, StreamReport};
use crate::{cmd, interrupt, output};

/// Multiplications that the progress bar counts as one step.
const STEP: u64 = 1 << 20;

/// Of a text that is longer than so many bytes for each token that is asked for, no more is read.
pub const TOKEN_BYTES: u64 = 32;

#[derive(Debug, Serialize)]
struct Report {
    path: String,
    bytes: u64,
    tokens: u32,
    sampled_tokens: usize,
    windows: usize,
    n_layers: u32,
    d_model: u32,
    seed: u64,
    resumed_at_layer: Option<usize>,
    seconds: f64,
    threads: usize,
    #[serde(flatten)]
    stream: StreamReport,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> anyhow::Result<ExitCode> {
    let text = cmd::read_start(&args.file, args.tokens.saturating_mul(TOKEN_BYTES))?;
    cmd::require_pack(&args.model)?;
    interrupt::install()?;
    let (most, context) = (usize::try_from(args.tokens)?, usize::try_from(args.context)?);
    let config = ModelFile::open(&args.model)?.config().clone();
    // A token has at least a byte, and each window may begin with one that is not in the text.
    let n_tokens = most.min(text.len() + 1 + text.len() / context);
    let reserve = layerwise_bytes(&config, n_tokens);
    let engine = load_beside(
        reserve,
        &args.model,
        Some(args.context),
        args.threads,
        &args.stream,
        "use a smaller --context or fewer --tokens",
    )?;
    let windows = windows(&engine, &text, context, most)?;
    drop(text);
    let out = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(cmd::model_name(&args.model) + ".lstrace"));
    let options = RecordOptions {
        limit: args.trace_limit,
        seed: args.seed,
        resume: args.resume,
        force: args.force,
    };
    let (start, since) = (Instant::now(), Since::now(&engine, None));
    let mut bar = Bar::new();
    let recorded = record(&engine, &windows, &out, &options, &mut |progress| bar.show(progress));
    bar.0.finish_and_clear();
    let recorded = recorded?;
    if let Some(Position { layer, .. }) = recorded.stopped {
        let n_layers = config.n_layers;
        let message = format!(
            "stopped in layer {} of {n_layers}; the same command with --resume goes on there",
            layer + 1
        );
        return Err(Interrupted(message.into()).into());
    }
    let report = report(&engine, &windows, &recorded, out, start.elapsed().as_secs_f64(), &since);
    print(&report, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The text's windows; an error when it has none.
pub fn windows(
    engine: &Engine,
    text: &str,
    context: usize,
    most: usize,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let tokenizer = engine.tokenizer();
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let tokens = tokenizer.encode(text, encode)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let windows = cut_into_windows(&tokens, context, bos, most);
    let n = tokens.len().min(most);
    anyhow::ensure!(!windows.is_empty(), "{n} tokens are too few to record; use a longer text");
    Ok(windows)
}

/// A progress bar whose estimate of the time begins where the recording does.
pub struct Bar(ProgressBar, bool);

impl Bar {
    /// With nothing done.
    pub fn new() -> Self {
        Self(output::progress("calibrate", 0), false)
    }

    /// Removes it from the terminal.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }

    /// Shows it; a `Break` after Ctrl-C.
    pub fn show(&mut self, progress: &RecordProgress) -> ControlFlow<()> {
        let Self(bar, has_begun) = self;
        bar.set_length(progress.total.div_ceil(STEP));
        bar.set_position(progress.done / STEP);
        if !std::mem::replace(has_begun, true) {
            bar.reset_eta();
        }
        let layer = (progress.position.layer + 1).min(progress.n_layers);
        bar.set_message(format!("layer {layer}/{}", progress.n_layers));
        if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn report(
    engine: &Engine,
    windows: &[Vec<u32>],
    recorded: &Recorded,
    path: PathBuf,
    seconds: f64,
    since: &Since<'_>,
) -> Report {
    let info = &recorded.info;
    Report {
        path: path.display().to_string(),
        bytes: recorded.bytes,
        tokens: info.n_tokens,
        sampled_tokens: info.sampled.len(),
        windows: windows.len(),
        n_layers: info.n_layers,
        d_model: info.d_model,
        seed: info.seed,
        resumed_at_layer: recorded.resumed.map(|position| position.layer),
        seconds,
        threads: engine.threads(),
        stream: since.report(engine, info.n_tokens as usize),
    }
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(report);
    }
    Ok(output::stdout(&format!(
        "{}: {}, {} of {} tokens in {} layers; {:.1} s\n",
        report.path,
        output::bytes(report.bytes),
        report.sampled_tokens,
        report.tokens,
        report.n_layers,
        report.seconds,
    ))?)
}
