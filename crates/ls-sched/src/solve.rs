//! Solves for the adaptive interval: a stochastic dynamic programme with a finite horizon.
//!
//! A state, at a ranking, is how many stages are done, how many chunks of the layer are ready and how
//! many of the next one are missing. An action is a number of stages until the next ranking. While
//! a stage is computed, the device serves a random number of reads: first what the layer still lacks,
//! then the next layer's. Of the latter a share is in vain, since the last ranking was made from a
//! part of what can be known; the more stages it was made from, the less. A ranking costs time.
//! What is missing when a layer ends is carried into the next one, over all layers of a token.

use crate::SchedError;
use crate::error::within;
use crate::interval::{MAX_STAGES, NEVER, STEPS, Table};

/// What things cost. A unit is a stage's worth of chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Stages of a layer, up to 16.
    pub stages: u32,
    /// Layers of a token.
    pub n_layers: u32,
    /// Nanoseconds of computing a stage.
    pub stage_ns: f32,
    /// Nanoseconds from asking for a ranking to having it, while computing goes on.
    pub rank_ns: f32,
    /// Nanoseconds by which a ranking delays computing.
    pub rank_stall_ns: f32,
    /// Nanoseconds of reading a unit, its share of gaps included.
    pub read_ns: f32,
    /// Standard deviation of the number of units that are read in the time of one.
    pub read_spread: f32,
    /// Units that a layer lacks when it is first ranked.
    pub missing: f32,
    /// Nanoseconds between the MLPs of two layers.
    pub between_ns: f32,
    /// Share of the reads for a layer that take the place of what the next one has and, as far as is
    /// known, does not need: where the ranking is wrong, that has to be read again.
    pub evicting: f32,
    /// Nanoseconds that it would be worth to have the right unit computed in place of a wrong one; 0:
    /// only time counts. A last ranking that was stale leaves `staleness × stages` wrong units.
    pub wrong_unit_ns: f32,
    /// Share of the reads in vain, if the ranking was made when so many stages were done: from 0
    /// to all.
    pub staleness: Vec<f32>,
}

/// Share of reads in vain at the first ranking, where nothing better is known.
const FIRST_STALENESS: f32 = 0.2;
/// And at the last.
const LAST_STALENESS: f32 = 0.04;

/// Costs that differ by less are taken as unchanged.
const DRIFT: f32 = 1.3;

impl Profile {
    /// A profile without costs, in which most of what can be learnt is learnt in the first stages.
    #[must_use]
    pub fn new(stages: u32, n_layers: u32) -> Self {
        let share = |s: u32| 1.0 - s as f32 / stages.max(1) as f32;
        let stale = |s| LAST_STALENESS + (FIRST_STALENESS - LAST_STALENESS) * share(s) * share(s);
        Self {
            stages,
            n_layers,
            stage_ns: 1.0,
            rank_ns: 0.0,
            rank_stall_ns: 0.0,
            read_ns: 1.0,
            read_spread: 0.0,
            missing: 0.0,
            between_ns: 0.0,
            evicting: 0.2,
            wrong_unit_ns: 0.0,
            staleness: (0..=stages).map(stale).collect(),
        }
    }

    pub(crate) fn numbers(&self) -> [f32; 9] {
        let Self { stage_ns, rank_ns, rank_stall_ns, read_ns, .. } = *self;
        let Self { read_spread, missing, between_ns, evicting, wrong_unit_ns, .. } = *self;
        [
            stage_ns,
            rank_ns,
            rank_stall_ns,
            read_ns,
            read_spread,
            missing,
            between_ns,
            evicting,
            wrong_unit_ns,
        ]
    }

    pub(crate) fn numbers_mut(&mut self) -> [&mut f32; 9] {
        [
            &mut self.stage_ns,
            &mut self.rank_ns,
            &mut self.rank_stall_ns,
            &mut self.read_ns,
            &mut self.read_spread,
            &mut self.missing,
            &mut self.between_ns,
            &mut self.evicting,
            &mut self.wrong_unit_ns,
        ]
    }

