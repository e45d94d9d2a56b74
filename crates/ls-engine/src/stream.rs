//! Streams the MLP's chunks from the pack into the cache, ahead of the computation.
//!
//! A *pass* sends a batch of tokens through all layers. It takes every *segment* (a run of chunks
//! that are summed in order, see [`ls_model::pack::LayerLayout`]) of every layer, in the same
//! order each time. So what will be needed is known: a schedule runs through the segments ahead of
//! the computation, pins the chunks that are in the cache and reads the others. It stops when no
//! frame is left, and goes on when the computation has given some back. At the end of a pass it
//! goes on into the next one, which begins with the same layers.
//!
//! Nothing of this changes what is computed: a segment is handed out when all of its chunks are
//! there, and its chunks are summed in order.

mod chosen;
mod landed;
mod segment;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ls_cache::{Cache, Fill, Key, ReserveError, Used};
use ls_io::{Completion, Curve, Priority, Request, Stream};
use ls_model::pack::LayerLayout;
use parking_lot::{Mutex, MutexGuard};

use crate::EngineError;
pub(crate) use landed::{Landed, Landing};
pub(crate) use segment::StreamedSegment;
use slot::{Entry, Slot, Wait};

/// Segments that the schedule may be ahead of the computation.
pub(crate) const WINDOW: usize = 192;

/// How long a segment is waited for before the token is given up.
const READ_DEADLINE: Duration = Duration::from_secs(60);

/// How long a pass that failed waits for its reads. One that hangs keeps its frame.
const RESET_DEADLINE: Duration = Duration::from_secs(5);

/// A waiting thread looks this often whether frames have become free.
const PATIENCE: Duration = Duration::from_millis(20);

/// Bits of a read's tag that count chunks within a segment.
const CHUNK_BITS: u32 = 24;

/// A read that failed.
#[derive(Clone, Debug)]
pub(crate) struct ReadFailure {
    pub layer: u32,
    pub chunk: u32,
    pub cause: Arc<ls_io::ReadError>,
}

/// What streaming did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Passes through all layers.
    pub passes: u64,
    /// Bytes of chunks that were computed.
    pub wanted_bytes: u64,
    /// Bytes of them that were not in memory when they were scheduled, and so were read.
    pub demand_miss_bytes: u64,
    /// Bytes of them that were not in memory when the computation came to them.
    pub stall_miss_bytes: u64,
    /// Nanoseconds that computing waited for chunks, on average over the threads that did.
    pub stall_ns: u64,
}

#[derive(Debug, Default)]
struct Counters {
    passes: AtomicU64,
    wanted_bytes: AtomicU64,
    demand_miss_bytes: AtomicU64,
    stall_miss_bytes: AtomicU64,
    stall_ns: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Chunks that may be outstanding when reads may hold `transit` frames: of all, which 0 stands for,
/// or of some; then none beyond them takes the frame of a retained one. A segment is handed out
/// when it is complete, so the `longest` must always fit.
fn max_outstanding(transit: usize, longest: usize) -> usize {
    if transit == 0 { usize::MAX } else { transit.max(longest) }
}

/// The segments of a pass, in order.
#[derive(Debug)]
struct Order {
    /// Number of the first segment of each layer, and of all segments at the end.
    first: Vec<u64>,
    /// Layer of each segment.
    layer: Vec<u32>,
}

impl Order {
    fn new(layers: &[LayerLayout]) -> Self {
        let mut order = Self { first: vec![0], layer: Vec::new() };
        for (i, layout) in layers.iter().enumerate() {
            order.layer.extend((0..layout.n_segments()).map(|_| i as u32));
            order.first.push(order.layer.len() as u64);
        }
        order
    }

    /// Segments of a pass.
    fn len(&self) -> u64 {
        self.layer.len() as u64
    }

