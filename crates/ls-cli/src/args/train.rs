//! Arguments of `train`.

use std::path::PathBuf;

use clap::Args;

use super::{StreamArgs, positive};

const TRAIN_EXAMPLES: &str = "\
The text is computed once, layer by layer; then a predictor is fitted and trained for each layer on what
was recorded, and the model's output is measured when less is computed. Ctrl-C keeps the layers that are
done; --resume goes on there.

Examples:
  leanstream train model.lspack -f book.txt
  leanstream train model.lspack -f book.txt --size 10 --steps 400
  leanstream train hot.lspack --from model.lspred --from-pack model.lspack
  leanstream run model.lspack -p 'Once upon a time' --mode sparse --keep auto:2";

/// Arguments of `train`.
#[derive(Debug, Args)]
#[command(after_help = TRAIN_EXAMPLES)]
pub struct TrainArgs {
    /// A .lspack file
    pub model: PathBuf,
    /// The text to learn from; some 50,000 words of what the model will be used for
    #[arg(short, long, value_name = "FILE", required_unless_present = "from")]
    pub file: Option<PathBuf>,
    /// The predictors to write [default: the model's name with .lspred, beside it]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Predictors of the same model in another pack, to use for this one: what they know is put into this pack's
    /// order of neurons, and nothing is trained
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "resume", "trace"])]
    pub from: Option<PathBuf>,
    /// The pack that they are of [default: their name with .lspack, beside them]
    #[arg(long, value_name = "PACK", requires = "from")]
    pub from_pack: Option<PathBuf>,
    /// Bytes of the predictors, as a percentage of the MLPs' bytes
    #[arg(long, value_name = "PCT", default_value_t = 5.0, value_parser = percentage)]
    pub size: f64,
    /// Steps of training for each layer; 0 only fits, which takes seconds a layer and predicts worse
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub steps: u32,
    /// Most tokens of the text to use
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = positive())]
    pub tokens: u64,
    /// Tokens of a window, at least 8; each is computed by itself
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u64).range(8..=u64::from(u32::MAX)))]
    pub context: u64,
    /// Windows of the text by which it is measured, in the end, what computing less costs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive())]
    pub windows: u64,
    /// A trace of the text to use, or to leave there [default: one that is removed in the end]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Everything random follows from it
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Go on with an interrupted training, if there is one
    #[arg(long)]
    pub resume: bool,
    /// Replace the predictors if they exist
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

fn percentage(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').parse::<f64>().ok();
    let value = value.filter(|value| *value > 0.0 && *value <= 100.0);
    value.ok_or("expected a percentage above 0, up to 100".into())
}
