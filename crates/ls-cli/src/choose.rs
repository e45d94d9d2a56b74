//! Which neurons are computed, as people say it on the command line.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use ls_engine::sparse::Choose;
use ls_engine::{Choice, Grain, Hot, Keep, LastSet, Oracle, Random};

/// Which neurons are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Computed {
    /// All
    Exact,
    /// Those that are chosen
    Sparse,
}

/// Who chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Chooser {
    /// Those that were most important, seen afterwards: the best that a prediction can do
    Oracle,
    /// The first of each layer, which are the hottest if the pack is ordered so
    Hot,
    /// Those that were most important for the token before
    Last,
    /// Some
    Random,
}

/// What is chosen as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// Single neurons
    Neuron,
    /// Whole chunks
    Chunk,
}

/// How much is computed, and who chooses it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sparse computation")]
pub struct SparseArgs {
    /// Which neurons to compute; sparse is compared with exact
    #[arg(long, value_name = "MODE", default_value = "exact")]
    pub mode: Computed,
    /// Fraction of each layer's neurons to compute [default: 0.5]
    #[arg(long, value_name = "F", value_parser = fraction)]
    pub keep: Option<f64>,
    /// Who chooses the neurons [default: hot]
    #[arg(long, value_name = "WHO")]
    pub choose: Option<Chooser>,
    /// What is chosen as one [default: neuron]
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<Unit>,
}

impl SparseArgs {
    /// The fraction to compute.
    pub fn keep(&self) -> f64 {
        self.keep.unwrap_or(0.5)
    }

    /// Who chooses.
    pub fn chooser(&self) -> Chooser {
        self.choose.unwrap_or(Chooser::Hot)
    }

    /// What is chosen as one.
    pub fn unit(&self) -> Unit {
        self.unit.unwrap_or(Unit::Neuron)
    }

    /// A choice by `chooser` of as much, for every token.
    pub fn choice(&self, chooser: Chooser) -> Choice {
        let keep = Keep::uniform(self.keep());
        let grain = match self.unit() {
            Unit::Neuron => Grain::Neuron,
            Unit::Chunk => Grain::Chunk,
        };
        let chooser: Arc<dyn Choose> = match chooser {
            Chooser::Oracle => Arc::new(Oracle::new(keep, grain)),
            Chooser::Hot => Arc::new(Hot::first(keep, grain)),
            Chooser::Last => Arc::new(LastSet::new(keep, grain)),
            Chooser::Random => Arc::new(Random::new(keep, grain, 0)),
        };
        Choice::for_every_token(chooser)
    }

    /// What was given that means nothing in exact mode.
    pub fn without_meaning(&self) -> Option<&'static str> {
        let given = [
            ("--keep", self.keep.is_some()),
            ("--choose", self.choose.is_some()),
            ("--unit", self.unit.is_some()),
        ];
        match self.mode {
            Computed::Sparse => None,
            Computed::Exact => given.into_iter().find(|(_, is)| *is).map(|(name, _)| name),
        }
    }
}

impl Chooser {
    /// As results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Hot => "hot",
            Self::Last => "last",
            Self::Random => "random",
        }
    }

    /// Whether it has to see every neuron's value first, which takes all weights in memory.
    pub fn needs_memory(self) -> bool {
        matches!(self, Self::Oracle | Self::Last)
    }
}

impl Unit {
    /// As results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Neuron => "neuron",
            Self::Chunk => "chunk",
        }
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or("expected a fraction from 0 to 1".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_from_nothing_to_all() {
        for (text, value) in [("0", Some(0.0)), ("0.5", Some(0.5)), ("1", Some(1.0))] {
            assert_eq!(fraction(text).ok(), value);
        }
        for text in ["-0.1", "1.01", "NaN", "half", "", "50%"] {
            assert!(fraction(text).is_err(), "{text}");
        }
    }
}
