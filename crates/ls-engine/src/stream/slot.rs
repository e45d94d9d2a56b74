//! A segment's place in the window that reads run ahead in.

use std::time::{Duration, Instant};

use ls_cache::{Cache, Fill, Pin};
use parking_lot::{Condvar, Mutex};

use super::ReadFailure;

/// A chunk of a segment.
#[derive(Debug)]
pub(super) enum Entry {
    /// Not asked for yet, or being read.
    Missing,
    /// Read, and not looked at.
    Fresh(Fill),
    /// In the cache.
    Resident(Pin),
    /// Not wanted here: a GPU holds it.
    Elsewhere,
}

impl Entry {
    /// Gives the frame back.
    pub fn release(self, cache: &Cache) {
        match self {
            Self::Resident(pin) => cache.unpin(pin),
            // Dropping it frees the frame, since no one has seen the chunk.
            Self::Fresh(fill) => drop(fill),
            Self::Missing | Self::Elsewhere => {}
        }
    }
}

/// What is known of the segment that a slot holds.
#[derive(Debug)]
pub(super) struct SlotState {
    /// Which segment, counted over all passes; `None`: the slot is free.
    pub segment: Option<u64>,
    /// Its chunks.
    pub entries: Vec<Entry>,
    /// Chunks that are not there yet.
    pub missing: usize,
    /// The first read that failed.
    pub failure: Option<ReadFailure>,
}

impl SlotState {
    /// Chunk `i` is there.
    pub fn set(&mut self, i: usize, entry: Entry) {
        if let Some(place) = self.entries.get_mut(i) {
            *place = entry;
            self.missing -= 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

impl Slot {
    /// A free one.
    pub fn new() -> Self {
        let entries = Vec::new();
        let state = SlotState { segment: None, entries, missing: 0, failure: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn lock(&self) -> parking_lot::MutexGuard<'_, SlotState> {
        self.state.lock()
    }

    /// Takes the slot for a segment, if it is free.
    pub fn claim(&self, segment: u64, n_chunks: usize) -> bool {
        let mut state = self.state.lock();
        if state.segment.is_some() {
            return false;
        }
        state.segment = Some(segment);
        state.missing = n_chunks;
        state.entries.clear();
        state.entries.resize_with(n_chunks, || Entry::Missing);
        true
    }

    /// Chunk `i` of `segment` is there.
    pub fn put(&self, segment: u64, i: usize, entry: Entry) {
        let mut state = self.state.lock();
        // The slot may have been cleared meanwhile: then nobody waits for it.
        if state.segment == Some(segment) {
            state.set(i, entry);
            if state.missing == 0 {
                self.changed.notify_all();
            }
        }
    }

    /// Wakes who waits, after the state was changed under its lock.
    pub fn announce(&self) {
        self.changed.notify_all();
    }

    /// A chunk of `segment` cannot be read.
    pub fn fail(&self, segment: u64, failure: ReadFailure) {
        let mut state = self.state.lock();
        if state.segment == Some(segment) {
            state.failure.get_or_insert(failure);
            self.changed.notify_all();
        }
    }

    /// Whether waiting for the segment would not take any time: it is complete, or failed.
    pub fn is_settled(&self, segment: u64) -> bool {
        let state = self.state.lock();
        state.segment == Some(segment) && (state.missing == 0 || state.failure.is_some())
    }

    /// Waits until the segment is complete or failed, at most as long as `patience`.
    pub fn wait(&self, segment: u64, patience: Duration) -> Wait {
        let mut state = self.state.lock();
        let until = Instant::now() + patience;
        loop {
            if state.segment == Some(segment) {
                if let Some(failure) = &state.failure {
                    return Wait::Failed(failure.clone());
                }
                if state.missing == 0 {
                    return Wait::Complete(std::mem::take(&mut state.entries));
                }
            }
            let is_over =
                patience.is_zero() || self.changed.wait_until(&mut state, until).timed_out();
            if is_over {
                if state.segment != Some(segment) {
                    return Wait::Unfinished { missing: None, first: 0 };
                }
                let is_missing = |entry: &Entry| matches!(entry, Entry::Missing);
                let first = state.entries.iter().position(is_missing).unwrap_or(0);
                return Wait::Unfinished { missing: Some(state.missing), first };
            }
        }
    }

    /// Frees the slot; the segment's vector, which is empty by now, serves the next one.
    pub fn free(&self, entries: Vec<Entry>) {
        let mut state = self.state.lock();
        state.segment = None;
        state.failure = None;
        state.entries = entries;
    }

    /// Gives back whatever the slot holds.
    pub fn clear(&self, cache: &Cache) {
        let mut state = self.state.lock();
        state.segment = None;
        state.failure = None;
        state.entries.drain(..).for_each(|entry| entry.release(cache));
    }
}

/// How waiting for a segment ended.
#[derive(Debug)]
pub(super) enum Wait {
    /// All chunks are there.
    Complete(Vec<Entry>),
    /// A read failed.
    Failed(ReadFailure),
    /// Not yet.
    Unfinished {
        /// Chunks that are not there; `None`: none of them is scheduled yet.
        missing: Option<usize>,
        /// The first of them, counted from the segment's first.
        first: usize,
    },
}
