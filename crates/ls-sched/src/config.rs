//! How the controller decides.

use std::fmt;
use std::str::FromStr;

use crate::error::within;
use crate::{Curve, SchedError};

/// What of a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every chunk, once. Nothing is ranked.
    Exact,
    /// The chunks that rank best.
    Sparse,
}

/// When chunks are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each layer when it is entered, with all that can be known; nothing is read ahead.
    Serial,
    /// Once, when the layer before is entered.
    OneShot,
    /// And again after every so many stages of the layer before.
    Fixed(u32),
    /// And again whenever the table of the [adaptive interval](crate::Table) says so.
    Refine,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial => f.pad("serial"),
            Self::OneShot => f.pad("oneshot"),
            Self::Fixed(stages) => f.pad(&format!("fixed:{stages}")),
            Self::Refine => f.pad("refine"),
        }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}; there are serial, oneshot, fixed:K with K from 1, and refine")]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(name.to_owned());
        match name {
            "serial" => Ok(Self::Serial),
            "oneshot" => Ok(Self::OneShot),
            "refine" => Ok(Self::Refine),
            _ => {
                let stages = name.strip_prefix("fixed:").and_then(|k| k.parse().ok());
                stages.filter(|k| *k > 0).map(Self::Fixed).ok_or_else(unknown)
            }
        }
    }
}

/// What of the computation may be given up to be in time, as shares of the summed scores of the
/// chunks that a layer would compute. Only in sparse mode; each is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fidelity {
    /// For chunks whose reads come too late.
    pub late_share: f32,
    /// For chunks that cannot be read. Beyond it the token is given up.
    pub lost_share: f32,
}

/// What the cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What was used last.
    Lru,
    /// What was used most often, counting less what was long ago.
    Lfu,
    /// A fixed order of each layer: the first chunks, unless another one is
    /// [set](crate::Controller::set_hot). What exact mode needs.
    Hot,
    /// What will probably be used, by scores and their history.
    Priority,
}

impl Keep {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Hot, Self::Priority];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Hot => "hot",
            Self::Priority => "priority",
        }
    }
}

/// How many chunks of a layer are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// As many as the [layer](crate::Layer::n_keep) says, in memory or not.
    #[default]
    Fixed,
    /// Those in memory, and as many more as are worth reading. Scores say what a chunk adds to what is computed, and
    /// what is computed of what is there is for others to limit.
    ByWorth,
}

/// All settings of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What is computed.
    pub mode: Mode,
    /// When chunks are ranked; in exact mode, whether reads run ahead (all but serial).
    pub policy: Policy,
    /// What is kept.
    pub keep: Keep,
    /// Bytes for frames.
    pub budget_bytes: u64,
    /// Frames for chunks that pass through. The rest is shared out over the layers, except by
    /// [`Keep::Priority`], which needs no shares.
    pub transit_frames: u32,
    /// Stages that a layer is computed in, in sparse mode.
    pub stages: u32,
    /// While reads are outstanding, a stage waits for this share of its chunks.
    pub least_stage: f32,
    /// Stages that may be computed at the same time.
    pub lanes: u32,
    /// Layers that reads may be ahead.
    pub ahead: u32,
    /// Whether a layer is ranked once more when it is entered.
    pub correct: bool,
    /// Whether those who compute also rank, so that computing stands still from [`Command::Rank`](crate::Command::Rank)
    /// until the event after the answer. That should be [`Event::Time`](crate::Event::Time), at once: choosing takes time as well.
    pub ranks_inline: bool,
    /// What reads cost.
    pub curve: Curve,
    /// Bytes of the longest read. A read is of at most 64 chunks.
    pub max_read_bytes: u64,
    /// Reads that are submitted at a time; somewhat more than the depth of the device's queue. What
    /// is not submitted is re-ordered for nothing.
    pub max_reads: u32,
    /// How many chunks are chosen, in sparse mode.
    pub count: Count,
    /// How much the price of reading counts in choosing chunks. 0: not at all. For a fixed number, 1: a chunk
    /// that has to be read alone must exceed the bound of plain ranking by its double; see
    /// [`choose`](crate::Chooser::choose). By worth, 1: reading a whole layer costs as much as all of its
    /// scores are worth; see [`choose_worth`](crate::Chooser::choose_worth).
    pub price: f32,
    /// By how much dearer reads are for a layer that waits for them.
    pub late_price: f32,
    /// Tokens for which a chunk counts that is read: if it is one of those that the layer's share of the frames would
    /// hold if it held the best, by how much it is better than the last of them counts so often as well. Only by worth,
    /// and only with [`Keep::Priority`].
    pub horizon: f32,
    /// What may be given up.
    pub fidelity: Fidelity,
    /// Nanoseconds that computing waits in a layer, in all, before late chunks are given up; and at
    /// a time, before a stage begins with what is there.
    pub late_ns: u64,
    /// Nanoseconds after which a read counts as failed.
    pub read_deadline_ns: u64,
    /// How often a chunk is read again after a failure.
    pub max_retries: u8,
}

