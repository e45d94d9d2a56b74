//! One visit of a layer: what is chosen, and what of it is where.

use crate::choose::{Chooser, Place, Price, sane};
use crate::command::{Basis, Read};
use crate::frames::{CANCELLING, Frames, HELD, ORPHAN, READING, RESIDENT};
use crate::{Chunk, Command, Config, Count, Layer, Mode};

/// Computed, or being computed.
pub(crate) const TAKEN: u8 = 1;
/// Given up.
pub(crate) const DROPPED: u8 = 2;
/// One failed read, in the bits that count them.
const RETRY: u8 = 4;

/// What is in memory is read through only if that takes at most one part in so many of the time of another read.
/// Up to the whole, tokens were as fast, and half as much again was read in vain.
const GAP_PART: u64 = 4;

/// Levels of priority of a plan's reads.
const LEVELS: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Plan {
    /// Counted over all tokens; `None`: the plan is not in use.
    pub visit: Option<u64>,
    pub layer: u32,
    pub is_chosen: bool,
    pub scores: Vec<f32>,
    /// Score that a chunk had to exceed.
    pub bound: f32,
    pub marks: Vec<u8>,
    /// Chosen when it was last chosen, the first to be computed first.
    pub order: Vec<u16>,
    /// No chunk of the order before this one is still to be computed.
    pub first: usize,
    /// To be computed in all, the dropped ones included.
    pub n_total: u32,
    pub n_taken: u32,
    pub n_dropped: u32,
    /// In memory, and to be taken by a stage.
    pub n_ready: u32,
    pub n_stages: u32,
    /// Stages of the layer before that were done when it was last ranked; 0 if it was ranked from its own input.
    pub ranked_at: u32,
    /// Summed scores of all that is to be computed.
    pub score_sum: f32,
    /// What was given up of it, as shares.
    pub late_share: f32,
    pub lost_share: f32,
    /// Reads to be submitted, from `next_run` on.
    pub runs: Vec<Read>,
    pub next_run: usize,
    /// Whether chunks are missing that no run has.
    pub is_stale: bool,
    /// In exact mode, chunks of each segment that are not in memory.
    pub missing: Vec<u32>,
    /// A chunk that cannot be had.
    pub failed: Option<(Chunk, crate::Cause)>,
}

impl Plan {
    /// A plan with room for layers of up to `n` chunks.
    pub fn new(n: usize) -> Self {
        Self {
            visit: None,
            layer: 0,
            is_chosen: false,
            scores: Vec::with_capacity(n),
            bound: 0.0,
            marks: Vec::with_capacity(n),
            order: Vec::with_capacity(n),
            first: 0,
            n_total: 0,
            n_taken: 0,
            n_dropped: 0,
            n_ready: 0,
            n_stages: 0,
            ranked_at: 0,
            score_sum: 0.0,
            late_share: 0.0,
            lost_share: 0.0,
            // Neighbours are in one run.
            runs: Vec::with_capacity(n / 2 + 1),
            next_run: 0,
            is_stale: false,
            missing: Vec::with_capacity(n),
            failed: None,
        }
    }

    pub fn open(&mut self, visit: u64, layer: u32, n_chunks: u32) {
        self.visit = Some(visit);
        self.layer = layer;
        self.is_chosen = false;
        self.is_stale = false;
        self.failed = None;
        self.marks.clear();
        self.marks.resize(n_chunks as usize, 0);
        for list in [&mut self.n_total, &mut self.n_taken, &mut self.n_dropped, &mut self.n_ready] {
            *list = 0;
        }
        (self.n_stages, self.first, self.next_run) = (0, 0, 0);
        (self.score_sum, self.late_share, self.lost_share, self.bound) = (0.0, 0.0, 0.0, 0.0);
        self.order.clear();
        self.runs.clear();
        self.scores.clear();
        self.missing.clear();
    }

    pub fn chunk(&self, index: u16) -> Chunk {
        Chunk { layer: self.layer, index: index.into() }
    }

    /// Still to be taken by a stage.
    pub fn n_left(&self) -> u32 {
        self.n_total - self.n_taken - self.n_dropped
    }

