//! `leanstream run`: generates text.

use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use indicatif::ProgressBar;
use ls_engine::{
    Engine, Event, FinishReason, GenerateOptions, Generation, SampleParams, Sampler, State,
    generate,
};
use ls_model::tokenizer::EncodeOptions;
use serde::Serialize;

use super::load::load_on;
use crate::args::{RunArgs, SamplingArgs};
use crate::choose::Prepared;
use crate::cmd::chat;
use crate::device::{DeviceReport, Watch};
use crate::output::UsageError;
use crate::streaming::{Since, StreamReport};
use crate::{cmd, interrupt, output};

/// Tokens of a completion unless the user says otherwise.
const DEFAULT_MAX_TOKENS: usize = 128;

/// What to do about a context that does not fit.
const SMALLER: &str = "use a smaller --context";

#[derive(Debug, Serialize)]
struct Report<'a> {
    text: &'a str,
    tokens: usize,
    token_ids: &'a [u32],
    prompt_tokens: usize,
    prompt_ids: &'a [u32],
    finish_reason: FinishReason,
    tok_per_s: Option<f64>,
    prompt_tok_per_s: Option<f64>,
    ttft_ms: Option<f64>,
    load_ms: f64,
    peak_rss_bytes: Option<u64>,
    seed: u64,
    threads: usize,
    #[serde(flatten)]
    device: DeviceReport,
    mode: &'static str,
    keep: f64,
    /// Of the MLPs' bytes, for the tokens that were generated; only in sparse mode.
    computed_fraction: Option<f64>,
    policy: Option<String>,
    cache: Option<&'static str>,
    #[serde(flatten)]
    stream: StreamReport,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let prompt = prompt(args)?;
    let params = sample_params(&args.sampling);
    // Wrong parameters are found before a large model is loaded.
    let mut sampler = Sampler::new(params.clone()).map_err(|e| UsageError(e.to_string()))?;
    interrupt::install()?;
    let start = Instant::now();
    let (context, threads) = (args.load.context, args.load.threads);
    let device = args.device.engine(args.sparse.cpu_only())?;
    let prepared = args.sparse.prepare(&args.model)?;
    let reserve = prepared.as_ref().map_or(0, Prepared::bytes);
    let engine = load_on(device, reserve, &args.model, context, threads, &args.stream, SMALLER)?;
    let watch = Watch::new(&engine);
    let mut state = cmd::new_state(&engine, context, SMALLER)?;
    let computing = args.refine.apply(prepared.as_ref(), &engine, &mut state, args.stream.cache)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    if args.verbose {
        describe(&engine, &state, load_ms);
    }
    let Some(prompt) = prompt else {
        return chat::talk(args, &engine, &mut state, &mut sampler);
    };
    let prompt_ids = encode(args, &engine, &prompt)?;
    let options = options(args, Some(DEFAULT_MAX_TOKENS));
    let since = Since::now(&engine, computing.refiner());
    let generation = stream(&engine, &mut state, &prompt_ids, &mut sampler, &options, !args.json)?;
    watch.look();
    if args.json {
        let metrics = &generation.metrics;
        output::json(&Report {
            text: &generation.text,
            tokens: generation.tokens.len(),
            token_ids: &generation.tokens,
            prompt_tokens: prompt_ids.len(),
            prompt_ids: &prompt_ids,
            finish_reason: generation.finish_reason,
            tok_per_s: metrics.tok_per_s(),
            prompt_tok_per_s: metrics.prompt_tok_per_s(),
            ttft_ms: metrics.first_token_time.map(|time| time.as_secs_f64() * 1e3),
            load_ms,
            peak_rss_bytes: metrics.peak_rss_anon,
            seed: params.seed,
            threads: engine.threads(),
            device: DeviceReport::of(&engine),
            mode: if prepared.is_some() { "sparse" } else { cmd::MODE },
            keep: prepared.as_ref().map_or(cmd::KEEP, |of| of.keep),
            computed_fraction: state.sparse_counts().map(|counts| counts.computed_fraction()),
            policy: computing.policy(),
            cache: engine.plan().map(|_| computing.cache(args.stream.cache)),
            stream: since.report(&engine, prompt_ids.len() + metrics.decode_steps),
        })?;
    } else if !generation.text.ends_with('\n') {
        output::stdout("\n")?;
    }
    if args.verbose {
        report(&generation, params.seed);
        report_stream(&engine, &since, prompt_ids.len(), &generation);
    }
    let is_cancelled = generation.finish_reason == FinishReason::Cancelled;
    Ok(if is_cancelled { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// The prompt of a single answer, or `None` for a chat.
fn prompt(args: &RunArgs) -> anyhow::Result<Option<String>> {
    let is_given = args.prompt.is_some() || args.file.is_some() || !std::io::stdin().is_terminal();
    if is_given && args.system.is_some() && !args.chat {
        let message = "--system is part of a chat, but the prompt is taken as it is; add --chat";
        return Err(UsageError(message.into()).into());
    }
    if let Some(prompt) = &args.prompt {
        return Ok(Some(prompt.clone()));
    }
    if let Some(file) = &args.file {
        return cmd::read_text(file).map(Some);
    }
    if std::io::stdin().is_terminal() {
        return match (args.json, args.raw) {
            (false, false) => Ok(None),
            (true, _) => Err(UsageError("--json needs a prompt; give -p or -f".into()).into()),
            (_, true) => Err(UsageError("--raw needs a prompt; give -p or -f".into()).into()),
        };
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input, which must be UTF-8 text")?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_string()))
}

/// The prompt's tokens: of the text itself, or of the model's chat format around it.
fn encode(args: &RunArgs, engine: &Engine, prompt: &str) -> anyhow::Result<Vec<u32>> {
    if !args.chat {
        return Ok(engine.tokenizer().encode(prompt, EncodeOptions::PROMPT)?);
    }
    let mut messages = chat::opening(args.system.as_deref());
    messages.push(chat::user(prompt));
    chat::Format::of(engine)?.encode(&messages)
}

fn sample_params(args: &SamplingArgs) -> SampleParams {
    SampleParams {
        temperature: args.temp,
        top_k: args.top_k as usize,
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        repeat_last_n: usize::from(args.repeat_last_n),
        seed: args.seed.unwrap_or_else(seed_from_clock),
    }
}

/// 32 bits are easily typed again, and enough to differ from run to run.
fn seed_from_clock() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u64 >> 10) & u64::from(u32::MAX)
}

/// When an answer ends; `default` tokens at most unless the user says otherwise.
pub fn options(args: &RunArgs, default: Option<usize>) -> GenerateOptions<'static> {
    // -1, the one negative number that is accepted, does not convert: no limit.
    let max_tokens = args.max_tokens.map_or(default, |n| usize::try_from(n).ok());
    GenerateOptions { max_tokens, stop: args.stop.clone(), cancel: Some(interrupt::flag()) }
}

