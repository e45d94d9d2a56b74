//! A persistent pool for the hundreds of tiny parallel regions that one token has.
//!
//! The calling thread works too. Workers spin for a short while after a region, since the next
//! one usually follows within microseconds, and sleep when none comes. Tasks are claimed one by
//! one from a counter, so uneven tasks balance themselves.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins before a worker sleeps: about 100 µs, several times the gap between two regions.
const SPINS: u32 = 20_000;
/// Spins before a waiting thread offers its core to others, which may be what it waits for.
const SPINS_BEFORE_YIELD: u32 = 5_000;

type Task<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts regions; a worker that sees it change has a region to join.
    epoch: AtomicU32,
    /// The task of the current region. Written by the caller while no worker is in a region.
    task: UnsafeCell<Option<Task<'static>>>,
    n_tasks: AtomicUsize,
    next: AtomicUsize,
    /// Workers that have not left the current region.
    active: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

// SAFETY: `task` is written only by `Pool::run` (`&mut`-like through its lock) while `active` is
// zero, and read by workers only between the epoch's release store and their decrement of
// `active`; all other fields are Sync by themselves.
unsafe impl Sync for Shared {}

/// Threads that run the tasks of parallel regions.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One region at a time.
    region: Mutex<()>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's counted in.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicU32::new(0),
            task: UnsafeCell::new(None),
            n_tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, workers: Vec::new(), region: Mutex::new(()) };
        for i in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("ls-cpu-{i}"))
                .spawn(move || work(&shared))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that take part in a region.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for each `i` in `0..n_tasks`, on all threads, and returns when every
    /// call has. A region must not start another one on the same pool.
    ///
    /// # Panics
    ///
    /// With the panic of a task, once the region has ended.
    pub fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || n_tasks <= 1 {
            (0..n_tasks).for_each(task);
            return;
        }
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the reference between the epoch's
        // store and their decrement of `active`, and this function does not return (or unwind)
        // before `active` is zero, so the reference outlives every use.
        let erased = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: `active` is zero here (the last region waited for that), so no worker reads.
        unsafe { *shared.task.get() = Some(erased) };
        shared.n_tasks.store(n_tasks, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        shared.active.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        self.workers.iter().for_each(|w| w.thread().unpark());
        let own = catch_unwind(AssertUnwindSafe(|| claim(shared, task)));
        let mut spins = 0;
        while shared.active.load(Ordering::Acquire) != 0 {
            pause(&mut spins);
        }
        drop(region);
        let worker = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(worker) {
            resume_unwind(panic);
        }
    }

    /// Splits `out` into chunks of `chunk` elements (the last may be shorter) and calls
    /// `task(chunk index, chunk)` for each, in parallel.
    pub fn for_each_chunk<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        task: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let out = Split::new(out);
        let n = out.len().div_ceil(chunk);
        self.run(n, &|i| {
            let start = i * chunk;
            let len = chunk.min(out.len() - start);
            // SAFETY: the region calls each index once, and chunks of different indices do not
            // overlap.
            task(i, unsafe { out.slice(start, len) });
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its tasks' panics, so there is none to report here.
            let _ = worker.join();
        }
    }
}

fn claim(shared: &Shared, task: Task<'_>) {
    let n = shared.n_tasks.load(Ordering::Relaxed);
    loop {
        let i = shared.next.fetch_add(1, Ordering::Relaxed);
        if i >= n {
            return;
        }
        task(i);
    }
}

fn work(shared: &Shared) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        loop {
            let epoch = shared.epoch.load(Ordering::Acquire);
            if epoch != seen {
                seen = epoch;
                break;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                // An `unpark` between the load and here makes this return at once.
                std::thread::park();
            }
        }
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the acquire load of the epoch makes the caller's write visible, and the caller
        // does not write again before `active` is decremented below.
        let task = unsafe { *shared.task.get() }.expect("a region has a task");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| claim(shared, task))) {
            // The rest of the region is pointless: let no one claim more of it.
            shared.next.store(usize::MAX / 2, Ordering::Relaxed);
            *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        shared.active.fetch_sub(1, Ordering::Release);
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A slice that the tasks of a region write disjoint parts of.
pub(crate) struct Split<'a, T> {
    start: *mut T,
    len: usize,
    _slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts are handed to several threads, each part to one.
unsafe impl<T: Send> Sync for Split<'_, T> {}

impl<'a, T> Split<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _slice: std::marker::PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The part `[start, start + len)`.
    ///
    /// # Safety
    ///
    /// No other part that overlaps it may be alive.
    ///
    /// # Panics
    ///
    /// If it is out of bounds.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise
    pub unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part within the slice");
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise, and alive for
        // as long as the borrow in `_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_runs_once_in_every_region() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads).unwrap();
            for n in [0, 1, 2, 7, 100] {
                let counts: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..200 {
                    pool.run(n, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 200));
            }
        }
    }

    #[test]
    fn chunks_cover_the_slice() {
        let pool = Pool::new(2).unwrap();
        let mut out = vec![0usize; 1003];
        pool.for_each_chunk(&mut out, 10, &|i, chunk| chunk.fill(i + 1));
        assert!(out.iter().enumerate().all(|(k, v)| *v == k / 10 + 1));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for victim in [0, 63] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|i| assert_ne!(i, victim, "victim"));
            }));
            assert!(caught.is_err());
        }
        let count = AtomicUsize::new(0);
        pool.run(64, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 64);
    }

    #[test]
    fn a_sleeping_worker_wakes_up() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let count = AtomicUsize::new(0);
            pool.run(10, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 10);
        }
    }
}
