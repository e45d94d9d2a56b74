//! The command line: flags, their defaults and their help.

mod bench;
pub mod device;
mod train;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ls_engine::{BackendKind, PolicyKind};
use ls_model::pack;

use crate::choose::SparseArgs;
use crate::refine::RefineArgs;
use crate::size::{self, Budget};

pub use bench::{BenchArgs, BenchOutput};
pub use device::DeviceArgs;
pub use train::TrainArgs;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted with Ctrl-C.";

/// Runs language models on small machines.
#[derive(Debug, Parser)]
#[command(name = "leanstream", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a model's configuration, tensors, sizes and the memory it needs
    Inspect(InspectArgs),
    /// Lay a model out for streaming, as a .lspack file
    Pack(PackArgs),
    /// Generate text; a chat when there is no prompt and a terminal
    Run(Box<RunArgs>),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Record what a text shows of a pack's MLPs, to train predictors on
    Calibrate(CalibrateArgs),
    /// Train predictors of the neurons that matter, for --mode sparse
    Train(TrainArgs),
    /// Measure prompt and decode speed
    Bench(BenchArgs),
    /// Show what this machine offers
    Doctor(DoctorArgs),
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  leanstream inspect model.gguf
  leanstream inspect model.gguf --tensors
  leanstream inspect model.gguf --json --context 8192
  leanstream inspect model.lspack             its smallest budget, and what other budgets give
  leanstream inspect model.lspack --verify    whether its file is whole";

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub struct InspectArgs {
    /// A .gguf file, a safetensors folder or a .lspack file
    pub model: PathBuf,
    /// List every tensor with type, shape and bytes
    #[arg(long)]
    pub tensors: bool,
    /// Tokens of context to compute the memory for [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub context: Option<u64>,
    /// Read all of a .lspack file and check its checksums; exit code 1 if one is wrong
    #[arg(long)]
    pub verify: bool,
    /// Print one JSON object, tensors included
    #[arg(long)]
    pub json: bool,
}

/// Sizes that chunks can have.
const CHUNK_KIB: std::ops::RangeInclusive<i64> =
    pack::MIN_CHUNK_KIB as i64..=pack::MAX_CHUNK_KIB as i64;

const PACK_EXAMPLES: &str = "\
A pack is made once. In it the weights of each neuron of the MLPs lie side by side, so that they can
be read from flash a few at a time, under a memory budget. All else stays as it is in the source.

Only the down matrices are quantised anew, since their blocks run the other way in a pack; auto is
the smallest type that costs next to nothing, and keeps floats as they are.

With --calibrate, a text of what the model will be used for goes through the model once, one layer at a
time, and neurons lie in the order of what they add to their layer's output. The model computes the
same, but what sparse mode needs most lies together. A .lspred is of one pack, so train it afterwards.

Examples:
  leanstream pack model.gguf -o model.lspack
  leanstream pack model.gguf -o model.lspack --calibrate book.txt
  leanstream inspect model.lspack                      how much memory it needs
  leanstream run model.lspack --budget 700MB -p Hello
  leanstream pack folder/ -o model.lspack --down q8 --chunk-kib 32";

/// Arguments of `pack`.
#[derive(Debug, Args)]
#[command(after_help = PACK_EXAMPLES)]
pub struct PackArgs {
    /// A .gguf file or a safetensors folder
    pub model: PathBuf,
    /// The file to write, or the folder for it [default: the model's name with .lspack, here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of chunks to aim at, in KiB; larger ones are read faster, smaller ones chosen better
    #[arg(long, value_name = "N", default_value_t = pack::DEFAULT_CHUNK_KIB as u16)]
    #[arg(value_parser = clap::value_parser!(u16).range(CHUNK_KIB))]
    pub chunk_kib: u16,
    /// Type of the down matrices
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub down: Down,
    /// Order neurons by how much they add in this text, those that add most first
    #[arg(long, value_name = "TEXT")]
    pub calibrate: Option<PathBuf>,
    /// Most tokens of that text to use
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive())]
    pub calibrate_tokens: u64,
    /// Order of neurons: a JSON array with, for each layer, an array of scores; higher come first
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub scores: Option<PathBuf>,
    /// Write the scores of --calibrate to this file, for --scores
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    pub write_scores: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Threads [default: one for each usable core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Type of the down matrices in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Down {
    Auto,
    F32,
    F16,
    Bf16,
    Q8,
    Q6,
    Q5,
    Q4,
}

/// How weights are held and streamed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Streaming")]
pub struct StreamArgs {
    /// Memory that the program may hold in all, like 700MB or 1.5GiB; auto: what is available, and
    /// streaming only if the model does not fit; none: weights are left to the system's page cache
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub budget: Budget,
    /// Which of the streamed weights stay in memory, in chunks of some neurons
    /// [default: lru; with --mode sparse priority, or hot if they are few and the pack is in that order]
    #[arg(long, value_name = "POLICY")]
    pub cache: Option<CachePolicy>,
    /// How the disk is read
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub io: Io,
    /// Reads in flight at once; doctor measures 16
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub io_depth: u16,
    /// Do not read ahead of the layer that computes
    #[arg(long)]
    pub no_prefetch: bool,
    /// Under a budget, read no more than so much a second, like 300MB: to see a slower disk
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    pub disk_rate: Option<u64>,
}

impl StreamArgs {
    /// Which chunks stay in memory where all are needed, as results have it.
    pub fn cache_name(&self) -> &'static str {
        self.cache.unwrap_or(CachePolicy::Lru).kind().name()
    }
}

