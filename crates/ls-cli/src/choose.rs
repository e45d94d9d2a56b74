//! Which neurons are computed, as people say it on the command line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use ls_engine::predict::{KeepPlan, Predicted, Predictors};
use ls_engine::sparse::Choose;
use ls_engine::{Choice, Grain, Hot, Keep, LastSet, Oracle, Random, Refiner};
use ls_model::ModelFile;

use crate::cmd;
use crate::output::UsageError;

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
    /// Trained predictors, which `leanstream train` makes
    Predicted,
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
    /// Which neurons to compute; sparse ones take a .lspack
    #[arg(long, value_name = "MODE", default_value = "exact")]
    pub mode: Computed,
    /// Fraction of the MLPs' bytes to compute, or auto:PCT for the least whose perplexity rose by PCT
    /// percent at most when the predictors were trained [default: 0.5]
    #[arg(long, value_name = "F", value_parser = amount)]
    pub keep: Option<Amount>,
    /// File of predictors [default: the model's name with .lspred, beside it]
    #[arg(long, value_name = "FILE")]
    pub predictors: Option<PathBuf>,
    /// Who chooses the neurons [default: predicted]
    #[arg(long, value_name = "WHO")]
    pub choose: Option<Chooser>,
    /// What is chosen as one [default: neuron]
    #[arg(long, value_name = "UNIT")]
    pub unit: Option<Unit>,
}

/// How much to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// This fraction.
    Fraction(f64),
    /// The least whose perplexity rose by at most so much, as a fraction.
    Rise(f64),
}

/// A sparse mode whose files are open.
#[derive(Debug)]
pub struct Prepared {
    /// Who chooses.
    pub chooser: Chooser,
    /// What is chosen as one.
    pub unit: Unit,
    /// Fraction to compute.
    pub keep: f64,
    predictors: Option<Arc<Predictors>>,
}

impl SparseArgs {
    /// The flag, if it asks for what only the processor computes.
    pub fn cpu_only(&self) -> Option<&'static str> {
        (self.mode == Computed::Sparse).then_some("--mode sparse")
    }

    /// Opens what a sparse mode of the model at `path` needs; `None` in exact mode.
    pub fn prepare(&self, path: &Path) -> anyhow::Result<Option<Prepared>> {
        if let Some(flag) = self.without_meaning() {
            return Err(UsageError(format!("{flag} goes with --mode sparse")).into());
        }
        if self.mode == Computed::Exact {
            return Ok(None);
        }
        cmd::require_pack(path)?;
        let chooser = self.choose.unwrap_or(Chooser::Predicted);
        let unit = self.unit.unwrap_or(Unit::Neuron);
        if chooser == Chooser::Predicted && unit == Unit::Chunk {
            let message = "predictors choose neurons; leave --unit chunk out";
            return Err(UsageError(message.into()).into());
        }
        let predictors = match chooser {
            Chooser::Predicted => Some(Arc::new(self.open(path)?)),
            _ => None,
        };
        let keep = match self.keep.unwrap_or(Amount::Fraction(0.5)) {
            Amount::Fraction(fraction) => fraction,
            Amount::Rise(rise) => {
                let Some(predictors) = &predictors else {
                    let message = "--keep auto goes with predictors; leave --choose out";
                    return Err(UsageError(message.into()).into());
                };
                predictors.fraction_for(rise).unwrap_or(1.0)
            }
        };
        Ok(Some(Prepared { chooser, unit, keep, predictors }))
    }

    fn open(&self, model: &Path) -> anyhow::Result<Predictors> {
        let path = self.predictors.clone().unwrap_or_else(|| beside(model));
        if !path.exists() {
            anyhow::bail!(
                "{} is not there; make it with: leanstream train {} -f TEXT",
                path.display(),
                model.display()
            );
        }
        Ok(Predictors::open(&path, &ModelFile::open(model)?)?)
    }

    /// What was given that means nothing in exact mode.
    pub fn without_meaning(&self) -> Option<&'static str> {
        let given = [
            ("--keep", self.keep.is_some()),
            ("--predictors", self.predictors.is_some()),
            ("--choose", self.choose.is_some()),
            ("--unit", self.unit.is_some()),
        ];
        match self.mode {
            Computed::Sparse => None,
            Computed::Exact => given.into_iter().find(|(_, is)| *is).map(|(name, _)| name),
        }
    }
}

/// Where the predictors of the model at `path` lie unless the user says otherwise.
pub fn beside(path: &Path) -> PathBuf {
    path.with_extension("lspred")
}

impl Prepared {
    /// Bytes that choosing will take beside the model. The predictors are in memory already, and counted
    /// as what the process holds.
    pub fn bytes(&self) -> u64 {
        self.predictors.as_ref().map_or(0, |of| Refiner::bytes(of.layers().len(), of.d_ff()))
    }

    /// The predictors, and how much each layer computes; `None` if there are none.
    pub fn predicted(&self, row_share: f64) -> Option<(Arc<Predictors>, Vec<KeepPlan>)> {
        let predictors = self.predictors.as_ref()?;
        Some((predictors.clone(), predictors.plan(self.keep, row_share)))
    }

    /// A choice by `chooser` of as much. `row_share`: see [`Predictors::plan`].
    pub fn choice(&self, chooser: Chooser, row_share: f64) -> Choice {
        let keep = Keep::uniform(self.keep);
        let grain = match self.unit {
            Unit::Neuron => Grain::Neuron,
            Unit::Chunk => Grain::Chunk,
        };
        let chooser: Arc<dyn Choose> = match (chooser, &self.predictors) {
            (Chooser::Predicted, Some(predictors)) => {
                let plan = predictors.plan(self.keep, row_share);
                Arc::new(Predicted::new(predictors.clone(), plan))
            }
            (Chooser::Oracle, _) => Arc::new(Oracle::new(keep, grain)),
            (Chooser::Last, _) => Arc::new(LastSet::new(keep, grain)),
            (Chooser::Random, _) => Arc::new(Random::new(keep, grain, 0)),
            (Chooser::Hot | Chooser::Predicted, _) => Arc::new(Hot::first(keep, grain)),
        };
        Choice::new(chooser)
    }
}

impl Chooser {
    /// As results have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
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

fn amount(text: &str) -> Result<Amount, String> {
    if let Some(percent) = text.strip_prefix("auto:") {
        let value = percent.trim_end_matches('%').parse::<f64>().ok();
        let value = value.filter(|value| (0.0..=1e6).contains(value));
        return value
            .map(|percent| Amount::Rise(percent / 100.0))
            .ok_or("expected a percentage behind auto:, like auto:2".into());
    }
    fraction(text).map(Amount::Fraction)
}

fn fraction(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or("expected a fraction from 0 to 1, or auto:PERCENT".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_fractions_or_percentages_of_rise() {
        assert_eq!(amount("0.4"), Ok(Amount::Fraction(0.4)));
        assert_eq!(amount("auto:2"), Ok(Amount::Rise(0.02)));
        assert_eq!(amount("auto:0.5%"), Ok(Amount::Rise(0.005)));
        for text in ["auto", "auto:", "auto:-1", "auto:much", "2"] {
            assert!(amount(text).is_err(), "{text}");
        }
    }

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
