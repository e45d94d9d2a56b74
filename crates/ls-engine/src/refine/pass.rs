//! One token through all layers, as the controller says.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ls_cache::{Fill, Key};
use ls_cpu::{Touched, add};
use ls_io::Completion;
use ls_model::pack::{self, ChunkDamage};
use ls_sched::{Cause, Chunk, Command, Config, Event, SchedError, StageId, Worth};
use parking_lot::{Mutex, MutexGuard};

use super::{Count, Inner, Refiner, cache_bytes, key};
use crate::forward::Forward;
use crate::state::Buffers;
use crate::stream::{ReadFailure, StreamCounts, Streamer, Turn};
use crate::weights::ChunkedMlp;
use crate::{EngineError, SparseCounts};

/// Parts that a stage is computed in, for each thread: one that is late leaves less to wait for.
pub(super) const PARTS: usize = 2;
/// How long it is waited for a read before the controller is told the time.
const PATIENCE: Duration = Duration::from_millis(20);

/// A token under way. One that is dropped before [`RefinePass::complete`] leaves nothing behind but chunks
/// in the cache.
#[derive(Debug)]
pub(crate) struct RefinePass<'a> {
    by: &'a Refiner,
    streamer: &'a Streamer,
    inner: MutexGuard<'a, Inner>,
    since: Instant,
    /// When the last layer was done.
    left: Option<Instant>,
    _turn: MutexGuard<'a, Turn>,
    is_complete: bool,
}

/// What a command needs of the layer that is under way.
struct Place<'a> {
    forward: &'a Forward<'a>,
    mlp: &'a ChunkedMlp,
    b: &'a mut Buffers,
    counts: &'a mut SparseCounts,
}

impl Refiner {
    /// Begins a token.
    pub(crate) fn begin<'a>(
        &'a self,
        streamer: &'a Streamer,
    ) -> Result<RefinePass<'a>, EngineError> {
        let since = Instant::now();
        // In this order everywhere.
        let turn = streamer.begin_chosen(self.id);
        let inner = self.inner.lock();
        let mut pass = RefinePass {
            by: self,
            streamer,
            inner,
            since,
            left: None,
            _turn: turn,
            is_complete: false,
        };
        pass.agree()?;
        pass.inner.take_table();
        pass.tell(Event::TokenBegun)?;
        pass.obey(None)?;
        Ok(pass)
    }
}

