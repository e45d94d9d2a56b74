//! Runs the program as a user does and looks at exit code, output and messages.

// Clippy knows test functions, but not the helpers beside them, as part of the tests.
#![allow(clippy::unwrap_used)]

mod calibrate;
mod errors;
mod fidelity;
mod gpu;
mod help;
mod models;
mod packs;
mod reports;
mod train;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program with `args`, without a terminal and without input.
fn leanstream(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leanstream"));
    // The width of help does not depend on where the tests run.
    command.args(args).stdin(Stdio::null()).env("COLUMNS", "100");
    // Neither does anything depend on what this machine's user keeps.
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-cache"));
    command.env_remove("LEANSTREAM_VK_DEVICE");
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes `bytes` to `name` in `dir` and returns the path.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_string()
}
