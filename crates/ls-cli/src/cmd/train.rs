//! `leanstream train`: predictors of the neurons that matter.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use ls_engine::predict::{Predictors, TrainOptions, TrainProgress, TrainStage, Trained, train};
use ls_engine::trace::{RecordOptions, Trace, record};
use ls_engine::{Engine, layerwise_bytes};
use ls_model::ModelFile;
use serde::Serialize;

use super::calibrate::{self, Bar};
use super::load::load_beside;
use crate::args::TrainArgs;
use crate::choose::beside;
use crate::interrupt::Interrupted;
use crate::{cmd, interrupt, output};

/// Bytes that a trace may have: what training uses of it fits in memory many times over.
const TRACE_LIMIT: u64 = 4 << 30;

#[derive(Debug, Serialize)]
struct Report {
    path: String,
    bytes: u64,
    /// As a fraction of the MLPs' bytes.
    share: f64,
    tokens: u32,
    n_layers: u32,
    steps: u32,
    seconds: f64,
    threads: usize,
    costs: Vec<Row>,
}

/// What computing a fraction costs.
#[derive(Debug, Serialize)]
struct Row {
    keep: f32,
    rise: f32,
    kl: f32,
}

/// Runs the command.
pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let out = args.output.clone().unwrap_or_else(|| beside(&args.model));
    if let Some(from) = &args.from {
        return take_over(args, from, &out);
    }
    let file = args.file.as_deref().context("no text to learn from; name one with --file")?;
    let text = cmd::read_start(file, args.tokens.saturating_mul(calibrate::TOKEN_BYTES))?;
    cmd::require_pack(&args.model)?;
    refuse_existing(args, &out)?;
    interrupt::install()?;
    let start = Instant::now();
    let (most, context) = (usize::try_from(args.tokens)?, usize::try_from(args.context)?);
    let config = ModelFile::open(&args.model)?.config().clone();
    let reserve = layerwise_bytes(&config, most.min(text.len() + 1 + text.len() / context));
    let smaller = "use a smaller --context or fewer --tokens";
    let (asked, threads) = (Some(args.context), args.threads);
    let engine = load_beside(reserve, &args.model, asked, threads, &args.stream, smaller)?;
    let windows = calibrate::windows(&engine, &text, context, most)?;
    drop(text);
    let traced = args.trace.clone().unwrap_or_else(|| with(&out, ".lstrace"));
    let mut trace = trace(args, &engine, &windows, &traced)?;
    let options = TrainOptions {
        share: args.size / 100.0,
        lookup: ls_engine::predict::LookupConfig {
            seed: args.seed,
            n_steps: args.steps as usize,
            ..Default::default()
        },
        resume: args.resume,
        windows: usize::try_from(args.windows)?,
        n_ctx: context,
        ..TrainOptions::default()
    };
    let mut state = cmd::new_state(&engine, Some(args.context), smaller)?;
    // The end of the text: rows that were held back from training are there.
    let whole: Vec<_> = windows.iter().filter(|window| window.len() == context).collect();
    anyhow::ensure!(
        whole.len() >= 2,
        "the text has {} windows of {context} tokens, but two are needed to measure; use a longer \
         text or a smaller --context",
        whole.len()
    );
    let tail = whole.len().saturating_sub(options.windows.max(2));
    let tokens: Vec<u32> = whole[tail..].iter().flat_map(|window| window.iter().copied()).collect();
    let bar = output::progress("train", 0);
    let trained =
        train(&engine, &mut state, &mut trace, &tokens, &out, &options, &mut |at| show(&bar, at));
    bar.finish_and_clear();
    let predictors = match trained? {
        Trained::Whole(predictors) => predictors,
        Trained::Stopped(layers) => {
            let message = format!(
                "stopped after {layers} of {} layers; the same command with --resume goes on there",
                config.n_layers
            );
            return Err(Interrupted(message.into()).into());
        }
    };
    let n_tokens = trace.info().n_tokens;
    drop(trace);
    if args.trace.is_none() {
        fs::remove_file(&traced).with_context(|| format!("cannot remove {}", traced.display()))?;
    }
    let work = Work { tokens: n_tokens, steps: args.steps, threads: engine.threads(), start };
    print(&report(engine.model(), &predictors, &out, &work)?, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn refuse_existing(args: &TrainArgs, out: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(args.force || !out.exists(), "{} exists; --force replaces it", out.display());
    Ok(())
}

/// Puts predictors of another pack of the same model into this one's order.
fn take_over(args: &TrainArgs, from: &Path, out: &Path) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    cmd::require_pack(&args.model)?;
    refuse_existing(args, out)?;
    let old = args.from_pack.clone().unwrap_or_else(|| from.with_extension("lspack"));
    cmd::require_pack(&old)?;
    let (old, new) = (ModelFile::open(&old)?, ModelFile::open(&args.model)?);
    let predictors = Predictors::open(from, &old)?.for_other_pack(&old, &new)?;
    predictors.write(out)?;
    let work = Work { tokens: 0, steps: 0, threads: 1, start };
    print(&report(&new, &predictors, out, &work)?, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// What it took.
struct Work {
    tokens: u32,
    steps: u32,
    threads: usize,
    start: Instant,
}

/// `path` with `more` behind its name.
fn with(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// The trace of the text: one that is there, or a new one.
fn trace(
    args: &TrainArgs,
    engine: &Engine,
    windows: &[Vec<u32>],
    path: &Path,
) -> anyhow::Result<Trace> {
    if path.exists() && (args.trace.is_some() || args.resume) {
        return Ok(Trace::open(path)?);
    }
    let options =
        RecordOptions { limit: TRACE_LIMIT, seed: args.seed, resume: args.resume, force: true };
    let mut bar = Bar::new();
    let recorded = record(engine, windows, path, &options, &mut |progress| bar.show(progress));
    bar.finish();
    if let Some(position) = recorded?.stopped {
        let message = format!(
            "stopped while recording layer {}; the same command with --resume goes on there",
            position.layer + 1
        );
        return Err(Interrupted(message.into()).into());
    }
    Ok(Trace::open(path)?)
}

/// A step of the bar is a step of training; the measurement of the output counts as a layer.
fn show(bar: &ProgressBar, at: &TrainProgress) -> ControlFlow<()> {
    let each = at.n_steps.max(1) + 2;
    let in_layer = match at.stage {
        TrainStage::Read | TrainStage::Fit => 0,
        TrainStage::Step(step, _) => step + 1,
        TrainStage::Measure => each - 1,
        TrainStage::Output(done, of) => done * each / of.max(1),
    };
    let loss = match at.stage {
        TrainStage::Step(_, loss) => format!(", {:.1} % missed", 100.0 * loss),
        TrainStage::Fit => ", fitting".into(),
        TrainStage::Output(..) => ", measuring the output".into(),
        _ => String::new(),
    };
    bar.set_length(((at.n_layers + 1) * each) as u64);
    bar.set_position((at.layer * each + in_layer) as u64);
    bar.set_message(format!("layer {}/{}{loss}", (at.layer + 1).min(at.n_layers), at.n_layers));
    if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn report(
    model: &ModelFile,
    predictors: &Predictors,
    path: &Path,
    work: &Work,
) -> anyhow::Result<Report> {
    let layers = model.pack().map_or(&[][..], |pack| pack.layers());
    let all: u64 = layers.iter().map(|layer| layer.useful_bytes()).sum();
    let costs = predictors.costs().iter();
    Ok(Report {
        path: path.display().to_string(),
        bytes: fs::metadata(path)?.len(),
        share: predictors.n_bytes() as f64 / all.max(1) as f64,
        tokens: work.tokens,
        n_layers: predictors.info().n_layers,
        steps: work.steps,
        seconds: work.start.elapsed().as_secs_f64(),
        threads: work.threads,
        costs: costs.map(|c| Row { keep: c.fraction, rise: c.rise, kl: c.kl }).collect(),
    })
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(report);
    }
    let mut rows = vec![["computed", "perplexity", "KL"].map(str::to_owned).to_vec()];
    rows.extend(report.costs.iter().map(|row| {
        vec![
            format!("{:.0} %", 100.0 * row.keep),
            format!("{:+.1} %", 100.0 * row.rise),
            format!("{:.4}", row.kl),
        ]
    }));
    output::stdout(&output::table(&rows, &[0, 1, 2]))?;
    Ok(output::stdout(&format!(
        "{}: {}, {:.1} % of the MLPs; {} tokens, {:.0} s\n",
        report.path,
        output::bytes(report.bytes),
        100.0 * report.share,
        report.tokens,
        report.seconds,
    ))?)
}