impl RefinePass<'_> {
    /// Sees what happened to the cache while others computed.
    fn agree(&mut self) -> Result<(), EngineError> {
        let generation = self.streamer.generation();
        if self.inner.generation == generation {
            return self.land().map(drop);
        }
        // Nothing is being read any more, but for reads that hang: their frames are not the
        // controller's.
        for chunk in std::mem::take(&mut self.inner.reading) {
            self.tell(Event::Cancelled(chunk))?;
        }
        let cache = self.streamer.cache();
        for (layer, layout) in (0..).zip(self.streamer.layers()) {
            for index in 0..layout.n_chunks {
                let chunk = Chunk { layer, index };
                match (cache.contains(key(chunk)), self.inner.controller.is_resident(chunk)) {
                    (true, false) => self.tell(Event::Found(chunk))?,
                    (false, true) => self.tell(Event::Gone(chunk))?,
                    _ => {}
                }
            }
        }
        let bytes = cache_bytes(self.streamer);
        if bytes != self.inner.budget {
            self.inner.budget = bytes;
            self.tell(Event::BudgetChanged { bytes })?;
            self.inner.suit_budget(self.by)?;
        }
        self.inner.generation = generation;
        self.obey(None)
    }

    fn tell(&mut self, event: Event<'_>) -> Result<(), SchedError> {
        let now = self.inner.epoch.elapsed().as_nanos() as u64;
        self.inner.controller.handle(event, now)
    }

    /// The MLP of layer `i` for the token whose normalised input is in `b`; its output is left in
    /// `b.delta`.
    pub fn mlp(
        &mut self,
        forward: &Forward<'_>,
        i: usize,
        mlp: &ChunkedMlp,
        b: &mut Buffers,
        counts: &mut SparseCounts,
    ) -> Result<(), EngineError> {
        if let Some(left) = self.left {
            self.inner.times.between.add(left.elapsed());
        }
        b.delta[..mlp.layout.d_model].fill(0.0);
        self.inner.taken.clear();
        self.inner.is_ranked = true;
        let mut place = Place { forward, mlp, b, counts };
        self.land()?;
        self.tell(Event::LayerEntered { layer: i as u32 })?;
        while !self.obey_until_done(&mut place)? {
            if self.land()? {
                continue;
            }
            let deadline = self.inner.controller.next_deadline();
            let limit = Instant::now() + PATIENCE;
            let at = deadline.map(|ns| self.inner.epoch + Duration::from_nanos(ns));
            let since = Instant::now();
            self.streamer.landed().wait(at.map_or(limit, |at| at.min(limit)));
            self.inner.times.wait.add(since.elapsed());
            if !self.land()? {
                // A frame that was refused may be there by now.
                self.tell(Event::FrameFreed)?;
            }
        }
        place.counts.add_all(&mlp.layout, 1);
        self.left = Some(Instant::now());
        Ok(())
    }

    /// All layers are done.
    pub fn complete(mut self) -> Result<(), EngineError> {
        self.obey(None)?;
        self.report(1);
        self.is_complete = true;
        self.inner.times.pass.add(self.since.elapsed());
        if let Some(recorder) = &mut self.inner.recorder {
            recorder.end_token();
        }
        Ok(())
    }

    /// Adds what was counted to what the streamer counts.
    fn report(&mut self, passes: u64) {
        let (now, before) = (*self.inner.controller.stats(), self.inner.reported);
        self.streamer.add_counts(&StreamCounts {
            passes,
            wanted_bytes: now.wanted_bytes - before.wanted_bytes,
            demand_miss_bytes: now.demand_miss_bytes - before.demand_miss_bytes,
            stall_miss_bytes: now.stall_miss_bytes - before.stall_miss_bytes,
            stall_ns: now.stall_ns - before.stall_ns,
        });
        self.inner.reported = now;
    }

    /// Takes in what was read; whether there was anything.
    fn land(&mut self) -> Result<bool, EngineError> {
        let mut landing = std::mem::take(&mut self.inner.landing);
        self.streamer.landed().take_into(&mut landing);
        let (is_any, mut failure) = (!landing.is_empty(), None);
        let (since, n) = (Instant::now(), landing.len());
        let mut events = std::mem::take(&mut self.inner.events);
        for completion in landing.drain(..) {
            let (event, damage) = self.land_one(completion);
            events.extend(event);
            if let Some(damage) = damage {
                // The others are over all the same.
                failure.get_or_insert(damage.into());
            }
        }
        self.inner.landing = landing;
        if is_any {
            let now = self.inner.epoch.elapsed().as_nanos() as u64;
            let told = self.inner.controller.handle_all(events.drain(..), now);
            failure = failure.or(told.err().map(EngineError::from));
            self.inner.times.land(since.elapsed(), n);
        }
        self.inner.events = events;
        failure.map_or(Ok(is_any), Err)
    }

    /// What a read that is over tells the controller, and whether what it brought is damaged.
    fn land_one(
        &mut self,
        completion: Completion<Fill>,
    ) -> (Option<Event<'static>>, Option<ChunkDamage>) {
        let Key { group: layer, index } = completion.buf.key();
        let chunk = Chunk { layer, index };
        if !self.inner.ended(chunk) {
            // It was given up, and has hung until now.
            return (None, None);
        }
        let cause = match completion.result {
            // Before it is the cache's: others take what is there as it is.
            Ok(()) => match self.inner.check(&completion.buf, chunk) {
                Ok(()) => {
                    completion.buf.publish_unpinned();
                    return (Some(Event::Arrived(chunk)), None);
                }
                Err(damage) => return (Some(Event::ReadFailed(chunk)), Some(damage)),
            },
            Err(cause) => Arc::new(cause),
        };
        self.inner.failure = Some(ReadFailure { layer, chunk: index, cause });
        (Some(Event::ReadFailed(chunk)), None)
    }

    /// Carries out what can be without a layer.
    fn obey(&mut self, mut place: Option<&mut Place<'_>>) -> Result<(), EngineError> {
        while let Some(command) = self.inner.controller.next_command() {
            self.carry_out(command, place.as_deref_mut())?;
        }
        Ok(())
    }

    /// Carries out commands until there is none, or the layer is done; whether it is.
    fn obey_until_done(&mut self, place: &mut Place<'_>) -> Result<bool, EngineError> {
        while let Some(command) = self.inner.controller.next_command() {
            if matches!(command, Command::LayerDone { .. }) {
                return Ok(true);
            }
            self.carry_out(command, Some(place))?;
        }
        Ok(false)
    }

    fn carry_out(
        &mut self,
        command: Command,
        place: Option<&mut Place<'_>>,
    ) -> Result<(), EngineError> {
        match command {
            Command::Rank { layer, basis } => match place {
                Some(Place { forward, mlp, b, .. }) => {
                    let since = Instant::now();
                    self.inner.rank(self.by, forward, b, layer, basis);
                    self.inner.times.rank.add(since.elapsed());
                    let since = Instant::now();
                    let scores = std::mem::take(&mut self.inner.chunks);
                    let told = self.tell(Event::Scores { layer, scores: &scores });
                    self.inner.chunks = scores;
                    told?;
                    self.tell(Event::Time)?;
                    self.inner.times.choose.add(since.elapsed());
                    self.inner.record(self.by, self.streamer, forward, mlp, b, layer, basis);
                }
                // Nothing is known of a token that is only beginning.
                None => {
                    self.inner.neurons[layer as usize].clear();
                    self.tell(Event::RankFailed { layer })?;
                }
            },
            Command::Submit { read } => {
                let since = Instant::now();
                self.submit(read)?;
                self.inner.times.host_ns += since.elapsed().as_nanos() as u64;
            }
            Command::Reprioritise { chunk, priority } => {
                self.streamer.reprioritise_chosen(key(chunk), priority);
            }
            Command::Cancel { chunk } => {
                if self.streamer.cancel_chosen(key(chunk)) {
                    self.inner.ended(chunk);
                    self.tell(Event::Cancelled(chunk))?;
                }
            }
            Command::RunStage { stage } => match place {
                Some(place) => self.run(stage, place)?,
                // The token was given up meanwhile.
                None => self.tell(Event::StageDone { stage })?,
            },
            Command::Evict { chunk } => {
                let since = Instant::now();
                self.streamer.cache().evict(key(chunk));
                self.inner.times.host_ns += since.elapsed().as_nanos() as u64;
            }
            Command::Abort { chunk, cause } => return Err(self.abort(chunk, cause)),
            Command::Solve => self.inner.solve(),
            Command::Retain { .. } | Command::Drop { .. } | Command::LayerDone { .. } => {}
        }
        Ok(())
    }

    fn abort(&mut self, chunk: Chunk, cause: Cause) -> EngineError {
        let seconds = self.inner.controller.config().read_deadline_ns / 1_000_000_000;
        match (cause, self.inner.failure.take()) {
            (Cause::Failed, Some(failure)) => EngineError::from(failure),
            _ => EngineError::LateRead { layer: chunk.layer, chunk: chunk.index, seconds },
        }
    }

    fn submit(&mut self, read: ls_sched::ReadId) -> Result<(), EngineError> {
        let Some(read) = self.inner.controller.read(read) else { return Ok(()) };
        let mut requests = Vec::with_capacity(read.wanted.count_ones() as usize);
        for chunk in read.chunks() {
            match self.streamer.cache().reserve_free(key(chunk)) {
                Ok(fill) => {
                    self.inner.reading.push(chunk);
                    requests.push(self.streamer.read_chosen(fill, read.priority));
                }
                // The frame of one that was evicted, or whose read was given up, is still in use.
                Err(_) => self.tell(Event::Refused(chunk))?,
            }
        }
        self.streamer.reads().submit(requests);
        Ok(())
    }

    /// Computes a stage.
    fn run(&mut self, id: StageId, place: &mut Place<'_>) -> Result<(), EngineError> {
        let mut chunks = std::mem::take(&mut self.inner.stage);
        chunks.clear();
        let Some(stage) = self.inner.controller.stage(id) else { return Ok(()) };
        let layer = stage.layer;
        chunks.extend_from_slice(stage.chunks);
        chunks.sort_unstable();
        self.inner.taken.extend_from_slice(&chunks);
        let since = Instant::now();
        if std::mem::take(&mut self.inner.is_ranked) {
            self.inner.mark_neurons(self.by, place.forward, layer);
            self.inner.times.choose.ns += since.elapsed().as_nanos() as u64;
        }
        let since = Instant::now();
        let touched = self.compute(layer, &chunks, place);
        let layout = &place.mlp.layout;
        let bytes = touched.neurons * layout.record_bytes / layout.neurons_per_chunk;
        place.counts.add(layout, touched);
        self.inner.stage = chunks;
        self.tell(Event::StageDone { stage: id })?;
        self.inner.times.stage(since.elapsed(), bytes);
        self.land().map(drop)
    }

    /// Adds the chosen neurons of the chunks to the output.
    fn compute(&mut self, layer: u32, chunks: &[u16], place: &mut Place<'_>) -> Touched {
        let Place { forward, mlp, b, .. } = place;
        let (cpu, d, cache) = (forward.cpu, mlp.layout.d_model, self.streamer.cache());
        let n_parts = chunks.len().min(PARTS * cpu.pool().threads()).max(1);
        let size = chunks.len().div_ceil(n_parts).max(1);
        let touched = Mutex::new(Touched::default());
        let mut partial = std::mem::take(&mut self.inner.partial);
        let (mask, x, gate) = (self.inner.masks.row(0), &b.normed, forward.gate());
        cpu.pool().for_each_chunk(&mut partial[..n_parts * d], d, &|part, out| {
            out.fill(0.0);
            let chunks = chunks.chunks(size).nth(part).unwrap_or_default();
            let is_needed = |index: &&u16| mask.count(mlp.layout.neurons((**index).into())) > 0;
            // A budget that was lowered just now may have taken what is not pinned.
            let pin = |index: &u16| {
                let pin = cache.pin(key(Chunk { layer, index: (*index).into() }))?;
                Some((u32::from(*index), pin))
            };
            let pins: Vec<_> = chunks.iter().filter(is_needed).filter_map(pin).collect();
            let placed = pins.iter().map(|(chunk, pin)| {
                let n_neurons = mlp.layout.neurons_in(*chunk);
                let bytes = cache.pinned_bytes(pin);
                (ls_cpu::Chunk { bytes, n_neurons }, mlp.layout.neurons(*chunk).start)
            });
            let part = cpu.chosen_apart(&mlp.shape, placed, mask, gate, x, 0, out);
            pins.into_iter().for_each(|(_, pin)| cache.unpin(pin));
            *touched.lock() += part;
        });
        for part in partial[..n_parts * d].chunks_exact(d) {
            add(cpu.isa(), &mut b.delta[..d], part);
        }
        self.inner.partial = partial;
        touched.into_inner()
    }
}

