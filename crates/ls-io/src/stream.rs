//! The stream of reads.

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::{self, Wake};
use crate::files::Files;
use crate::plan::Limits;
use crate::queue::Pending;
use crate::shared::Shared;
use crate::worker::Worker;
use crate::{Completion, IoError, Notice, Priority, ReadBuf, Request, Stats, StreamOptions};

/// Stretches of memory in one read. The system takes 1024; more than that is rarely one extent.
const MAX_PARTS: usize = 512;
const MAX_DEPTH: usize = 1024;

/// How long a stream that is dropped waits for reads in flight.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// Reads extents of one file into buffers of the caller, the most urgent first.
///
/// All methods may be called from any thread. None waits for the device but
/// [`wait_idle`](Self::wait_idle), and dropping, which takes back what is pending (buffers are
/// dropped, completions not called) and waits for what is in flight (handed to completions). A read
/// that hangs for more than ten seconds then is left to the i/o thread, which owns its buffers.
#[derive(Debug)]
pub struct Stream<B: ReadBuf> {
    shared: Arc<Shared<B>>,
    waker: Arc<dyn Wake>,
    backend: &'static str,
    thread: Option<JoinHandle<()>>,
}

/// What the i/o thread says once it runs.
struct Started<B> {
    shared: Arc<Shared<B>>,
    waker: Arc<dyn Wake>,
    name: &'static str,
}

impl<B: ReadBuf> Stream<B> {
    /// Opens `path` for reading.
    ///
    /// `on_complete` is called on the i/o thread for each request that was read or failed; while
    /// it runs nothing else is read, so it must be short and never wait. It may submit to another
    /// stream, or to this one through a handle that does not keep the stream alive.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the backend does not work here and is not
    /// [`BackendKind::Auto`](crate::BackendKind::Auto).
    pub fn open(
        path: &Path,
        options: &StreamOptions,
        on_complete: impl Fn(Completion<B>) + Send + Sync + 'static,
    ) -> Result<Self, IoError> {
        let mut notices = Vec::new();
        let files = Arc::new(Files::open(path, options, &mut notices)?);
        let (sender, started) = sync_channel(1);
        let options = options.clone();
        let thread = std::thread::Builder::new()
            .name("ls-io".into())
            .spawn(move || run(files, &options, notices, on_complete, sender))
            .map_err(|source| IoError::Thread { source })?;
        let started = started.recv().unwrap_or_else(|_| {
            Err(IoError::Thread { source: std::io::ErrorKind::BrokenPipe.into() })
        });
        let Started { shared, waker, name } = started?;
        Ok(Self { shared, waker, backend: name, thread: Some(thread) })
    }

    /// Accepts requests, all of them at once: the best of the batch is read first, whatever its
    /// place in it.
    pub fn submit(&self, requests: impl IntoIterator<Item = Request<B>>) {
        // Run before the lock is taken: it is the caller's code.
        let requests: Vec<_> = requests.into_iter().collect();
        let direct = self.shared.is_direct();
        let mut state = self.shared.lock();
        state.stats.requests += requests.len() as u64;
        state.outstanding += requests.len();
        let any = !requests.is_empty();
        for request in requests {
            // The system takes offsets up to 2⁶³ - 1; beyond, it could not tell a bad offset from a
            // file system that refuses direct reads.
            let end = request.offset.checked_add(request.buf.len() as u64);
            let is_far = end.is_none_or(|end| end > i64::MAX.cast_unsigned());
            if request.buf.is_empty() || is_far {
                state.trivial.push(request);
            } else {
                state.queue.insert(Pending::new(request, direct));
            }
        }
        let wake = any && std::mem::take(&mut state.in_wait);
        drop(state);
        if wake {
            self.waker.wake();
        }
    }

    /// Gives the pending request called `tag` another priority. False if there is none: it is
    /// unknown, or was already handed to the system.
    pub fn reprioritise(&self, tag: u64, priority: Priority) -> bool {
        self.shared.lock().queue.reprioritise(tag, priority)
    }

