//! `cargo xtask ci`: every check that a change must pass, timed.

use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::flags::{CiArgs, FixturesArgs, ShadersArgs, Step};
use crate::{device, fixtures, loom, models, setup, shaders, tidy, workspace};

/// The real model that the golden tests need.
const GOLDEN_MODEL: &str = "smollm2";

/// All steps; quick ones first, and the tests last so that their summary closes the output.
const STEPS: [Step; 11] = [
    Step::Fmt,
    Step::Tidy,
    Step::Fixtures,
    Step::Shaders,
    Step::Deny,
    Step::Models,
    Step::Clippy,
    Step::Docs,
    Step::Loom,
    Step::Device,
    Step::Tests,
];

/// How a step ended.
enum Outcome {
    Passed,
    Skipped(String),
    Failed(anyhow::Error),
}

/// Tests counted over all test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs the steps that `args` names, or all of them.
pub fn run(args: &CiArgs) -> Result<()> {
    let steps: Vec<Step> = match args.steps.as_slice() {
        [] => STEPS.to_vec(),
        named => STEPS.into_iter().filter(|step| named.contains(step)).collect(),
    };
    let mut counts = Counts::default();
    let mut rows = Vec::new();
    for step in steps {
        println!("── {}", step.name());
        let began = Instant::now();
        let outcome = match run_step(step, args, &mut counts) {
            Ok(None) => Outcome::Passed,
            Ok(Some(why)) => Outcome::Skipped(why),
            Err(error) => Outcome::Failed(error),
        };
        if let Outcome::Failed(error) = &outcome {
            println!("{error:#}");
        }
        let stop = matches!(outcome, Outcome::Failed(_)) && !args.keep_going;
        rows.push((step, outcome, began.elapsed()));
        if stop {
            break;
        }
    }
    report(&rows, counts)
}

/// Runs one step; returns why it was skipped, if it was.
fn run_step(step: Step, args: &CiArgs, counts: &mut Counts) -> Result<Option<String>> {
    match step {
        Step::Fmt => workspace::run(workspace::cargo().args(["fmt", "--all", "--check"]))?,
        Step::Tidy => tidy::run()?,
        Step::Fixtures => fixtures::run(&FixturesArgs { check: true, golden: false })?,
        Step::Shaders => shaders::run(&ShadersArgs { check: true })?,
        Step::Deny => return deny(),
        Step::Models if args.offline => return Ok(Some(offline_models())),
        Step::Models => models::fetch(GOLDEN_MODEL)
            .map(drop)
            .context("no model for the golden tests; --offline goes without")?,
        Step::Clippy => {
            // ls-vk compiles a memory allocator for GPUs.
            setup::need_cxx()?;
            let mut cargo = workspace::cargo();
            cargo.args(["clippy", "--locked", "--workspace", "--all-targets"]);
            workspace::run(cargo.args(["--", "-D", "warnings"]))?;
        }
        Step::Docs => {
            let mut cargo = workspace::cargo();
            cargo.args(["doc", "--locked", "--workspace", "--no-deps", "--quiet"]);
            workspace::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
        }
        Step::Loom => loom::run()?,
        Step::Device => return device::ci(args.offline),
        Step::Tests => tests(args, counts)?,
    }
    Ok(None)
}

fn deny() -> Result<Option<String>> {
    let mut probe = workspace::cargo();
    probe.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return Ok(Some("cargo-deny is not installed; tidy checked licences and sources".into()));
    }
    // Advisories need a database from the network, so they are not part of a repeatable run.
    let mut cargo = workspace::cargo();
    workspace::run(cargo.args(["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    Ok(None)
}

fn offline_models() -> String {
    if models::is_here(GOLDEN_MODEL) {
        format!("offline; {GOLDEN_MODEL} was fetched before and is tested")
    } else {
        format!("offline and never fetched: the golden tests of {GOLDEN_MODEL} do not run")
    }
}

/// All tests and doc tests. Their output passes through and is counted.
fn tests(args: &CiArgs, counts: &mut Counts) -> Result<()> {
    setup::need_cxx()?;
    setup::need_vulkan()?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--locked", "--workspace"]);
    if args.keep_going {
        cargo.arg("--no-fail-fast");
    }
    cargo.env("LEANSTREAM_MODELS", models::folder());
    // Missing Vulkan fails tests instead of skipping them.
    cargo.env("LEANSTREAM_REQUIRE_VULKAN", "1");
    if models::is_here(GOLDEN_MODEL) || !args.offline {
        // A missing model fails these tests instead of skipping them.
        cargo.env("LEANSTREAM_REQUIRE_MODELS", GOLDEN_MODEL);
    }
    let (status, found) = count_tests(&mut cargo)?;
    *counts = found;
    if !status {
        bail!("{} failed", workspace::shown(&cargo));
    }
    if found.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

fn count_tests(command: &mut Command) -> Result<(bool, Counts)> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let lines = BufReader::new(child.stdout.take().context("stdout is piped")?).lines();
    let mut counts = Counts::default();
    for line in lines {
        let line = line.context("cannot read what the tests print")?;
        writeln!(stdout(), "{line}").context("cannot write to stdout")?;
        counts.add(&line);
    }
    Ok((child.wait().context("cannot wait for cargo")?.success(), counts))
}

impl Counts {
    /// Adds a test program's closing line; any other line adds nothing.
    fn add(&mut self, line: &str) {
        let Some(summary) = line.strip_prefix("test result: ") else { return };
        for part in summary.split([';', '.']) {
            let Some((number, what)) = part.trim().split_once(' ') else { continue };
            let Ok(n) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
    }
}

fn report(rows: &[(Step, Outcome, Duration)], counts: Counts) -> Result<()> {
    println!("\n{:<10} {:>8}  outcome", "step", "seconds");
    for (step, outcome, time) in rows {
        let text = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Skipped(why) => format!("skipped: {why}"),
            Outcome::Failed(_) => "FAILED".to_owned(),
        };
        println!("{:<10} {:>8.1}  {text}", step.name(), time.as_secs_f64());
    }
    println!();
    if rows.iter().any(|(step, ..)| *step == Step::Tests) {
        // A test of a model that is not here passes without having looked at anything.
        let absent: Vec<&str> =
            models::SOURCES.iter().map(|s| s.name).filter(|name| !models::is_here(name)).collect();
        if !absent.is_empty() {
            let names = absent.join(" ");
            println!("Not tested, since not fetched: {names} (cargo xtask models {names})");
        }
        let Counts { passed, failed, ignored } = counts;
        println!("{passed} passed, {failed} failed, {ignored} skipped");
    }
    let failed: Vec<&str> = rows
        .iter()
        .filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
        .map(|(step, ..)| step.name())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_summed_and_other_lines_are_not() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test result: ok. 15 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.03s",
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.20s",
            "12 passed",
        ] {
            counts.add(line);
        }
        assert_eq!(counts, Counts { passed: 17, failed: 3, ignored: 1 });
    }

    #[test]
    fn tests_come_last_and_no_step_is_forgotten() {
        use clap::ValueEnum;
        assert_eq!(STEPS.last(), Some(&Step::Tests));
        for step in Step::value_variants() {
            assert!(STEPS.contains(step), "{}", step.name());
        }
    }
}
