//! `bench --columns`: what each type of the down matrices takes, and what it costs in perplexity.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Setup, name_of, table};
use crate::flags::BenchArgs;
use crate::{packs, workspace};

/// The text that is predicted.
const TEXT: &str = "fixtures/real/book-held.txt";

/// Values of `leanstream pack --down`. The first is the one that is used elsewhere, and kept.
const TYPES: [&str; 5] = ["auto", "q8", "q6", "q5", "q4"];

#[derive(Debug, Deserialize)]
struct Perplexity {
    ppl: f64,
}

/// A line of the table.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    /// `None` for the source, which has no chunks.
    chunk_bytes: Option<u64>,
    ppl: f64,
}

/// Runs the command.
pub fn run(setup: &Setup, args: &BenchArgs) -> Result<()> {
    for model in &setup.models {
        eprintln!("{}: the source", name_of(model));
        let ppl = perplexity(setup, args, model)?;
        let mut lines = vec![Line { name: "source".to_owned(), chunk_bytes: None, ppl }];
        for (i, down) in TYPES.into_iter().enumerate() {
            eprintln!("{}: --down {down}", name_of(model));
            let pack = packs::pack(&setup.program, model, down)?;
            lines.push(Line {
                name: format!("{down} ({})", pack.report.types()),
                chunk_bytes: Some(pack.report.chunk_bytes),
                ppl: perplexity(setup, args, &pack.path)?,
            });
            if i > 0 {
                // Each is as large as the model, and nothing else reads it.
                pack.remove()?;
            }
        }
        println!("{}: {TEXT}, {} windows of 512 tokens.\n", name_of(model), args.chunks);
        println!("{}", shown(&lines));
    }
    Ok(())
}

fn perplexity(setup: &Setup, args: &BenchArgs, model: &Path) -> Result<f64> {
    let mut command = Command::new(&setup.program);
    command.arg("perplexity").arg(model).arg("-f").arg(workspace::root().join(TEXT));
    command.args(["--chunks", &args.chunks.to_string(), "-t", &setup.threads.to_string()]);
    // The types are what is measured: memory is free.
    let json = workspace::output(command.args(["--budget", "none", "--json"]))?;
    let perplexity: Perplexity =
        serde_json::from_str(&json).context("`perplexity` printed something unknown")?;
    Ok(perplexity.ppl)
}

/// The table; the first line is the source, which the others are compared with.
fn shown(lines: &[Line]) -> String {
    let mut out = String::from("| down | chunks MB | perplexity | differs |\n");
    table::rule(&mut out, 4);
    let source = lines.first().map_or(f64::NAN, |line| line.ppl);
    for line in lines {
        let (mb, differs) = match line.chunk_bytes {
            None => ("–".to_owned(), "–".to_owned()),
            Some(bytes) => (
                format!("{:.1}", bytes as f64 / 1e6),
                format!("{:+.2} %", 100.0 * (line.ppl / source - 1.0)),
            ),
        };
        table::line(&mut out, [line.name.clone(), mb, format!("{:.4}", line.ppl), differs]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_compared_with_their_source() {
        let line = |name: &str, chunk_bytes, ppl| Line { name: name.to_owned(), chunk_bytes, ppl };
        let table = shown(&[
            line("source", None, 10.0),
            line("q8 (Q8)", Some(55_000_000), 10.01),
            line("q4 (Q4)", Some(44_500_000), 9.5),
        ]);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| source | – | 10.0000 | – |",
                "| q8 (Q8) | 55.0 | 10.0100 | +0.10 % |",
                "| q4 (Q4) | 44.5 | 9.5000 | -5.00 % |",
            ]
        );
    }
}