/// Which chunks stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CachePolicy {
    /// Those used last, with the same share for each layer
    Lru,
    /// Those used most in this text
    Lfu,
    /// The first of each layer, which are the hottest if the pack is ordered so
    Hot,
    /// None
    None,
    /// Those used last, over all layers: what others do, for comparison
    LruPlain,
    /// Those that will probably be used, by predictions and their history; only in sparse mode
    Priority,
}

impl CachePolicy {
    /// As results have it.
    pub fn name(self) -> &'static str {
        if self == Self::Priority { "priority" } else { self.kind().name() }
    }

    /// The engine's policy, which prompts go by in sparse mode too.
    pub fn kind(self) -> PolicyKind {
        match self {
            Self::Lru | Self::Priority => PolicyKind::Lru,
            Self::Lfu => PolicyKind::Lfu,
            Self::Hot => PolicyKind::Hot,
            Self::None => PolicyKind::None,
            Self::LruPlain => PolicyKind::LruPlain,
        }
    }
}

/// How the disk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// io_uring where it works, otherwise threads
    Auto,
    /// io_uring
    Uring,
    /// A pool of threads that each wait for a read
    Pread,
    /// A mapping of the file, copied from
    Mmap,
}

impl Io {
    /// The engine's backend.
    pub fn kind(self) -> BackendKind {
        match self {
            Self::Auto => BackendKind::Auto,
            Self::Uring => BackendKind::Uring,
            Self::Pread => BackendKind::Pread,
            Self::Mmap => BackendKind::Mmap,
        }
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  leanstream run model.gguf                                 chat on a terminal
  leanstream run model.gguf -p \"The capital of France is\"   continue a text
  leanstream run model.gguf --chat -p \"Who are you?\"        one answer, in the model's chat format
  leanstream run model.gguf -f notes.txt -n 200 --temp 0    the likeliest continuation of a file
  echo \"Once upon a time\" | leanstream run model.gguf       prompt from standard input
  leanstream run model.gguf -p Hello --json                 text and metrics as one JSON object
  leanstream run model.lspack -p Hello --budget 700MB       in no more memory than that

A model that is larger than the budget is streamed: the weights of its MLPs are read from the disk
as they are needed, all others stay in memory, and so do as many of the MLPs' as there is room for.
The text is the same, only slower. That takes a .lspack file: make one with leanstream pack, or let
run make one in the cache folder. leanstream inspect model.lspack shows the smallest budget, and
--verbose where its bytes go. Run leanstream doctor once: streaming makes use of what it measures.

Ctrl-C ends the answer; what there is of it and its metrics are still printed, and the exit code is
130. In a chat it ends the answer only; at the chat's prompt, or pressed twice, it leaves.";

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// A .gguf file, a safetensors folder or a .lspack file
    pub model: PathBuf,
    /// Text to continue; without it and without -f, standard input, or a chat on a terminal
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    pub prompt: Option<String>,
    /// File with the text to continue; a line break at its end is left out
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Most tokens to generate; -1: until the model ends [default: 128; in a chat -1]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub max_tokens: Option<i64>,
    /// Text that ends the answer and is not part of it; can be given several times
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// Take the prompt as it is, which is the default
    #[arg(long, conflicts_with = "chat")]
    pub raw: bool,
    /// Take the prompt as a user's message and put it in the model's chat format
    #[arg(long)]
    pub chat: bool,
    /// System message of a chat; a prompt that is given needs --chat with it
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Print one JSON object with text and metrics when done, and nothing before
    #[arg(long)]
    pub json: bool,
    /// Say on standard error what is loaded, where a budget goes and how fast it went
    #[arg(short, long)]
    pub verbose: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Context and threads.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Where MLPs are computed.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Which neurons are computed.
    #[command(flatten)]
    pub sparse: SparseArgs,
    /// How sparse tokens are streamed.
    #[command(flatten)]
    pub refine: RefineArgs,
    /// Budget and streaming.
    #[command(flatten)]
    pub stream: StreamArgs,
}

/// How tokens are chosen; the steps run in the order of these flags from --repeat-penalty on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling, in this order")]
pub struct SamplingArgs {
    /// Make recent tokens less likely by this factor; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// How many of the latest tokens are recent
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last_n: u16,
    /// Keep the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: u32,
    /// Keep the likeliest tokens up to this sum of probabilities; 1 is off
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the likeliest; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    #[arg(allow_negative_numbers = true)]
    pub min_p: f32,
    /// Randomness; 0 takes the likeliest token every time
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.8)]
    #[arg(allow_negative_numbers = true)]
    pub temp: f32,
    /// Start of the random numbers; the same seed gives the same text [default: from the clock]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// Context and threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Loading")]
