//! The command line of `cargo xtask`.

use clap::{Args, Parser, Subcommand};

/// Builds, checks, shows and measures LeanStream.
///
/// New here? `cargo xtask demo` shows a model answer, `cargo xtask ci` runs every check that a
/// change must pass.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
pub struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the generated model files that tests read, or check them.
    ///
    /// The files lie under fixtures/models and are committed; fixtures/README.md describes them.
    Fixtures(FixturesArgs),
}

/// Arguments of `fixtures`.
#[derive(Debug, Args)]
pub struct FixturesArgs {
    /// Write nothing; generate again, compare byte by byte and fail on any difference.
    #[arg(long)]
    pub check: bool,

    /// Also ask an independent engine again what it computes on them. Needs the network the first
    /// time: it builds llama-cpp-python, which takes about ten minutes.
    #[arg(long, conflicts_with = "check")]
    pub golden: bool,
}
