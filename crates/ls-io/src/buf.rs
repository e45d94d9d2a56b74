//! Memory that reads go into.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;
use stable_deref_trait::StableDeref;

/// What offset, length and address of a read are multiples of, in bytes, so that it can bypass the
/// page cache.
pub const ALIGN: usize = 4096;

/// A buffer that a read in flight can own.
///
/// Everything that derefs to bytes at an address that moving it does not change: [`AlignedBuf`], a
/// frame of a cache, a boxed slice. Bytes that do not begin at a multiple of [`ALIGN`] are read
/// through the page cache.
pub trait ReadBuf: StableDeref + DerefMut<Target = [u8]> + Send + 'static {}

impl<T: StableDeref + DerefMut<Target = [u8]> + Send + 'static> ReadBuf for T {}

/// Owned memory that begins at a multiple of [`ALIGN`].
///
/// It comes from the system as zeros and takes no room before it is written.
pub struct AlignedBuf {
    map: MmapMut,
    len: usize,
}

impl AlignedBuf {
    /// Memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// If the system has none left.
    pub fn new(len: usize) -> io::Result<Self> {
        // A page is at least `ALIGN` bytes on every system that is built for.
        let map = MmapMut::map_anon(len.max(1))?;
        Ok(Self { map, len })
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.get(..self.len).unwrap_or_default()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.get_mut(..self.len).unwrap_or_default()
    }
}

// SAFETY: the bytes lie in a mapping of their own, which moves with no handle.
unsafe impl StableDeref for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// Whether a read of `len` bytes at `offset` into `address` may bypass the page cache.
pub(crate) fn is_aligned(offset: u64, address: *const u8, len: usize) -> bool {
    offset.is_multiple_of(ALIGN as u64)
        && len.is_multiple_of(ALIGN)
        && address.addr().is_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zero() {
        for len in [0, 1, 4096, 12345] {
            let mut buf = AlignedBuf::new(len).unwrap();
            assert_eq!(buf.len(), len);
            assert!(buf.as_ptr().addr().is_multiple_of(ALIGN));
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(7);
            assert!(buf.iter().all(|b| *b == 7));
        }
    }

    #[test]
    fn alignment_is_of_offset_length_and_address() {
        let at = |address| std::ptr::without_provenance::<u8>(address);
        assert!(is_aligned(4096, at(8192), 4096));
        assert!(!is_aligned(512, at(8192), 4096));
        assert!(!is_aligned(4096, at(8704), 4096));
        assert!(!is_aligned(4096, at(8192), 100));
    }
}