    pub(crate) fn check(&self) -> Result<(), SchedError> {
        within("stages", self.stages.into(), 1.0..=MAX_STAGES.into(), "1 to 16")?;
        within("layers", self.n_layers.into(), 1.0..=65535.0, "1 to 65535")?;
        for number in self.numbers() {
            within("cost of the profile", number.into(), 0.0..=1e15, "0 or more")?;
        }
        within("time of a stage", self.stage_ns.into(), 1e-3..=1e15, "more than 0")?;
        within("time of reading", self.read_ns.into(), 1e-3..=1e15, "more than 0")?;
        let n = self.staleness.len() as f64;
        let all = f64::from(self.stages) + 1.0;
        within("length of staleness", n, all..=all, "one more than stages")?;
        for share in &self.staleness {
            within("staleness", (*share).into(), 0.0..=1.0, "0 to 1")?;
        }
        Ok(())
    }

    /// Whether costs that matter differ by so much that a table should be solved anew.
    #[must_use]
    pub fn has_drifted(&self, solved: &Self) -> bool {
        let floor = 0.01 * self.stage_ns.max(self.read_ns);
        let off = |a: f32, b: f32, floor: f32| {
            let (a, b) = (a.max(floor), b.max(floor));
            a > DRIFT * b || b > DRIFT * a
        };
        off(self.stage_ns, solved.stage_ns, floor)
            || off(self.read_ns, solved.read_ns, floor)
            || off(self.rank_ns, solved.rank_ns, floor)
            || off(self.rank_stall_ns, solved.rank_stall_ns, floor)
            || off(self.between_ns, solved.between_ns, floor)
            || off(self.missing, solved.missing, 0.25)
            || off(self.staleness[0], solved.staleness[0], 0.02)
    }
}

/// Solves for the intervals that make tokens fastest.
///
/// Takes milliseconds to tenths of a second; a table for the middle of a token is what comes out.
///
/// # Errors
///
/// If a cost makes no sense.
pub fn solve(profile: &Profile) -> Result<Table, SchedError> {
    profile.check()?;
    let solver = Solver::new(profile);
    let mut intervals = Vec::new();
    let mut expected = vec![solver.run(None, Some(&mut intervals))];
    expected.extend((1..=profile.stages).map(|k| solver.run(Some(k), None)));
    Ok(Table { profile: profile.clone(), expected, intervals })
}

/// A value for each number of ready and of missing steps.
type Grid = Vec<f32>;

struct Solver<'a> {
    profile: &'a Profile,
    stages: usize,
    side: usize,
    /// Units that are read during a stage, a ranking that delays, and between layers: how many
    /// steps, how probably.
    in_stage: Vec<(f32, f32)>,
    in_rank: Vec<(f32, f32)>,
    in_between: Vec<(f32, f32)>,
}

/// Relative change of a layer's time at which more layers would change nothing.
const CHANGE: f32 = 1e-5;

/// Layers after which the value of a layer hardly changes any more.
const HORIZON: u32 = 24;

impl<'a> Solver<'a> {
    fn new(profile: &'a Profile) -> Self {
        let served = |ns: f32| {
            // Three points with the mean and the variance of what is read in that time.
            let mean = (ns / profile.read_ns * STEPS as f32).min(1e6);
            let units = ns / profile.read_ns;
            let off = 3f32.sqrt() * profile.read_spread * units.sqrt() * STEPS as f32;
            let off = off.min(mean);
            let points = vec![(mean - off, 1.0 / 6.0), (mean, 2.0 / 3.0), (mean + off, 1.0 / 6.0)];
            if off == 0.0 { vec![(mean, 1.0)] } else { points }
        };
        // Where all of a ranking delays computing, it is done by those who compute, and nobody asks for reads
        // meanwhile: what is under way comes to its end at best.
        let by_others = profile.rank_stall_ns < profile.rank_ns;
        let in_rank = if by_others { profile.rank_stall_ns } else { 0.0 };
        Self {
            profile,
            stages: profile.stages as usize,
            side: Table::side(profile.stages),
            in_stage: served(profile.stage_ns),
            in_rank: served(in_rank),
            in_between: served(profile.between_ns),
        }
    }

