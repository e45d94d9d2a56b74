//! Speed of models that are in memory as a whole, alone or beside llama.cpp.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::mean::Mean;
use super::{Setup, name_of};
use crate::flags::BenchArgs;
use crate::workspace;

/// What either engine reports of one test.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    size_bytes: u64,
    /// `pp512`, `tg128`.
    test: String,
    /// Tokens per second.
    avg_ts: f64,
    /// What a plain read of the weights reaches, in GB/s.
    read_gb_per_s: Option<f64>,
}

/// Means over all turns of one test on one model.
#[derive(Clone, Debug)]
struct Line {
    model: String,
    test: String,
    size_bytes: u64,
    ours: Mean,
    peer: Option<Mean>,
    read_gb_per_s: Option<f64>,
}

/// Runs the command.
pub fn run(setup: &Setup, args: &BenchArgs) -> Result<()> {
    let threads = setup.threads;
    let mut lines = Vec::new();
    for model in &setup.models {
        let (mut our_rows, mut peer_rows) = (Vec::new(), Vec::new());
        for turn in 1..=setup.turns {
            eprintln!("{}: turn {turn} of {}", name_of(model), setup.turns);
            our_rows.push(measure_ours(&setup.program, model, threads, args)?);
            if let Some(python) = &setup.python {
                peer_rows.push(measure_peer(python, model, threads, args)?);
            }
        }
        lines.extend(summarise(&name_of(model), &our_rows, &peer_rows)?);
    }
    println!("{threads} threads, {} turns of {} runs", setup.turns, args.repetitions());
    print!("{}", table(&lines));
    Ok(())
}

fn measure_ours(ours: &Path, model: &Path, threads: u32, args: &BenchArgs) -> Result<Vec<Row>> {
    let mut command = Command::new(ours);
    command.arg("bench").arg(model).args(["-o", "json"]);
    rows(command.args(common(args, threads)))
}

fn measure_peer(python: &Path, model: &Path, threads: u32, args: &BenchArgs) -> Result<Vec<Row>> {
    let mut command = Command::new(python);
    command.arg("-c").arg(include_str!("../peer_bench.py")).arg(model);
    rows(command.args(common(args, threads))).context("the peer could not be measured")
}

/// The flags that both engines take.
fn common(args: &BenchArgs, threads: u32) -> Vec<String> {
    let flags =
        [("-p", args.prompt), ("-n", args.generate()), ("-r", args.repetitions()), ("-t", threads)];
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.to_string()]).collect()
}

fn rows(command: &mut Command) -> Result<Vec<Row>> {
    let json = workspace::output(command)?;
    serde_json::from_str(&json).context("the benchmark printed something unknown")
}

/// Joins the turns of one model.
fn summarise(model: &str, ours: &[Vec<Row>], peer: &[Vec<Row>]) -> Result<Vec<Line>> {
    let Some(first) = ours.first() else { bail!("no turn was measured") };
    let mut lines = Vec::new();
    for row in first {
        let reads: Vec<f64> = ours.iter().flatten().filter_map(|r| r.read_gb_per_s).collect();
        let ours = mean(ours, &row.test);
        lines.push(Line {
            model: model.to_owned(),
            test: row.test.clone(),
            size_bytes: row.size_bytes,
            ours: ours.with_context(|| format!("no speed for {}", row.test))?,
            peer: mean(peer, &row.test),
            // The best read is the least disturbed one.
            read_gb_per_s: reads.into_iter().reduce(f64::max),
        });
    }
    Ok(lines)
}

/// Over every row of `test`; `None` where there is none.
fn mean(turns: &[Vec<Row>], test: &str) -> Option<Mean> {
    Mean::of(turns.iter().flatten().filter(|row| row.test == test).map(|row| row.avg_ts))
}

impl Line {
    /// Tokens per second at which decoding would move the weights as fast as a plain read.
    fn floor(&self) -> Option<f64> {
        let read = self.read_gb_per_s.filter(|_| self.test.starts_with("tg"))?;
        Some(read * 1e9 / self.size_bytes as f64)
    }
}

/// A Markdown table.
fn table(lines: &[Line]) -> String {
    let mut out = String::from(
        "| model | test | ours tok/s (min–max) | llama.cpp tok/s (min–max) | ratio | \
         read GB/s | limit tok/s | reached |\n|---|---|---|---|---|---|---|---|\n",
    );
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.1}"));
    for line in lines {
        let ratio =
            line.peer.map_or("–".to_owned(), |p| format!("{:.2}", line.ours.mean / p.mean));
        let reached = line
            .floor()
            .map_or("–".to_owned(), |f| format!("{:.0} %", 100.0 * line.ours.mean / f));
        let peer = line.peer.map_or("–".to_owned(), Mean::shown);
        let read = number(line.read_gb_per_s);
        let limit = number(line.floor());
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} | {peer} | {ratio} | {read} | {limit} | {reached} |",
            line.model,
            line.test,
            line.ours.shown(),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str, avg_ts: f64, read_gb_per_s: Option<f64>) -> Row {
        Row { size_bytes: 100_000_000, test: test.to_owned(), avg_ts, read_gb_per_s }
    }

    #[test]
    fn turns_are_joined_by_test() {
        let ours = [
            vec![row("pp8", 300.0, Some(10.0)), row("tg4", 40.0, Some(10.0))],
            vec![row("pp8", 500.0, Some(12.0)), row("tg4", 60.0, Some(12.0))],
        ];
        let peer = [vec![row("pp8", 800.0, None), row("tg4", 25.0, None)]];
        let text = table(&summarise("m", &ours, &peer).unwrap());
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let pp = "| m | pp8 | 400.0 (300.0–500.0) | 800.0 (800.0–800.0) | 0.50 | 12.0 | – | – |";
        let tg = "| m | tg4 | 50.0 (40.0–60.0) | 25.0 (25.0–25.0) | 2.00 | 12.0 | 120.0 | 42 % |";
        assert_eq!(lines, [pp, tg]);
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let text = table(&summarise("m", &[vec![row("tg4", 40.0, None)]], &[]).unwrap());
        assert!(text.ends_with("| m | tg4 | 40.0 (40.0–40.0) | – | – | – | – | – |\n"), "{text}");
    }

    #[test]
    fn rows_may_have_more_keys_than_are_read() {
        let json = r#"[{"model":"m","size_bytes":1,"test":"pp8","avg_ts":1.5,"keep":1.0}]"#;
        let rows: Vec<Row> = serde_json::from_str(json).unwrap();
        assert_eq!(rows[0].avg_ts, 1.5);
    }
}
