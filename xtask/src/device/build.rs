//! Builds tests and programs for a target and lays them out as a bundle.
//!
//! The bundle has the layout of the workspace, as far as tests look for files in it: they find fixtures
//! through LEANSTREAM_FIXTURES, snapshots through INSTA_WORKSPACE_ROOT.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::bundle::{Bundle, Kind, Step};
use super::stop;
use super::toolchain::Toolchain;
use crate::{models, workspace};

/// Crates whose unit, property and integration tests run on devices.
const TESTED: [&str; 7] =
    ["ls-cache", "ls-cpu", "ls-engine", "ls-hash", "ls-io", "ls-model", "ls-sched"];
/// Tests that compute for minutes, and for longer than a step may take under emulation.
const TOO_LONG_EMULATED: [&str; 7] = [
    "a_prompt_of_any_length_has_the_same_bits_in_smaller_batches",
    "interruptions_change_no_byte",
    "neither_budget_nor_a_stop_changes_a_bit",
    "predict::",
    "refine::",
    "training::",
    "under_any_faults_a_token_is_right_or_an_error",
];
/// Crates that have benches.
const MEASURED: [&str; 2] = ["ls-cache", "ls-cpu"];

/// What to build beside tests.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// A real model, by its name.
    pub model: Option<String>,
    pub benches: bool,
    /// Whether the program's speed is of no interest; then it is built sooner.
    pub is_emulated: bool,
}