    fn grid(&self, value: impl Fn(usize, usize) -> f32) -> Grid {
        let side = self.side;
        (0..side * side).map(|place| value(place / side, place % side)).collect()
    }

    /// Between two values of a grid: what lies between steps is a chance of either.
    fn at(&self, grid: &Grid, ready: f32, missing: f32) -> f32 {
        let most = (self.side - 1) as f32;
        let (q, b) = (ready.clamp(0.0, most), missing.clamp(0.0, most));
        let (q0, b0) = (q as usize, b as usize);
        let (q1, b1) = ((q0 + 1).min(self.side - 1), (b0 + 1).min(self.side - 1));
        let (fq, fb) = (q - q0 as f32, b - b0 as f32);
        let row = |q: usize| {
            let row = &grid[q * self.side..];
            row[b0] * (1.0 - fb) + row[b1] * fb
        };
        row(q0) * (1.0 - fq) + row(q1) * fq
    }

    /// Expected nanoseconds of a layer in the middle of a token, at a fixed interval or the best
    /// ones, which are written down.
    fn run(&self, fixed: Option<u32>, intervals: Option<&mut Vec<u8>>) -> f32 {
        let mut end = self.grid(|_, _| 0.0);
        let mut chosen = Vec::new();
        let (mut last, mut per_layer) = (0.0, 0.0);
        for layer in 0..self.profile.n_layers.min(HORIZON) {
            let start = self.layer(&end, fixed, &mut chosen);
            let total = self.at(&start, self.all() - self.missing(), self.missing());
            let change = (total - last - per_layer).abs();
            per_layer = total - last;
            last = total;
            end = start;
            if layer > 2 && change < CHANGE * per_layer {
                break;
            }
        }
        if let Some(intervals) = intervals {
            *intervals = chosen;
        }
        per_layer
    }

    fn all(&self) -> f32 {
        (self.stages * STEPS) as f32
    }

    fn missing(&self) -> f32 {
        (self.profile.missing * STEPS as f32).min(self.all())
    }

    /// Values at the start of a layer, if `end` are those at the start of the next one.
    fn layer(&self, end: &Grid, fixed: Option<u32>, chosen: &mut Vec<u8>) -> Grid {
        chosen.clear();
        chosen.resize(self.stages * self.side * self.side, NEVER);
        // best[s]: value at a ranking after s stages.
        let mut best: Vec<Grid> = vec![Grid::new(); self.stages + 1];
        for ranked in (0..self.stages).rev() {
            let mut values = Grid::new();
            for (until, after) in best.iter().enumerate().skip(ranked + 1) {
                let is_wanted =
                    fixed.is_none_or(|k| (ranked + k as usize).min(self.stages) == until);
                if !is_wanted {
                    continue;
                }
                let is_last = until == self.stages;
                let mut value = if is_last {
                    self.grid(|_, missing| self.leave(end, ranked, missing as f32))
                } else {
                    self.grid(|q, b| self.rank(after, ranked, until, q, b))
                };
                for done in (ranked..until).rev() {
                    value = self.stage(&value, ranked, done);
                }
                let mark = if is_last { NEVER } else { (until - ranked) as u8 };
                self.take_better(&mut values, value, mark, ranked, chosen);
            }
            best[ranked] = values;
        }
        best.swap_remove(0)
    }

    fn take_better(
        &self,
        values: &mut Grid,
        new: Grid,
        mark: u8,
        ranked: usize,
        chosen: &mut [u8],
    ) {
        let n = self.side * self.side;
        let marks = &mut chosen[ranked * n..(ranked + 1) * n];
        if values.is_empty() {
            marks.fill(mark);
            *values = new;
            return;
        }
        for ((value, new), at) in values.iter_mut().zip(new).zip(marks) {
            // Of equals the longer interval: it is less work for others.
            if new <= *value {
                (*value, *at) = (new, mark);
            }
        }
    }

    /// What of `served` is the next layer's and of use.
    fn useful(&self, ranked: usize, served: f32) -> f32 {
        served * (1.0 - self.profile.staleness[ranked])
    }

