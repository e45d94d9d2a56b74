//! A position in bytes that are not trusted.

/// The bytes end before what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    /// Where the read began.
    pub offset: u64,
    /// Bytes that it wanted.
    pub needed: u64,
}

/// Reads little-endian values from `bytes`; never past their end.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], pos: usize) -> Self {
        Self { bytes, pos }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: u64) -> Result<&'a [u8], Short> {
        let short = Short { offset: self.pos as u64, needed: n };
        let n = usize::try_from(n).map_err(|_| short)?;
        let end = self.pos.checked_add(n).ok_or(short)?;
        let taken = self.bytes.get(self.pos..end).ok_or(short)?;
        self.pos = end;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let short = Short { offset: self.pos as u64, needed: N as u64 };
        self.take(N as u64)?.try_into().map_err(|_| short)
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length as u64, then its bytes.
    pub fn string(&mut self) -> Result<&'a [u8], Short> {
        let n = self.u64()?;
        self.take(n)
    }
}