/// A line of what cargo says.
#[derive(Debug, Deserialize)]
struct Message {
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A program that cargo built.
struct Built {
    package: String,
    /// `unit`, or the name of the test, bench or program.
    name: String,
    path: PathBuf,
}

/// The golden answer of the tiny model.
#[derive(Debug, Deserialize)]
struct Golden {
    prompt: String,
    n: u32,
    text: String,
}

/// Builds for `toolchain` into `folder`, which is made.
pub fn bundle(toolchain: &Toolchain, wanted: &Wanted, folder: &Path) -> Result<Bundle> {
    fs::create_dir_all(folder.join("bin")).context("cannot make the bundle's folder")?;
    let mut steps = program_steps(toolchain, wanted, folder)?;
    let mut tests = toolchain.cargo("test");
    tests.args(["--no-run", "--lib", "--tests"]);
    tests.args(TESTED.iter().flat_map(|name| ["--package", name]));
    let skipped: Vec<&str> = TOO_LONG_EMULATED.iter().flat_map(|name| ["--skip", name]).collect();
    let args: &[&str] = if wanted.is_emulated { &skipped } else { &[] };
    for built in executables(&mut tests, true)? {
        steps.push(add(&built, Kind::Tests, args, folder)?);
    }
    if wanted.benches {
        let mut benches = toolchain.cargo("bench");
        benches.args(["--no-run", "--benches"]);
        benches.args(MEASURED.iter().flat_map(|name| ["--package", name]));
        for built in executables(&mut benches, false)? {
            steps.push(add(&built, Kind::Plain, &["--bench"], folder)?);
        }
    }
    for package in TESTED {
        let from = workspace::root().join("crates").join(package);
        copy_files(&from, &folder.join("crates").join(package), &|path| {
            path.extension().is_some_and(|e| e == "snap")
        })?;
    }
    copy_files(&workspace::root().join("fixtures"), &folder.join("fixtures"), &|path| {
        path.extension().is_none_or(|e| e != "py")
    })?;
    let target = toolchain.target.clone().unwrap_or_else(|| "this machine's".to_owned());
    let bundle = Bundle { target, commit: commit(), steps };
    bundle.save(folder)?;
    Ok(bundle)
}

/// The program, and what it is to show on the device.
fn program_steps(toolchain: &Toolchain, wanted: &Wanted, folder: &Path) -> Result<Vec<Step>> {
    let mut build = toolchain.cargo("build");
    build.args(["--package", "ls-cli", "--bin", "leanstream"]);
    if !wanted.is_emulated {
        build.arg("--release");
    }
    let built = executables(&mut build, false)?;
    let program = built.first().context("cargo named no program")?;
    copy(&program.path, &folder.join("bin/leanstream"))?;

    let text = fs::read_to_string(workspace::root().join("fixtures/tiny-book.json"))?;
    let golden: Golden = serde_json::from_str(&text).context("in fixtures/tiny-book.json")?;
    let tiny = "{root}/fixtures/tiny-book.gguf";
    let n = golden.n.to_string();
    let run = |model: &str, more: &[&str]| {
        let args = ["run", model, "-p", &golden.prompt, "-n", &n, "--temp", "0", "--json"];
        leanstream(&[&args[..], more].concat())
    };
    let right = || Kind::Golden { text: golden.text.clone() };
    let pack = "{root}/tmp/tiny.lspack";
    let packed = vec![
        leanstream(&["pack", tiny, "-o", pack, "--chunk-kib", "4", "--force"]),
        run(pack, &["--budget", "{budget}"]),
    ];
    let mut steps = vec![
        step("leanstream::doctor", Kind::Doctor, vec![leanstream(&["doctor", "--json"])]),
        step("leanstream::golden", right(), vec![run(tiny, &[])]),
        step("leanstream::golden_pack", right(), packed),
        bench("tiny-book", tiny, ["32", "16"]),
    ];
    if let Some(name) = &wanted.model {
        steps.extend(model_steps(name, folder)?);
    }
    Ok(steps)
}

/// A real model: its answer, and its speed.
fn model_steps(name: &str, folder: &Path) -> Result<Vec<Step>> {
    let path = models::fetch(name)?;
    let file = models::source(name)?.file;
    fs::create_dir_all(folder.join("models"))?;
    copy(&path, &folder.join("models").join(file))?;
    let text = fs::read_to_string(workspace::root().join("fixtures/real/reference.json"))?;
    let reference: serde_json::Value = serde_json::from_str(&text)?;
    let first = &reference["prompts"][0];
    let (Some(prompt), Some(text)) =
        (first["prompt"].as_str(), first["answers"][name]["greedy_text"].as_str())
    else {
        bail!("fixtures/real/reference.json has no answer of {name}");
    };
    // Near ties are decided differently by other kernels: only how the answer begins is certain.
    let text = text.chars().take(12).collect();
    let model = format!("{{root}}/models/{file}");
    let args = ["run", &model, "-p", prompt, "-n", "16", "--temp", "0", "--json"];
    Ok(vec![
        step(&format!("leanstream::{name}"), Kind::Golden { text }, vec![leanstream(&args)]),
        bench(name, &model, ["64", "32"]),
    ])
}

fn bench(name: &str, model: &str, [prompt, generate]: [&str; 2]) -> Step {
    let args = ["bench", model, "-p", prompt, "-n", generate, "-r", "3", "-o", "json"];
    step(&format!("leanstream::bench_{name}"), Kind::Bench, vec![leanstream(&args)])
}

fn leanstream(args: &[&str]) -> Vec<String> {
    ["./bin/leanstream"].iter().chain(args).map(|arg| (*arg).to_owned()).collect()
}

fn step(name: &str, kind: Kind, commands: Vec<Vec<String>>) -> Step {
    Step { name: name.to_owned(), kind, commands, folder: String::new() }
}

/// Puts a program of a package into the bundle.
fn add(built: &Built, kind: Kind, args: &[&str], folder: &Path) -> Result<Step> {
    let file = format!("{}-{}", built.package, built.name);
    copy(&built.path, &folder.join("bin").join(&file))?;
    let home = format!("crates/{}", built.package);
    fs::create_dir_all(folder.join(&home))?;
    let args = args.iter().map(|arg| (*arg).to_owned());
    Ok(Step {
        name: format!("{}::{}", built.package, built.name),
        kind,
        commands: vec![std::iter::once(format!("./bin/{file}")).chain(args).collect()],
        folder: home,
    })
}

/// Runs cargo and collects the programs that it names.
fn executables(cargo: &mut Command, tests: bool) -> Result<Vec<Built>> {
    cargo.args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    println!("$ {}", workspace::shown(cargo));
    let mut child = cargo.spawn().context("cannot start cargo")?;
    let mut found = Vec::new();
    for line in BufReader::new(child.stdout.take().context("stdout is piped")?).lines() {
        if stop::is_asked() {
            // It removes what it had not finished the next time.
            let _ = child.kill();
            let _ = child.wait();
            bail!("stopped");
        }
        let Ok(message) = serde_json::from_str::<Message>(&line?) else { continue };
        let Message { target: Some(target), profile: Some(profile), .. } = message else {
            continue;
        };
        let (Some(path), Some(manifest)) = (message.executable, message.manifest_path) else {
            continue;
        };
        let is_example = target.kind.iter().any(|kind| kind == "example");
        if profile.test != tests || is_example {
            continue;
        }
        let package = manifest.parent().and_then(Path::file_name).unwrap_or_default();
        let is_lib = target.kind.iter().any(|kind| kind == "lib");
        found.push(Built {
            package: package.to_string_lossy().into_owned(),
            name: if is_lib { "unit".to_owned() } else { target.name },
            path,
        });
    }
    if !child.wait().context("cannot wait for cargo")?.success() {
        bail!("{} failed", workspace::shown(cargo));
    }
    found.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    Ok(found)
}

/// Copies the files under `from` that `wanted` takes, and the folders that they are in.
fn copy_files(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_files(&path, &target, wanted)?;
        } else if wanted(&path) {
            fs::create_dir_all(to)?;
            copy(&path, &target)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// The commit that is checked out, with a mark if files differ from it.
fn commit() -> String {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["describe", "--always", "--dirty", "--abbrev=12"]);
    workspace::output(&mut git).map_or("unknown".to_owned(), |name| name.trim().to_owned())
}