    /// Adds `chance` times a grid's row at `ready`, at what is missing and `more`.
    fn add_row(&self, sum: &mut [f32], grid: &Grid, ready: f32, more: f32, chance: f32) {
        let most = (self.side - 1) as f32;
        let q = ready.clamp(0.0, most);
        let (q0, fq) = (q as usize, q.fract());
        let low = &grid[q0 * self.side..][..self.side];
        let high = &grid[(q0 + 1).min(self.side - 1) * self.side..][..self.side];
        let row = |b: usize| low[b] * (1.0 - fq) + high[b] * fq;
        for (b, sum) in sum.iter_mut().enumerate() {
            let b = (b as f32 + more).clamp(0.0, most);
            let (b0, fb) = (b as usize, b.fract());
            let value = row(b0) * (1.0 - fb) + row((b0 + 1).min(self.side - 1)) * fb;
            *sum += chance * value;
        }
    }

    /// A stage: waits until it is ready, computes, reads meanwhile.
    fn stage(&self, after: &Grid, ranked: usize, done: usize) -> Grid {
        let left = ((self.stages - done) * STEPS) as f32;
        let mut grid = vec![0.0; after.len()];
        for (ready, row) in grid.chunks_exact_mut(self.side).enumerate() {
            let mut ready = (ready as f32).min(left);
            let short = (STEPS as f32 - ready).max(0.0);
            ready += short;
            let out = left - ready;
            row.fill(short * self.profile.read_ns / STEPS as f32 + self.profile.stage_ns);
            for (served, chance) in &self.in_stage {
                let here = served.min(out);
                let again = (short + here) * self.profile.evicting * self.profile.staleness[ranked];
                let more = again - self.useful(ranked, served - here);
                self.add_row(row, after, ready - STEPS as f32 + here, more, *chance);
            }
        }
        grid
    }

    /// A ranking after `now` stages, the last one having been after `ranked`.
    fn rank(&self, after: &Grid, ranked: usize, now: usize, ready: usize, missing: usize) -> f32 {
        let left = ((self.stages - now) * STEPS) as f32;
        let out = (left - ready as f32).max(0.0);
        // Until the answer is there, reads go on as before.
        let late = self.profile.rank_ns / self.profile.read_ns * STEPS as f32;
        let late = (late - out).max(0.0).min(missing as f32);
        let gain = self.profile.staleness[ranked] - self.profile.staleness[now];
        let in_vain = late * gain.max(0.0);
        let mut value = self.profile.rank_stall_ns;
        for (served, chance) in &self.in_rank {
            let here = served.min(out);
            let next = self.useful(ranked, served - here);
            let missing = missing as f32 - next + in_vain;
            value += chance * self.at(after, ready as f32 + here, missing);
        }
        value
    }

    /// On to the next layer, which lacks what is missing.
    fn leave(&self, end: &Grid, ranked: usize, missing: f32) -> f32 {
        let wrong = self.profile.staleness[ranked] * self.stages as f32;
        let mut value = self.profile.between_ns + wrong * self.profile.wrong_unit_ns;
        for (served, chance) in &self.in_between {
            let missing = (missing - self.useful(ranked, *served)).max(0.0);
            // The next layer knows what it has; the one after it lacks as much as any.
            value += chance * self.start(end, self.all() - missing);
        }
        value
    }