impl Config {
    /// Settings that are sensible for most; the arguments have no sensible default.
    #[must_use]
    pub fn new(mode: Mode, policy: Policy, budget_bytes: u64, curve: Curve) -> Self {
        let keep = if mode == Mode::Exact { Keep::Hot } else { Keep::Priority };
        Self {
            mode,
            policy,
            keep,
            budget_bytes,
            transit_frames: 512,
            stages: 8,
            least_stage: 0.5,
            lanes: 1,
            ahead: if mode == Mode::Exact { 4 } else { 1 },
            correct: false,
            ranks_inline: false,
            curve,
            max_read_bytes: 512 << 10,
            max_reads: 32,
            count: Count::Fixed,
            price: 0.0,
            late_price: 1.0,
            horizon: 0.0,
            fidelity: Fidelity { late_share: 0.0, lost_share: 0.02 },
            late_ns: 500_000,
            read_deadline_ns: 10_000_000_000,
            max_retries: 1,
        }
    }

    /// Chunks of the longest read.
    pub(crate) fn max_chunks(&self, chunk_bytes: u32) -> u32 {
        (self.max_read_bytes / u64::from(chunk_bytes)).clamp(1, 64) as u32
    }

    pub(crate) fn check(&self, n_layers: u32) -> Result<(), SchedError> {
        let count = |what, n: u32, most: f64| within(what, n.into(), 1.0..=most, "at least 1");
        count("stages", self.stages, 64.0)?;
        count("lanes", self.lanes, 256.0)?;
        count("reads at a time", self.max_reads, 4096.0)?;
        if let Policy::Fixed(stages) = self.policy {
            count("fixed interval", stages, f64::from(u32::MAX))?;
        }
        let most = f64::from(n_layers - 1);
        within("layers ahead", self.ahead.into(), 0.0..=most, "fewer than there are layers")?;
        within("least stage", self.least_stage.into(), 0.0..=1.0, "0 to 1")?;
        within("price", self.price.into(), 0.0..=1e6, "0 or more")?;
        within("price of late reads", self.late_price.into(), 0.0..=1e6, "0 or more")?;
        within("horizon", self.horizon.into(), 0.0..=1e6, "0 or more")?;
        let Fidelity { late_share, lost_share } = self.fidelity;
        within("late share", late_share.into(), 0.0..=1.0, "0 to 1")?;
        within("lost share", lost_share.into(), 0.0..=1.0, "0 to 1")?;
        within("fixed time of a read", self.curve.fixed_ns, 0.0..=1e12, "0 or more")?;
        within("time of a KiB", self.curve.ns_per_kib, 1e-6..=1e12, "more than 0")?;
        within("longest read", self.max_read_bytes as f64, 1.0..=1e18, "at least 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_policies() {
        for policy in [Policy::Serial, Policy::OneShot, Policy::Fixed(3), Policy::Refine] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for name in ["", "fixed", "fixed:", "fixed:0", "fixed:-1", "Refine"] {
            assert_eq!(name.parse::<Policy>(), Err(UnknownPolicy(name.to_owned())));
        }
    }
}
