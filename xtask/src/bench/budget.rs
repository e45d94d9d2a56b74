//! `bench --budget`: streaming within budgets, alone or beside the peer under the same limit.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::mean::Mean;
use super::run::{Run, Runner};
use super::{Setup, name_of, peer_run, table};
use crate::flags::BenchArgs;
use crate::packs;

/// Runs the command.
pub fn run(setup: &Setup, args: &BenchArgs) -> Result<()> {
    let mut runner = Runner::new(setup, args)?;
    let mut all = Vec::new();
    for model in &setup.models {
        let pack = packs::pack(&setup.program, model, "auto")?;
        let (mut runs, mut alone) = (Vec::new(), Vec::new());
        for turn in 1..=setup.turns {
            eprintln!("{}: turn {turn} of {}, without budget", name_of(model), setup.turns);
            alone.push(runner.ours(model, &pack.path, None, &[])?);
            for budget in &args.budget {
                eprintln!("{}: turn {turn} of {}, {budget}", name_of(model), setup.turns);
                runs.push(runner.ours(model, &pack.path, Some(budget), &[])?);
                if let Some(python) = &setup.python {
                    runs.push(peer_run::peer(&mut runner, python, model, budget)?);
                }
            }
        }
        let compute = compute(&alone)?;
        println!("{}", heading(setup, args, &pack, model, compute));
        println!("{}", table::budgets(&runs, compute.mean));
        all.extend(alone.into_iter().chain(runs));
        // After each model: the next may take long, and fail.
        save(args.json.as_deref(), &all)?;
    }
    Ok(())
}

/// The speed of computing alone.
pub fn compute(alone: &[Run]) -> Result<Mean> {
    Mean::of(alone.iter().filter_map(|run| run.tok_per_s)).with_context(|| {
        let trouble = alone.iter().find_map(|run| run.end.trouble());
        format!("nothing was measured without a budget: {}", trouble.unwrap_or_default())
    })
}

/// What stands above a table.
pub fn heading(
    setup: &Setup,
    args: &BenchArgs,
    pack: &packs::Pack,
    model: &Path,
    compute: Mean,
) -> String {
    format!(
        "{}: pack of {} MB, {} MB of them in chunks, down {}. {} threads, {} turns of {} runs of {} \
         tokens, {}. Computing alone: {} tok/s.\n",
        name_of(model),
        pack.report.file_bytes / 1_000_000,
        pack.report.chunk_bytes / 1_000_000,
        pack.report.types(),
        setup.threads,
        setup.turns,
        args.repetitions(),
        args.generate(),
        match args.ttft {
            0 => "no prompt".to_owned(),
            n => format!("prompt and context of {n}"),
        },
        compute.shown(),
    )
}

/// Writes the runs where they are wanted.
pub fn save(path: Option<&Path>, runs: &[Run]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut json = serde_json::to_string_pretty(runs).context("a run is no JSON")?;
    json.push('\n');
    fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
}