    /// Still to come into memory.
    pub fn n_missing(&self) -> u32 {
        self.n_left() - self.n_ready
    }

    pub fn is_open_to(&self, index: u32) -> bool {
        self.marks[index as usize] & (TAKEN | DROPPED) == 0
    }

    /// Counts a failed read; whether it may be repeated.
    pub fn retry(&mut self, index: u32, max: u8) -> bool {
        let mark = &mut self.marks[index as usize];
        let again = *mark / RETRY < max.min(u8::MAX / RETRY - 1);
        *mark += RETRY * u8::from(again);
        again
    }

    /// Every chunk is to be computed, in the order of the file.
    pub fn choose_all(&mut self, layer: &Layer, frames: &mut Frames) {
        self.order.extend(0..=(layer.n_chunks - 1) as u16);
        self.n_total = layer.n_chunks;
        self.score_sum = layer.n_chunks as f32;
        self.scores.resize(layer.n_chunks as usize, 1.0);
        self.missing.resize(layer.n_chunks.div_ceil(layer.segment_chunks) as usize, 0);
        self.hold(frames);
        for index in 0..layer.n_chunks {
            let absent = !frames.has(Chunk { layer: self.layer, index }, RESIDENT);
            self.missing[(index / layer.segment_chunks) as usize] += u32::from(absent);
        }
    }

    /// The best of `layer`, as many as it says, are to be computed, those among them that are already; or with `lasting` those that are
    /// worth it, and as many only if none is. `lasting` is what absent ones are worth beyond this visit.
    pub fn choose(
        &mut self,
        layer: &Layer,
        lasting: Option<&[f32]>,
        price: Price,
        scores: &[f32],
        chooser: &mut Chooser,
        frames: &mut Frames,
    ) {
        self.scores.clear();
        self.scores.extend(scores.iter().map(|score| sane(*score)));
        for i in 0..self.order.len() {
            frames.clear(self.chunk(self.order[i]), HELD);
        }
        let n = layer.n_keep.saturating_sub(self.n_taken + self.n_dropped) as usize;
        let (marks, flags) = (&self.marks, frames.layer(self.layer));
        let place = |i: usize| match flags[i] {
            _ if marks[i] & (TAKEN | DROPPED) != 0 => Place::Taken,
            // Nobody knows when, if ever, it comes.
            is if is & ORPHAN != 0 => Place::Taken,
            is if is & RESIDENT != 0 || is & (READING | CANCELLING) == READING => Place::Present,
            _ => Place::Absent,
        };
        if let Some(lasting) = lasting {
            self.bound = chooser.choose_worth(&self.scores, lasting, place, price, &mut self.order);
        }
        if lasting.is_none() || (self.order.is_empty() && self.n_taken == 0) {
            let price = if lasting.is_some() { Price::NOTHING } else { price };
            self.bound = chooser.choose(&self.scores, place, n, price, &mut self.order);
        }
        self.n_total = self.order.len() as u32 + self.n_taken + self.n_dropped;
        let all = |i: &usize| self.marks[*i] & (TAKEN | DROPPED) != 0;
        let gone: f32 = (0..self.scores.len()).filter(all).map(|i| self.scores[i]).sum();
        let rest: f32 = self.order.iter().map(|i| self.scores[usize::from(*i)]).sum();
        self.score_sum = gone + rest;
        self.hold(frames);
        frames.scored(self.layer, &self.scores, self.bound / layer.weight);
    }

    /// Protects what was chosen.
    fn hold(&mut self, frames: &mut Frames) {
        (self.first, self.n_ready) = (0, 0);
        for i in 0..self.order.len() {
            let chunk = self.chunk(self.order[i]);
            frames.set(chunk, HELD);
            self.n_ready += u32::from(frames.has(chunk, RESIDENT));
        }
        self.is_chosen = true;
        self.is_stale = true;
    }