impl Inner {
    /// A chunk is not being read any more; whether it was.
    fn ended(&mut self, chunk: Chunk) -> bool {
        let place = self.reading.iter().position(|other| *other == chunk);
        place.map(|place| self.reading.swap_remove(place)).is_some()
    }

    /// Whether what was read is the chunk's; looked at once.
    fn check(&mut self, record: &[u8], chunk: Chunk) -> Result<(), ChunkDamage> {
        let sound = &mut self.sound[chunk.layer as usize];
        if !sound[chunk.index as usize] {
            pack::verify_chunk(record, chunk.layer, chunk.index)?;
            sound.set(chunk.index as usize, true);
        }
        Ok(())
    }

    /// Lets price and horizon suit the budget, unless they were given.
    fn suit_budget(&mut self, by: &Refiner) -> Result<(), SchedError> {
        if by.count == Count::Fixed {
            return Ok(());
        }
        let (price, horizon) = by.given;
        let config = Config { budget_bytes: self.budget, ..self.controller.config().clone() };
        let usual = Worth::of(&config, self.controller.layout());
        self.controller.set_worth(Worth {
            price: price.unwrap_or(usual.price),
            horizon: horizon.unwrap_or(usual.horizon),
        })
    }

    /// Solves for a new table, beside everything else.
    fn solve(&mut self) {
        let profile = self.controller.profile();
        let solve = move || {
            // All processors compute the token; this can wait. Where it cannot be said, nothing is lost.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::setpriority_process(None, 19);
            ls_sched::solve(&profile).ok()
        };
        self.solver = std::thread::Builder::new().name("ls-solve".into()).spawn(solve).ok();
    }

    /// Goes by the table that was solved for, if it is there.
    fn take_table(&mut self) {
        if self.solver.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(Ok(Some(table))) = self.solver.take().map(JoinHandle::join)
        {
            self.controller.set_table(table);
        }
    }
}

impl Drop for RefinePass<'_> {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // The controller may have given it up itself; then there is none.
        let _ = self.tell(Event::TokenAbandoned);
        // Reads that are under way stay known, stages are over, and no command is left.
        while self.obey(None).is_err() {}
        self.report(0);
    }
}
