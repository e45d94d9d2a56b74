//! The system's ways to read, behind one trait.

#![allow(unsafe_code)]

mod fault;
mod pool;
#[cfg(target_os = "linux")]
mod uring;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use fault::FaultPlan;

use crate::files::Files;
use crate::{BackendKind, IoError, Notice, StreamOptions};

/// A stretch of memory that a read goes to, laid out as the system's `iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub start: *mut u8,
    pub len: usize,
}

#[cfg(unix)]
const _: () = {
    assert!(size_of::<Part>() == size_of::<libc::iovec>());
    assert!(align_of::<Part>() == align_of::<libc::iovec>());
    assert!(std::mem::offset_of!(Part, start) == std::mem::offset_of!(libc::iovec, iov_base));
    assert!(std::mem::offset_of!(Part, len) == std::mem::offset_of!(libc::iovec, iov_len));
};

/// One read for the system: bytes from `offset` on, scattered to parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRead {
    /// Comes back with the result.
    pub id: u32,
    pub direct: bool,
    pub offset: u64,
    /// Bytes of all parts.
    pub len: u64,
    pub parts: *const Part,
    pub n_parts: u32,
}

// SAFETY: whoever pushes a read promises that its memory is the backend's alone until the read is
// done, on whatever thread (see `Backend::push`).
unsafe impl Send for RawRead {}

/// How a read ended: bytes read, which may be fewer than asked for, or the system's error.
#[derive(Debug)]
pub(crate) struct Done {
    pub id: u32,
    pub result: io::Result<usize>,
}

/// One of the system's ways to read. It repeats nothing: a short or interrupted read is reported
/// as such.
///
/// Dropping it waits for what is in flight.
pub(crate) trait Backend {
    fn name(&self) -> &'static str;

    /// Takes a read. It may be held back until [`Backend::wait`].
    ///
    /// # Safety
    ///
    /// `parts` points to `n_parts` parts, each to memory that can be written. All of it stays valid
    /// and untouched by others until `wait` has reported the read's id, or the backend has been
    /// dropped.
    unsafe fn push(&mut self, read: RawRead);

    /// Waits until a read ends, the waker is called or `timeout` passes, whichever is first, and
    /// adds all reads that ended to `done`. It may also return for no reason.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>);

    fn waker(&self) -> Arc<dyn Wake>;
}

/// Ends a backend's [`wait`](Backend::wait), the present or else the next one.
pub(crate) trait Wake: fmt::Debug + Send + Sync {
    fn wake(&self);
}

/// Starts the backend that `options` ask for, on the thread that will use it.
pub(crate) fn start(
    files: &Arc<Files>,
    options: &StreamOptions,
    depth: usize,
    notices: &mut Vec<Notice>,
) -> Result<Box<dyn Backend>, IoError> {
    let backend: Box<dyn Backend> = match options.backend {
        BackendKind::Pread => Box::new(pool::Pool::start(files, depth, false)?),
        BackendKind::Mmap => Box::new(pool::Pool::start(files, depth, true)?),
        BackendKind::Uring => start_uring(files, options, depth)
            .map_err(|source| IoError::BackendUnavailable { backend: "io_uring", source })?,
        BackendKind::Auto => match start_uring(files, options, depth) {
            Ok(uring) => uring,
            Err(e) => {
                // On systems that never had it, its absence is no news.
                if cfg!(target_os = "linux") {
                    notices.push(Notice::UringUnavailable { reason: e.to_string() });
                }
                Box::new(pool::Pool::start(files, depth, false)?)
            }
        },
    };
    Ok(match &options.fault {
        Some(plan) => Box::new(fault::Faulty::new(backend, plan.clone())),
        None => backend,
    })
}

#[cfg(target_os = "linux")]
fn start_uring(
    files: &Arc<Files>,
    options: &StreamOptions,
    depth: usize,
) -> io::Result<Box<dyn Backend>> {
    if let Some(kind) = options.fault.as_ref().and_then(|fault| fault.refuse_uring) {
        return Err(kind.into());
    }
    // A program that was built for plain Linux may still be run on a phone.
    if std::path::Path::new("/system/build.prop").exists() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(Box::new(uring::Uring::start(files, depth)?))
}

/// Android's kernels forbid it to programs, some by ending them: it is not even tried.
#[cfg(not(target_os = "linux"))]
fn start_uring(
    _files: &Arc<Files>,
    _options: &StreamOptions,
    _depth: usize,
) -> io::Result<Box<dyn Backend>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Tells the system how a stretch of a file is used; what it makes of it is its own affair.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn advise(file: &std::fs::File, offset: u64, len: u64, advice: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `file` is borrowed; no memory is passed.
    let _ = unsafe {
        libc::posix_fadvise64(file.as_raw_fd(), offset.cast_signed(), len.cast_signed(), advice)
    };
}
