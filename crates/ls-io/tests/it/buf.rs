//! A buffer that is counted as long as it lives.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ls_io::{AlignedBuf, StableDeref};

/// Number of buffers alive.
#[derive(Clone, Default)]
pub struct Live(Arc<AtomicUsize>);

impl Live {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// A buffer of `len` bytes that begins `shift` bytes behind an aligned address.
    pub fn buf(&self, len: usize, shift: usize) -> Counted {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut bytes = AlignedBuf::new(len + shift).expect("memory");
        bytes.fill(0xEE);
        Counted { bytes, shift, live: self.clone() }
    }
}

pub struct Counted {
    bytes: AlignedBuf,
    shift: usize,
    live: Live,
}

impl Deref for Counted {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.shift..]
    }
}

impl DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.shift..]
    }
}

// SAFETY: the address is that of `bytes`, which is stable, and a shift that does not change.
unsafe impl StableDeref for Counted {}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.0.fetch_sub(1, Ordering::SeqCst);
    }
}
