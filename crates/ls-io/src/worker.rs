//! The thread that owns the backend: it plans reads, repeats and continues them, and hands
//! requests back.

#![allow(unsafe_code)]

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Done, RawRead};
use crate::error::{ReadCause, ReadError};
use crate::flight::Flight;
use crate::plan::Limits;
use crate::queue::Pending;
use crate::shared::Shared;
use crate::stats::{Clock, Stats};
use crate::{Completion, Notice, ReadBuf, Request};

/// Attempts in a row that bring nothing before a read has failed.
const MAX_STALLS: u32 = 64;
/// Attempts in a row that bring nothing before pauses are made between them.
const PATIENCE: u32 = 8;
const PAUSE: Duration = Duration::from_micros(200);

/// The state of the i/o thread.
pub(crate) struct Worker<B: ReadBuf, F> {
    // Dropped before the flights: it waits for the reads that write to their memory.
    backend: Box<dyn Backend>,
    flights: Vec<Flight<B>>,
    free: Vec<u32>,
    shared: Arc<Shared<B>>,
    on_complete: F,
    limits: Limits,
    clock: Clock,
    /// What this round adds to the statistics.
    stats: Stats,
    done: Vec<Done>,
    /// Flights that were planned and go to the system next.
    planned: Vec<u32>,
    /// Requests that need no read, or go back to the queue to be read alone.
    trivial: Vec<Request<B>>,
    requeued: Vec<Pending<B>>,
    /// Requests handed back and not yet booked.
    n_delivered: usize,
}

impl<B: ReadBuf, F: Fn(Completion<B>)> Worker<B, F> {
    pub fn new(
        backend: Box<dyn Backend>,
        shared: Arc<Shared<B>>,
        on_complete: F,
        limits: Limits,
        depth: usize,
    ) -> io::Result<Self> {
        // A gap is shorter than the read that it is a part of.
        let max_gap = limits.gap_bytes.min(limits.max_bytes) as usize;
        let flights = (0..depth).map(|_| Flight::new(max_gap)).collect::<io::Result<_>>()?;
        Ok(Self {
            backend,
            flights,
            free: (0..depth as u32).rev().collect(),
            shared,
            on_complete,
            limits,
            clock: Clock::new(),
            stats: Stats::default(),
            done: Vec::with_capacity(depth),
            planned: Vec::with_capacity(depth),
            trivial: Vec::new(),
            requeued: Vec::new(),
            n_delivered: 0,
        })
    }

    /// Reads until the stream is dropped and nothing is in flight.
    pub fn run(mut self) {
        while self.plan() {
            let mut trivial = std::mem::take(&mut self.trivial);
            let any_trivial = !trivial.is_empty();
            for request in trivial.drain(..) {
                let result = self.trivial_result(&request);
                self.deliver(request, result);
            }
            self.trivial = trivial;
            self.launch();
            if any_trivial {
                continue; // To book them, which someone may wait for.
            }
            self.backend.wait(None, &mut self.done);
            let now = self.clock.tick(self.n_in_flight(), &mut self.stats);
            let mut done = std::mem::take(&mut self.done);
            for Done { id, result } in done.drain(..) {
                self.land(id, result, now);
            }
            self.done = done;
        }
    }

    /// How a request that needs no read ends.
    fn trivial_result(&self, request: &Request<B>) -> Result<(), ReadError> {
        if request.buf.is_empty() {
            return Ok(());
        }
        let (path, len) = (&self.shared.files.path, request.buf.len());
        Err(ReadError::new(path, request.offset, len, ReadCause::EndOfFile { got: 0 }))
    }

    fn n_in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Books what was handed back and takes requests for all free flights; false when it is over.
    fn plan(&mut self) -> bool {
        let mut state = self.shared.lock();
        state.outstanding -= self.n_delivered;
        self.n_delivered = 0;
        state.stats.add(&std::mem::take(&mut self.stats));
        self.requeued.drain(..).for_each(|pending| state.queue.insert(pending));
        if state.stop {
            // Their buffers are freed outside of the lock: that may run code of the caller.
            let dropped = state.queue.drain();
            let trivial = std::mem::take(&mut state.trivial);
            state.outstanding -= dropped.len() + trivial.len();
            drop(state);
            drop((dropped, trivial));
            return self.n_in_flight() > 0;
        }
        std::mem::swap(&mut self.trivial, &mut state.trivial);
        while let Some(id) = self.free.pop() {
            let flight = &mut self.flights[id as usize];
            let Some(extent) = state.queue.take(self.limits, &mut flight.members) else {
                self.free.push(id);
                break;
            };
            flight.extent = extent;
            self.planned.push(id);
        }
        state.in_wait = !self.free.is_empty();
        if state.outstanding == 0 {
            self.shared.idle.notify_all();
        }
        true
    }

    /// Hands the planned flights to the system.
    fn launch(&mut self) {
        if self.planned.is_empty() {
            return;
        }
        let n_before = self.n_in_flight() - self.planned.len();
        self.clock.tick(n_before, &mut self.stats);
        let direct = self.shared.direct.load(Ordering::Relaxed);
        let mut planned = std::mem::take(&mut self.planned);
        for id in planned.drain(..) {
            let flight = &mut self.flights[id as usize];
            let aligned = flight.members.iter().all(|member| member.aligned);
            flight.begin(flight.extent, direct && aligned);
            if direct && !aligned {
                let (offset, len) = (flight.extent.offset, flight.extent.len as usize);
                if self.shared.notice(Notice::Misaligned { offset, len }) {
                    self.stats.fallbacks += 1;
                }
            }
            self.push(id);
        }
        self.planned = planned;
    }

