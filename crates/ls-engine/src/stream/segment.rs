//! A segment that is handed to the computation.

use std::ops::Range;
use std::sync::atomic::Ordering;

use ls_model::pack;

use super::Streamer;
use super::slot::Entry;
use crate::EngineError;

/// The chunks of a segment, pinned for as long as this lives.
#[derive(Debug)]
pub(crate) struct StreamedSegment<'a> {
    streamer: &'a Streamer,
    number: u64,
    entries: Vec<Entry>,
    n_fresh: usize,
}

impl<'a> StreamedSegment<'a> {
    /// Checks the chunks that were just read and lets the cache have them.
    pub(super) fn new(
        streamer: &'a Streamer,
        number: u64,
        layer: u32,
        chunks: Range<u32>,
        entries: Vec<Entry>,
    ) -> Result<Self, EngineError> {
        // All of them, also those behind a damaged one: they are no longer outstanding either way.
        let n_fresh = entries.iter().filter(|entry| matches!(entry, Entry::Fresh(_))).count();
        let mut segment = Self { streamer, number, entries, n_fresh };
        for (entry, chunk) in segment.entries.iter_mut().zip(chunks) {
            let record = match std::mem::replace(entry, Entry::Missing) {
                Entry::Fresh(record) => record,
                other => {
                    *entry = other;
                    continue;
                }
            };
            pack::verify_chunk(&record, layer, chunk)?;
            *entry = Entry::Resident(record.publish());
        }
        Ok(segment)
    }

    /// The record of each chunk that is not held elsewhere, in order.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Resident(pin) => Some(self.streamer.cache.pinned_bytes(pin)),
            // Every other entry of a segment that was handed out is held by a GPU.
            _ => None,
        })
    }
}

impl StreamedSegment<'_> {
    /// The frame of the cache in which each such record lies.
    pub fn frames(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Resident(pin) => Some(self.streamer.cache.pinned_frame(pin)),
            _ => None,
        })
    }
}

impl Drop for StreamedSegment<'_> {
    fn drop(&mut self) {
        let streamer = self.streamer;
        for entry in self.entries.drain(..) {
            entry.release(&streamer.cache);
        }
        streamer.outstanding.fetch_sub(self.n_fresh, Ordering::Relaxed);
        streamer.arrivals.slot(self.number).free(std::mem::take(&mut self.entries));
        streamer.pump();
    }
}
