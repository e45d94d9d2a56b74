//! `leanstream perplexity --mode sparse`: what is lost when only some neurons are computed.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use ls_engine::{
    Agreement, Choice, Compared, Engine, Fidelity, PerplexityOptions, State, completions, fidelity,
    fidelity_bytes, n_chunks,
};
use ls_model::ModelFile;
use ls_model::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};

use super::load::load_beside;
use crate::args::PerplexityArgs;
use crate::choose::{Chooser, Prepared};
use crate::device::DeviceReport;
use crate::streaming::{Since, StreamReport};
use crate::{cmd, interrupt, output};

/// Prompts whose dense completions are the reference.
const PROMPTS: &str = include_str!("../../../../fixtures/completions.json");

#[derive(Debug, Deserialize)]
struct Prompts {
    /// Tokens of an answer.
    tokens: usize,
    prompts: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Of the chooser.
    #[serde(flatten)]
    chosen: Row,
    stderr: f64,
    tokens: usize,
    chunks: usize,
    context: usize,
    mode: &'static str,
    keep: f64,
    choose: &'static str,
    unit: &'static str,
    dense_ppl: f64,
    oracle_ppl: Option<f64>,
    oracle: Option<Row>,
    completions: Option<Agreement>,
    oracle_completions: Option<Agreement>,
    seconds: f64,
    threads: usize,
    #[serde(flatten)]
    device: DeviceReport,
    cache: Option<&'static str>,
    #[serde(flatten)]
    stream: StreamReport,
}

/// What is said of a way to compute.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    ppl: f64,
    rise: f64,
    rise_stderr: f64,
    kl: f64,
    kl_99: f64,
    top1_agreement: f64,
    computed_fraction: f64,
    touched_fraction: f64,
}

impl Row {
    fn of(way: &Compared) -> Self {
        Self {
            ppl: way.estimate.ppl,
            rise: way.rise,
            rise_stderr: way.rise_stderr,
            kl: way.kl,
            kl_99: way.kl_99,
            top1_agreement: way.top1_agreement,
            computed_fraction: way.counts.computed_fraction(),
            touched_fraction: way.counts.touched_fraction(),
        }
    }
}

/// Runs the command.
pub fn run(args: &PerplexityArgs) -> anyhow::Result<ExitCode> {
    let text = cmd::read_text(&args.file)?;
    let Some(prepared) = args.sparse.prepare(&args.model)? else {
        unreachable!("called in sparse mode");
    };
    interrupt::install()?;
    let (context, smaller) = (Some(args.context), "use a smaller --context");
    let n_ctx = usize::try_from(args.context)?;
    let ways = ways(prepared.chooser);
    let reserve = {
        let model = ModelFile::open(&args.model)?;
        fidelity_bytes(model.config(), ways.len(), n_ctx) + prepared.bytes()
    };
    let engine = load_beside(reserve, &args.model, context, args.threads, &args.stream, smaller)?;
    let ways = possible(ways, &engine)?;
    let tokenizer = engine.tokenizer();
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let tokens = tokenizer.encode(&text, encode)?;
    let options = PerplexityOptions {
        n_ctx,
        max_chunks: args.chunks.map(usize::try_from).transpose()?,
        bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
    };
    let mut state = cmd::new_state(&engine, context, smaller)?;
    let row_share = engine.row_share();
    let choice = |way: &Chooser| Choice::for_every_token(prepared.choice(*way, row_share).chooser);
    let choices: Vec<Choice> = ways.iter().map(choice).collect();
    let (start, since) = (Instant::now(), Since::now(&engine, None));
    let result = compare(&engine, &mut state, &ways, &choices, &tokens, &options)?;
    let mut is_whole = result.dense.chunks == n_chunks(tokens.len(), &options);
    let agreements = match args.completions && is_whole {
        true => Some(complete(&engine, &mut state, &choices, &mut is_whole)?),
        false => None,
    };
    let computed = result.dense.chunks * n_ctx;
    let mut report = report(&prepared, &ways, &result, agreements.as_deref());
    report.context = n_ctx;
    report.seconds = start.elapsed().as_secs_f64();
    report.threads = engine.threads();
    report.cache = engine.plan().map(|_| args.stream.cache_name());
    report.stream = since.report(&engine, computed);
    print(&report, args.json)?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(interrupt::EXIT_CODE) })
}

/// What is compared with dense: the chooser, which comes first, and the best that it could be.
fn ways(chooser: Chooser) -> Vec<Chooser> {
    match chooser {
        Chooser::Oracle => vec![Chooser::Oracle],
        chooser => vec![chooser, Chooser::Oracle],
    }
}

/// Of `ways` those that can be computed where weights are.
fn possible(mut ways: Vec<Chooser>, engine: &Engine) -> anyhow::Result<Vec<Chooser>> {
    if engine.plan().is_some() {
        anyhow::ensure!(
            !ways[0].needs_memory(),
            "--choose {} takes all weights in memory; use --budget none",
            ways[0].name()
        );
        ways.truncate(1);
        output::note("the oracle is left out: it takes all weights in memory (--budget none)");
    }
    Ok(ways)
}

