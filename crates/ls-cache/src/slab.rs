//! The memory of all frames.
//!
//! Address space for the whole slab is reserved at once; the system gives pages when they are
//! first touched. Who may touch which frame is decided elsewhere (`frames.rs`): this file only
//! knows where it lies.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;

use memmap2::{MmapOptions, MmapRaw};

/// Bytes of a huge page: a disk that is handed few large pages reads up to twice as fast as with
/// many small ones.
const HUGE: usize = 2 << 20;

/// Frames of equal size, one after the other.
#[derive(Debug)]
pub(crate) struct Slab {
    map: MmapRaw,
    /// Where frames begin in the map, and how many bytes they have.
    skip: usize,
    len: usize,
    frame_bytes: usize,
    page_bytes: usize,
    /// Tells the model checker who touches which frame when.
    #[cfg(loom)]
    witness: Vec<loom::cell::UnsafeCell<()>>,
}

#[cfg(loom)]
// SAFETY: the witnesses hold nothing, and the checker itself looks for races on them.
unsafe impl Sync for Slab {}
#[cfg(loom)]
// SAFETY: as above.
unsafe impl Send for Slab {}

impl Slab {
    /// Reserves address space; `bytes` is not zero and a multiple of `frame_bytes`.
    pub fn new(bytes: usize, frame_bytes: usize) -> io::Result<Self> {
        // Without a promise of swap: what counts is what is touched, and that has a budget.
        let slack = if bytes >= HUGE { HUGE } else { 0 };
        let page_bytes = page_bytes();
        // Whole pages, which is what a device takes.
        let whole = bytes.checked_next_multiple_of(page_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let len = whole.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        // Huge pages begin at a multiple of their size, the mapping perhaps not.
        let skip = map.as_ptr().addr().wrapping_neg() % HUGE * usize::from(slack > 0);
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // The rest, which fills no huge page, must not get one: it would be memory that no
            // budget counts. Small pages do too.
            map.advise_range(memmap2::Advice::HugePage, skip, bytes - bytes % HUGE).ok();
        }
        Ok(Self {
            map: map.into(),
            skip,
            len: bytes,
            frame_bytes,
            page_bytes,
            #[cfg(loom)]
            witness: (0..bytes / frame_bytes).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        })
    }

    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// The memory of all frames, to the end of its last page.
    pub fn cells(&self) -> &[UnsafeCell<u8>] {
        let start = self.map.as_mut_ptr().wrapping_add(self.skip);
        let len = self.len.next_multiple_of(self.page_bytes);
        // SAFETY: within the map, which has whole pages from `skip` on and lives as long as `self`.
        // Bytes in cells may be written by others meanwhile; reading them takes a promise that
        // nobody does.
        unsafe { std::slice::from_raw_parts(start.cast(), len) }
    }

    fn start_of(&self, frame: u32) -> *mut u8 {
        let start = frame as usize * self.frame_bytes;
        assert!(start < self.len, "a frame of this slab");
        self.map.as_mut_ptr().wrapping_add(self.skip + start)
    }

    /// The frame's bytes.
    ///
    /// # Safety
    ///
    /// The frame is pinned, or owned by a fill that is borrowed, for as long as the slice lives,
    /// and its last writer happened before.
    pub unsafe fn bytes(&self, frame: u32) -> &[u8] {
        #[cfg(loom)]
        self.witness[frame as usize].with(|_| ());
        // SAFETY: within the map, which is zeroed or written memory that lives as long as `self`.
        // By the caller's promise no one writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.start_of(frame), self.frame_bytes) }
    }

    /// The frame's bytes, to be written.
    ///
    /// # Safety
    ///
    /// The caller is the only one who touches the frame for as long as the slice lives, and all
    /// earlier touches happened before.
    #[allow(clippy::mut_from_ref)] // exclusive by the caller's promise
    pub unsafe fn bytes_mut(&self, frame: u32) -> &mut [u8] {
        #[cfg(loom)]
        self.witness[frame as usize].with_mut(|_| ());
        // SAFETY: as in `bytes`; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(frame), self.frame_bytes) }
    }

