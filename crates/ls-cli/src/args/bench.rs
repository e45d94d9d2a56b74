//! Arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{DeviceArgs, StreamArgs};
use crate::choose::SparseArgs;
use crate::refine::RefineArgs;

const BENCH_EXAMPLES: &str = "\
Tests: ppN computes a prompt of N tokens at once, tgN generates N tokens one by one; both start from
an empty context. Speeds are the mean of the runs ± their standard deviation, after a warm-up run.
The floor is the time in which the weights can be read from memory once, measured by a plain read
with as many threads; `floor` says how many times longer a token took.

Examples:
  leanstream bench model.gguf
  leanstream bench a.gguf b.gguf -p 0 -n 64 -r 3
  leanstream bench model.gguf -t 4 -o json
  leanstream bench model.lspack --budget 700MB
  leanstream bench model.lspack -p 0 -n 64 -f book.txt --write-logits exact.logits
  leanstream bench model.lspack -p 0 -n 64 -f book.txt --compare-logits exact.logits \\
    --budget 700MB --mode sparse --keep 0.5";

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// .gguf files, safetensors folders or .lspack files
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// Prompt tokens; 0 leaves the prompt test out
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    pub n_prompt: u32,
    /// Tokens to generate; 0 leaves the decode test out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub n_gen: u32,
    /// Decode this text instead of random tokens, after its first 8 as a prompt a part of N tokens in each run, and
    /// say how well it was predicted
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Which neurons are computed.
    #[command(flatten)]
    pub sparse: SparseArgs,
    /// How sparse tokens are streamed.
    #[command(flatten)]
    pub refine: RefineArgs,
    /// Compute threads [default: one for each usable core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Write to this file what neurons scored, and were worth, for each token that is decoded in sparse mode under a
    /// budget: a trace for the simulator of ls-sched. Of chunks that are not in memory the scores stand for the
    /// worth, so take a budget that holds the model. Tokens are slower by it
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write the logits of all predictions of the text to this file, for --compare-logits. 4 bytes for each token of the
    /// vocabulary and each prediction: 16 MB for 100 tokens of a small vocabulary, 600 KB each of a large one
    #[arg(long, value_name = "FILE", requires = "file")]
    pub write_logits: Option<PathBuf>,
    /// Compare predictions with those in this file, which the same model made exactly with the same -f and -n, and say by
    /// how much the distributions diverge. That is known from far fewer tokens than a perplexity is
    #[arg(long, value_name = "FILE", requires = "file", conflicts_with = "write_logits")]
    pub compare_logits: Option<PathBuf>,
    /// Form of the result: a Markdown table, a JSON array, an object on each line, or comma-separated
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    pub output: BenchOutput,
    /// As -o json
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    /// Where MLPs are computed.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Budget and streaming.
    #[command(flatten)]
    pub stream: StreamArgs,
}

impl BenchArgs {
    /// The flag that names a file of logits, if there is one.
    pub fn logits_flag(&self) -> Option<&'static str> {
        let compare = self.compare_logits.as_ref().map(|_| "--compare-logits");
        self.write_logits.as_ref().map(|_| "--write-logits").or(compare)
    }
}

/// Form of a benchmark's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    Md,
    Json,
    Jsonl,
    Csv,
}
