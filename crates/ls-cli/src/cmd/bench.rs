//! `leanstream bench`: prompt and decode speed, beside the floor that memory sets.

mod floor;
mod logits;
mod rows;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use ls_engine::{Compared, Engine, Pcg32, PeakRss, Refiner, SparseCounts, State};
use ls_model::tokenizer::EncodeOptions;

use super::load::load_on;
use crate::args::{BenchArgs, BenchOutput};
use crate::choose::Prepared;
use crate::device::{DeviceReport, Watch};
use crate::output::UsageError;
use crate::streaming::Since;
use crate::{cmd, interrupt, output};
use floor::Floor;
use logits::{Logits, part};
use rows::{Row, Speed};

/// How a text is taken: as it is, with what the model has before one.
const ENCODE: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

/// Start of the random tokens: every run computes the same ones.
const SEED: u64 = 1;

/// Tokens of a text that stand for a prompt: every run begins after them. Models look at their first tokens
/// from everywhere, so if these were computed with what happened to be there, one would measure that.
const LEAD: usize = 8;

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.n_prompt == 0 && args.n_gen == 0 {
        return Err(
            UsageError("-p 0 and -n 0 leave nothing to measure; give one of them".into()).into()
        );
    }
    if let Some(flag) = args.logits_flag() {
        let wrong = |why| Err(UsageError(format!("{flag} {why}")).into());
        match (&args.models[..], args.n_gen) {
            ([_], 2..) => {}
            ([_], _) => return wrong("is of predictions, so -n must be 2 or more"),
            _ => return wrong("is of one model; give only one"),
        }
    }
    interrupt::install()?;
    let mut rows = Vec::new();
    let mut result = Ok(ExitCode::SUCCESS);
    for path in &args.models {
        match measure_model(path, args, &mut rows) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => {
                result = Ok(ExitCode::from(interrupt::EXIT_CODE));
                break;
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    // Minutes may have gone into the rows of the models before the one that failed.
    if result.is_ok() || !rows.is_empty() {
        let form = if args.json { BenchOutput::Json } else { args.output };
        output::stdout(&rows::print(&rows, form)?)?;
    }
    result
}

/// Adds the rows of one model; `Break` when Ctrl-C was pressed, with the rows that were complete.
fn measure_model(
    path: &Path,
    args: &BenchArgs,
    rows: &mut Vec<Row>,
) -> anyhow::Result<ControlFlow<()>> {
    let lead = if args.file.is_some() { LEAD } else { 0 };
    let context = u64::from(args.n_prompt.max(args.n_gen).max(1)) + lead as u64;
    let smaller = "use a smaller -p or -n";
    let prepared = args.sparse.prepare(path)?;
    let reserve = prepared.as_ref().map_or(0, Prepared::bytes);
    let (device, asked) = (args.device.engine(args.sparse.cpu_only())?, Some(context));
    let engine = load_on(device, reserve, path, asked, args.threads, &args.stream, smaller)?;
    let watch = Watch::new(&engine);
    let bar = output::progress("bench", 2 * (u64::from(args.repetitions) + 1) + 1);
    bar.set_message(cmd::model_name(path));
    // Under a budget the mapped file must not be read: it would come to memory a second time.
    let floor = match engine.plan() {
        None => Some(Floor::measure(&engine)?),
        Some(_) => None,
    };
    bar.inc(1);
    let mut state = cmd::new_state(&engine, Some(context), smaller)?;
    let computing = args.refine.apply(prepared.as_ref(), &engine, &mut state, args.stream.cache)?;
    if args.record.is_some() {
        let refiner = computing.refiner().ok_or_else(|| {
            UsageError("--record goes with --mode sparse by predictors, and a --budget".into())
        })?;
        refiner.record();
    }
    let text = args.file.as_ref().map(|file| text(file, &engine, args)).transpose()?;
    let logits = Logits::open(args, engine.config().vocab_size)?;
    let mut bench = Bench::new(&engine, state, text, logits);
    for (test, n) in [(Test::Prompt, args.n_prompt), (Test::Decode, args.n_gen)] {
        if n == 0 {
            continue;
        }
        let now = || Since::now(&engine, computing.refiner());
        let (mut speeds, mut since) = (Vec::new(), now());
        let mut counts = bench.state.sparse_counts();
        // The run before the first counts for nothing: it touches weights and buffers.
        for repetition in 0..=args.repetitions {
            let speed = bench.time(test, n as usize, repetition as usize)?;
            bar.inc(1);
            if interrupt::take() {
                bar.finish_and_clear();
                return Ok(ControlFlow::Break(()));
            }
            if repetition > 0 {
                speeds.push(speed);
            } else {
                bench.begin();
                since = now();
                counts = bench.state.sparse_counts();
            }
        }
        let counted = bench.state.sparse_counts().zip(counts);
        let counted = counted.map(|(now, before)| now.since(&before));
        let compared = bench.compared(counted).filter(|_| test == Test::Decode);
        rows.push(Row {
            model: cmd::model_name(path),
            size_bytes: engine.weight_bytes(),
            test: test.name(n),
            speed: Speed::of(&speeds),
            threads: engine.threads(),
            device: DeviceReport::of(&engine),
            mode: if counted.is_some() { "sparse" } else { cmd::MODE },
            keep: prepared.as_ref().map_or(cmd::KEEP, |of| of.keep),
            computed_fraction: counted.map(|counts| counts.computed_fraction()),
            chosen_fraction: counted.map(|counts| counts.chosen_fraction()),
            touched_fraction: counted.map(|counts| counts.touched_fraction()),
            peak_rss_bytes: bench.peak.bytes(),
            read_gb_per_s: floor.as_ref().map(Floor::gb_per_s),
            floor_ratio: floor
                .as_ref()
                .filter(|_| test == Test::Decode)
                .map(|floor| floor.ratio(Speed::of(&speeds).avg_ts)),
            policy: computing.policy(),
            cache: engine.plan().map(|_| computing.cache(args.stream.cache)),
            ppl: bench.ppl().filter(|_| test == Test::Decode),
            kl: compared.as_ref().map(|of| of.kl),
            ppl_rise: compared.as_ref().map(|of| of.rise),
            ppl_rise_stderr: compared.as_ref().map(|of| of.rise_stderr),
            top1_agreement: compared.as_ref().map(|of| of.top1_agreement),
            p50_ms: bench.quantile_ms(0.5),
            p99_ms: bench.quantile_ms(0.99),
            stream: since.report(&engine, n as usize * speeds.len()),
        });
    }
    bench.logits.finish()?;
    bar.finish_and_clear();
    watch.look();
    if let Some(path) = &args.record
        && let Some(bytes) = computing.refiner().and_then(Refiner::recorded)
    {
        write_whole(path, &bytes)
            .with_context(|| format!("cannot write the record to {}", path.display()))?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Writes a file whole, or leaves what was there.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let part = part(path);
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
    written.inspect_err(|_| _ = std::fs::remove_file(&part))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Prompt,
    Decode,
}

impl Test {
    fn name(self, n: u32) -> String {
        match self {
            Self::Prompt => format!("pp{n}"),
            Self::Decode => format!("tg{n}"),
        }
    }
}

struct Bench<'a> {
    engine: &'a Engine,
    state: State,
    peak: PeakRss,
    /// Tokens to decode, one part in each run.
    text: Option<Vec<u32>>,
    /// Of the runs that count.
    token_ms: Vec<f64>,
    /// Summed negative log likelihood of the text's tokens, and how many were predicted.
    nll: (f64, usize),
    logits: Logits,
}

/// Tokens of a text for all runs.
fn text(file: &Path, engine: &Engine, args: &BenchArgs) -> anyhow::Result<Vec<u32>> {
    let tokens = engine.tokenizer().encode(&cmd::read_text(file)?, ENCODE)?;
    let needed = LEAD + (args.repetitions as usize + 1) * args.n_gen as usize;
    anyhow::ensure!(
        tokens.len() >= needed,
        "{} has {} tokens, but the runs take {needed}; use a longer text, or a smaller -n or -r",
        file.display(),
        tokens.len()
    );
    Ok(tokens)
}

impl<'a> Bench<'a> {
    fn new(engine: &'a Engine, state: State, text: Option<Vec<u32>>, logits: Logits) -> Self {
        let (peak, token_ms, nll) = (PeakRss::start(), Vec::new(), (0.0, 0));
        Self { engine, state, peak, text, token_ms, nll, logits }
    }

    /// From here on runs count.
    fn begin(&mut self) {
        self.token_ms.clear();
        self.nll = (0.0, 0);
    }

    /// Perplexity of what was decoded of a text.
    fn ppl(&self) -> Option<f64> {
        let (sum, n) = self.nll;
        (n > 0).then(|| (sum / n as f64).exp())
    }

    /// What was decoded of a text, beside what was read of another run.
    fn compared(&self, counts: Option<SparseCounts>) -> Option<Compared> {
        self.logits.compared(counts.unwrap_or_default())
    }

    /// The time that such a part of the tokens took at most.
    fn quantile_ms(&self, part: f64) -> Option<f64> {
        let mut all = self.token_ms.clone();
        all.sort_unstable_by(f64::total_cmp);
        let last = all.len().checked_sub(1)?;
        Some(all[(part * last as f64).round() as usize])
    }

    /// Tokens per second of one run over `n` tokens from an empty context, or after the lead of the text.
    fn time(&mut self, test: Test, n: usize, run: usize) -> anyhow::Result<f64> {
        let mut rng = Pcg32::new(SEED);
        let vocab_size = self.engine.config().vocab_size.max(1) as u64;
        let mut token = || (u64::from(rng.next_u32()) % vocab_size) as u32;
        let mut random = || (0..n).map(|_| token()).collect::<Vec<u32>>();
        let lead = self.text.as_ref().filter(|_| test == Test::Decode).map(|text| &text[..LEAD]);
        match lead {
            Some(_) if run > 0 => self.state.truncate(LEAD),
            Some(lead) => {
                self.state.truncate(0);
                self.engine.prefill(&mut self.state, lead)?;
            }
            None => self.state.truncate(0),
        }
        let mut taken = Duration::ZERO;
        match (test, &self.text) {
            (Test::Prompt, _) => {
                let tokens = random();
                let start = Instant::now();
                self.engine.prefill(&mut self.state, &tokens)?;
                taken = start.elapsed();
            }
            (Test::Decode, text) => {
                let part = text.as_ref().map(|text| text[LEAD + run * n..][..n].to_vec());
                let tokens = part.unwrap_or_else(random);
                for (i, &token) in tokens.iter().enumerate() {
                    let start = Instant::now();
                    let logits = self.engine.decode(&mut self.state, token)?;
                    let time = start.elapsed();
                    taken += time;
                    self.token_ms.push(time.as_secs_f64() * 1e3);
                    if let Some(next) = tokens.get(i + 1).filter(|_| self.text.is_some()) {
                        if run > 0 {
                            self.logits.take(token, logits, *next)?;
                        }
                        self.nll.0 -= log_likelihood(logits, *next as usize);
                        self.nll.1 += 1;
                    }
                }
            }
        }
        self.peak.sample();
        Ok(n as f64 / taken.as_secs_f64())
    }
}

/// The logarithm of the probability that `logits` give to a token.
fn log_likelihood(logits: &[f32], token: usize) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    f64::from(logits[token] - most) - sum.ln()
}
