//! `bench --ablation`: what ranking early, ranking again and keeping by prediction are worth. The same pack,
//! predictors, fraction, budget and text for all.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::run::Runner;
use super::{Setup, budget, name_of, peer_run, plot, table};
use crate::flags::BenchArgs;
use crate::{packs, workspace};

/// When layers are ranked. The second is how Deja Vu and LLM in a flash work, as far as that can be
/// said here: once, a layer ahead, by importance alone.
const POLICIES: [&[&str]; 6] = [
    &["--policy", "serial"],
    &["--policy", "oneshot", "--reach", "1", "--no-correct"],
    &["--policy", "oneshot"],
    &["--policy", "fixed:1"],
    &["--policy", "fixed:4"],
    &["--policy", "refine"],
];

const CACHES: [&str; 4] = ["lru", "lfu", "hot", "priority"];

/// What `--few` compares.
const FEW: [&[&str]; 4] = [
    &["--policy", "oneshot", "--reach", "1", "--no-correct", "--cache", "lru"],
    &["--policy", "refine"],
    // Near the divergence of the first.
    &["--policy", "refine", "--price", "0.06"],
    &["--policy", "refine", "--price", "0.3", "--horizon", "8"],
];

/// The variants to compare.
fn variants(few: bool) -> Vec<Vec<&'static str>> {
    if few {
        return FEW.into_iter().map(<[_]>::to_vec).collect();
    }
    let with =
        |cache| POLICIES.into_iter().map(move |policy| [policy, &["--cache", cache]].concat());
    CACHES.into_iter().flat_map(with).collect()
}

/// Runs the command.
pub fn run(setup: &Setup, args: &BenchArgs) -> Result<()> {
    let mut runner = Runner::new(setup, args)?;
    let text = match &args.file {
        Some(file) => file.clone(),
        None => workspace::root().join("fixtures/real/book-held.txt"),
    };
    let mut all = Vec::new();
    for model in &setup.models {
        let pack = match &args.train {
            Some(text) => packs::ordered(&setup.program, model, text)?,
            None => packs::pack(&setup.program, model, "auto")?,
        };
        let predictors = predictors(setup, args, &pack.path)?;
        // What an exact run predicts, to compare the others with.
        let folder = tempfile::tempdir().context("cannot make a folder for logits")?;
        let logits = shown(&folder.path().join("exact.logits"));
        let (text, keep) = (shown(&text), args.keep.to_string());
        let predictors = shown(&predictors);
        let same = ["--mode", "sparse", "--keep", &keep, "--predictors", &predictors];
        for budget in &args.budget {
            let (mut runs, mut alone) = (Vec::new(), Vec::new());
            for turn in 1..=setup.turns {
                eprintln!("{}: turn {turn} of {}, {budget}", name_of(model), setup.turns);
                let of = ["-f", &text, "--write-logits", &logits];
                alone.push(runner.ours(model, &pack.path, None, &of)?.named("in memory, exact"));
                let of = ["-f", &text, "--compare-logits", &logits];
                let flags = [&same[..], &of[..]].concat();
                alone
                    .push(runner.ours(model, &pack.path, None, &flags)?.named("in memory, sparse"));
                runs.push(runner.ours(model, &pack.path, Some(budget), &of)?.named("exact"));
                for variant in variants(args.few) {
                    let flags = [&flags[..], &variant].concat();
                    let run = runner.ours(model, &pack.path, Some(budget), &flags)?;
                    runs.push(run.named(&variant.join(" ")));
                }
                if let Some(python) = &setup.python {
                    let run = peer_run::peer(&mut runner, python, model, budget)?;
                    runs.push(run.named("llama.cpp"));
                }
            }
            let compute = budget::compute(&alone[1..])?;
            println!("Budget {budget}. {}", budget::heading(setup, args, &pack, model, compute));
            let runs: Vec<_> = alone.into_iter().chain(runs).collect();
            println!("{}", table::ablation(&runs, compute.mean));
            all.extend(runs);
            budget::save(args.json.as_deref(), &all)?;
        }
    }
    match &args.plot {
        Some(path) => plot::write(path, &all),
        None => Ok(()),
    }
}

/// The predictors of a pack, which are trained if there are none.
fn predictors(setup: &Setup, args: &BenchArgs, pack: &Path) -> Result<PathBuf> {
    if let Some(file) = &args.predictors {
        return Ok(file.clone());
    }
    let beside = pack.with_extension("lspred");
    if beside.exists() {
        return Ok(beside);
    }
    let text = args.train.as_ref().with_context(|| {
        let pack = pack.display();
        format!("{pack} has no predictors; give a text to train them on with --train FILE")
    })?;
    eprintln!("training predictors of {}; this takes minutes to hours", pack.display());
    let mut command = Command::new(&setup.program);
    command.arg("train").arg(pack).arg("-f").arg(text).args(["--tokens", "16384", "--steps", "20"]);
    workspace::output(command.arg("--json"))?;
    Ok(beside)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
