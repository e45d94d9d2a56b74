//! What things cost, as seen while they happen.

use crate::solve::Profile;
use crate::{Config, Count, Layout};

/// How much one observation counts in an average.
const WEIGHT: f64 = 1.0 / 16.0;

/// Observations from which on an average is believed.
const SEEN: u32 = 8;

/// The same for how stale rankings are, of which one says little.
const SEEN_STALE: u32 = 64;
const STALE_WEIGHT: f64 = 1.0 / 256.0;

/// The largest share of reads that is taken to be in vain.
const MOST_STALE: f32 = 0.9;

/// An average that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    mean: f64,
    /// Of squared deviations.
    spread: f64,
    n: u32,
}

impl Average {
    fn add(&mut self, x: f64) {
        self.n = self.n.saturating_add(1);
        // The first ones count alike.
        let weight = WEIGHT.max(1.0 / f64::from(self.n));
        let off = x - self.mean;
        self.mean += weight * off;
        self.spread += weight * (off * off * (1.0 - weight) - self.spread);
    }

    /// Standard deviation, relative to the mean.
    fn variation(&self) -> f64 {
        if self.mean > 0.0 { libm::sqrt(self.spread.max(0.0)) / self.mean } else { 0.0 }
    }
}

/// Averages of what was seen.
#[derive(Debug)]
pub(crate) struct Costs {
    stages: u32,
    ranks_inline: bool,
    count: Count,
    n_layers: u32,
    keep_chunks: f64,
    chunk_bytes: f64,
    /// Nanoseconds of computing a chunk, of a ranking, of what lies between layers.
    chunk: Average,
    rank: Average,
    /// Nanoseconds by which stages take longer while something is ranked, or by which they are later for it.
    stall: Average,
    between: Average,
    /// Nanoseconds for each byte while the device is busy, a sample a layer.
    byte: Average,
    /// Stages' worth of chunks that were missing when a layer was first chosen.
    missed: Average,
    /// Chunks that were read in vain, and how many were to be expected by the usual staleness; how often that was seen.
    in_vain: f64,
    expected: f64,
    n_stale: u32,
    /// How stale rankings usually are, by the stages that were done.
    usual: Vec<f32>,
    /// Nanoseconds of reading a byte, as the curve has it.
    curve_byte_ns: f64,
    /// From so many reads on the device is busy: with fewer, what one takes is more than it costs.
    busy_reads: usize,
    busy_since: Option<u64>,
    busy_ns: u64,
    bytes: u64,
}

impl Costs {
    pub fn new(layout: &Layout, config: &Config) -> Self {
        let layers = layout.layers.iter();
        let n = layout.layers.len().max(1) as f64;
        Self {
            stages: config.stages,
            ranks_inline: config.ranks_inline,
            count: config.count,
            n_layers: layout.n_layers(),
            keep_chunks: layers.clone().map(|l| f64::from(l.n_keep)).sum::<f64>() / n,
            chunk_bytes: layers.map(|l| f64::from(l.chunk_bytes)).sum::<f64>() / n,
            chunk: Average::default(),
            rank: Average::default(),
            stall: Average::default(),
            between: Average::default(),
            byte: Average::default(),
            missed: Average::default(),
            in_vain: 0.0,
            expected: 0.0,
            n_stale: 0,
            usual: Profile::new(config.stages, layout.n_layers()).staleness,
            curve_byte_ns: byte_ns(layout, config),
            busy_reads: (config.max_reads as usize / 2).max(1),
            busy_since: None,
            busy_ns: 0,
            bytes: 0,
        }
    }

    /// A stage took so long; whether something was ranked meanwhile.
    pub fn stage(&mut self, ns: u64, chunks: u32, was_ranking: bool) {
        let chunks = f64::from(chunks.max(1));
        if !was_ranking || self.ranks_inline {
            self.chunk.add(ns as f64 / chunks);
        } else if self.chunk.n >= SEEN {
            self.stall.add(ns as f64 - chunks * self.chunk.mean);
        }
    }

