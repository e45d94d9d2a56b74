//! The slab's memory in the hands of a device.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::Deref;

use stable_deref_trait::StableDeref;

use crate::cache::Inner;
use crate::sync::Arc;

/// The memory of all frames of a cache, for a device that reads frames where they lie.
///
/// It derefs to that memory, from the first frame to the end of the last one's last page, beginning
/// at a page. Frame `i` begins at byte `i × frame_bytes`; [`Cache::pinned_frame`](crate::Cache::pinned_frame)
/// says which one a pin holds. What a device reads of a frame is its key's bytes while a pin of it
/// is held, and anything otherwise.
///
/// While a loan lives, the memory stays: the cache's, if its last handle goes, and each page of it,
/// if the budget is lowered. Drivers pin pages that they are given: such a page would neither become
/// free when it is given back to the system, nor be the one that the frame is written to afterwards.
/// So a lowered budget lowers what is occupied at once, and what the process holds when the last
/// loan ends. A driver may touch every page, so count the whole capacity as held.
pub struct Loan {
    cache: Arc<Inner>,
}

impl Loan {
    pub(crate) fn new(cache: Arc<Inner>) -> Self {
        cache.lock().lend();
        Self { cache }
    }

    /// Bytes of each frame, a multiple of 4096.
    pub fn frame_bytes(&self) -> usize {
        self.cache.frames.slab.frame_bytes()
    }

    /// Number of frames.
    pub fn n_frames(&self) -> u64 {
        self.cache.frames.n_frames()
    }
}

impl Deref for Loan {
    type Target = [UnsafeCell<u8>];

    fn deref(&self) -> &[UnsafeCell<u8>] {
        self.cache.frames.slab.cells()
    }
}

// SAFETY: the cells lie in the slab, which does not move and lives as long as any loan.
unsafe impl StableDeref for Loan {}

// SAFETY: a loan alone touches no byte: it hands out cells, whose contents take unsafe code to
// reach. What else it has is the cache, whose handles are shared between threads.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Drop for Loan {
    fn drop(&mut self) {
        self.cache.lock().end_loan(&self.cache.frames);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} frames of {} bytes)", self.n_frames(), self.frame_bytes())
    }
}
