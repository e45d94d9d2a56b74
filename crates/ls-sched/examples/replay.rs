//! Plays what was measured: rows of `leanstream bench -o json` in sparse mode under a budget, on the machine that each
//! row describes, with a trace of the same tokens from `bench --record`.
//!
//! Prints measured and simulated figures side by side: on each row's own machine, on one for all rows, whose costs are
//! the medians of theirs, and with a made-up trace that has the statistics of the recorded one.
//!
//! ```sh
//! cargo run --release -p ls-sched --example replay -- trace.lstr warm-up-tokens rows.json...
//! ```

#![allow(clippy::print_stdout)]

use ls_sched::sim::{Board, Host, Outcome, Setup, Shape, Synthetic, Trace, simulate};
use ls_sched::{Config, Count, Curve, Keep, Mode};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

/// A row of a benchmark.
struct Row {
    name: String,
    fields: Value,
}

impl Row {
    fn number(&self, field: &str) -> Result<f64, Failure> {
        let value = &self.fields[field];
        let known = value.as_f64().or_else(|| value.as_bool().map(|is| f64::from(u8::from(is))));
        known.ok_or_else(|| format!("{}: no {field}; was it a sparse row?", self.name).into())
    }

    /// What the costs of a machine are named, each with what it is in nanoseconds.
    fn board(&self) -> Result<Board, Failure> {
        let of = |field: &str| self.number(field);
        let token_ms = 1e3 / of("avg_ts")?;
        // The line says how fixed part and bytes compare; how fast the disk was, the run itself.
        let line = Curve::line(of("read_us")? * 1e3, of("read_us_per_kib")? * 1e3);
        let bytes = of("read_kib")? * 1024.0;
        let slower = bytes / of("disk_mb_per_s")? * 1e3 / line.read_ns(bytes as u64);
        Ok(Board {
            name: "measured",
            curve: Curve::line(line.fixed_ns * slower, line.ns_per_kib * slower),
            queue_depth: 16,
            compute_rate: of("stage_gb_per_s")?,
            stage_ns: of("stage_us")? * 1e3,
            host: Host::Computes,
            rank_ns: of("rank_us")? * 1e3,
            rank_stall_ns: 0.0,
            choose_ns: of("choose_us")? * 1e3,
            chunk_ns: of("chunk_us")? * 1e3,
            between_ns: of("between_us")? * 1e3,
            token_ns: (token_ms - of("pass_ms")?).max(0.0) * 1e6,
            ..Board::TWO_CORES
        })
    }

    fn config(&self) -> Result<Config, Failure> {
        let text = |field: &str| self.fields[field].as_str().unwrap_or_default();
        let (policy, keep) = (text("policy").parse()?, text("cache"));
        let keep = Keep::ALL.into_iter().find(|known| known.name() == keep);
        let budget = self.number("cache_bytes")? as u64;
        let curve =
            Curve::line(self.number("read_us")? * 1e3, self.number("read_us_per_kib")? * 1e3);
        let frames = budget as f64 / self.number("chunk_bytes")?;
        let is_by_worth = self.number("by_worth")? > 0.0;
        Ok(Config {
            keep: keep.ok_or("no such cache")?,
            count: if is_by_worth { Count::ByWorth } else { Count::Fixed },
            price: self.number("price")? as f32,
            late_price: 4.0,
            horizon: self.number("horizon")? as f32,
            correct: self.number("corrects")? > 0.0,
            transit_frames: (frames / 4.0).clamp(1.0, 512.0) as u32,
            ..Config::new(Mode::Sparse, policy, budget, curve)
        })
    }

    fn shape(&self, trace: &Trace) -> Result<Shape, Failure> {
        let (n_chunks, of) = (self.number("layer_chunks")? as u32, &trace.shape().n_chunks);
        Ok(Shape {
            n_layers: of.len() as u32,
            n_chunks,
            neurons_per_chunk: of[0].div_ceil(n_chunks),
            chunk_bytes: self.number("chunk_bytes")? as u32,
            layer_bytes: 0,
            token_bytes: 0,
        })
    }
}