    /// Layer, and segment of that layer.
    fn at(&self, segment: u64) -> (u32, u32) {
        let in_pass = segment % self.len();
        let layer = self.layer[in_pass as usize];
        (layer, (in_pass - self.first[layer as usize]) as u32)
    }
}

/// Whose turn it is to compute.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Number of the pass that is under way, or the next one.
    number: u64,
    /// Who chose for the last pass, if someone did.
    chooser: Option<u64>,
}

/// Where the schedule is.
#[derive(Debug)]
struct Schedule {
    /// The next segment, counted over all passes, and its next chunk.
    segment: u64,
    chunk: usize,
    /// Whether the segment's slot is taken.
    is_claimed: bool,
    /// Segments from here on are not to be scheduled yet.
    limit: u64,
    /// Reads to submit together.
    requests: Vec<Request<Fill>>,
}

/// What reads report to.
#[derive(Debug)]
struct Arrivals {
    slots: Box<[Slot]>,
    landed: Landed,
}

impl Arrivals {
    fn slot(&self, segment: u64) -> &Slot {
        &self.slots[(segment % self.slots.len() as u64) as usize]
    }

    fn complete(&self, completion: Completion<Fill>) {
        if chosen::is_chosen(completion.tag) {
            self.landed.put(completion);
            return;
        }
        let (segment, i) = untag(completion.tag);
        match completion.result {
            Ok(()) => self.slot(segment).put(segment, i, Entry::Fresh(completion.buf)),
            Err(cause) => {
                let key = completion.buf.key();
                let cause = Arc::new(cause);
                let failure = ReadFailure { layer: key.group, chunk: key.index, cause };
                self.slot(segment).fail(segment, failure);
            }
        }
    }
}

fn tag(segment: u64, chunk: usize) -> u64 {
    segment << CHUNK_BITS | chunk as u64
}

fn untag(tag: u64) -> (u64, usize) {
    (tag >> CHUNK_BITS, (tag & ((1 << CHUNK_BITS) - 1)) as usize)
}

/// Whether reads run ahead of the layer that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// As far as frames allow, into the next token too.
    #[default]
    On,
    /// Only the chunks of the present layer are read.
    Off,
}

/// What chunks are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Reads in flight at a time.
    pub depth: usize,
    /// What one costs, if that is known.
    pub curve: Option<Curve>,
    /// Whether the first neurons of each layer are those that add most.
    pub is_ordered: bool,
}

/// The streaming of one pack.
#[derive(Debug)]
pub(crate) struct Streamer {
    // Reads first: dropping them waits for those in flight, which report to the slots.
    reads: Stream<Fill>,
    arrivals: Arc<Arrivals>,
    cache: Cache,
    source: Source,
    layers: Vec<LayerLayout>,
    /// Of each layer, the first chunks that are held elsewhere: they are neither read nor handed out.
    held: Vec<AtomicU32>,
    order: Order,
    prefetch: Prefetch,
    schedule: Mutex<Schedule>,
    /// Locked while a pass is under way.
    turn: Mutex<Turn>,
    /// Chunks that were asked for and not yet computed.
    outstanding: AtomicUsize,
    /// Most chunks that may be outstanding: more would take the frames of retained ones.
    max_outstanding: AtomicUsize,
    /// Whether a segment of the pass under way failed.
    has_failed: AtomicBool,
    /// Counts what changed the cache beside chosen passes.
    generation: AtomicU64,
    counters: Counters,
}

