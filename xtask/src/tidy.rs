//! `cargo xtask tidy`: the rules of this workspace that no compiler knows.
//!
//! Each rule is a function from text to findings; this file holds the rules' tables and runs them.

mod crates;
mod licences;
mod links;
mod source;
mod tree;
mod unsafe_code;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Which crate may depend on which other crates of the workspace. An arrow that is not here does
/// not exist; docs/architecture.md says why.
const ARROWS: [(&str, &[&str]); 10] = [
    ("ls-cache", &[]),
    ("ls-cpu", &[]),
    ("ls-hash", &[]),
    ("ls-io", &[]),
    ("ls-model", &[]),
    ("ls-sched", &[]),
    ("ls-vk", &[]),
    ("ls-engine", &["ls-cache", "ls-cpu", "ls-hash", "ls-io", "ls-model", "ls-sched", "ls-vk"]),
    ("ls-cli", &["ls-cpu", "ls-engine", "ls-io", "ls-model", "ls-vk"]),
    ("xtask", &["ls-model"]),
];

/// Files, or folders that end in a slash, in which `unsafe` may be written.
const UNSAFE_ALLOWED: [&str; 36] = [
    "crates/ls-cache/src/cache.rs",
    "crates/ls-cache/src/fill.rs",
    "crates/ls-cache/src/lease.rs",
    "crates/ls-cache/src/ledger.rs",
    "crates/ls-cache/src/loan.rs",
    "crates/ls-cache/src/slab.rs",
    "crates/ls-cli/src/sigbus.rs",
    "crates/ls-cpu/src/attention.rs",
    "crates/ls-cpu/src/chunk.rs",
    "crates/ls-cpu/src/elementwise.rs",
    "crates/ls-cpu/src/matmul.rs",
    "crates/ls-cpu/src/matrix.rs",
    "crates/ls-cpu/src/mlp.rs",
    "crates/ls-cpu/src/pool.rs",
    "crates/ls-cpu/src/quant/activations.rs",
    "crates/ls-cpu/src/simd/",
    "crates/ls-cpu/src/tile.rs",
    "crates/ls-hash/benches/predictors.rs",
    "crates/ls-hash/src/simd/",
    "crates/ls-io/src/backend.rs",
    "crates/ls-io/src/backend/",
    "crates/ls-io/src/buf.rs",
    "crates/ls-io/src/worker.rs",
    "crates/ls-io/tests/it/buf.rs",
    "crates/ls-model/src/map.rs",
    "crates/ls-vk/src/buffer.rs",
    "crates/ls-vk/src/control/blocking.rs",
    "crates/ls-vk/src/control/staged.rs",
    "crates/ls-vk/src/debug.rs",
    "crates/ls-vk/src/device.rs",
    "crates/ls-vk/src/import.rs",
    "crates/ls-vk/src/instance.rs",
    "crates/ls-vk/src/pipeline.rs",
    "crates/ls-vk/src/recorder.rs",
    "crates/ls-vk/src/slab.rs",
    "crates/ls-vk/tests/it/import.rs",
];

/// Licences that a dependency may have.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Relative to the workspace's root.
    path: PathBuf,
    /// Counted from 1; 0 for the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.message),
        }
    }
}

/// Runs every rule and fails if any is broken.
pub fn run() -> Result<()> {
    let root = workspace::root();
    let paths = tracked_files()?;
    let metadata = metadata()?;
    let mut findings = tree::sizes(root, &paths)?;
    for path in &paths {
        let Some(text) = tree::text(&root.join(path))? else { continue };
        findings.extend(check_text(root, path, &text));
    }
    findings.extend(crates::arrows(&metadata, &ARROWS)?);
    findings.extend(crates::described(root, &metadata)?);
    findings.extend(licences::check(&metadata, &LICENCES)?);
    findings.sort();
    if findings.is_empty() {
        println!("{} files and all dependencies keep the rules", paths.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("{} rules broken", findings.len())
}

/// The rules for one text file.
fn check_text(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = tree::length(path, text);
    findings.extend(tree::places(path, text));
    match path.extension().and_then(|ext| ext.to_str()) {
        Some("rs") => {
            findings.extend(unsafe_code::check(path, text, &UNSAFE_ALLOWED));
            findings.extend(source::leftovers(path, text));
            findings.extend(source::opening(path, text));
        }
        Some("md") => findings.extend(links::check(root, path, text)),
        Some("toml") if path.ends_with("Cargo.toml") && path.parent() != Some(Path::new("")) => {
            findings.extend(crates::inherits(path, text));
        }
        _ => {}
    }
    findings
}

/// Files that git knows or would add, relative to the root.
fn tracked_files() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root());
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let list = workspace::output(&mut git).context("tidy asks git which files there are")?;
    let paths = list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // A file that was removed but not yet staged is listed too.
    Ok(paths.filter(|path| workspace::root().join(path).is_file()).collect())
}

/// What cargo knows of all packages, those of other platforms included; where those cannot be
/// fetched, of the packages of this one.
fn metadata() -> Result<crates::Metadata> {
    let args = ["metadata", "--format-version", "1", "--locked"];
    let mut everything = workspace::cargo();
    let json = workspace::output(everything.args(args)).or_else(|_| {
        println!("packages of other platforms could not be fetched and are not checked");
        let rustc = workspace::output(Command::new("rustc").arg("-vV"))?;
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.context("rustc -vV names no host")?;
        workspace::output(workspace::cargo().args(args).args(["--filter-platform", host]))
    })?;
    serde_json::from_str(&json).context("cargo metadata printed something unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        assert_eq!(Finding::new(Path::new("a/b.rs"), 3, "no").to_string(), "a/b.rs:3: no");
        assert_eq!(Finding::new(Path::new("a/b.rs"), 0, "no").to_string(), "a/b.rs: no");
    }

    #[test]
    fn tables_are_sorted_so_that_additions_have_one_place() {
        assert!(UNSAFE_ALLOWED.is_sorted());
        assert!(LICENCES.is_sorted());
        assert!(ARROWS.iter().all(|(_, allowed)| allowed.is_sorted()));
    }
}
