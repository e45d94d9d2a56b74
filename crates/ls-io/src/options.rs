//! How a stream reads.

use crate::{Curve, FaultPlan};

/// Which of the system's ways to read is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// io_uring where it works, otherwise a pool of threads.
    #[default]
    Auto,
    /// io_uring (Linux).
    Uring,
    /// A pool of threads that each wait for one read.
    Pread,
    /// A pool of threads that copy from a mapping of the file: the way that others go, for
    /// comparison. A file that is cut while it is copied from ends the program (SIGBUS).
    Mmap,
}

/// Whether reads bypass the page cache (O_DIRECT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direct {
    /// Where the file system lets them.
    #[default]
    Try,
    /// Never: pages are read through the cache, and dropped from it behind the reads.
    Never,
}

/// How a [`Stream`](crate::Stream) reads. The default suits flash.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// The system's way to read.
    pub backend: BackendKind,
    /// Reads in flight at once, from 1 to 1024.
    pub depth: usize,
    /// Bytes that neighbouring requests are joined up to. A longer request is read alone.
    pub max_read_bytes: usize,
    /// Whether reads bypass the page cache.
    pub direct: Direct,
    /// The device's cost of a read, which says what gaps between requests to read through. Without
    /// it, only requests that touch are joined.
    pub curve: Option<Curve>,
    /// Faults to inject: for tests, and to see a slower device.
    pub fault: Option<FaultPlan>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            backend: BackendKind::Auto,
            depth: 16,
            max_read_bytes: 512 << 10,
            direct: Direct::Try,
            curve: None,
            fault: None,
        }
    }
}