pub struct LoadArgs {
    /// Tokens of context, prompt and answer together [default: the model's own, at most 4096; fewer
    /// under a small budget, which is said then]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub context: Option<u64>,
    /// Compute threads [default: one for each usable core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

const PERPLEXITY_EXAMPLES: &str = "\
The text is cut into windows; in each, the tokens of the second half are predicted. Lower is better.
The figures compare with those of llama-perplexity for the same window.

Examples:
  leanstream perplexity model.gguf -f book.txt
  leanstream perplexity model.gguf -f book.txt -c 512 --chunks 8 --json
  leanstream perplexity model.lspack -f book.txt --budget 700MB

With --mode sparse, each token computes only some neurons of each MLP. The same windows are computed
densely too, and with the best choice of as many neurons. The rise of perplexity is the mean over the
same tokens, with its standard error. KL is the divergence of the predicted distributions from dense
ones, in nats, and what 99 % of the tokens do not exceed; same top is how often the likeliest token is
the same. With --completions, 50 prompts are completed, and compared with the dense answers.

  leanstream perplexity model.lspack -f book.txt --mode sparse --keep 0.7 --completions";

/// Arguments of `perplexity`.
#[derive(Debug, Args)]
#[command(after_help = PERPLEXITY_EXAMPLES)]
pub struct PerplexityArgs {
    /// A .gguf file, a safetensors folder or a .lspack file
    pub model: PathBuf,
    /// The text; a line break at its end is left out
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens of a window, at least 4
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u64).range(4..=u64::from(u32::MAX)))]
    pub context: u64,
    /// Measure only this many windows [default: all]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub chunks: Option<u64>,
    /// Compute threads [default: one for each usable core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Which neurons are computed.
    #[command(flatten)]
    pub sparse: SparseArgs,
    /// Complete 50 prompts, and compare the answers with dense ones
    #[arg(long, help_heading = "Sparse computation")]
    pub completions: bool,
    /// Where MLPs are computed.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Budget and streaming.
    #[command(flatten)]
    pub stream: StreamArgs,
}

const CALIBRATE_EXAMPLES: &str = "\
The text goes through the model one layer at a time, so that a model that is larger than memory is
read once for thousands of tokens. What enters each MLP is written to a trace, of as many tokens,
evenly spread, as fit the limit. Beside the model it takes memory for each token: 4 bytes times the
width of the model.

Ctrl-C keeps what is done; the same command with --resume goes on there.

Examples:
  leanstream calibrate model.lspack -f book.txt
  leanstream calibrate model.lspack -f book.txt --tokens 100000 --trace-limit 4GB -o book.lstrace
  leanstream calibrate model.lspack -f book.txt --budget 700MB --resume";

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
#[command(after_help = CALIBRATE_EXAMPLES)]
pub struct CalibrateArgs {
    /// A .lspack file
    pub model: PathBuf,
    /// The text; a line break at its end is left out
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// The trace to write [default: the model's name with .lstrace, here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Most tokens of the text to use
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = positive())]
    pub tokens: u64,
    /// Tokens of a window, at least 8; each is computed by itself
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u64).range(8..=u64::from(u32::MAX)))]
    pub context: u64,
    /// Most bytes that the trace may have, like 500MB; of more tokens some are sampled
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::bytes)]
    pub trace_limit: u64,
    /// What tokens are sampled by
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Go on with an interrupted recording, if there is one
    #[arg(long)]
    pub resume: bool,
    /// Replace the trace if it exists
    #[arg(long)]
    pub force: bool,
    /// Compute threads [default: one for each usable core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Budget and streaming.
    #[command(flatten)]
    pub stream: StreamArgs,
}

const DOCTOR_EXAMPLES: &str = "\
The disk is measured once, for about a second, by reads of a file of 64 MiB that is removed again,
or of the file that is given. The result is kept in the cache folder: when weights are streamed from
that disk, gaps between them are read through where that is cheaper than one more read.

Vulkan devices are tried out: a self-test, whose result is kept in the cache folder too, copies and
round trips. One that computes on the processor is only listed, unless it is named.

Examples:
  leanstream doctor
  leanstream doctor --disk model.lspack
  leanstream doctor --gpu adreno
  leanstream doctor --json --fresh";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// A folder, or a file to read, on the disk to measure [default: this folder]
    #[arg(long, value_name = "PATH")]
    pub disk: Option<PathBuf>,
    /// Measure the disk anew, whatever is known of it
    #[arg(long)]
    pub fresh: bool,
    /// Vulkan device to try out, by a part of its name [default: LEANSTREAM_VK_DEVICE, or all that do
    /// not compute on the processor]
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A number of tokens or windows: at least 1, and small enough for every index.
fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_takes_minus_one_for_no_limit() {
        let cli = Cli::try_parse_from(["leanstream", "run", "m", "-n", "-1"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("another command") };
        assert_eq!(args.max_tokens, Some(-1));
        assert!(Cli::try_parse_from(["leanstream", "run", "m", "-n", "-2"]).is_err());
    }
}
