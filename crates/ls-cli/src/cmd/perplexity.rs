//! `leanstream perplexity`: how well a model predicts a text.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use ls_engine::{Perplexity, PerplexityOptions, n_chunks, perplexity};
use ls_model::tokenizer::EncodeOptions;
use serde::Serialize;

use super::fidelity;
use super::load::load_on;
use crate::args::PerplexityArgs;
use crate::choose::Computed;
use crate::device::{DeviceReport, Watch};
use crate::output::UsageError;
use crate::streaming::{Since, StreamReport};
use crate::{cmd, interrupt, output};

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    estimate: Perplexity,
    context: usize,
    tok_per_s: f64,
    threads: usize,
    #[serde(flatten)]
    device: DeviceReport,
    mode: &'static str,
    keep: f64,
    cache: Option<&'static str>,
    #[serde(flatten)]
    stream: StreamReport,
}

/// Runs the command.
pub fn run(args: &PerplexityArgs) -> anyhow::Result<ExitCode> {
    args.device.engine(args.sparse.cpu_only())?;
    match args.sparse.mode {
        Computed::Exact => exact(args),
        Computed::Sparse => fidelity::run(args),
    }
}

fn exact(args: &PerplexityArgs) -> anyhow::Result<ExitCode> {
    if let Some(flag) =
        args.sparse.without_meaning().or(args.completions.then_some("--completions"))
    {
        let message = format!("{flag} goes with --mode sparse");
        return Err(UsageError(message).into());
    }
    let text = cmd::read_text(&args.file)?;
    interrupt::install()?;
    let (context, smaller) = (Some(args.context), "use a smaller --context");
    let device = args.device.engine(None)?;
    let engine = load_on(device, 0, &args.model, context, args.threads, &args.stream, smaller)?;
    let watch = Watch::new(&engine);
    let tokenizer = engine.tokenizer();
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let tokens = tokenizer.encode(&text, encode)?;
    let options = PerplexityOptions {
        n_ctx: usize::try_from(args.context)?,
        max_chunks: args.chunks.map(usize::try_from).transpose()?,
        bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
    };
    let mut state = cmd::new_state(&engine, context, smaller)?;

    let bar = output::progress("windows", n_chunks(tokens.len(), &options) as u64);
    let (start, since) = (Instant::now(), Since::now(&engine, None));
    let estimate = perplexity(&engine, &mut state, &tokens, &options, &mut |estimate| {
        bar.set_position(estimate.chunks as u64);
        bar.set_message(format!("ppl {:.4}", estimate.ppl));
        if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.finish_and_clear();
    watch.look();
    let computed = estimate.chunks * options.n_ctx;
    let report = Report {
        estimate,
        context: options.n_ctx,
        tok_per_s: computed as f64 / start.elapsed().as_secs_f64(),
        threads: engine.threads(),
        device: DeviceReport::of(&engine),
        mode: cmd::MODE,
        keep: cmd::KEEP,
        cache: engine.plan().map(|_| args.stream.cache_name()),
        stream: since.report(&engine, computed),
    };
    print(&report, args.json)?;
    let is_cut_short = estimate.chunks < n_chunks(tokens.len(), &options);
    Ok(if is_cut_short { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(report);
    }
    let Perplexity { ppl, stderr, tokens, chunks } = report.estimate;
    Ok(output::stdout(&format!(
        "perplexity {ppl:.4} ± {stderr:.5} over {tokens} tokens in {chunks} windows of {}\n",
        report.context
    ))?)
}
