//! How fast simulated tokens were.

use crate::{Profile, Stats};

/// What came of a simulation. Tokens to warm up are not counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Nanoseconds of each token, ascending.
    pub token_ns: Vec<u64>,
    /// What the controller counted.
    pub stats: Stats,
    /// Share of the importance that was computed.
    pub coverage: f64,
    /// Share of the chunks that were computed.
    pub computed: f64,
    /// Share of the time in which the disk was busy.
    pub disk_busy: f64,
    /// Bytes that the disk read.
    pub disk_bytes: u64,
    /// What things cost in the end, as far as the controller saw it.
    pub profile: Profile,
}

impl Outcome {
    /// Tokens in a second.
    #[must_use]
    pub fn tokens_per_s(&self) -> f64 {
        let total: u64 = self.token_ns.iter().sum();
        if total == 0 { 0.0 } else { self.token_ns.len() as f64 * 1e9 / total as f64 }
    }

    /// Nanoseconds within which a share of the tokens is made.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let n = self.token_ns.len();
        let i = (share * n as f64).ceil() as usize;
        self.token_ns.get(i.clamp(1, n.max(1)) - 1).copied().unwrap_or(0)
    }

    /// Bytes that were read for a token.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.per_token(self.disk_bytes as f64)
    }

    /// Rankings for a token.
    #[must_use]
    pub fn ranks_per_token(&self) -> f64 {
        self.per_token(self.stats.ranks as f64)
    }

    fn per_token(&self, x: f64) -> f64 {
        x / self.token_ns.len().max(1) as f64
    }
}