    /// Takes the pending request called `tag` back: its buffer is returned and its completion is
    /// not called. `None` if it is unknown, or was already handed to the system.
    pub fn cancel(&self, tag: u64) -> Option<B> {
        let mut state = self.shared.lock();
        let request = state.queue.cancel(tag)?;
        state.stats.cancelled += 1;
        state.outstanding -= 1;
        if state.outstanding == 0 {
            self.shared.idle.notify_all();
        }
        Some(request.buf)
    }

    /// Takes all pending requests back, with their tags.
    pub fn cancel_all(&self) -> Vec<(u64, B)> {
        let mut state = self.shared.lock();
        let requests = state.queue.drain();
        state.stats.cancelled += requests.len() as u64;
        state.outstanding -= requests.len();
        if state.outstanding == 0 {
            self.shared.idle.notify_all();
        }
        drop(state);
        requests.into_iter().map(|request| (request.tag, request.buf)).collect()
    }

    /// Waits until every request was handed back or taken back, at most for `timeout`; whether
    /// that came about. Not to be called by `on_complete`, which it would wait for.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.shared.lock();
        while state.outstanding > 0 {
            let left = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.idle.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What was done since the stream was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.shared.lock();
        Stats { pending: state.queue.len() + state.trivial.len(), ..state.stats }
    }

    /// Ways that did not work and what is done instead, each said once.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.notices()
    }

    /// The name of the system's way to read that is used.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.backend
    }

    /// Whether reads bypass the page cache. It may become false with the first read.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.shared.is_direct()
    }

    /// Length of the file in bytes when it was opened.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.shared.files.len
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shared.path()
    }
}

impl<B: ReadBuf> Drop for Stream<B> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            // Dropped by its own completion: the thread ends by itself after it.
            && thread.thread().id() != std::thread::current().id()
        {
            let end = Instant::now() + DROP_DEADLINE;
            while !thread.is_finished() && Instant::now() < end {
                std::thread::park_timeout(Duration::from_micros(200));
            }
            // A read that hangs is left to the thread, which owns it, its buffer and its way to the
            // system, and ends when the read does.
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// The life of the i/o thread.
fn run<B: ReadBuf>(
    files: Arc<Files>,
    options: &StreamOptions,
    mut notices: Vec<Notice>,
    on_complete: impl Fn(Completion<B>),
    sender: SyncSender<Result<Started<B>, IoError>>,
) {
    match prepare(files, options, &mut notices, on_complete) {
        Ok((worker, started)) => {
            if sender.send(Ok(started)).is_ok() {
                worker.run();
            }
        }
        // Whoever opens the stream waits for it.
        Err(e) => drop(sender.send(Err(e))),
    }
}

/// Makes what the i/o thread works with, and what the others need of it.
fn prepare<B: ReadBuf, F: Fn(Completion<B>)>(
    files: Arc<Files>,
    options: &StreamOptions,
    notices: &mut Vec<Notice>,
    on_complete: F,
) -> Result<(Worker<B, F>, Started<B>), IoError> {
    let depth = options.depth.clamp(1, MAX_DEPTH);
    let backend = backend::start(&files, options, depth, notices)?;
    let is_mapped = backend.name() == "mmap";
    let direct = files.direct.is_some();
    let shared = Arc::new(Shared::new(files, std::mem::take(notices), direct, !is_mapped));
    let limits = Limits {
        max_bytes: options.max_read_bytes as u64,
        gap_bytes: options.curve.map_or(0, |curve| curve.gap_bytes()),
        max_parts: MAX_PARTS,
    };
    let started = Started { shared: shared.clone(), waker: backend.waker(), name: backend.name() };
    let worker = Worker::new(backend, shared, on_complete, limits, depth)
        .map_err(|source| IoError::Memory { source })?;
    Ok((worker, started))
}
