//! Threads that each wait for one read: the way that works everywhere.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use memmap2::Mmap;

use super::{Backend, Done, Part, RawRead, Wake};
use crate::IoError;
use crate::files::Files;

/// Enough for a loop around one system call.
const STACK_BYTES: usize = 256 << 10;

/// A pool of threads, one for each read in flight.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    is_mapped: bool,
}

#[derive(Debug)]
struct Shared {
    files: Arc<Files>,
    /// The file's bytes, if they are copied instead of read.
    map: Option<Mmap>,
    state: Mutex<State>,
    /// There is something to read, or it is over.
    work: Condvar,
    /// A read ended, or someone wakes the waiting thread.
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reads: VecDeque<RawRead>,
    done: Vec<Done>,
    woken: bool,
    stop: bool,
}

impl Pool {
    pub fn start(files: &Arc<Files>, depth: usize, mapped: bool) -> Result<Self, IoError> {
        let map = if mapped { Some(map(files)?) } else { None };
        let shared = Arc::new(Shared {
            files: files.clone(),
            map,
            state: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
        });
        // Dropped on an error, which ends the threads that did start.
        let mut pool = Self { shared, threads: Vec::new(), is_mapped: mapped };
        for _ in 0..depth {
            let shared = pool.shared.clone();
            let builder = std::thread::Builder::new().name("ls-io-read".into());
            let thread = builder
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work())
                .map_err(|source| IoError::Thread { source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl Backend for Pool {
    fn name(&self) -> &'static str {
        if self.is_mapped { "mmap" } else { "pread" }
    }

    unsafe fn push(&mut self, read: RawRead) {
        self.shared.lock().reads.push_back(read);
        self.shared.work.notify_one();
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) {
        let mut state = self.shared.lock();
        if !state.woken && state.done.is_empty() {
            let news = &self.shared.news;
            state = match timeout {
                None => news.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(t) => news.wait_timeout(state, t).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        state.woken = false;
        done.append(&mut state.done);
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.shared.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // The threads run nothing that panics.
            let _ = thread.join();
        }
    }
}

impl Wake for Shared {
    fn wake(&self) {
        self.lock().woken = true;
        self.news.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does: it reads until it is told to stop and nothing is left.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(read) = state.reads.pop_front() {
                drop(state);
                // SAFETY: pushed and not yet reported: the memory is this thread's alone.
                let result = unsafe { self.read(read) };
                state = self.lock();
                state.done.push(Done { id: read.id, result });
                self.news.notify_one();
            } else if state.stop {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Reads or copies once.
    ///
    /// # Safety
    ///
    /// The read's memory is valid and no one else touches it.
    unsafe fn read(&self, read: RawRead) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        let parts = unsafe { std::slice::from_raw_parts(read.parts, read.n_parts as usize) };
        match &self.map {
            // SAFETY: the caller's promise.
            Some(map) => unsafe { self.copy(map, read.offset, parts) },
            // SAFETY: the caller's promise.
            None => unsafe { read_parts(self.files.get(read.direct), read.offset, parts) },
        }
    }

    /// Copies from the mapping what the file still has.
    ///
    /// # Safety
    ///
    /// The parts' memory is valid and no one else touches it.
    unsafe fn copy(&self, map: &Mmap, offset: u64, parts: &[Part]) -> io::Result<usize> {
        // A page beyond the end of a file that was cut raises SIGBUS. The look at the length
        // leaves a short while in which a cut goes unseen, which is why this is not the default.
        let len = usize::try_from(self.files.current_len()?).unwrap_or(usize::MAX).min(map.len());
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(len);
        let mut left = map.get(offset..len).unwrap_or_default();
        let mut n_read = 0;
        for part in parts {
            let n = part.len.min(left.len());
            // SAFETY: `n` bytes are in bounds of both; the part is no part of the mapping.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), part.start, n) };
            left = left.get(n..).unwrap_or_default();
            n_read += n;
        }
        Ok(n_read)
    }
}

fn map(files: &Files) -> Result<Mmap, IoError> {
    // SAFETY: the mapping is read-only and its bytes are only ever copied as plain integers. That
    // no one writes to or cuts the file meanwhile is asked of the user.
    unsafe { Mmap::map(&files.buffered) }.map_err(|source| IoError::Io {
        action: "map",
        path: files.path.to_path_buf(),
        source,
    })
}

/// One system call.
///
/// # Safety
///
/// The parts' memory is valid and no one else touches it.
#[cfg(any(target_os = "linux", target_os = "android"))]
unsafe fn read_parts(file: &std::fs::File, offset: u64, parts: &[Part]) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    let n = libc::c_int::try_from(parts.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `Part` has the layout of `iovec`; the memory is as the caller promises.
    let n =
        unsafe { libc::preadv64(file.as_raw_fd(), parts.as_ptr().cast(), n, offset.cast_signed()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// One system call for each part, up to the first that comes up short.
///
/// # Safety
///
/// The parts' memory is valid and no one else touches it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
unsafe fn read_parts(file: &std::fs::File, offset: u64, parts: &[Part]) -> io::Result<usize> {
    #[cfg(unix)]
    use std::os::unix::fs::FileExt;
    #[cfg(windows)]
    use std::os::windows::fs::FileExt;
    let mut n_read = 0;
    for part in parts {
        // SAFETY: the caller's promise; a buffer that was handed over is initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(part.start, part.len) };
        let at = offset.saturating_add(n_read as u64);
        #[cfg(unix)]
        let result = file.read_at(bytes, at);
        #[cfg(windows)]
        let result = file.seek_read(bytes, at);
        match result {
            Ok(n) => n_read += n,
            Err(e) if n_read == 0 => return Err(e),
            Err(_) => break,
        }
        if n_read as u64 != at - offset + part.len as u64 {
            break;
        }
    }
    Ok(n_read)
}
