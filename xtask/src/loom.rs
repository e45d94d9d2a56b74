//! `cargo xtask loom`: the lock-free parts of ls-cache, in every order that their steps can have.

use anyhow::Result;

use crate::workspace;

/// Runs the command.
pub fn run() -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--locked", "--package", "ls-cache", "--test", "loom", "--release"]);
    // Other flags would make cargo build everything anew, here and again without them.
    cargo.arg("--target-dir").arg(workspace::target_dir()?.join("loom"));
    workspace::run(cargo.env("RUSTFLAGS", "--cfg loom"))
}
