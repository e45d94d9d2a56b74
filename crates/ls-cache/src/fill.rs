//! Frames that are being filled.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};

use stable_deref_trait::StableDeref;

use crate::Key;
use crate::cache::Inner;
use crate::lease::{Pin, RawPin};
use crate::sync::Arc;
use crate::word::{DOOMED, FRESH, Word};

/// A frame that belongs to whoever fills it for its key.
///
/// It borrows from nothing, so that a read in flight can own it, and it may be moved meanwhile:
/// the bytes stay where they are. At first these are whatever the frame held before. Dropping it
/// gives the frame back empty.
#[must_use = "a fill that is dropped gives its frame back empty"]
pub struct Fill {
    cache: Arc<Inner>,
    key: Key,
    frame: u32,
    len: usize,
    /// Whether the filling of the frame is still to be ended.
    is_open: bool,
}

impl Fill {
    /// The caller owns the filling of `frame` and gives it up.
    pub(crate) fn new(cache: Arc<Inner>, key: Key, frame: u32) -> Self {
        let len = cache.frames.slab.frame_bytes();
        Self { cache, key, frame, len, is_open: true }
    }

    /// The same frame, of which only the first `len` bytes are filled, if it has more: where keys
    /// differ in size, a frame is as long as the longest.
    pub fn shortened(mut self, len: usize) -> Self {
        self.len = self.len.min(len);
        self
    }

    /// Whose bytes are to be written.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Makes the key resident, held by the pin that is returned. Takes no lock.
    pub fn publish(mut self) -> Pin {
        let raw = RawPin { key: self.key, frame: self.frame, cache: self.cache.id };
        self.cache.frames.publish(self.frame, Word::pinned);
        self.is_open = false;
        Pin::new(raw)
    }

    /// Makes the key resident, held by no one. Until it is held for the first time, or its group's
    /// visit has passed, it is the last that a policy would evict. Takes no lock, except while the
    /// budget is exceeded.
    pub fn publish_unpinned(mut self) {
        let (cache, frame) = (&self.cache, self.frame);
        let before = cache.frames.publish(frame, |word| word.with(FRESH));
        cache.frames.released.mark(frame);
        if before.has(DOOMED) {
            cache.let_go(frame);
        }
        self.is_open = false;
    }
}

impl Deref for Fill {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the fill owns the frame, and is borrowed for as long as the slice lives.
        let frame = unsafe { self.cache.frames.slab.bytes(self.frame) };
        &frame[..self.len]
    }
}

impl DerefMut for Fill {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the fill owns the frame, and is borrowed exclusively for as long as the slice
        // lives. Who held the frame before let it go before it was reserved.
        let frame = unsafe { self.cache.frames.slab.bytes_mut(self.frame) };
        &mut frame[..self.len]
    }
}

// SAFETY: the bytes lie in the slab, which does not move; both derefs lead to the same place.
unsafe impl StableDeref for Fill {}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.is_open {
            self.cache.lock().abandon(&self.cache.frames, self.frame);
        }
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fill({:?})", self.key)
    }
}
