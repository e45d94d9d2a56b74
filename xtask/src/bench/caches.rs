//! `bench --caches`: one pack and budget, with each cache policy, without prefetch, and with each
//! way to read.

use anyhow::Result;

use super::run::Runner;
use super::{Setup, budget, name_of, table};
use crate::flags::BenchArgs;
use crate::packs;

/// What is compared. The first of each kind is what the program does by itself.
const VARIANTS: [&[&str]; 9] = [
    &["--cache", "lru"],
    &["--cache", "lfu"],
    &["--cache", "hot"],
    &["--cache", "none"],
    &["--cache", "lru-plain"],
    &["--no-prefetch"],
    &["--io", "uring"],
    &["--io", "pread"],
    &["--io", "mmap"],
];

/// Runs the command.
pub fn run(setup: &Setup, args: &BenchArgs) -> Result<()> {
    let mut runner = Runner::new(setup, args)?;
    let mut all = Vec::new();
    for model in &setup.models {
        let pack = packs::pack(&setup.program, model, "auto")?;
        for budget in &args.budget {
            let (mut runs, mut alone) = (Vec::new(), Vec::new());
            for turn in 1..=setup.turns {
                eprintln!("{}: turn {turn} of {}, {budget}", name_of(model), setup.turns);
                alone.push(runner.ours(model, &pack.path, None, &[])?);
                for flags in VARIANTS {
                    runs.push(runner.ours(model, &pack.path, Some(budget), flags)?);
                }
            }
            let compute = budget::compute(&alone)?;
            println!("Budget {budget}. {}", budget::heading(setup, args, &pack, model, compute));
            println!("{}", table::variants(&runs, compute.mean));
            all.extend(alone.into_iter().chain(runs));
            budget::save(args.json.as_deref(), &all)?;
        }
    }
    Ok(())
}
