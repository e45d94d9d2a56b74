//! What can go wrong with reads.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Errors of opening a stream and of measuring a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The backend that was asked for does not work here.
    #[error("{backend} does not work here: {source}")]
    BackendUnavailable {
        /// Its name.
        backend: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread that reads: {source}")]
    Thread {
        /// The system's answer.
        source: io::Error,
    },
    /// There is no memory for buffers.
    #[error("cannot allocate buffers for reads: {source}")]
    Memory {
        /// The system's answer.
        source: io::Error,
    },
    /// The file is too short to measure reads with.
    #[error("{} has {found} bytes; {needed} are needed to measure reads", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// A read failed while reads were measured.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The device answers, but its times fit no curve.
    #[error("reads of {}: the times measured fit no curve", path.display())]
    NoCurve {
        /// The file.
        path: PathBuf,
    },
}

/// A request that could not be read.
#[derive(Debug)]
pub struct ReadError {
    path: Arc<Path>,
    /// Where the request begins in the file.
    pub offset: u64,
    /// Bytes that were asked for.
    pub len: usize,
    /// Why it could not be read.
    pub cause: ReadCause,
}

/// Why a request could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadCause {
    /// The file ends before the request does.
    #[error("the file ends after {got} of these bytes")]
    EndOfFile {
        /// Bytes of the request that the file has.
        got: usize,
    },
    /// The file does not end there, yet reads return nothing, again and again.
    #[error("only {got} of these bytes came, and repeated reads bring no more")]
    NoProgress {
        /// Bytes of the request that were read.
        got: usize,
    },
    /// The operating system failed to read.
    #[error("{0}")]
    Os(io::Error),
}

impl ReadError {
    pub(crate) fn new(path: &Arc<Path>, offset: u64, len: usize, cause: ReadCause) -> Self {
        Self { path: path.clone(), offset, len, cause }
    }

    /// The file that was read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, len, cause } = self;
        write!(f, "cannot read {len} bytes at {offset} of {}: {cause}", path.display())
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            ReadCause::Os(source) => Some(source),
            _ => None,
        }
    }
}

/// A way that did not work, and what is done instead. Each is said once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The file system does not open the file for direct reads.
    DirectRefusedAtOpen {
        /// The system's answer.
        reason: String,
    },
    /// The file was opened for direct reads, but one of them was refused.
    DirectRefusedAtRead {
        /// Where that read began.
        offset: u64,
        /// The system's answer.
        reason: String,
    },
    /// io_uring does not work here; a pool of threads reads.
    UringUnavailable {
        /// The system's answer.
        reason: String,
    },
    /// A request whose offset, length or address does not allow a direct read; it and others like
    /// it go through the page cache.
    Misaligned {
        /// The first such request's offset.
        offset: u64,
        /// Its length.
        len: usize,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DirectRefusedAtOpen { reason } => {
                write!(
                    f,
                    "reads go through the page cache: O_DIRECT was refused at open ({reason})"
                )
            }
            Self::DirectRefusedAtRead { offset, reason } => {
                write!(
                    f,
                    "reads go through the page cache: a direct read at {offset} was refused ({reason})"
                )
            }
            Self::UringUnavailable { reason } => {
                write!(f, "io_uring does not work here ({reason}); a pool of threads reads")
            }
            Self::Misaligned { offset, len } => {
                write!(
                    f,
                    "a read of {len} bytes at {offset} is misaligned and goes through the page cache"
                )
            }
        }
    }
}