    /// Lists what is to be read. A gap is read through where that is cheaper than another read.
    pub fn list_runs(&mut self, layer: &Layer, config: &Config, frames: &Frames) {
        self.is_stale = false;
        self.next_run = 0;
        self.runs.clear();
        let bytes = u64::from(layer.chunk_bytes);
        let most = config.max_chunks(layer.chunk_bytes);
        // Chosen by worth, a stretch has its gaps already, and what is left out is there.
        let part = if config.count == Count::ByWorth { GAP_PART } else { 1 };
        let gap = (config.curve.gap_bytes(bytes) / bytes / part) as u32;
        for (index, flags) in (0..).zip(frames.layer(self.layer)) {
            if flags & (HELD | RESIDENT | READING) != HELD {
                continue;
            }
            if let Some(run) = self.runs.last_mut() {
                let bit = index - run.first;
                if bit < most && bit <= run.len() + gap {
                    run.wanted |= 1 << bit;
                    continue;
                }
            }
            self.runs.push(Read { layer: self.layer, first: index, wanted: 1, priority: 0 });
        }
        self.rate_runs(layer, config);
    }

    /// Orders the runs: by what they are worth for their time, or in exact mode as they lie.
    fn rate_runs(&mut self, layer: &Layer, config: &Config) {
        let base = self.visit.unwrap_or(0).wrapping_mul(LEVELS);
        if config.mode == Mode::Exact {
            for run in &mut self.runs {
                run.priority = base + u64::from(run.first).min(LEVELS - 1);
            }
            return;
        }
        let scores = &self.scores;
        for run in &mut self.runs {
            run.priority = base + rate(run, scores, self.bound, layer, config);
        }
        self.runs.sort_unstable_by_key(|run| (run.priority, run.first));
    }

    /// The present priority of a read that is under way.
    pub fn priority(&self, read: &Read, layer: &Layer, config: &Config) -> u64 {
        let base = self.visit.unwrap_or(0).wrapping_mul(LEVELS);
        base + rate(read, &self.scores, self.bound, layer, config)
    }

    /// Gives up a chunk that is not in memory.
    pub fn drop_chunk(&mut self, chunk: Chunk, frames: &mut Frames) -> Command {
        self.marks[chunk.index as usize] |= DROPPED;
        self.n_dropped += 1;
        frames.clear(chunk, HELD);
        Command::Drop { chunk, share: self.share(chunk.index) }
    }

    /// Share of a chunk in the summed scores.
    pub fn share(&self, index: u32) -> f32 {
        self.scores[index as usize] / self.score_sum.max(f32::MIN_POSITIVE)
    }

    /// The plan is not needed any more.
    pub fn close(&mut self, frames: &mut Frames) {
        for i in 0..self.order.len() {
            frames.clear(self.chunk(self.order[i]), HELD);
        }
        self.visit = None;
        self.is_chosen = false;
        self.order.clear();
        self.runs.clear();
    }
}

/// Priority of a read within its plan: logarithmic in score per time, relative to a chunk of the
/// bound that is read alone; less is sooner.
fn rate(read: &Read, scores: &[f32], bound: f32, layer: &Layer, config: &Config) -> u64 {
    let sum: f32 = read.chunks().map(|chunk| scores[chunk.index as usize]).sum();
    let bytes = u64::from(layer.chunk_bytes);
    let time = config.curve.read_ns(bytes * u64::from(read.len())) / config.curve.read_ns(bytes);
    let rate = f64::from(sum) / time.max(1e-9) / f64::from(bound.max(f32::MIN_POSITIVE));
    // 256 levels for each doubling, 128 doublings either way; bits of a float are a logarithm.
    let log = (rate as f32).clamp(f32::MIN_POSITIVE, f32::MAX).to_bits() >> 15;
    LEVELS - 1 - u64::from(log).min(LEVELS - 1)
}

/// Whether two priorities differ by so much that moving a read is worth a command.
pub(crate) fn has_moved(a: u64, b: u64) -> bool {
    a / LEVELS != b / LEVELS || a.abs_diff(b) > 128
}

/// Which ranking of a layer is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ranking {
    /// For which visit, and since when.
    pub asked: Option<(u64, u64)>,
    /// To be asked for when the answer is there.
    pub again: Option<(u64, Basis)>,
    /// Chunks that were missing when it was ranked ahead, on average.
    pub missing: Option<f64>,
    /// Rankings ahead that were left out in a row.
    pub skipped: u8,
}
