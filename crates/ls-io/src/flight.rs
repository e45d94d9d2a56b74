//! A read in flight and the requests that it serves.

use std::io;
use std::time::Instant;

use crate::ReadBuf;
use crate::backend::Part;
use crate::buf::{ALIGN, AlignedBuf};
use crate::plan::Extent;
use crate::queue::Pending;

/// A read in flight. It owns the buffers that the system writes to and is not moved meanwhile.
#[derive(Debug)]
pub(crate) struct Flight<B> {
    /// In the order of the file, without overlaps.
    pub members: Vec<Pending<B>>,
    pub extent: Extent,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Bytes that have come, from the start of the extent.
    pub got: u64,
    /// Where the present attempt starts, in bytes from the start of the extent.
    pub from: u64,
    /// Attempts in a row that brought nothing.
    pub stalls: u32,
    pub began: Instant,
    /// Where the bytes of the present attempt go.
    pub parts: Vec<Part>,
    /// What gaps are read to. Never looked at.
    gap: Option<AlignedBuf>,
}

impl<B: ReadBuf> Flight<B> {
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            extent: Extent { offset: 0, len: 0 },
            direct: false,
            got: 0,
            from: 0,
            stalls: 0,
            began: Instant::now(),
            parts: Vec::new(),
            gap: None,
        }
    }

    /// Begins with the members that it was given.
    pub fn begin(&mut self, extent: Extent, direct: bool) {
        self.extent = extent;
        self.direct = direct;
        self.got = 0;
        self.stalls = 0;
        self.began = Instant::now();
    }

    /// Lays out the memory for all bytes that have not come yet.
    ///
    /// # Errors
    ///
    /// If there is no memory for the gaps.
    pub fn lay_out(&mut self, max_gap: usize) -> io::Result<()> {
        let align = if self.direct { ALIGN as u64 } else { 1 };
        self.from = self.got - self.got % align;
        let start = self.extent.offset.saturating_add(self.from);
        self.parts.clear();
        let mut at = self.extent.offset;
        let mut gap_start = None;
        for member in &mut self.members {
            let Extent { offset, len } = member.extent();
            let gap = offset - at;
            if gap > 0 && offset > start {
                let gap_start = match gap_start {
                    Some(start) => start,
                    // Borrowed once: all gaps are read to the same place.
                    None => *gap_start.insert(gap_bytes(&mut self.gap, max_gap)?.as_mut_ptr()),
                };
                let len = usize::try_from(offset - at.max(start)).unwrap_or(usize::MAX);
                debug_assert!(len <= max_gap, "a gap that was planned for");
                self.parts.push(Part { start: gap_start, len });
            }
            let skip = usize::try_from(start.saturating_sub(offset)).unwrap_or(usize::MAX);
            let bytes: &mut [u8] = &mut member.request.buf;
            if let Some(bytes) = bytes.get_mut(skip..).filter(|bytes| !bytes.is_empty()) {
                self.parts.push(Part { start: bytes.as_mut_ptr(), len: bytes.len() });
            }
            at = offset.saturating_add(len);
        }
        Ok(())
    }

    /// Whether all bytes have come.
    pub fn is_complete(&self) -> bool {
        self.got >= self.extent.len
    }
}

fn gap_bytes(gap: &mut Option<AlignedBuf>, len: usize) -> io::Result<&mut [u8]> {
    if gap.is_none() {
        *gap = Some(AlignedBuf::new(len)?);
    }
    Ok(gap.as_deref_mut().unwrap_or_default())
}