fn rows(path: &str) -> Result<Vec<Row>, Failure> {
    let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let stem = std::path::Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    Ok(all.into_iter().map(|fields| Row { name: stem.clone().into_owned(), fields }).collect())
}

/// A machine whose costs are the medians of those of `boards`.
fn median(boards: &[Board]) -> Board {
    let of = |cost: fn(&Board) -> f64| {
        let mut all: Vec<f64> = boards.iter().map(cost).collect();
        all.sort_unstable_by(f64::total_cmp);
        0.5 * (all[(all.len() - 1) / 2] + all[all.len() / 2])
    };
    Board {
        curve: Curve::line(of(|b| b.curve.fixed_ns), of(|b| b.curve.ns_per_kib)),
        compute_rate: of(|b| b.compute_rate),
        stage_ns: of(|b| b.stage_ns),
        rank_ns: of(|b| b.rank_ns),
        choose_ns: of(|b| b.choose_ns),
        chunk_ns: of(|b| b.chunk_ns),
        between_ns: of(|b| b.between_ns),
        token_ns: of(|b| b.token_ns),
        ..boards[0]
    }
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let usage = "replay TRACE WARM_UP_TOKENS ROWS.json...";
    let trace = Trace::from_bytes(&std::fs::read(args.next().ok_or(usage)?)?)?;
    let warm_up: u32 = args.next().ok_or(usage)?.parse()?;
    let like = Synthetic { n_tokens: trace.shape().n_tokens, ..Synthetic::like(&trace)? };
    let made_up = like.trace()?;
    let mut all = Vec::new();
    for path in args {
        all.extend(rows(&path)?);
    }
    let boards = all.iter().map(Row::board).collect::<Result<Vec<_>, _>>()?;
    let one = median(boards.get(..).filter(|boards| !boards.is_empty()).ok_or(usage)?);
    println!("machine of all: {one:?}\n");
    println!(
        "| row | | tok/s | off | MB/token | read KiB | chunks | stall miss | chosen | ranks | stages | stall ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (row, board) in all.iter().zip(boards) {
        let of = |field: &str| row.number(field);
        println!(
            "| {} | measured | {:.2} | | {:.1} | {:.0} | {:.0} | {:.3} | {:.3} | {:.0} | {:.0} | {:.0} |",
            row.name,
            of("avg_ts")?,
            of("bytes_per_token")? / 1e6,
            of("read_kib")?,
            of("chunks_per_token")?,
            of("stall_miss_ratio")?,
            of("chosen_fraction")?,
            of("ranks_per_token")?,
            of("stages_per_token")?,
            of("stall_ms_per_token")?,
        );
        let plays = [
            ("own machine", board, &trace),
            ("one machine", one, &trace),
            ("own machine, made-up trace", board, &made_up),
        ];
        for (name, board, trace) in plays {
            let setup = Setup { warm_up, ..Setup::new(board, row.shape(trace)?, row.config()?) };
            print(name, of("avg_ts")?, of("chunk_bytes")?, &simulate(trace, &setup)?);
        }
    }
    Ok(())
}

fn print(name: &str, measured: f64, chunk_bytes: f64, of: &Outcome) {
    let (stats, tokens) = (&of.stats, of.token_ns.len() as f64);
    println!(
        "| | {name} | {:.2} | {:+.0} % | {:.1} | {:.0} | {:.0} | {:.3} | {:.3} | {:.0} | {:.0} | {:.0} |",
        of.tokens_per_s(),
        (of.tokens_per_s() / measured - 1.0) * 100.0,
        of.bytes_per_token() / 1e6,
        of.disk_bytes as f64 / stats.reads.max(1) as f64 / 1024.0,
        (stats.read_bytes - stats.gap_bytes) as f64 / tokens / chunk_bytes,
        stats.stall_miss_ratio(),
        of.computed,
        of.ranks_per_token(),
        stats.stages as f64 / tokens,
        stats.stall_ns as f64 / tokens / 1e6,
    );
}
