//! What was done.

/// Counts since the controller was made, or last [taken](crate::Controller::take_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Passes through all layers that came to their end.
    pub tokens: u64,
    /// Passes that were given up.
    pub aborted: u64,
    /// Layers that were computed.
    pub layers: u64,
    /// Stages that were computed.
    pub stages: u64,
    /// Rankings that were asked for.
    pub ranks: u64,
    /// Of them, those that changed a choice.
    pub refinements: u64,
    /// Tables that were asked for.
    pub solves: u64,
    /// Chunks that a new ranking chose instead of others.
    pub replaced: u64,
    /// Bytes of chunks that were computed.
    pub wanted_bytes: u64,
    /// Bytes of chunks that were not in memory when they were first chosen.
    pub demand_miss_bytes: u64,
    /// Bytes of chunks that came while computing had nothing else to do than to wait for them.
    pub stall_miss_bytes: u64,
    /// Nanoseconds during which computing waited for reads.
    pub stall_ns: u64,
    /// Bytes that were read, those in gaps included.
    pub read_bytes: u64,
    /// Reads that were submitted.
    pub reads: u64,
    /// Bytes that were read because they lay between wanted ones.
    pub gap_bytes: u64,
    /// Bytes that were read for a visit that did not compute them; without those in gaps.
    pub unused_bytes: u64,
    /// Chunks whose reads were taken back.
    pub cancelled: u64,
    /// Chunks that were evicted.
    pub evicted: u64,
    /// Of them, those that were chosen, and had to give way to what was needed sooner.
    pub preempted: u64,
    /// Reads of chunks that failed.
    pub failed: u64,
    /// Chunks that were given up because their reads came too late.
    pub late_chunks: u64,
    /// Their shares of what was chosen, summed over layers.
    pub late_share: f64,
    /// Chunks that were given up because they could not be read.
    pub lost_chunks: u64,
    /// Their shares.
    pub lost_share: f64,
}

impl Stats {
    /// Share of what was read that was not computed.
    #[must_use]
    pub fn wasted_ratio(&self) -> f64 {
        ratio(self.gap_bytes + self.unused_bytes, self.read_bytes)
    }

    /// Share of what was computed that computing had to wait for.
    #[must_use]
    pub fn stall_miss_ratio(&self) -> f64 {
        ratio(self.stall_miss_bytes, self.wanted_bytes)
    }

    /// Share of what was computed that was not in memory when it was first chosen.
    #[must_use]
    pub fn demand_miss_ratio(&self) -> f64 {
        ratio(self.demand_miss_bytes, self.wanted_bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
