//! What a stream has done.

use std::time::{Duration, Instant};

/// Counts by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// `buckets[i]` counts values from 2ⁱ to 2ⁱ⁺¹ - 1; zero counts as one, larger values in the
    /// last.
    pub buckets: [u64; 32],
}

impl Histogram {
    pub(crate) fn add(&mut self, value: u64) {
        self.buckets[value.max(1).ilog2().min(31) as usize] += 1;
    }

    fn merge(&mut self, more: &Self) {
        self.buckets.iter_mut().zip(more.buckets).for_each(|(a, b)| *a += b);
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper end of the bucket in which a share `q` (0 to 1) of the values is reached; 0 if
    /// there are none.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = (self.count() as f64 * q).ceil().max(1.0);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen as f64 >= wanted {
                return (2u64 << i) - 1;
            }
        }
        0
    }
}

/// What a stream has done since it was opened.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Requests accepted.
    pub requests: u64,
    /// Requests taken back before they were read.
    pub cancelled: u64,
    /// Requests that ended in an error.
    pub failed: u64,
    /// Requests that wait.
    pub pending: usize,
    /// Reads that finished, with or without error; a read that is continued counts once.
    pub reads: u64,
    /// Bytes that the system returned, gaps and repeated parts included.
    pub read_bytes: u64,
    /// Bytes of requests that were read.
    pub useful_bytes: u64,
    /// Reads repeated or continued: interrupted, refused for the moment, or short.
    pub retries: u64,
    /// Ways that did not work and were replaced by others.
    pub fallbacks: u64,
    /// Sizes of reads, in bytes.
    pub read_sizes: Histogram,
    /// From handing a read to the system to its end, in microseconds.
    pub latencies_us: Histogram,
    /// Time with at least one read in flight.
    pub busy: Duration,
    /// Reads in flight, summed over time, in read-seconds.
    pub depth_seconds: f64,
}

impl Stats {
    /// Adds the counts of `more`.
    pub(crate) fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.cancelled += more.cancelled;
        self.failed += more.failed;
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.useful_bytes += more.useful_bytes;
        self.retries += more.retries;
        self.fallbacks += more.fallbacks;
        self.read_sizes.merge(&more.read_sizes);
        self.latencies_us.merge(&more.latencies_us);
        self.busy += more.busy;
        self.depth_seconds += more.depth_seconds;
    }

    /// Mean number of reads in flight while there were any.
    #[must_use]
    pub fn mean_depth(&self) -> f64 {
        if self.busy.is_zero() { 0.0 } else { self.depth_seconds / self.busy.as_secs_f64() }
    }

    /// Bytes read per second while reads were in flight, in 10⁶ bytes.
    #[must_use]
    pub fn busy_mb_per_s(&self) -> f64 {
        if self.busy.is_zero() {
            0.0
        } else {
            self.read_bytes as f64 / 1e6 / self.busy.as_secs_f64()
        }
    }
}

/// Adds up time by what is in flight.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
}

impl Clock {
    pub fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Books the time since the last call, during which `in_flight` reads were.
    pub fn tick(&mut self, in_flight: usize, stats: &mut Stats) -> Instant {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        if in_flight > 0 {
            stats.busy += passed;
            stats.depth_seconds += passed.as_secs_f64() * in_flight as f64;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_name_the_upper_end_of_a_bucket() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile(0.5), 0);
        [0, 1, 5, 6, 1000].into_iter().for_each(|v| h.add(v));
        assert_eq!(h.count(), 5);
        assert_eq!(h.quantile(0.2), 1);
        assert_eq!(h.quantile(0.5), 7);
        assert_eq!(h.quantile(1.0), 1023);
        h.add(u64::MAX);
        assert_eq!(h.quantile(1.0), u64::from(u32::MAX));
    }
}