impl Streamer {
    /// Streams chunks laid out as `layers` say into `cache`, of whose frames reads may hold
    /// `transit` at once. `open` opens the pack with the function that completed reads go to.
    pub fn new(
        layers: Vec<LayerLayout>,
        cache: Cache,
        transit: usize,
        (source, prefetch): (Source, Prefetch),
        open: impl FnOnce(
            Box<dyn Fn(Completion<Fill>) + Send + Sync>,
        ) -> Result<Stream<Fill>, EngineError>,
    ) -> Result<Self, EngineError> {
        let order = Order::new(&layers);
        let longest = layers.iter().map(|layout| layout.segment_chunks as usize).max().unwrap_or(0);
        let n_slots = usize::try_from(order.len()).unwrap_or(usize::MAX).min(WINDOW);
        let slots = (0..n_slots).map(|_| Slot::new()).collect();
        let arrivals = Arc::new(Arrivals { slots, landed: Landed::default() });
        let reads = {
            let arrivals = arrivals.clone();
            open(Box::new(move |completion| arrivals.complete(completion)))?
        };
        cache.set_transit(u32::try_from(transit).unwrap_or(u32::MAX));
        let schedule = Schedule {
            segment: 0,
            chunk: 0,
            is_claimed: false,
            limit: 0,
            requests: Vec::with_capacity(transit.max(longest)),
        };
        Ok(Self {
            reads,
            arrivals,
            cache,
            source,
            order,
            prefetch,
            schedule: Mutex::new(schedule),
            turn: Mutex::new(Turn { number: 0, chooser: None }),
            outstanding: AtomicUsize::new(0),
            max_outstanding: AtomicUsize::new(max_outstanding(transit, longest)),
            has_failed: AtomicBool::new(false),
            generation: AtomicU64::new(1),
            counters: Counters::default(),
            held: layers.iter().map(|_| AtomicU32::new(0)).collect(),
            layers,
        })
    }

    /// The cache that chunks are kept in.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The reads.
    pub fn reads(&self) -> &Stream<Fill> {
        &self.reads
    }

    /// Gives the cache another size, of which reads may hold `transit` frames at once.
    pub fn set_cache(&self, bytes: u64, transit: u64) {
        let longest = self.layers.iter().map(|l| l.segment_chunks as usize).max().unwrap_or(0);
        self.cache.set_transit(u32::try_from(transit).unwrap_or(u32::MAX));
        let transit = usize::try_from(transit).unwrap_or(usize::MAX);
        self.max_outstanding.store(max_outstanding(transit, longest), Ordering::Relaxed);
        self.cache.set_budget(bytes);
        self.generation.fetch_add(1, Ordering::Relaxed);
        // Between passes, what was scheduled ahead would hold its frames until the next one.
        if let Some(mut turn) = self.turn.try_lock() {
            self.reset(&mut turn);
        }
    }

    /// From now on the first chunks of each layer, as many as `held` says, are neither read nor handed
    /// out: a GPU holds them. Waits for a pass that is under way.
    pub fn hold(&self, held: impl IntoIterator<Item = u32>) {
        let mut turn = self.turn.lock();
        self.held.iter().zip(held).for_each(|(of, n)| of.store(n, Ordering::Relaxed));
        // What was scheduled ahead was scheduled without knowing it.
        self.reset(&mut turn);
    }

