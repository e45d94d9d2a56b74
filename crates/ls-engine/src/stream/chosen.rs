//! Passes whose chunks someone else chooses, reads and evicts.

use std::sync::atomic::Ordering;

use ls_cache::{Fill, Key};
use ls_io::{Priority, Request};
use ls_model::pack::LayerLayout;
use parking_lot::MutexGuard;

use super::{Counters, Landed, Source, StreamCounts, Streamer, Turn};

/// The bit of a read's tag that says that it was not asked for by a schedule. So many passes that a
/// segment's number has it are never made.
const CHOSEN: u64 = 1 << 63;

fn chosen_tag(key: Key) -> u64 {
    CHOSEN | u64::from(key.group) << 32 | u64::from(key.index)
}

/// Whether a read's tag says so.
pub(super) fn is_chosen(tag: u64) -> bool {
    tag & CHOSEN != 0
}

impl Streamer {
    /// Begins a pass whose chunks someone else chooses, reads ([`Streamer::read_chosen`]) and evicts:
    /// `chooser`, which no one else is called. It lasts until the turn is dropped.
    pub fn begin_chosen(&self, chooser: u64) -> MutexGuard<'_, Turn> {
        let mut turn = self.turn.lock();
        if turn.chooser != Some(chooser) {
            self.generation.fetch_add(1, Ordering::Relaxed);
            self.reset(&mut turn);
            turn.chooser = Some(chooser);
        }
        turn
    }

    /// Changes when something beside the passes of one chooser may have changed what is in the cache, or
    /// its size.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Reads a chunk, for which a frame was reserved, in a chosen pass. It lands in
    /// [`Streamer::landed`].
    pub fn read_chosen(&self, fill: Fill, priority: u64) -> Request<Fill> {
        let key = fill.key();
        let layout = &self.layers[key.group as usize];
        Request {
            tag: chosen_tag(key),
            offset: layout.chunk_offset(key.index),
            priority: Priority(priority),
            buf: fill.shortened(layout.record_bytes),
        }
    }

    /// Takes a chosen read back, if it did not begin.
    pub fn cancel_chosen(&self, key: Key) -> bool {
        self.reads.cancel(chosen_tag(key)).is_some()
    }

    /// Changes when a chosen read is made, if it did not begin.
    pub fn reprioritise_chosen(&self, key: Key, priority: u64) {
        self.reads.reprioritise(chosen_tag(key), Priority(priority));
    }

    /// Chosen reads that are over.
    pub fn landed(&self) -> &Landed {
        &self.arrivals.landed
    }

    /// What chunks are read from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// How the layers' chunks lie.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.layers
    }

    /// Adds to what was done, for a chosen pass.
    pub fn add_counts(&self, counts: &StreamCounts) {
        let c = &self.counters;
        Counters::add(&c.passes, counts.passes);
        Counters::add(&c.wanted_bytes, counts.wanted_bytes);
        Counters::add(&c.demand_miss_bytes, counts.demand_miss_bytes);
        Counters::add(&c.stall_miss_bytes, counts.stall_miss_bytes);
        Counters::add(&c.stall_ns, counts.stall_ns);
    }
}
