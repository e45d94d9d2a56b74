//! Little-endian bytes with a magic, a version and a checksum.

use xxhash_rust::xxh3::xxh3_64;

use crate::SchedError;

/// Bytes of magic, version and checksum.
const FRAME: usize = 16;

/// Writes the parts of a file one after the other.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub fn new(magic: [u8; 4], version: u32) -> Self {
        let mut bytes = magic.to_vec();
        bytes.extend(version.to_le_bytes());
        Self(bytes)
    }

    pub fn u32(&mut self, x: u32) {
        self.0.extend(x.to_le_bytes());
    }

    pub fn f32(&mut self, x: f32) {
        self.0.extend(x.to_le_bytes());
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn finish(mut self) -> Vec<u8> {
        let sum = xxh3_64(&self.0);
        self.0.extend(sum.to_le_bytes());
        self.0
    }
}

/// Reads the parts of a file one after the other.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// After magic and version; the checksum is right.
    pub fn new(
        bytes: &'a [u8],
        what: &'static str,
        magic: [u8; 4],
        version: u32,
    ) -> Result<Self, SchedError> {
        if bytes.len() < FRAME {
            let (expected, found) = (FRAME as u64, bytes.len() as u64);
            return Err(SchedError::Truncated { what, expected, found });
        }
        let (content, sum) = bytes.split_at(bytes.len() - 8);
        let found = array(&content[..4]);
        if found != magic {
            return Err(SchedError::Magic { what, found });
        }
        let found = u32::from_le_bytes(array(&content[4..8]));
        if found != version {
            return Err(SchedError::Version { found, expected: version });
        }
        let (expected, found) = (u64::from_le_bytes(array(sum)), xxh3_64(content));
        if found != expected {
            return Err(SchedError::Checksum { expected, found });
        }
        Ok(Self(&content[8..]))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, SchedError> {
        self.raw(what, 4).map(|x| u32::from_le_bytes(array(x)))
    }

    pub fn f32(&mut self, what: &'static str) -> Result<f32, SchedError> {
        self.raw(what, 4).map(|x| f32::from_le_bytes(array(x)))
    }

    /// `n` bytes, where they lie.
    pub fn raw(&mut self, what: &'static str, n: u64) -> Result<&'a [u8], SchedError> {
        let found = self.0.len() as u64;
        if n > found {
            return Err(SchedError::Truncated { what, expected: n, found });
        }
        // No more than what is there, so the cast loses nothing.
        let (part, rest) = self.0.split_at(n as usize);
        self.0 = rest;
        Ok(part)
    }

    pub fn finish(self) -> Result<(), SchedError> {
        match self.0.len() {
            0 => Ok(()),
            n => Err(SchedError::Trailing { n }),
        }
    }
}

/// The first `N` bytes; zeros where there are fewer.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    out
}