    /// What was done so far.
    pub fn counts(&self) -> StreamCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        StreamCounts {
            passes: get(&c.passes),
            wanted_bytes: get(&c.wanted_bytes),
            demand_miss_bytes: get(&c.demand_miss_bytes),
            stall_miss_bytes: get(&c.stall_miss_bytes),
            stall_ns: get(&c.stall_ns),
        }
    }

    /// Begins a pass through all layers. One runs at a time; another one's caller waits here.
    pub fn begin_pass(&self) -> Pass<'_> {
        let mut turn = self.turn.lock();
        self.generation.fetch_add(1, Ordering::Relaxed);
        if turn.chooser.is_some() {
            // Reads that are left of it would keep their chunks from this pass.
            self.reset(&mut turn);
        }
        let base = turn.number * self.order.len();
        let pass = Pass { streamer: self, turn, base, is_complete: false };
        if self.prefetch == Prefetch::On {
            self.schedule.lock().limit = u64::MAX;
        }
        self.pump();
        pass
    }

    /// Begins a pass through one layer alone, of which it takes the segments in order. What was read
    /// ahead for a pass through all layers is given back; nothing is read beyond the layer.
    pub fn begin_layer(&self, layer: usize) -> Pass<'_> {
        let mut turn = self.turn.lock();
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.reset(&mut turn);
        let base = turn.number * self.order.len();
        {
            let mut schedule = self.schedule.lock();
            schedule.segment = base + self.order.first[layer];
            schedule.limit = base + self.order.first[layer + 1];
        }
        let pass = Pass { streamer: self, turn, base, is_complete: false };
        self.pump();
        pass
    }

    /// Schedules what frames allow.
    fn pump(&self) {
        let mut schedule = self.schedule.lock();
        let schedule = &mut *schedule;
        while schedule.segment < schedule.limit && self.schedule_segment(schedule) {
            schedule.segment += 1;
            schedule.chunk = 0;
            schedule.is_claimed = false;
        }
        if !schedule.requests.is_empty() {
            self.reads.submit(schedule.requests.drain(..));
        }
    }

    /// Goes through the chunks of the schedule's segment; `false` when it has to stop before
    /// its end.
    fn schedule_segment(&self, schedule: &mut Schedule) -> bool {
        let number = schedule.segment;
        let (layer, segment) = self.order.at(number);
        let layout = &self.layers[layer as usize];
        let chunks = layout.segment(segment);
        let slot = self.arrivals.slot(number);
        if !schedule.is_claimed {
            schedule.is_claimed = slot.claim(number, chunks.len());
            if !schedule.is_claimed {
                return false;
            }
        }
        let first_new = schedule.requests.len();
        let held = self.held[layer as usize].load(Ordering::Relaxed);
        let mut state = slot.lock();
        while schedule.chunk < chunks.len() {
            let index = chunks.start + schedule.chunk as u32;
            let key = Key { group: layer, index };
            if index < held {
                state.set(schedule.chunk, Entry::Elsewhere);
            } else if let Some(pin) = self.cache.pin(key) {
                state.set(schedule.chunk, Entry::Resident(pin));
            } else if self.outstanding.load(Ordering::Relaxed)
                >= self.max_outstanding.load(Ordering::Relaxed)
            {
                break;
            } else {
                match self.cache.reserve(key) {
                    Ok(buf) => {
                        self.outstanding.fetch_add(1, Ordering::Relaxed);
                        schedule.requests.push(Request {
                            tag: tag(number, schedule.chunk),
                            offset: layout.chunk_offset(index),
                            priority: Priority(number),
                            buf: buf.shortened(layout.record_bytes),
                        });
                    }
                    // It came while we looked: pin it in the next round.
                    Err(ReserveError::Present { .. }) => continue,
                    Err(_) => break,
                }
            }
            schedule.chunk += 1;
        }
        let read = (schedule.requests.len() - first_new) as u64;
        let bytes = read * layout.record_bytes as u64;
        Counters::add(&self.counters.demand_miss_bytes, bytes);
        let is_complete = state.missing == 0;
        drop(state);
        if is_complete {
            slot.announce();
        }
        schedule.chunk == chunks.len()
    }

    /// A segment of the pass, when all of its chunks are there; `None` when another thread's segment
    /// failed meanwhile. `number` counts over all passes; so many threads take segments at once.
    fn segment(
        &self,
        number: u64,
        threads: usize,
    ) -> Result<Option<StreamedSegment<'_>>, EngineError> {
        let segment = self.wait_for(number, threads);
        if segment.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        segment
    }

    fn wait_for(
        &self,
        number: u64,
        threads: usize,
    ) -> Result<Option<StreamedSegment<'_>>, EngineError> {
        let (layer, segment) = self.order.at(number);
        let layout = &self.layers[layer as usize];
        let slot = self.arrivals.slot(number);
        let mut first_missing = None;
        let start = Instant::now();
        let deadline = start + READ_DEADLINE;
        let entries = loop {
            // The first look waits for nothing: it tells whether reads came in time.
            let patience = first_missing.map_or(Duration::ZERO, |_| PATIENCE);
            match slot.wait(number, patience) {
                Wait::Complete(entries) => break entries,
                Wait::Failed(failure) => return Err(EngineError::from(failure)),
                Wait::Unfinished { missing, first } => {
                    // Nothing more may come: the failed segment holds what frames there are.
                    if self.has_failed.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    if first_missing.is_none() {
                        let missing = missing.unwrap_or(layout.segment(segment).len());
                        let bytes = missing as u64 * layout.record_bytes as u64;
                        Counters::add(&self.counters.stall_miss_bytes, bytes);
                    }
                    first_missing = Some(first);
                    if Instant::now() >= deadline {
                        let chunk = layout.segment(segment).start + first as u32;
                        let seconds = READ_DEADLINE.as_secs();
                        return Err(EngineError::LateRead { layer, chunk, seconds });
                    }
                    self.pump();
                }
            }
        };
        if first_missing.is_some() {
            let ns = start.elapsed().as_nanos() as u64 / threads.max(1) as u64;
            Counters::add(&self.counters.stall_ns, ns);
        }
        let bytes = entries.len() as u64 * layout.record_bytes as u64;
        Counters::add(&self.counters.wanted_bytes, bytes);
        StreamedSegment::new(self, number, layer, layout.segment(segment), entries).map(Some)
    }

    /// Takes back everything that is scheduled or read, and begins anew at another pass: the numbers of
    /// what was scheduled ahead are not used again, since a read that hangs may still report to them.
    fn reset(&self, turn: &mut Turn) {
        turn.number += 1;
        turn.chooser = None;
        let mut schedule = self.schedule.lock();
        schedule.limit = 0;
        drop(self.reads.cancel_all());
        // A read that hangs keeps its frame; its slot is free all the same.
        self.reads.wait_idle(RESET_DEADLINE);
        for slot in &self.arrivals.slots {
            slot.clear(&self.cache);
        }
        drop(self.arrivals.landed.take());
        self.outstanding.store(0, Ordering::Relaxed);
        self.has_failed.store(false, Ordering::Relaxed);
        schedule.segment = turn.number * self.order.len();
        schedule.chunk = 0;
        schedule.is_claimed = false;
    }
}