/// Generates an answer and prints its text as it comes, if it is to be `shown`.
pub fn stream(
    engine: &Engine,
    state: &mut State,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    shown: bool,
) -> anyhow::Result<Generation> {
    let mut bar: Option<ProgressBar> = None;
    let mut printed = Ok(());
    let generation = generate(engine, state, prompt, sampler, options, &mut |event| {
        match event {
            // A bar appears only for prompts that take several steps.
            Event::Prompt { done: 0, .. } => {}
            Event::Prompt { done, total } => bar
                .get_or_insert_with(|| output::progress("prompt", total as u64))
                .set_position(done as u64),
            Event::Text(text) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                if shown {
                    printed = output::stdout(text);
                }
            }
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    printed?;
    Ok(generation)
}

/// Says on standard error what was loaded.
fn describe(engine: &Engine, state: &State, load_ms: f64) {
    let config = engine.config();
    output::note(format_args!(
        "{}: {:?}, {} layers, weights {}, context {}, {} threads, {}, loaded in {load_ms:.0} ms",
        config.name,
        config.arch,
        config.n_layers,
        output::bytes(engine.weight_bytes()),
        state.capacity(),
        engine.threads(),
        device_line(engine),
    ));
    if let Some(plan) = engine.plan() {
        cmd::note_plan(&plan);
    }
}

/// Where MLPs are computed.
fn device_line(engine: &Engine) -> String {
    let status = engine.device();
    match (status.device, status.name, status.control) {
        ("vulkan", Some(name), Some(control)) => {
            let holds = match (status.in_place, status.copy_reason) {
                (true, _) => "it reads the cache in place".to_owned(),
                (false, None) => format!("it holds {}", output::bytes(status.held_bytes)),
                (false, Some(reason)) => {
                    let held = output::bytes(status.held_bytes);
                    format!("it holds {held}; chunks are copied: {reason}")
                }
            };
            format!("MLPs on {name} ({control}; {holds})")
        }
        (device, ..) => device.to_owned(),
    }
}

/// Says on standard error how a generation went.
pub fn report(generation: &Generation, seed: u64) {
    let metrics = &generation.metrics;
    let rate = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{rate:.1}"));
    let ttft =
        metrics.first_token_time.map_or("-".into(), |t| format!("{:.0}", t.as_secs_f64() * 1e3));
    let peak = metrics.peak_rss_anon.map_or("-".into(), output::bytes);
    output::note(format_args!(
        "prompt {} tokens, {} tokens/s; first token after {ttft} ms; {} tokens, {} tokens/s; \
         ended by {}; peak anonymous memory {peak}; seed {seed}",
        metrics.prompt_tokens,
        rate(metrics.prompt_tok_per_s()),
        generation.tokens.len(),
        rate(metrics.tok_per_s()),
        reason(generation.finish_reason),
    ));
}

/// Says on standard error what was streamed, if anything could be.
pub fn report_stream(engine: &Engine, since: &Since<'_>, n_prompt: usize, generation: &Generation) {
    if engine.plan().is_some() {
        cmd::note_stream(&since.report(engine, n_prompt + generation.metrics.decode_steps));
    }
}

/// Why a generation ended, in words.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "the model",
        FinishReason::StopString => "a stop string",
        FinishReason::MaxTokens => "the limit of tokens",
        FinishReason::ContextFull => "a full context",
        FinishReason::Cancelled => "an interruption",
    }
}
