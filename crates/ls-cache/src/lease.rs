//! Frames that are held.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;

use crate::Key;
use crate::cache::Inner;

/// Keeps one frame of a cache where it is, without borrowing from the cache.
///
/// Made by [`Cache::pin`](crate::Cache::pin) or [`Fill::publish`](crate::Fill::publish), read
/// through [`Cache::pinned_bytes`](crate::Cache::pinned_bytes), and given back by
/// [`Cache::unpin`](crate::Cache::unpin) or as a [`Lease`] by
/// [`Cache::lease`](crate::Cache::lease). A pin that is dropped is not given back: its frame stays
/// occupied for as long as the cache lives.
#[must_use = "a pin that is dropped keeps its frame for ever; give it back with Cache::unpin"]
#[derive(Debug)]
pub struct Pin {
    raw: RawPin,
}

/// What a pin says. Copies of it are not pins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawPin {
    pub key: Key,
    pub frame: u32,
    /// Which cache the frame is of.
    pub cache: u64,
}

impl Pin {
    /// The caller owns a pin of that frame and gives it up.
    pub(crate) fn new(raw: RawPin) -> Self {
        Self { raw }
    }

    /// The frame's number; `cache` is the one that made the pin.
    #[inline]
    pub(crate) fn frame_of(&self, cache: &Inner) -> u32 {
        assert_eq!(self.raw.cache, cache.id, "a pin goes back to the cache that made it");
        self.raw.frame
    }

    /// The frame's bytes; `cache` is the one that made the pin.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, cache: &'a Inner) -> &'a [u8] {
        let frame = self.frame_of(cache);
        // SAFETY: this owns a pin of that cache's frame and is borrowed for as long as the slice
        // lives, so the frame is not evicted; pinning, or being the filler, acquired what was
        // written.
        unsafe { cache.frames.slab.bytes(frame) }
    }

    /// Whose bytes the frame holds.
    pub fn key(&self) -> Key {
        self.raw.key
    }
}

/// A frame that is held until this is dropped; derefs to its bytes.
#[must_use = "a lease that is dropped holds nothing"]
pub struct Lease<'a> {
    cache: &'a Inner,
    /// Owns one pin of the frame.
    raw: RawPin,
}

impl<'a> Lease<'a> {
    /// `cache` is the one that made the pin.
    pub(crate) fn new(cache: &'a Inner, pin: Pin) -> Self {
        pin.frame_of(cache);
        Self { cache, raw: pin.raw }
    }

    /// Whose bytes the frame holds.
    pub fn key(&self) -> Key {
        self.raw.key
    }

    /// Goes on holding the frame without borrowing the cache.
    pub fn into_pin(self) -> Pin {
        let pin = Pin { raw: self.raw };
        std::mem::forget(self);
        pin
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the lease owns a pin of the frame, so it is not evicted while `self` is
        // borrowed; pinning acquired what the filler wrote.
        unsafe { self.cache.frames.slab.bytes(self.raw.frame) }
    }
}

impl Drop for Lease<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cache.unpin(self.raw.frame);
    }
}

impl fmt::Debug for Lease<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?})", self.raw.key)
    }
}