    /// Gives the pages of a frame back to the system, those included that it shares with frames
    /// for which `is_free` holds (where pages are larger than frames). What cannot be given back
    /// stays.
    ///
    /// # Safety
    ///
    /// No one touches the frame, nor any frame for which `is_free` holds, until this returns.
    pub unsafe fn give_back(&self, frame: u32, is_free: impl Fn(u32) -> bool) {
        let range = self.pages_of(frame, is_free);
        // Elsewhere there is no call that takes pages back at once; the frame is used again first.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if !range.is_empty() {
            // SAFETY: private anonymous pages of this map, which read as zeros from now on; by the
            // caller's promise no reference to them exists.
            let given = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                self.map.unchecked_advise_range(advice, self.skip + range.start, range.len())
            };
            // Locked pages are refused: they stay, and nothing else changes.
            given.ok();
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = range;
    }

    /// Keeps the system from joining pages to huge ones behind our back: with them, pages that
    /// were given back would return.
    pub fn refuse_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        // Systems without huge pages refuse, and have nothing to be kept from.
        self.map.advise(memmap2::Advice::NoHugePage).ok();
    }

    /// Whole pages of the frame, as a range of bytes of the map.
    fn pages_of(&self, frame: u32, is_free: impl Fn(u32) -> bool) -> Range<usize> {
        let (size, page) = (self.frame_bytes, self.page_bytes);
        let (start, end) = (frame as usize * size, (frame as usize + 1) * size);
        let outer = start - start % page..end.next_multiple_of(page).min(self.len);
        let all_free = |bytes: Range<usize>| {
            (bytes.start / size..bytes.end.div_ceil(size)).all(|f| is_free(f as u32))
        };
        let from = if all_free(outer.start..start) { outer.start } else { outer.start + page };
        let to = if all_free(end..outer.end) { outer.end } else { end - end % page };
        from..to.max(from)
    }
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(1 << 16)
}

#[cfg(not(unix))]
fn page_bytes() -> usize {
    1 << 16
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn slab(frame_bytes: usize, n_frames: usize, page_bytes: usize) -> Slab {
        Slab { page_bytes, ..Slab::new(frame_bytes * n_frames, frame_bytes).unwrap() }
    }

    #[test]
    fn frames_start_zeroed_and_apart() {
        let slab = slab(4096, 3, 4096);
        // SAFETY: no one else touches the slab.
        unsafe {
            slab.bytes_mut(1).fill(7);
            assert!(slab.bytes(0).iter().chain(slab.bytes(2)).all(|b| *b == 0));
            assert!(slab.bytes(1).iter().all(|b| *b == 7));
        }
    }

    #[test]
    fn small_pages_are_given_back_frame_by_frame() {
        let slab = slab(8192, 3, 4096);
        assert_eq!(slab.pages_of(1, |_| false), 8192..16384);
        assert_eq!(slab.pages_of(1, |_| true), 8192..16384);
    }

    #[test]
    fn a_large_page_is_given_back_once_all_its_frames_are_free() {
        let slab = slab(4096, 6, 16384);
        assert!(slab.pages_of(1, |f| f != 3).is_empty());
        assert_eq!(slab.pages_of(1, |f| f < 4), 0..16384);
        // The last page is cut off by the end of the slab.
        assert_eq!(slab.pages_of(4, |f| f >= 4), 16384..24576);
    }

    #[test]
    fn a_frame_across_large_pages_gives_back_those_in_its_middle() {
        let slab = slab(36864, 3, 16384);
        assert_eq!(slab.pages_of(1, |_| false), 49152..65536);
        assert_eq!(slab.pages_of(1, |f| f == 0), 32768..65536);
        assert_eq!(slab.pages_of(1, |f| f == 2), 49152..81920);
    }

    #[test]
    fn cells_are_whole_pages_from_the_first_frame_on() {
        for n_frames in [1, 3, 600] {
            let slab = Slab::new(4096 * n_frames, 4096).unwrap();
            let cells = slab.cells();
            assert_eq!(cells.as_ptr().cast::<u8>(), slab.start_of(0).cast_const());
            assert!(cells.as_ptr().addr().is_multiple_of(slab.page_bytes));
            assert_eq!(cells.len(), (4096 * n_frames).next_multiple_of(slab.page_bytes));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_given_back_reads_as_zeros() {
        let page = page_bytes();
        let slab = slab(page, 2, page);
        // SAFETY: no one else touches the slab.
        unsafe {
            slab.bytes_mut(0).fill(1);
            slab.bytes_mut(1).fill(2);
            slab.give_back(0, |_| false);
            assert!(slab.bytes(0).iter().all(|b| *b == 0));
            assert!(slab.bytes(1).iter().all(|b| *b == 2));
        }
    }
}
