//! A backend that fails, stalls and dawdles by plan.

#![allow(unsafe_code)]

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Backend, Done, Part, RawRead, Wake};
use crate::rng::Rng;

/// `EIO` on every system with numbered errors.
const EIO: i32 = 5;
/// What lies in memory where a short read left off: whoever takes it for data is found out.
const POISON: u8 = 0xA5;

/// Faults to inject, as the system would report them: what repeats and falls back is what runs
/// without them too.
///
/// Rates are shares of all reads, from 0 to 1. The seed fixes the order of faults; which read meets
/// which depends on timing too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Fixes what is random.
    pub seed: u64,
    /// Reads that return fewer bytes than asked for.
    pub short: f64,
    /// Reads that return none.
    pub empty: f64,
    /// Reads that fail with EIO.
    pub eio: f64,
    /// Reads that are interrupted (EINTR).
    pub eintr: f64,
    /// Reads that are refused for the moment (EAGAIN).
    pub eagain: f64,
    /// Reads that end later than they could, by up to `max_delay`, and so in another order.
    pub delay: f64,
    /// The longest such delay.
    pub max_delay: Duration,
    /// A part of the file in which every read fails with EIO.
    pub bad: Option<Range<u64>>,
    /// Opening for direct reads is refused (EINVAL).
    pub refuse_direct_open: bool,
    /// Direct reads are refused (EINVAL).
    pub refuse_direct_read: bool,
    /// What io_uring is refused with.
    pub refuse_uring: Option<ErrorKind>,
    /// Time that every read takes longer.
    pub latency: Duration,
    /// A cap on the bandwidth.
    pub bytes_per_second: Option<u64>,
}

impl FaultPlan {
    /// A device that is only slower.
    #[must_use]
    pub fn slow(bytes_per_second: u64, latency: Duration) -> Self {
        Self { bytes_per_second: Some(bytes_per_second), latency, ..Self::default() }
    }
}

/// Another backend with faults.
pub(super) struct Faulty {
    // Dropped first: what it waits for then is nobody's business any more.
    inner: Box<dyn Backend>,
    plan: FaultPlan,
    rng: Rng,
    /// Reads pushed and not reported yet, by id.
    reads: Vec<Option<Planned>>,
    /// Reads that ended and are held back until their time, which is in `reads`.
    held: Vec<Done>,
    inner_done: Vec<Done>,
    /// When the capped bandwidth is next free.
    free_at: Instant,
}

/// A read and its fate.
#[derive(Clone, Copy, Debug)]
struct Planned {
    read: RawRead,
    /// Most bytes that it returns.
    keep: usize,
    /// Not reported earlier.
    ready_at: Instant,
}

impl Faulty {
    pub fn new(inner: Box<dyn Backend>, plan: FaultPlan) -> Self {
        let rng = Rng::new(plan.seed);
        let (reads, held, inner_done) = (Vec::new(), Vec::new(), Vec::new());
        Self { inner, plan, rng, reads, held, inner_done, free_at: Instant::now() }
    }

    /// The error that this read meets, if any.
    fn error(&mut self, read: &RawRead) -> Option<io::Error> {
        let (plan, rng) = (&self.plan, &mut self.rng);
        let end = read.offset.saturating_add(read.len);
        if read.direct && plan.refuse_direct_read {
            return Some(ErrorKind::InvalidInput.into());
        }
        if plan.bad.as_ref().is_some_and(|bad| read.offset < bad.end && bad.start < end) {
            return Some(io::Error::from_raw_os_error(EIO));
        }
        if rng.chance(plan.eio) {
            return Some(io::Error::from_raw_os_error(EIO));
        }
        if rng.chance(plan.eintr) {
            return Some(ErrorKind::Interrupted.into());
        }
        rng.chance(plan.eagain).then(|| ErrorKind::WouldBlock.into())
    }

    /// Most bytes that a read of `len` returns.
    fn keep(&mut self, len: u64) -> usize {
        if self.rng.chance(self.plan.empty) {
            return 0;
        }
        if self.rng.chance(self.plan.short) {
            return usize::try_from(self.rng.below(len)).unwrap_or(usize::MAX);
        }
        usize::MAX
    }

    fn ready_at(&mut self, len: u64) -> Instant {
        let now = Instant::now();
        let mut at = now;
        if let Some(rate) = self.plan.bytes_per_second {
            let time = Duration::from_secs_f64(len as f64 / rate.max(1) as f64);
            self.free_at = self.free_at.max(now) + time;
            at = self.free_at;
        }
        at += self.plan.latency;
        if self.rng.chance(self.plan.delay) {
            let micros = u64::try_from(self.plan.max_delay.as_micros()).unwrap_or(u64::MAX);
            at += Duration::from_micros(self.rng.below(micros.saturating_add(1)));
        }
        at
    }

    fn planned(&self, id: u32) -> Option<&Planned> {
        self.reads.get(id as usize).and_then(Option::as_ref)
    }

    /// Reports what is held and due; otherwise says how long until the first is.
    fn release(&mut self, done: &mut Vec<Done>) -> Option<Duration> {
        let now = Instant::now();
        let mut next = None;
        let mut held = std::mem::take(&mut self.held);
        for i in (0..held.len()).rev() {
            let ready_at = self.planned(held[i].id).map_or(now, |planned| planned.ready_at);
            if ready_at <= now {
                let mut ended = held.swap_remove(i);
                if let Some(planned) = self.reads.get_mut(ended.id as usize).and_then(Option::take)
                {
                    // SAFETY: the read ended, but was not reported: its memory is still ours.
                    unsafe { cut(&mut ended, &planned) };
                }
                done.push(ended);
            } else {
                let wait = ready_at - now;
                next = Some(next.map_or(wait, |next: Duration| next.min(wait)));
            }
        }
        self.held = held;
        next
    }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    unsafe fn push(&mut self, read: RawRead) {
        let error = self.error(&read);
        let planned =
            Planned { read, keep: self.keep(read.len), ready_at: self.ready_at(read.len) };
        let id = read.id as usize;
        if self.reads.len() <= id {
            self.reads.resize(id + 1, None);
        }
        self.reads[id] = Some(planned);
        match error {
            Some(e) => self.held.push(Done { id: read.id, result: Err(e) }),
            // SAFETY: the caller's promise.
            None => unsafe { self.inner.push(read) },
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Done>) {
        let before = done.len();
        let next = self.release(done);
        let timeout = match (timeout, next) {
            _ if done.len() > before => Some(Duration::ZERO),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.inner.wait(timeout, &mut self.inner_done);
        if !self.inner_done.is_empty() {
            self.held.append(&mut self.inner_done);
            self.release(done);
        }
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }
}

/// Makes a read that ended shorter, if that is its fate.
///
/// # Safety
///
/// No one else touches the read's memory.
unsafe fn cut(ended: &mut Done, planned: &Planned) {
    let Ok(n) = &mut ended.result else { return };
    if *n <= planned.keep {
        return;
    }
    *n = planned.keep;
    let read = &planned.read;
    // SAFETY: valid by the promise made when the read was pushed.
    let parts = unsafe { std::slice::from_raw_parts(read.parts, read.n_parts as usize) };
    let mut skip = planned.keep;
    for Part { start, len } in parts {
        let kept = skip.min(*len);
        // SAFETY: in bounds of the part.
        unsafe { std::ptr::write_bytes(start.add(kept), POISON, len - kept) };
        skip -= kept;
    }
}
