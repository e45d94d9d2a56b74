//! Weight bytes, wherever they live.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ls_io::AlignedBuf;
use ls_model::SharedBytes;

/// Bytes of a mapped file, or of memory that was read from one.
#[derive(Clone)]
pub(crate) enum Bytes {
    /// Kept mapped by this handle.
    Mapped(SharedBytes),
    /// The first so many bytes of owned memory.
    Owned(Arc<AlignedBuf>, usize),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Owned(bytes, len) => &bytes[..*len],
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(bytes) => bytes.fmt(f),
            Self::Owned(_, len) => write!(f, "Owned({len} bytes)"),
        }
    }
}