/// A pass under way. One that is dropped before [`Pass::complete`] leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    streamer: &'a Streamer,
    turn: MutexGuard<'a, Turn>,
    base: u64,
    is_complete: bool,
}

impl<'a> Pass<'a> {
    /// The computation enters a layer.
    pub fn begin_layer(&self, layer: usize) {
        self.streamer.cache.visit(layer as u32);
        if self.streamer.prefetch == Prefetch::Off {
            let limit = self.base + self.streamer.order.first[layer + 1];
            self.streamer.schedule.lock().limit = limit;
            self.streamer.pump();
        }
    }

    /// A segment of a layer, as soon as its chunks are there; `None` when another thread's failed.
    pub fn segment(
        &self,
        layer: usize,
        segment: u32,
        threads: usize,
    ) -> Result<Option<StreamedSegment<'a>>, EngineError> {
        let first = self.streamer.order.first[layer];
        self.streamer.segment(self.base + first + u64::from(segment), threads)
    }

    /// Whether a segment of a layer can be had without waiting.
    pub fn is_settled(&self, layer: usize, segment: u32) -> bool {
        let number = self.base + self.streamer.order.first[layer] + u64::from(segment);
        self.streamer.arrivals.slot(number).is_settled(number)
    }

    /// Chunks that the computation may hold at once, those included that it waits for: with more, what
    /// it waits for might never come. No limit where all chunks have frames of their own.
    pub fn room(&self) -> usize {
        self.streamer.max_outstanding.load(Ordering::Relaxed)
    }

    /// The computation leaves a layer, all of whose chunks it used.
    pub fn end_layer(&self, layer: usize) {
        self.streamer.cache.used(layer as u32, Used::All);
    }

    /// Every segment of every layer was taken.
    pub fn complete(mut self) {
        Counters::add(&self.streamer.counters.passes, 1);
        self.is_complete = true;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.turn.number += 1;
        if !self.is_complete {
            // What was scheduled ahead is of the next pass.
            self.streamer.reset(&mut self.turn);
        }
    }
}
