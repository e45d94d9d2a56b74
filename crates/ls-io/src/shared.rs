//! What the callers of a stream and its i/o thread share.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::files::Files;
use crate::queue::Queue;
use crate::{Notice, ReadBuf, Request, Stats};

#[derive(Debug)]
pub(crate) struct Shared<B> {
    pub files: Arc<Files>,
    state: Mutex<State<B>>,
    /// Nothing is pending or in flight.
    pub idle: Condvar,
    notices: Mutex<Vec<Notice>>,
    /// Reads bypass the page cache; once false, it stays so.
    pub direct: AtomicBool,
    /// What was read through the page cache is dropped from it.
    pub forgets: bool,
}

#[derive(Debug)]
pub(crate) struct State<B> {
    pub queue: Queue<B>,
    /// Requests that need no read: of no bytes, or beyond where any file ends.
    pub trivial: Vec<Request<B>>,
    /// Requests accepted and neither handed back nor taken back.
    pub outstanding: usize,
    /// The i/o thread waits, or is about to, and could take more requests.
    pub in_wait: bool,
    pub stop: bool,
    pub stats: Stats,
}

impl<B: ReadBuf> Shared<B> {
    pub fn new(files: Arc<Files>, notices: Vec<Notice>, direct: bool, forgets: bool) -> Self {
        let stats = Stats { fallbacks: notices.len() as u64, ..Stats::default() };
        let state = State {
            queue: Queue::new(),
            trivial: Vec::new(),
            outstanding: 0,
            in_wait: false,
            stop: false,
            stats,
        };
        Self {
            files,
            state: Mutex::new(state),
            idle: Condvar::new(),
            notices: Mutex::new(notices),
            direct: AtomicBool::new(direct),
            forgets,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self) -> &Path {
        &self.files.path
    }

    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says something, unless its kind was said before; whether it was news.
    pub fn notice(&self, notice: Notice) -> bool {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = std::mem::discriminant(&notice);
        let is_news = notices.iter().all(|said| std::mem::discriminant(said) != kind);
        if is_news {
            notices.push(notice);
        }
        is_news
    }
}