fn compare(
    engine: &Engine,
    state: &mut State,
    ways: &[Chooser],
    choices: &[Choice],
    tokens: &[u32],
    options: &PerplexityOptions,
) -> anyhow::Result<Fidelity> {
    let bar = output::progress("windows", n_chunks(tokens.len(), options) as u64);
    let result = fidelity(engine, state, choices, tokens, options, &mut |so_far| {
        let mut message = format!("dense {:.3}", so_far.dense.ppl);
        for (way, compared) in ways.iter().zip(&so_far.ways) {
            message += &format!(" {} {:.3}", way.name(), compared.estimate.ppl);
        }
        bar.set_position(so_far.dense.chunks as u64);
        bar.set_message(message);
        stop()
    });
    bar.finish_and_clear();
    Ok(result?)
}

/// How answers to the fixed prompts agree with dense ones, for each choice; not of all prompts when it
/// was interrupted.
fn complete(
    engine: &Engine,
    state: &mut State,
    choices: &[Choice],
    is_whole: &mut bool,
) -> anyhow::Result<Vec<Agreement>> {
    let Prompts { tokens, prompts } =
        serde_json::from_str(PROMPTS).context("the program's own prompts are damaged")?;
    let encode = |text: &String| engine.tokenizer().encode(text, EncodeOptions::PROMPT);
    let prompts = prompts.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let bar = output::progress("completions", prompts.len() as u64);
    let result = completions(engine, state, choices, &prompts, tokens, &mut |so_far| {
        bar.set_position(so_far.first().map_or(0, |agreement| agreement.prompts as u64));
        stop()
    });
    bar.finish_and_clear();
    let agreements = result?;
    *is_whole = agreements.iter().all(|agreement| agreement.prompts == prompts.len());
    Ok(agreements)
}

fn stop() -> ControlFlow<()> {
    if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn report(
    prepared: &Prepared,
    ways: &[Chooser],
    result: &Fidelity,
    agreements: Option<&[Agreement]>,
) -> Report {
    let chosen = &result.ways[0];
    let at = ways.iter().position(|way| *way == Chooser::Oracle);
    let oracle = at.map(|at| Row::of(&result.ways[at]));
    let agreement = |at: Option<usize>| Some(agreements?[at?]);
    Report {
        chosen: Row::of(chosen),
        stderr: chosen.estimate.stderr,
        tokens: chosen.estimate.tokens,
        chunks: chosen.estimate.chunks,
        context: 0,
        mode: "sparse",
        keep: prepared.keep,
        choose: ways[0].name(),
        unit: prepared.unit.name(),
        dense_ppl: result.dense.ppl,
        oracle_ppl: oracle.map(|row| row.ppl),
        oracle,
        completions: agreement(Some(0)),
        oracle_completions: agreement(at),
        seconds: 0.0,
        threads: 0,
        device: DeviceReport::cpu(),
        cache: None,
        stream: StreamReport::default(),
    }
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(report);
    }
    let heads = ["", "perplexity", "rise", "KL", "KL 99 %", "same top", "computed", "chunks"];
    let more = report.completions.map(|_| ["same answers", "same start"]);
    let heads = heads.into_iter().chain(more.into_iter().flatten());
    let mut rows = vec![heads.map(str::to_owned).collect::<Vec<_>>()];
    rows.push(vec!["dense".into(), format!("{:.4}", report.dense_ppl)]);
    if let Some(oracle) = report.oracle.filter(|_| report.choose != "oracle") {
        rows.push(cells("oracle", &oracle, report.oracle_completions));
    }
    rows.push(cells(report.choose, &report.chosen, report.completions));
    output::stdout(&output::table(&rows, &[1, 2, 3, 4, 5, 6, 7, 8, 9]))?;
    Ok(output::stdout(&format!(
        "{} tokens in {} windows of {}\n",
        report.tokens, report.chunks, report.context
    ))?)
}

fn cells(name: &str, row: &Row, agreement: Option<Agreement>) -> Vec<String> {
    let percent = |x: f64| format!("{:.1} %", 100.0 * x);
    let mut cells = vec![
        name.to_owned(),
        format!("{:.4}", row.ppl),
        format!("{:+.2} ± {:.2} %", 100.0 * row.rise, 100.0 * row.rise_stderr),
        format!("{:.4}", row.kl),
        format!("{:.3}", row.kl_99),
        percent(row.top1_agreement),
        percent(row.computed_fraction),
        percent(row.touched_fraction),
    ];
    if let Some(Agreement { exact, prompts, prefix }) = agreement {
        cells.push(format!("{exact} of {prompts}"));
        cells.push(percent(prefix));
    }
    cells
}
