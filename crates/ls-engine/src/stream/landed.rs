//! Where chosen reads land until the thread that controls them takes them.

use std::time::Instant;

use ls_cache::Fill;
use ls_io::Completion;
use parking_lot::{Condvar, Mutex};

/// Reads that are over.
pub(crate) type Landing = Vec<Completion<Fill>>;

/// A queue from the i/o thread to one that controls.
#[derive(Debug, Default)]
pub(crate) struct Landed {
    queue: Mutex<Landing>,
    some: Condvar,
}

impl Landed {
    /// Called by the i/o thread: short.
    pub fn put(&self, completion: Completion<Fill>) {
        let mut queue = self.queue.lock();
        queue.push(completion);
        if queue.len() == 1 {
            self.some.notify_one();
        }
    }

    /// All that is there.
    pub fn take(&self) -> Landing {
        std::mem::take(&mut *self.queue.lock())
    }

    /// Swaps all that is there with an empty vector, so that neither allocates.
    pub fn take_into(&self, empty: &mut Landing) {
        empty.clear();
        let mut queue = self.queue.lock();
        if !queue.is_empty() {
            std::mem::swap(&mut *queue, empty);
        }
    }

    /// Waits until there is something, at most until `deadline`.
    pub fn wait(&self, deadline: Instant) {
        let mut queue = self.queue.lock();
        while queue.is_empty() {
            if self.some.wait_until(&mut queue, deadline).timed_out() {
                return;
            }
        }
    }
}
