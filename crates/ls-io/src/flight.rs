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
    /// What gaps are read to, as long as the longest one. Never looked at.
    gap: Option<AlignedBuf>,
}

impl<B: ReadBuf> Flight<B> {
    /// A flight that can read through gaps of `max_gap` bytes.
    ///
    /// # Errors
    ///
    /// If there is no memory for them.
    pub fn new(max_gap: usize) -> io::Result<Self> {
        let gap = if max_gap > 0 { Some(AlignedBuf::new(max_gap)?) } else { None };
        Ok(Self {
            members: Vec::new(),
            extent: Extent { offset: 0, len: 0 },
            direct: false,
            got: 0,
            from: 0,
            stalls: 0,
            began: Instant::now(),
            parts: Vec::new(),
            gap,
        })
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
    pub fn lay_out(&mut self) {
        let align = if self.direct { ALIGN as u64 } else { 1 };
        self.from = self.got - self.got % align;
        let start = self.extent.offset.saturating_add(self.from);
        self.parts.clear();
        let mut at = self.extent.offset;
        // All gaps are read to the same place.
        let gap_start = self.gap.as_deref_mut().map(<[u8]>::as_mut_ptr);
        for member in &mut self.members {
            let Extent { offset, len } = member.extent();
            if let Some(gap_start) = gap_start.filter(|_| offset > at.max(start)) {
                let len = usize::try_from(offset - at.max(start)).unwrap_or(usize::MAX);
                self.parts.push(Part { start: gap_start, len });
            }
            let skip = usize::try_from(start.saturating_sub(offset)).unwrap_or(usize::MAX);
            let bytes: &mut [u8] = &mut member.request.buf;
            if let Some(bytes) = bytes.get_mut(skip..).filter(|bytes| !bytes.is_empty()) {
                self.parts.push(Part { start: bytes.as_mut_ptr(), len: bytes.len() });
            }
            at = offset.saturating_add(len);
        }
    }

    /// Whether all bytes have come.
    pub fn is_complete(&self) -> bool {
        self.got >= self.extent.len
    }
}
