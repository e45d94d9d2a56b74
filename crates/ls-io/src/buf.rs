//! Memory that reads go into.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use stable_deref_trait::StableDeref;

/// What offset, length and address of a read are multiples of, in bytes, so that it can bypass the
/// page cache.
pub const ALIGN: usize = 4096;

/// A huge page on most systems; where it is larger, nothing is lost but the speed.
const HUGE: usize = 2 << 20;

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
    /// Keeps the memory; others may own other parts of it.
    map: Arc<MmapMut>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, as a boxed slice does.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; shared, it is only read.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// If the system has none left.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::many(1, len)?.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// `n` buffers of `len` bytes each, side by side, on huge pages where the system has them: a
    /// device that is handed few large pages reads up to twice as fast as with many small ones.
    ///
    /// The memory is given back when the last of them is dropped.
    ///
    /// # Errors
    ///
    /// If the system has none left.
    pub fn many(n: usize, len: usize) -> io::Result<Vec<Self>> {
        let stride = len.checked_next_multiple_of(ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        let total = stride.checked_mul(n).ok_or(io::ErrorKind::OutOfMemory)?;
        // Huge pages begin at a multiple of their size, the mapping perhaps not.
        let slack = if total >= HUGE { HUGE } else { 0 };
        let whole = total.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        // A page is at least `ALIGN` bytes on every system that is built for.
        let mut map = MmapMut::map_anon(whole.max(1))?;
        let skip = map.as_ptr().addr().wrapping_neg() % HUGE * usize::from(slack > 0);
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // The rest, which fills no huge page, must not get one: it would be memory that no one
            // counts. Small pages do too.
            let _ = map.advise_range(memmap2::Advice::HugePage, skip, total - total % HUGE);
        }
        let start = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = Arc::new(map);
        let buf = |i| {
            // SAFETY: `skip` is at most `slack`, and `stride * n` is `total`: within the mapping.
            let start = unsafe { start.add(skip + stride * i) };
            Self { map: map.clone(), start, len }
        };
        Ok((0..n).map(buf).collect())
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` on are in the mapping that `map` keeps, were zeroed by
        // the system, and belong to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the mapping itself is never looked at again.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: the bytes lie in a mapping, which moves with no handle.
unsafe impl StableDeref for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes of {})", self.len, self.map.len())
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
    fn buffers_of_one_mapping_are_apart() {
        for (n, len) in [(0, 10), (3, 0), (5, 5000), (7, 1 << 20)] {
            let mut bufs = AlignedBuf::many(n, len).unwrap();
            assert_eq!(bufs.len(), n);
            bufs.iter_mut().zip(1..).for_each(|(buf, i)| buf.fill(i));
            // Those that are left keep the memory.
            let kept = bufs.split_off(n / 2);
            drop(bufs);
            for (buf, i) in kept.iter().zip(n as u8 / 2 + 1..) {
                assert!(buf.as_ptr().addr().is_multiple_of(ALIGN) && buf.len() == len);
                assert!(buf.iter().all(|b| *b == i));
            }
        }
        assert!(AlignedBuf::many(3, usize::MAX / 2).is_err());
        assert!(AlignedBuf::new(usize::MAX).is_err());
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