    /// Hands all of a flight that has not come yet to the system.
    fn push(&mut self, id: u32) {
        let flight = &mut self.flights[id as usize];
        flight.lay_out();
        let read = RawRead {
            id,
            direct: flight.direct,
            offset: flight.extent.offset.saturating_add(flight.from),
            len: flight.extent.len - flight.from,
            parts: flight.parts.as_ptr(),
            n_parts: flight.parts.len() as u32,
        };
        // SAFETY: the parts and what they point to (buffers of the members, the gap's memory)
        // belong to the flight. From here until `wait` reports the id nothing touches a flight
        // that is not free, and the backend is dropped before the flights.
        unsafe { self.backend.push(read) };
    }

    /// Deals with the end of an attempt.
    fn land(&mut self, id: u32, result: io::Result<usize>, now: Instant) {
        let flight = &mut self.flights[id as usize];
        match result {
            Ok(n) => {
                self.stats.read_bytes += n as u64;
                let got = (flight.from + n as u64).min(flight.extent.len);
                let stalled = got <= flight.got;
                flight.stalls = if stalled { flight.stalls + 1 } else { 0 };
                flight.got = flight.got.max(got);
                if flight.is_complete() {
                    return self.finish(id, None, now);
                }
                // At the end of the file a read returns nothing, or the same tail again.
                let reached = flight.extent.offset.saturating_add(flight.got);
                let ended =
                    stalled && self.shared.files.current_len().is_ok_and(|len| reached >= len);
                if ended || flight.stalls >= MAX_STALLS {
                    return self.finish(id, Some(Failure::Short { ended }), now);
                }
                self.repeat(id);
            }
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
                flight.stalls += 1;
                if flight.stalls >= MAX_STALLS {
                    return self.finish(id, Some(Failure::Os(e)), now);
                }
                self.repeat(id);
            }
            Err(e) if flight.direct && e.kind() == ErrorKind::InvalidInput => {
                flight.direct = false;
                let offset = flight.extent.offset;
                self.shared.direct.store(false, Ordering::Relaxed);
                let reason = e.to_string();
                if self.shared.notice(Notice::DirectRefusedAtRead { offset, reason }) {
                    self.stats.fallbacks += 1;
                }
                self.repeat(id);
            }
            Err(e) => self.finish(id, Some(Failure::Os(e)), now),
        }
    }

    fn repeat(&mut self, id: u32) {
        self.stats.retries += 1;
        if self.flights[id as usize].stalls > PATIENCE {
            // Rare enough to hold up the others.
            std::thread::sleep(PAUSE);
        }
        self.push(id);
    }

    /// Hands the members of a flight back, or those that a neighbour may have spoilt to the queue.
    fn finish(&mut self, id: u32, failure: Option<Failure>, now: Instant) {
        let flight = &mut self.flights[id as usize];
        self.stats.reads += 1;
        self.stats.read_sizes.add(flight.extent.len);
        let latency = now.saturating_duration_since(flight.began);
        self.stats.latencies_us.add(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        if !flight.direct && self.shared.forgets {
            self.shared.files.forget(flight.extent.offset, flight.extent.len);
        }
        let spoilt = flight.members.len() > 1;
        let mut members = std::mem::take(&mut flight.members);
        let flight = &self.flights[id as usize];
        let got_end = flight.extent.offset.saturating_add(flight.got);
        for member in members.drain(..) {
            let extent = member.extent();
            if extent.end() <= got_end {
                self.deliver(member.request, Ok(()));
            } else if spoilt {
                self.requeued.push(member.alone());
            } else {
                let got = got_end.saturating_sub(extent.offset).min(extent.len) as usize;
                let cause = match &failure {
                    Some(Failure::Os(e)) => ReadCause::Os(same(e)),
                    Some(Failure::Short { ended: true }) => ReadCause::EndOfFile { got },
                    _ => ReadCause::NoProgress { got },
                };
                let path = &self.shared.files.path;
                let error = ReadError::new(path, extent.offset, member.request.buf.len(), cause);
                self.deliver(member.request, Err(error));
            }
        }
        self.flights[id as usize].members = members;
        self.free.push(id);
    }

    fn deliver(&mut self, request: Request<B>, result: Result<(), ReadError>) {
        match &result {
            Ok(()) => self.stats.useful_bytes += request.buf.len() as u64,
            Err(_) => self.stats.failed += 1,
        }
        let completion = Completion { tag: request.tag, buf: request.buf, result };
        // A panic of the caller's must not end the thread that others wait for; the panic hook has
        // reported it. Its payload is not dropped, as that might panic again.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.on_complete)(completion))) {
            std::mem::forget(panic);
        }
        self.n_delivered += 1;
    }
}

/// Why a flight ended before its end.
#[derive(Debug)]
enum Failure {
    /// No more bytes come, because the file ended or for no reason.
    Short {
        ended: bool,
    },
    Os(io::Error),
}

/// The error once more.
fn same(e: &io::Error) -> io::Error {
    e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error)
}
