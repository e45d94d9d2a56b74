//! A disk that serves one read after the other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::board::Board;
use super::rng::Rng;
use crate::Chunk;

/// A read that was submitted.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub layer: u32,
    pub first: u32,
    /// Chunks that are to be delivered.
    pub wanted: u64,
    pub bytes: u64,
    pub priority: u64,
}

impl Queued {
    fn bit(&self, chunk: Chunk) -> u64 {
        let bit = chunk.index.wrapping_sub(self.first);
        if chunk.layer == self.layer && bit < 64 { self.wanted & 1 << bit } else { 0 }
    }
}

/// What waits before the device, what it is at, and what has come.
#[derive(Debug)]
pub(crate) struct Device {
    curve: crate::Curve,
    depth: usize,
    latency_ns: f64,
    jitter: f64,
    waiting: Vec<Queued>,
    /// By when they end.
    inside: BinaryHeap<Reverse<(u64, u64)>>,
    reads: Vec<Option<Queued>>,
    come: VecDeque<Queued>,
    free_at: f64,
    pub busy_ns: f64,
    pub bytes: u64,
}

impl Device {
    pub fn new(board: &Board) -> Self {
        Self {
            curve: board.curve,
            depth: board.queue_depth.max(1) as usize,
            latency_ns: board.latency_ns,
            jitter: board.jitter,
            waiting: Vec::new(),
            inside: BinaryHeap::new(),
            reads: Vec::new(),
            come: VecDeque::new(),
            free_at: 0.0,
            busy_ns: 0.0,
            bytes: 0,
        }
    }

    pub fn submit(&mut self, read: Queued) {
        self.waiting.push(read);
    }

    pub fn move_to(&mut self, chunk: Chunk, priority: u64) {
        for read in self.waiting.iter_mut().filter(|read| read.bit(chunk) != 0) {
            read.priority = priority;
        }
    }

    /// Takes back a chunk; whether its read had not begun.
    pub fn cancel(&mut self, chunk: Chunk) -> bool {
        let found = self.waiting.iter().position(|read| read.bit(chunk) != 0);
        let Some(i) = found else { return false };
        let bit = self.waiting[i].bit(chunk);
        self.waiting[i].wanted &= !bit;
        if self.waiting[i].wanted == 0 {
            self.waiting.swap_remove(i);
        }
        true
    }

    /// Begins what there is room for.
    pub fn begin(&mut self, now: u64, rng: &mut Rng) {
        while self.inside.len() < self.depth {
            let all = self.waiting.iter().enumerate();
            let next = all.min_by_key(|(_, read)| (read.priority, read.layer, read.first));
            let Some((i, _)) = next else { return };
            let read = self.waiting.swap_remove(i);
            let factor = 1.0 + self.jitter * (rng.unit() - 0.5) * 2.0;
            let service = self.curve.read_ns(read.bytes) * factor;
            let now = now as f64;
            self.free_at = self.free_at.max(now) + service;
            self.busy_ns += service;
            self.bytes += read.bytes;
            let end = self.free_at.max(now + self.latency_ns * factor);
            let free = self.reads.iter().position(Option::is_none);
            let place = free.unwrap_or(self.reads.len());
            self.reads.resize(self.reads.len().max(place + 1), None);
            self.reads[place] = Some(read);
            self.inside.push(Reverse((end as u64, place as u64)));
        }
    }

    /// When something comes next.
    pub fn next_end(&self) -> Option<u64> {
        self.inside.peek().map(|Reverse((end, _))| *end)
    }

    /// Goes on to `now`.
    pub fn advance(&mut self, now: u64, rng: &mut Rng) {
        while let Some(end) = self.next_end().filter(|end| *end <= now) {
            let Some(Reverse((_, place))) = self.inside.pop() else { return };
            self.come.extend(self.reads[place as usize].take());
            self.begin(end, rng);
        }
    }

    /// Whether anything has come that was not taken.
    pub fn has_come(&self) -> bool {
        !self.come.is_empty()
    }

    /// Something that has come.
    pub fn take(&mut self) -> Option<Queued> {
        self.come.pop_front()
    }
}
