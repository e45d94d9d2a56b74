//! io_uring: many reads handed over with one system call.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::{Backend, Done, RawRead, Wake};
use crate::files::Files;

/// Marks the watch over the waker among the completions.
const WATCH: u64 = u64::MAX;
/// Marks the request that tries the ring out.
const TRIAL: u64 = u64::MAX - 1;

/// A ring that one thread submits to.
#[derive(Debug)]
pub(super) struct Uring {
    ring: Ring,
    files: Arc<Files>,
    /// The files are registered with the ring: direct, buffered.
    registered: bool,
    waker: Arc<Waker>,
    /// The ring watches the waker.
    watching: bool,
    in_flight: usize,
}

struct Ring(IoUring);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// An eventfd.
#[derive(Debug)]
struct Waker(File);

impl Uring {
    /// Makes a ring and tries it out: some sandboxes let it be made, but not be used.
    pub fn start(files: &Arc<Files>, depth: usize) -> io::Result<Self> {
        // One more for the watch.
        let entries = u32::try_from(depth + 1).unwrap_or(u32::MAX).next_power_of_two();
        let ring = build(entries)?;
        let fd = |file: Option<&File>| file.map_or(-1, AsRawFd::as_raw_fd);
        let fds = [fd(files.direct.as_ref()), fd(Some(&files.buffered))];
        let registered = ring.submitter().register_files(&fds).is_ok();
        let waker = Arc::new(Waker::new()?);
        let ring = Ring(ring);
        let files = files.clone();
        let mut this = Self { ring, files, registered, waker, watching: false, in_flight: 0 };
        this.try_out()?;
        Ok(this)
    }

    fn try_out(&mut self) -> io::Result<()> {
        self.queue(&opcode::Nop::new().build().user_data(TRIAL));
        loop {
            match self.ring.0.submit_and_wait(1) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(_) if self.ring.0.completion().next().is_some() => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    /// Adds an entry to the next submission.
    fn queue(&mut self, entry: &squeue::Entry) {
        // SAFETY: a read's memory stays valid by the promise of whoever pushed it; the watch and
        // the trial pass no memory.
        while unsafe { self.ring.0.submission().push(entry) }.is_err() {
            // Full, which a ring of this size is only if the system was slow to take entries.
            if self.ring.0.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// Submits and waits for one completion or until the time is over.
    fn enter(&self, timeout: Option<Duration>) {
        let submitter = self.ring.0.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(1),
            Some(t) if self.ring.0.params().is_feature_ext_arg() => {
                let time = Timespec::from(t);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            // Before Linux 5.11 the system call knows no time limit: looks again after a while.
            Some(t) => {
                let result = submitter.submit();
                std::thread::sleep(t.min(Duration::from_millis(1)));
                result
            }
        };
        if let Err(e) = result {
            let is_usual = matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME));
            if !is_usual {
                // Out of memory for requests, or of room for completions: both pass.
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Collects what has completed; whether there was anything.
    fn reap(&mut self, done: &mut Vec<Done>) -> bool {
        let mut any = false;
        for entry in self.ring.0.completion() {
            any = true;
            match entry.user_data() {
                WATCH => {
                    self.watching = false;
                    self.waker.clear();
                }
                TRIAL => {}
                id => {
                    self.in_flight -= 1;
                    let result = entry.result();
                    let result = usize::try_from(result)
                        .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
                    let id = u32::try_from(id).expect("an id that was pushed");
                    done.push(Done { id, result });
                }
            }
        }
        any
    }
}

impl Backend for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    unsafe fn push(&mut self, read: RawRead) {
        let parts = read.parts.cast();
        let direct = read.direct && self.files.direct.is_some();
        let entry = if self.registered {
            let file = Fixed(u32::from(!direct));
            opcode::Readv::new(file, parts, read.n_parts).offset(read.offset).build()
        } else {
            let file = Fd(self.files.get(direct).as_raw_fd());
            opcode::Readv::new(file, parts, read.n_parts).offset(read.offset).build()
        };
        self.queue(&entry.user_data(u64::from(read.id)));
        self.in_flight += 1;
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) {
        if !self.watching {
            let poll = opcode::PollAdd::new(Fd(self.waker.0.as_raw_fd()), libc::POLLIN as u32);
            self.queue(&poll.build().user_data(WATCH));
            self.watching = true;
        }
        self.enter(timeout);
        self.reap(done);
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The system writes to the memory of reads in flight even after the ring is closed: the
        // ring outlives them.
        let mut done = Vec::new();
        while self.in_flight > 0 {
            self.enter(None);
            self.reap(&mut done);
        }
    }
}

impl Waker {
    fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and no one else's.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read means that it is clear.
        let _ = (&self.0).read(&mut count);
    }
}

impl Wake for Waker {
    fn wake(&self) {
        // It fails only if 2⁶⁴ - 1 calls were not yet seen.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// A ring for one thread, which is spared interrupts where the kernel knows how (Linux 6.1).
fn build(entries: u32) -> io::Result<IoUring> {
    let modern = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(entries);
    match modern {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => IoUring::new(entries),
        other => other,
    }
}
