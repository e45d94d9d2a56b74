//! How sparse tokens are streamed, as people say it on the command line.

use std::sync::Arc;

use clap::Args;
use ls_engine::refine::{Count, Policy, Retain};
use ls_engine::{Engine, Prompts, RefineOptions, Refiner, State};

use crate::args::CachePolicy;
use crate::choose::{Chooser, Prepared};
use crate::output::UsageError;

/// How sparse tokens are streamed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Streaming of sparse tokens, by predictors and under a budget")]
pub struct RefineArgs {
    /// When layers are ranked: serial (each when it is entered; nothing is read ahead), oneshot (once, when
    /// the layer before is entered), fixed:K (and after every K stages of that), or refine (and whenever
    /// it pays, as a table says that is solved from what things cost) [default: refine]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,
    /// What reading a whole layer costs, in terms of what its neurons add: more reads less, and loses more.
    /// 0: whatever adds anything is read [default: from 0.07 with a small cache to 0.6 with a large one]
    #[arg(long, value_name = "X", value_parser = at_least::<0>)]
    pub price: Option<f64>,
    /// What reading costs when computing waits for it, as a multiple of that [default: 4]
    #[arg(long, value_name = "X", value_parser = at_least::<0>)]
    pub late_price: Option<f64>,
    /// Tokens for which it counts as well that a chunk is among those that the cache would best hold [default:
    /// from 8 with a small cache to 2 with a large one]
    #[arg(long, value_name = "N", value_parser = at_least::<0>)]
    pub horizon: Option<f64>,
    /// Choose a fixed number of chunks in place of what is worth its reads: this multiple of the share of neurons
    /// that is computed. A price then says by how many times more a chunk must add that is read alone [default
    /// price then: 0]
    #[arg(long, value_name = "X", value_parser = at_least::<1>)]
    pub reach: Option<f64>,
    /// Stages that a layer is computed in [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub stages: Option<u32>,
    /// Percentage of a layer's predicted importance that may be left out because its reads come too
    /// late [default: 0]
    #[arg(long, value_name = "PCT", value_parser = at_least::<0>)]
    pub late: Option<f64>,
    /// Do not rank a layer once more when its true input is known
    #[arg(long)]
    pub no_correct: bool,
}

/// How the sparse tokens of a sequence are computed.
#[derive(Debug)]
pub enum Computing {
    /// All chunks are there, or are all read.
    Choice,
    /// What is chosen is read.
    Refined {
        /// What decides.
        refiner: Arc<Refiner>,
        /// When it ranks.
        policy: String,
        /// What it keeps.
        cache: &'static str,
    },
}

impl RefineArgs {
    /// Lets `state` compute what `prepared` says; with `cache` when chosen chunks are streamed.
    pub fn apply(
        &self,
        prepared: Option<&Prepared>,
        engine: &Engine,
        state: &mut State,
        cache: Option<CachePolicy>,
    ) -> anyhow::Result<Computing> {
        let is_streaming = engine.plan().is_some();
        let of = prepared.filter(|of| is_streaming && of.chooser == Chooser::Predicted);
        let Some((predictors, plan)) = of.and_then(|of| of.predicted(engine.row_share())) else {
            if let Some(flag) = self.given() {
                let message =
                    format!("{flag} goes with --mode sparse by predictors, and a --budget");
                return Err(UsageError(message).into());
            }
            if cache == Some(CachePolicy::Priority) {
                let message = "--cache priority goes with --mode sparse by predictors";
                return Err(UsageError(message.into()).into());
            }
            let choice = prepared.map(|of| of.choice(of.chooser, engine.row_share()));
            engine.set_choice(state, choice)?;
            return Ok(Computing::Choice);
        };
        let retain = match cache {
            None => None,
            Some(CachePolicy::Priority) => Some(Retain::Priority),
            Some(CachePolicy::Lru) => Some(Retain::Lru),
            Some(CachePolicy::Lfu) => Some(Retain::Lfu),
            Some(CachePolicy::Hot) => Some(Retain::Hot),
            Some(other) => {
                let name = other.name();
                let message = format!("--cache {name} goes with --mode exact");
                return Err(UsageError(message).into());
            }
        };
        let usual = RefineOptions::default();
        let count = if self.reach.is_some() { Count::Fixed } else { usual.count };
        let options = RefineOptions {
            policy: self.policy.unwrap_or(usual.policy),
            retain,
            count,
            reach: self.reach.unwrap_or(usual.reach),
            price: self.price.map(|price| price as f32),
            late_price: self.late_price.map_or(usual.late_price, |price| price as f32),
            horizon: self.horizon.map(|tokens| tokens as f32),
            stages: self.stages.unwrap_or(usual.stages),
            correct: !self.no_correct,
            late_share: self.late.map_or(usual.late_share, |percent| (percent / 100.0) as f32),
            ..usual
        };
        let refiner = Refiner::new(engine, predictors, plan, &options)?;
        engine.set_refiner(state, Some((refiner.clone(), Prompts::Dense)))?;
        let (policy, cache) = (options.policy.to_string(), refiner.config().keep.name());
        Ok(Computing::Refined { refiner, policy, cache })
    }

    /// A flag that was given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--policy", self.policy.is_some()),
            ("--reach", self.reach.is_some()),
            ("--price", self.price.is_some()),
            ("--late-price", self.late_price.is_some()),
            ("--horizon", self.horizon.is_some()),
            ("--stages", self.stages.is_some()),
            ("--late", self.late.is_some()),
            ("--no-correct", self.no_correct),
        ];
        given.into_iter().find(|(_, is)| *is).map(|(name, _)| name)
    }
}

impl Computing {
    /// What decides, if chosen chunks are streamed.
    pub fn refiner(&self) -> Option<&Refiner> {
        match self {
            Self::Choice => None,
            Self::Refined { refiner, .. } => Some(refiner),
        }
    }

    /// Name of the policy, likewise.
    pub fn policy(&self) -> Option<String> {
        match self {
            Self::Choice => None,
            Self::Refined { policy, .. } => Some(policy.clone()),
        }
    }

    /// Name of what the cache keeps, which was asked for as `asked`.
    pub fn cache(&self, asked: Option<CachePolicy>) -> &'static str {
        match self {
            Self::Choice => asked.unwrap_or(CachePolicy::Lru).name(),
            Self::Refined { cache, .. } => cache,
        }
    }
}

fn at_least<const LEAST: u32>(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').parse::<f64>().ok();
    let value = value.filter(|value| (f64::from(LEAST)..=1e6).contains(value));
    value.ok_or_else(|| format!("expected a number from {LEAST} on"))
}
