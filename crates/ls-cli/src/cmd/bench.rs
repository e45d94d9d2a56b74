//! `leanstream bench`: prompt and decode speed, beside the floor that memory sets.

mod floor;
mod rows;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use ls_engine::{Engine, Pcg32, PeakRss, State};

use super::load::load_on;
use crate::args::{BenchArgs, BenchOutput};
use crate::choose::Prepared;
use crate::device::{DeviceReport, Watch};
use crate::output::UsageError;
use crate::streaming::Since;
use crate::{cmd, interrupt, output};
use floor::Floor;
use rows::{Row, Speed};

/// Start of the random tokens: every run computes the same ones.
const SEED: u64 = 1;

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.n_prompt == 0 && args.n_gen == 0 {
        return Err(
            UsageError("-p 0 and -n 0 leave nothing to measure; give one of them".into()).into()
        );
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
    let context = u64::from(args.n_prompt.max(args.n_gen).max(1));
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
    let choice = prepared.as_ref().map(|of| of.choice(of.chooser, engine.row_share()));
    engine.set_choice(&mut state, choice)?;
    let mut bench = Bench { state, engine: &engine, peak: PeakRss::start() };
    for (test, n) in [(Test::Prompt, args.n_prompt), (Test::Decode, args.n_gen)] {
        if n == 0 {
            continue;
        }
        let (mut speeds, mut since) = (Vec::new(), Since::now(&engine));
        let mut counts = bench.state.sparse_counts();
        // The run before the first counts for nothing: it touches weights and buffers.
        for repetition in 0..=args.repetitions {
            let speed = bench.time(test, n as usize)?;
            bar.inc(1);
            if interrupt::take() {
                bar.finish_and_clear();
                return Ok(ControlFlow::Break(()));
            }
            if repetition > 0 {
                speeds.push(speed);
            } else {
                since = Since::now(&engine);
                counts = bench.state.sparse_counts();
            }
        }
        let counted = bench.state.sparse_counts().zip(counts);
        let counted = counted.map(|(now, before)| now.since(&before));
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
            touched_fraction: counted.map(|counts| counts.touched_fraction()),
            peak_rss_bytes: bench.peak.bytes(),
            read_gb_per_s: floor.as_ref().map(Floor::gb_per_s),
            floor_ratio: floor
                .as_ref()
                .filter(|_| test == Test::Decode)
                .map(|floor| floor.ratio(Speed::of(&speeds).avg_ts)),
            cache: engine.plan().map(|_| args.stream.cache.name()),
            stream: since.report(&engine, n as usize * speeds.len()),
        });
    }
    bar.finish_and_clear();
    watch.look();
    Ok(ControlFlow::Continue(()))
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
}

impl Bench<'_> {
    /// Tokens per second of one run over `n` random tokens from an empty context.
    fn time(&mut self, test: Test, n: usize) -> anyhow::Result<f64> {
        let mut rng = Pcg32::new(SEED);
        let vocab_size = self.engine.config().vocab_size.max(1) as u64;
        let mut token = || (u64::from(rng.next_u32()) % vocab_size) as u32;
        let tokens: Vec<u32> = (0..n).map(|_| token()).collect();
        self.state.truncate(0);
        let start = Instant::now();
        match test {
            Test::Prompt => {
                self.engine.prefill(&mut self.state, &tokens)?;
            }
            Test::Decode => {
                for &token in &tokens {
                    self.engine.decode(&mut self.state, token)?;
                }
            }
        }
        let time = start.elapsed();
        self.peak.sample();
        Ok(n as f64 / time.as_secs_f64())
    }
}
