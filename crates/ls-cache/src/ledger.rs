//! The part of a cache that is changed by one thread at a time: who gets which frame.

use crate::frames::{Evict, Frames};
use crate::policy::{Offer, Policy};
use crate::word::{DOOMED, FRESH, PARKED};
use crate::{Key, ReserveError};

/// Frames that are free, the budget, and the policy.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What each frame that is not free is for.
    keys: Box<[Key]>,
    /// Free frames that were touched: they have pages.
    warm: Vec<u32>,
    /// Free frames without pages, or whose pages are on loan, the lowest last.
    cold: Vec<u32>,
    /// Frames that are not free.
    pub occupied: u32,
    /// Frames that may be occupied, or have pages.
    pub budget: u32,
    /// Frames of the budget that are on their way through, not kept.
    transit: u32,
    /// Loans of the slab's memory that live: its pages stay where they are.
    loans: u32,
    pub policy: Box<dyn Policy>,
    retains: bool,
    pub n_evicted: u64,
}

impl Ledger {
    pub fn new(n_frames: u32, policy: Box<dyn Policy>) -> Self {
        let mut ledger = Self {
            keys: vec![Key { group: 0, index: 0 }; n_frames as usize].into(),
            warm: Vec::with_capacity(n_frames as usize),
            cold: (0..n_frames).rev().collect(),
            occupied: 0,
            budget: n_frames,
            transit: 0,
            loans: 0,
            retains: policy.retains(),
            policy,
            n_evicted: 0,
        };
        ledger.resize();
        ledger
    }

    /// Gives a frame to `key`, exclusively: a free one, or if it `may_evict` another key's.
    pub fn reserve(
        &mut self,
        frames: &Frames,
        key: Key,
        may_evict: bool,
    ) -> Result<u32, ReserveError> {
        let slot = frames.space.slot(key).ok_or(ReserveError::Unknown { key })?;
        frames.check_absent(slot, key)?;
        if !may_evict && self.occupied >= self.budget {
            return Err(ReserveError::NoFrame);
        }
        let frame = self.take(frames).ok_or(ReserveError::NoFrame)?;
        // Not among the candidates before its first release.
        let notes = if self.retains { PARKED } else { PARKED | DOOMED };
        frames.claim(frame, slot, notes);
        self.keys[frame as usize] = key;
        self.policy.admit(key);
        Ok(frame)
    }

    /// The owner of a filling gives up.
    pub fn abandon(&mut self, frames: &Frames, frame: u32) {
        frames.abandon(frame);
        self.policy.forget(self.keys[frame as usize]);
        self.free(frames, frame);
    }

    /// Changes how many frames may be occupied.
    pub fn set_budget(&mut self, frames: &Frames, budget: u32) {
        if budget < self.budget {
            frames.slab.refuse_huge_pages();
        }
        self.budget = budget.min(self.keys.len() as u32);
        self.resize();
        self.shrink(frames);
        // What is left above the budget is pinned or being filled: it goes when it is let go.
        if self.occupied > self.budget {
            (0..self.keys.len() as u32).for_each(|frame| self.doom(frames, frame));
        }
    }

    /// Changes how many frames of the budget are not shared out.
    pub fn set_transit(&mut self, transit: u32) {
        self.transit = transit;
        self.resize();
    }

    fn resize(&mut self) {
        self.policy.resize(u64::from(self.budget.saturating_sub(self.transit)));
    }

    /// A frame that was doomed has been let go: it goes now, if it still has to.
    pub fn let_go(&mut self, frames: &Frames, frame: u32) {
        self.settle(frames);
        let word = frames.word(frame);
        // Someone else was here first, or comes after.
        if !word.is_idle() || !word.has(DOOMED) {
            return;
        }
        let is_spent = !self.retains && !word.has(FRESH);
        if is_spent || self.occupied > self.budget {
            self.evict(frames, frame);
        } else if self.retains {
            frames.spare(frame);
        }
    }

    /// Tells the policy who was let go since the last time.
    pub fn settle(&mut self, frames: &Frames) {
        frames.released.drain(|frame| {
            let word = frames.word(frame);
            if !word.is_resident() {
                return;
            }
            let key = self.keys[frame as usize];
            if word.has(FRESH) {
                self.policy.offer(key, Offer::Ahead);
            } else if !word.has(PARKED) {
                self.policy.offer(key, Offer::Released);
            }
        });
    }

    /// A free frame, which counts as occupied from now on.
    fn take(&mut self, frames: &Frames) -> Option<u32> {
        if self.occupied > self.budget {
            self.shrink(frames);
        }
        if self.occupied == self.budget {
            self.settle(frames);
            self.evict_one(frames)?;
        }
        if self.occupied >= self.budget {
            return None;
        }
        self.occupied += 1;
        self.warm.pop().or_else(|| self.cold.pop())
    }

    /// Evicts what may go until the budget is kept, and gives back the pages of free frames that
    /// it has no room for.
    fn shrink(&mut self, frames: &Frames) {
        self.settle(frames);
        while self.occupied > self.budget && self.evict_one(frames).is_some() {}
        while self.occupied as usize + self.warm.len() > self.budget as usize {
            let Some(frame) = self.warm.pop() else { break };
            self.cool(frames, frame);
        }
    }

    /// Evicts one frame by the policy's choice.
    fn evict_one(&mut self, frames: &Frames) -> Option<()> {
        // Each vain look takes a candidate out, so a sane policy runs dry before the bound.
        for _ in 0..2 * self.keys.len() {
            let key = self.policy.victim()?;
            let frame = frames.space.slot(key).and_then(|slot| frames.frame_of(slot));
            if frame.is_some_and(|frame| self.evict(frames, frame)) {
                return Some(());
            }
        }
        None
    }

    /// Whether the frame was idle; it is free now.
    pub fn evict(&mut self, frames: &Frames, frame: u32) -> bool {
        let is_done = frames.evict(frame) == Evict::Done;
        if is_done {
            self.n_evicted += 1;
            self.policy.forget(self.keys[frame as usize]);
            self.free(frames, frame);
        }
        is_done
    }

    fn doom(&mut self, frames: &Frames, frame: u32) {
        // Let go of, but not yet reported.
        if frames.doom(frame).is_idle() && self.occupied > self.budget {
            self.evict(frames, frame);
        }
    }

    fn free(&mut self, frames: &Frames, frame: u32) {
        self.occupied -= 1;
        if self.occupied as usize + self.warm.len() < self.budget as usize {
            self.warm.push(frame);
        } else {
            self.cool(frames, frame);
        }
    }

    fn cool(&mut self, frames: &Frames, frame: u32) {
        // A device may have pinned these pages: then they would stay occupied, and what the device
        // sees would no longer be what is written to the frame.
        if self.loans == 0 {
            self.give_back(frames, frame);
        }
        self.cold.push(frame);
    }

    #[allow(unsafe_code)]
    fn give_back(&mut self, frames: &Frames, frame: u32) {
        // SAFETY: this frame and all others that are free are touched by no one: they become
        // someone's only through this ledger, which is borrowed exclusively. No device reads them,
        // since nothing is on loan.
        unsafe { frames.slab.give_back(frame, |other| frames.word(other).is_free()) };
    }

    /// From now on no page is given back.
    pub fn lend(&mut self) {
        self.loans += 1;
    }

    /// A loan ends. After the last one, pages go that free frames have kept or a device has touched.
    pub fn end_loan(&mut self, frames: &Frames) {
        self.loans -= 1;
        if self.loans == 0 {
            for i in 0..self.cold.len() {
                self.give_back(frames, self.cold[i]);
            }
        }
    }
}