    /// A ranking kept computing waiting for so long.
    pub fn stall(&mut self, ns: u64) {
        self.stall.add(ns as f64);
    }

    /// By how much a ranking delays what is computed, if that is known.
    pub fn stall_ns(&self) -> Option<f64> {
        (self.stall.n >= SEEN).then_some(self.stall.mean)
    }

    /// Nanoseconds of reading a byte.
    pub fn byte_ns(&self) -> f64 {
        if self.byte.n >= SEEN { self.byte.mean } else { self.curve_byte_ns }
    }

    /// Chunks that are computed in the time of reading so many bytes; none while nothing is known.
    pub fn chunks_in(&self, bytes: u64) -> u32 {
        if self.chunk.n < SEEN || self.chunk.mean <= 0.0 {
            return 0;
        }
        (bytes as f64 * self.byte_ns() / self.chunk.mean) as u32
    }

    pub fn rank(&mut self, ns: u64) {
        self.rank.add(ns as f64);
    }

    pub fn between(&mut self, ns: u64) {
        self.between.add(ns as f64);
    }

    pub fn missed(&mut self, chunks: u32, of: u32) {
        let stages = f64::from(self.stages);
        self.missed.add(f64::from(chunks) * stages / f64::from(of.max(1)));
    }

    /// Of chunks that are read because of a ranking after so many stages, some are found not to be worth it when the layer
    /// is ranked again: after so many stages, or from its own input.
    pub fn stale(&mut self, in_vain: usize, of: usize, ranked_at: u32, until: Option<u32>) {
        let at = |stages: u32| self.usual[stages.min(self.stages) as usize];
        let gain = f64::from(at(ranked_at) - until.map_or(0.0, at));
        if of == 0 || gain <= 0.0 {
            return;
        }
        self.in_vain += STALE_WEIGHT * (in_vain as f64 - self.in_vain);
        self.expected += STALE_WEIGHT * (of as f64 * gain - self.expected);
        self.n_stale = self.n_stale.saturating_add(1);
    }

    /// So many reads are under way now.
    pub fn reading(&mut self, n_reads: usize, now: u64) {
        if n_reads >= self.busy_reads {
            self.busy_since.get_or_insert(now);
        } else if let Some(since) = self.busy_since.take() {
            self.busy_ns += now - since;
        }
    }

    pub fn arrived(&mut self, bytes: u64) {
        self.bytes += if self.busy_since.is_some() { bytes } else { 0 };
    }

    pub fn layer_done(&mut self, now: u64) {
        if let Some(since) = &mut self.busy_since {
            self.busy_ns += now - std::mem::replace(since, now);
        }
        // Less says little.
        if self.bytes as f64 > 8.0 * self.chunk_bytes {
            self.byte.add(self.busy_ns as f64 / self.bytes as f64);
        }
        (self.busy_ns, self.bytes) = (0, 0);
    }

    /// Whether each cost was seen often enough.
    pub fn is_known(&self) -> bool {
        [self.chunk, self.rank, self.between, self.missed].iter().all(|a| a.n >= SEEN)
    }

    /// What was seen; the rest as in `base`.
    pub fn profile(&self, base: Option<&Profile>) -> Profile {
        let mut profile = match base {
            Some(base) => base.clone(),
            None => Profile::new(self.stages, self.n_layers),
        };
        let stage_chunks = self.keep_chunks / f64::from(self.stages);
        profile.read_ns = (stage_chunks * self.chunk_bytes * self.curve_byte_ns) as f32;
        let put = |to: &mut f32, average: &Average, factor: f64| {
            if average.n >= SEEN {
                *to = (average.mean * factor).max(0.0) as f32;
            }
        };
        put(&mut profile.stage_ns, &self.chunk, stage_chunks);
        put(&mut profile.rank_ns, &self.rank, 1.0);
        put(&mut profile.rank_stall_ns, &self.stall, 1.0);
        put(&mut profile.between_ns, &self.between, 1.0);
        put(&mut profile.read_ns, &self.byte, stage_chunks * self.chunk_bytes);
        put(&mut profile.missing, &self.missed, 1.0);
        // What is chosen by worth is read for later tokens as well, and nothing has to be read in its place.
        let times = match self.count {
            Count::ByWorth => Some(0.0),
            Count::Fixed if self.n_stale < SEEN_STALE || self.expected <= 0.0 => None,
            Count::Fixed => Some((self.in_vain / self.expected) as f32),
        };
        if let Some(times) = times {
            profile.staleness =
                self.usual.iter().map(|share| (share * times).min(MOST_STALE)).collect();
        }
        if self.byte.n >= SEEN {
            profile.read_spread = self.byte.variation().min(2.0) as f32;
        }
        profile
    }
}

