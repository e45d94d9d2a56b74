//! Frames that chunks pass through which are not held.

use std::collections::VecDeque;
use std::sync::Arc;

use ls_vk::control::{Runner, Ticket};
use ls_vk::{FrameLease, Result, Slab};

use super::layer::TIMEOUT;

/// Frames used in turn; each is free again when the stage that reads it is done.
#[derive(Debug)]
pub(super) struct Ring {
    slab: Arc<Slab>,
    first: u32,
    len: u32,
    next: u32,
    free: u32,
    /// Stages whose frames are in use, the oldest first.
    in_use: VecDeque<(Ticket, u32)>,
}

impl Ring {
    /// Of the slab's frames from `first` on.
    pub fn new(slab: Arc<Slab>, first: u32) -> Self {
        let len = slab.n_frames() - first;
        Self { slab, first, len, next: 0, free: len, in_use: VecDeque::new() }
    }

    /// Frames that one stage may have, so that the next ones are written meanwhile.
    pub fn group(&self) -> usize {
        self.len as usize / 2
    }

    /// Copies `records` to frames, of which there are [`Ring::group`] at most, and appends them to `to`.
    /// Waits for stages that still read them.
    pub fn put<'r>(
        &mut self,
        runner: &mut Runner,
        records: impl Iterator<Item = &'r [u8]>,
        to: &mut Vec<u32>,
    ) -> Result<()> {
        let mut writers = Vec::new();
        for record in records {
            while self.free == 0 {
                let Some((ticket, n)) = self.in_use.pop_front() else { break };
                runner.wait(ticket, TIMEOUT)?;
                self.free += n;
            }
            let frame = self.first + self.next;
            let mut writer = self.slab.write(frame)?;
            writer[..record.len()].copy_from_slice(record);
            writers.push(writer);
            to.push(frame);
            self.next = (self.next + 1) % self.len;
            self.free = self.free.saturating_sub(1);
        }
        self.slab.finish(writers)
    }

    /// Keeps frames as they are until a stage is done with them.
    pub fn lease(&self, frames: impl Iterator<Item = u32>) -> Result<Vec<FrameLease>> {
        frames.map(|frame| self.slab.lease(frame)).collect()
    }

    /// The last stage that reads the last `n` frames that were put.
    pub fn used_by(&mut self, ticket: Ticket, n: u32) {
        self.in_use.push_back((ticket, n));
    }

    /// Every stage is done.
    pub fn reset(&mut self) {
        self.in_use.clear();
        self.free = self.len;
    }
}
