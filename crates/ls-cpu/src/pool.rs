//! A persistent pool for the hundreds of tiny parallel regions that one token has.
//!
//! The calling thread works too. Tasks are claimed one by one, so uneven tasks balance
//! themselves, and a region ends when its tasks have: a worker that the system keeps from running
//! delays no one unless it holds a task. Workers spin for a short while after a region, since the
//! next one usually follows within microseconds, and sleep when none comes.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Looks for work before a worker sleeps: some tens of microseconds, longer than the serial work
/// between two regions and shorter than what a busy machine would hold against it.
const SPINS: u32 = 2_000;
/// Spins before the caller offers its core to others, one of which may hold the last task.
const SPINS_BEFORE_YIELD: u32 = 1_000;

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Low bits of [`Shared::open`]: tasks that no one has claimed. The rest counts regions.
const UNCLAIMED_BITS: u32 = 24;
const UNCLAIMED: u64 = (1 << UNCLAIMED_BITS) - 1;

struct Shared {
    /// The current region and how many of its tasks are unclaimed.
    ///
    /// A claim is a compare-exchange on both, so that none can succeed on a region that has
    /// ended. The region's number does not come round again while a thread hesitates between
    /// load and exchange: at a million regions a second that takes twelve days.
    open: AtomicU64,
    /// The task of the current region. Written by the caller while every task of the last region
    /// is done; read by those who have claimed one.
    task: UnsafeCell<Option<Task<'static>>>,
    n_tasks: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written only inside of the region lock while all claimed tasks are done, and
// read only by the holder of a claim; claims acquire what the caller released, and the caller
// acquires what the last task released. All other fields are Sync by themselves.
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
            open: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            n_tasks: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
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

    /// Calls `task(i)` once for each `i` in `0..n_tasks`, lower ones first, on all threads, and
    /// returns when every call has. A region must not start another one on the same pool.
    ///
    /// # Panics
    ///
    /// With the first panic of a task (once all tasks have ended, if there are workers). With 2²⁴
    /// tasks or more.
    pub fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        assert!(n_tasks as u64 <= UNCLAIMED, "{n_tasks} tasks in one region");
        if self.workers.is_empty() || n_tasks <= 1 {
            (0..n_tasks).for_each(task);
            return;
        }
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The reference is used by holders of a claim, and
        // this function does not return (or unwind) before every claimed task is done and no
        // further one can be claimed, so it outlives every use.
        let erased = unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: all tasks of the last region are done and none can be claimed: no one reads.
        unsafe { *shared.task.get() = Some(erased) };
        shared.n_tasks.store(n_tasks, Ordering::Relaxed);
        shared.done.store(0, Ordering::Relaxed);
        let last = shared.open.load(Ordering::Relaxed) >> UNCLAIMED_BITS;
        let open = last.wrapping_add(1) << UNCLAIMED_BITS | n_tasks as u64;
        shared.open.store(open, Ordering::Release);
        // The caller takes a task itself.
        self.workers.iter().take(n_tasks - 1).for_each(|w| w.thread().unpark());
        while shared.work_once() {}
        let mut spins = 0;
        while shared.done.load(Ordering::Acquire) != n_tasks {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(region);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `task` once on each thread.
    pub(crate) fn on_each_thread(&self, task: &(dyn Fn() + Sync)) {
        let (threads, arrived) = (self.threads(), AtomicUsize::new(0));
        self.run(threads, &|_| {
            task();
            // Whoever waits here claims no second task, so each thread gets one.
            arrived.fetch_add(1, Ordering::Relaxed);
            while arrived.load(Ordering::Relaxed) < threads {
                std::thread::yield_now();
            }
        });
    }

    /// Splits `out` into chunks of `chunk` elements (the last may be shorter) and calls
    /// `task(chunk index, chunk)` for each, in parallel.
    ///
    /// # Panics
    ///
    /// If `chunk` is zero; as [`Pool::run`].
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
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its tasks' panics, so there is none to report here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Claims a task and runs it; `false` when none is unclaimed.
    fn work_once(&self) -> bool {
        let mut open = self.open.load(Ordering::Acquire);
        loop {
            if open & UNCLAIMED == 0 {
                return false;
            }
            let claim = self.open.compare_exchange_weak(
                open,
                open - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match claim {
                Ok(_) => break,
                Err(now) => open = now,
            }
        }
        // From here to the increment of `done` the region cannot end.
        let i = self.n_tasks.load(Ordering::Relaxed) - (open & UNCLAIMED) as usize;
        // SAFETY: the claim acquired the caller's write, and the caller writes again only when
        // this task is done too.
        let task = unsafe { *self.task.get() }.expect("an open region has a task");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(i))) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *first {
                None => *first = Some(panic),
                // Dropping a payload runs code of its own, which might panic: here, with the
                // region open, that must not be.
                Some(_) => std::mem::forget(panic),
            }
        }
        self.done.fetch_add(1, Ordering::Release);
        true
    }
}

fn work(shared: &Shared) {
    let mut spins = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.work_once() {
            spins = 0;
        } else if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            // An `unpark` since the last look makes this return at once.
            std::thread::park();
            spins = 0;
        }
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
    fn every_thread_is_reached() {
        let pool = Pool::new(3).unwrap();
        let seen = Mutex::new(std::collections::HashSet::new());
        pool.on_each_thread(&|| assert!(seen.lock().unwrap().insert(std::thread::current().id())));
        assert_eq!(seen.into_inner().unwrap().len(), 3);
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
            // Each of the two tasks waits for the other: one thread alone would not end.
            let (arrived, began) = (AtomicUsize::new(0), std::time::Instant::now());
            pool.run(2, &|_| {
                arrived.fetch_add(1, Ordering::Relaxed);
                while arrived.load(Ordering::Relaxed) < 2 {
                    assert!(began.elapsed().as_secs() < 60, "the worker sleeps on");
                    std::thread::yield_now();
                }
            });
        }
    }
}