/// Chunks of a usual read.
const RUN: u32 = 4;

fn byte_ns(layout: &Layout, config: &Config) -> f64 {
    let layer = layout.layers.iter().max_by_key(|layer| layer.chunk_bytes);
    let bytes = u64::from(RUN) * layer.map_or(1, |layer| u64::from(layer.chunk_bytes));
    config.curve.read_ns(bytes) / bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Curve, Mode, Policy};

    #[test]
    fn averages_follow_and_know_their_spread() {
        let mut average = Average::default();
        (0..400).for_each(|i| average.add(if i % 2 == 0 { 8.0 } else { 12.0 }));
        assert!((average.mean - 10.0).abs() < 0.3, "{average:?}");
        assert!((average.variation() - 0.2).abs() < 0.03, "{average:?}");
        (0..100).for_each(|_| average.add(50.0));
        assert!((average.mean - 50.0).abs() < 0.5 && average.variation() < 0.1);
    }

    #[test]
    fn reads_in_vain_say_how_stale_rankings_are() {
        let layout = Layout::even(4, 100, 1000, 0.4);
        let seen = |count, n| {
            let config = Config::new(Mode::Sparse, Policy::Refine, 1 << 20, Curve::line(0.0, 1.0));
            let mut costs = Costs::new(&layout, &Config { count, ..config });
            (0..n).for_each(|_| costs.stale(3, 10, 0, None));
            costs.profile(None).staleness
        };
        let usual = Profile::new(8, 4).staleness;
        assert_eq!(seen(Count::Fixed, SEEN_STALE - 1), usual);
        // Two of ten were to be expected.
        let more: Vec<f32> = usual.iter().map(|share| share * 1.5).collect();
        let off = seen(Count::Fixed, 400).into_iter().zip(more).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < 1e-3);
        assert_eq!(seen(Count::ByWorth, 400), [0.0; 9]);
    }

    #[test]
    fn a_profile_is_what_was_seen() {
        let layout = Layout::even(4, 100, 1000, 0.4);
        let config = Config::new(Mode::Sparse, Policy::Refine, 1 << 20, Curve::line(0.0, 1.0));
        let mut costs = Costs::new(&layout, &config);
        assert!(!costs.is_known());
        for i in 0..20 {
            let now = i * 10_000;
            costs.between(700);
            costs.stage(500, 5, false);
            costs.stage(540, 5, true);
            costs.rank(300);
            costs.missed(10, 40);
            costs.reading(16, now);
            costs.arrived(20_000);
            costs.reading(16, now + 4000);
            costs.arrived(20_000);
            costs.reading(3, now + 8000);
            // With a few reads under way, their time is not what they cost.
            costs.arrived(90_000);
            costs.layer_done(now + 9000);
        }
        assert!(costs.is_known());
        let profile = costs.profile(None);
        let seen = [profile.stage_ns, profile.rank_ns, profile.between_ns, profile.missing];
        assert_eq!(seen, [500.0, 300.0, 700.0, 2.0]);
        assert_eq!(profile.rank_stall_ns, 40.0);
        // 0.2 ns a byte, and five chunks of 1000 bytes a stage.
        assert!((profile.read_ns - 1000.0).abs() < 1.0 && profile.read_spread < 0.01);
    }
}