    fn start(&self, end: &Grid, ready: f32) -> f32 {
        self.at(end, ready, self.missing())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn profile() -> Profile {
        Profile {
            stage_ns: 100_000.0,
            rank_ns: 50_000.0,
            rank_stall_ns: 10_000.0,
            read_ns: 400_000.0,
            read_spread: 0.3,
            missing: 3.0,
            between_ns: 200_000.0,
            ..Profile::new(8, 32)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_table_is_never_worse_than_any_fixed_interval(
            rank in 0f32..300_000.0, stall in 0f32..200_000.0, read in 20_000f32..600_000.0,
            missing in 0f32..6.0, spread in 0f32..1.0, first in 0.05f32..0.6, stages in 1u32..7,
        ) {
            let mut profile = Profile {
                rank_ns: rank, rank_stall_ns: stall, read_ns: read, missing,
                read_spread: spread, ..Profile { n_layers: 8, ..profile() }
            };
            let base = Profile::new(stages, 8);
            profile.stages = stages;
            profile.staleness = base.staleness.iter().map(|s| s / FIRST_STALENESS * first).collect();
            let table = solve(&profile).unwrap();
            // The sums over all layers are what is optimal; single layers differ from that.
            let best = table.fixed_ns(table.best_fixed());
            prop_assert!(table.expected_ns() <= best * 1.002, "{} {best}", table.expected_ns());
            prop_assert!(table.expected_ns() >= stages as f32 * profile.stage_ns * 0.999);
        }
    }

    #[test]
    fn a_free_ranking_is_made_after_each_stage_and_a_dear_one_never() {
        let free = Profile { rank_ns: 0.0, rank_stall_ns: 0.0, ..profile() };
        let table = solve(&free).unwrap();
        assert_eq!(table.interval(0, 8.0, 3.0), 1);
        assert!(table.expected_ns() < table.one_shot_ns());
        let dear = Profile { rank_stall_ns: 3e6, ..profile() };
        let table = solve(&dear).unwrap();
        assert_eq!(table.interval(0, 8.0, 3.0), u32::MAX);
        assert_eq!(table.best_fixed(), 8);
        assert_eq!(table.expected_ns(), table.one_shot_ns());
    }

    #[test]
    fn the_interval_depends_on_what_is_seen() {
        let table = solve(&profile()).unwrap();
        // With nothing left to read there is nothing to put right.
        assert_eq!(table.interval(0, 8.0, 0.0), u32::MAX);
        assert!(table.interval(0, 8.0, 4.0) < 8);
        // Reads for the layer itself come first. Until then nothing is read in vain; only what is
        // evicted for them may be the wrong one.
        let safe = solve(&Profile { evicting: 0.0, ..profile() }).unwrap();
        assert!(safe.interval(0, 5.0, 4.0) > safe.interval(0, 8.0, 4.0));
        assert!(table.interval(0, 5.0, 4.0) < safe.interval(0, 5.0, 4.0));
        let better = table.expected_ns() / table.one_shot_ns();
        assert!(better < 0.99, "{better}");
    }

    #[test]
    fn without_reads_a_layer_takes_what_computing_takes() {
        let table = solve(&Profile { missing: 0.0, ..profile() }).unwrap();
        assert!((table.expected_ns() - 1_000_000.0).abs() < 1000.0, "{}", table.expected_ns());
    }

    #[test]
    fn bound_by_the_disk_a_layer_takes_what_reading_takes() {
        // All reads are of use, so three units a layer.
        let mut bound = Profile { read_ns: 2e6, read_spread: 0.0, ..profile() };
        bound.staleness.fill(0.0);
        let table = solve(&bound).unwrap();
        assert!((table.expected_ns() / 6e6 - 1.0).abs() < 0.03, "{}", table.expected_ns());
    }

    #[test]
    fn drift_is_a_matter_of_factors() {
        let solved = profile();
        assert!(!Profile { stage_ns: 110_000.0, ..profile() }.has_drifted(&solved));
        assert!(Profile { stage_ns: 140_000.0, ..profile() }.has_drifted(&solved));
        assert!(Profile { read_ns: 150_000.0, ..profile() }.has_drifted(&solved));
        assert!(
            !Profile { missing: 0.0, ..profile() }
                .has_drifted(&Profile { missing: 0.2, ..profile() })
        );
    }

    #[test]
    fn senseless_costs_are_refused() {
        for bad in [
            Profile { read_ns: 0.0, ..profile() },
            Profile { missing: f32::NAN, ..profile() },
            Profile { staleness: vec![0.1], ..profile() },
            Profile { stages: 17, ..profile() },
            Profile { n_layers: 0, ..profile() },
        ] {
            assert!(solve(&bad).is_err(), "{bad:?}");
        }
    }
}
