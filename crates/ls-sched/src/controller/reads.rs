//! What is read, and where room for it comes from.

use super::{Controller, Phase};
use crate::command::{Cause, Read, ReadId, ones};
use crate::frames::{CANCELLING, FRESH, HELD, LEASED, ORPHAN, READING, RESIDENT};
use crate::{Chunk, Command, Mode};

impl Controller {
    /// Submits what there is room for, the nearest visit first.
    pub(super) fn submit(&mut self) {
        if self.is_blocked || self.frames.is_over() {
            return;
        }
        for ahead in 0..self.plans.len() as u64 {
            let visit = self.visit + ahead;
            let Some(slot) = self.plan_of(visit).filter(|slot| self.plans[*slot].is_chosen) else {
                continue;
            };
            // What lies behind is less urgent, so it does not go first.
            if !self.submit_plan(slot, visit) {
                return;
            }
        }
    }

    /// Whether all of the plan is submitted.
    fn submit_plan(&mut self, slot: usize, visit: u64) -> bool {
        let layer = self.plans[slot].layer;
        if self.plans[slot].is_stale {
            let shape = &self.layout.layers[layer as usize];
            self.plans[slot].list_runs(shape, &self.config, &self.frames);
        }
        loop {
            let plan = &self.plans[slot];
            let Some(run) = plan.runs.get(plan.next_run).copied() else { return true };
            let Some(place) = self.flights.iter().position(|flight| flight.left == 0) else {
                return false;
            };
            let run = self.still_wanted(run);
            let n = run.wanted.count_ones();
            let room = self.make_room(slot, visit, run.first, n);
            // Many short reads cost more than waiting, unless computing waits too.
            let shape = &self.layout.layers[layer as usize];
            let is_long = 2 * room >= self.config.max_chunks(shape.chunk_bytes);
            let is_worth_it = room >= n || is_long || self.is_awaited(slot, visit);
            let part = if is_worth_it { first_bits(run.wanted, room) } else { 0 };
            if part != 0 {
                self.fly(place, trim(Read { wanted: part, ..run }));
            }
            let rest = run.wanted & !part;
            let plan = &mut self.plans[slot];
            if rest != 0 {
                plan.runs[plan.next_run] = trim(Read { wanted: rest, ..run });
                return false;
            }
            plan.next_run += 1;
        }
    }

    /// The chunks of a run that are still to be read.
    fn still_wanted(&self, run: Read) -> Read {
        let is_wanted = |bit: &u32| {
            let chunk = Chunk { layer: run.layer, index: run.first + bit };
            self.frames.flags(chunk) & (HELD | READING | RESIDENT) == HELD
        };
        let wanted = ones(run.wanted).filter(is_wanted).fold(0, |bits, bit| bits | 1 << bit);
        trim(Read { wanted, ..run })
    }

    fn fly(&mut self, place: usize, read: Read) {
        for chunk in read.chunks() {
            self.frames.set(chunk, READING);
        }
        let flight = &mut self.flights[place];
        flight.read = read;
        flight.left = read.wanted;
        flight.since = self.now;
        flight.is_counted = false;
        self.stats.reads += 1;
        self.costs.reading(self.n_flights(), self.now);
        self.commands.push_back(Command::Submit { read: ReadId(place as u32) });
    }

    /// Frees frames for the `n` chunks of a visit that begin at `index`; how many there are.
    ///
    /// Chunks that pass through are bounded: in the end they take the place of what is kept for
    /// other visits. Unless computing stands still, and nothing comes.
    fn make_room(&mut self, slot: usize, visit: u64, index: u32, n: u32) -> u32 {
        let must = self.is_awaited(slot, visit);
        let open = self.plans.iter().filter(|plan| plan.visit.is_some());
        let left = self.frames.transit_left(open.map(|plan| plan.layer));
        let n = if must { n.into() } else { left.min(n.into()) };
        while self.frames.free() < n {
            let is_made = self.evict_stock(false)
                || self.preempt(visit, index, true)
                || must && self.evict_stock(true)
                || self.preempt(visit, index, false);
            if !is_made {
                break;
            }
        }
        self.frames.free().min(n) as u32
    }

    /// Whether computing waits for the plan, and nothing of it is being read.
    fn is_awaited(&self, slot: usize, visit: u64) -> bool {
        self.stalled.is_some() && visit == self.visit && !self.is_read_from(slot)
    }

    fn evict_stock(&mut self, must: bool) -> bool {
        let n_layers = u64::from(self.layout.n_layers());
        let here = u64::from(self.layer_of(self.visit));
        let plans = &self.plans;
        let distance = |layer: u32| {
            let open = plans.iter().any(|plan| plan.visit.is_some() && plan.layer == layer);
            let next = (u64::from(layer) + n_layers - here) % n_layers;
            // What a coming visit does not need is needed a token later, if at all.
            if open { next + n_layers } else { next }
        };
        let Some(chunk) = self.frames.victim(distance, must) else { return false };
        self.evict(chunk);
        true
    }

    fn evict(&mut self, chunk: Chunk) {
        if self.frames.has(chunk, FRESH) {
            self.stats.unused_bytes += self.bytes_of(chunk);
        }
        self.frames.clear(chunk, RESIDENT | FRESH);
        self.stats.evicted += 1;
        self.commands.push_back(Command::Evict { chunk });
    }

    /// Takes a frame from what is needed later than `visit`, or at `visit` but behind `index`; if so
    /// asked, only from layers that have more than their share.
    fn preempt(&mut self, visit: u64, index: u32, from_rich: bool) -> bool {
        let last = self.visit + self.plans.len() as u64 - 1;
        for later in (visit..=last).rev() {
            let Some(slot) = self.plan_of(later) else { continue };
            // In sparse mode all that is ready of this visit can be computed, and so makes room.
            let is_here = later == visit;
            if is_here && (self.config.mode == Mode::Sparse || from_rich) {
                continue;
            }
            if from_rich && !self.frames.is_rich(self.plans[slot].layer) {
                continue;
            }
            if self.take_last(slot, if is_here { index + 1 } else { 0 }) {
                return true;
            }
        }
        false
    }

    /// Evicts the last of the plan's order that is ready, from chunk `least` on.
    fn take_last(&mut self, slot: usize, least: u32) -> bool {
        let plan = &self.plans[slot];
        let is_ready = |i: &&u16| {
            let flags = self.frames.flags(plan.chunk(**i));
            u32::from(**i) >= least && flags & (HELD | RESIDENT) == HELD | RESIDENT
        };
        let Some(&i) = plan.order.iter().rev().find(is_ready) else { return false };
        self.take_away(slot, i.into());
        self.stats.preempted += 1;
        true
    }

    /// Evicts a chunk that is ready, and has to be read again.
    fn take_away(&mut self, slot: usize, index: u32) {
        let chunk = Chunk { layer: self.plans[slot].layer, index };
        self.lost_from_plan(slot, chunk);
        self.evict(chunk);
    }

    fn lost_from_plan(&mut self, slot: usize, chunk: Chunk) {
        self.plans[slot].n_ready -= 1;
        self.plans[slot].is_stale = true;
        self.count_missing(slot, chunk, 1);
    }

    fn count_missing(&mut self, slot: usize, chunk: Chunk, change: i32) {
        let length = self.layout.layers[chunk.layer as usize].segment_chunks;
        if let Some(n) = self.plans[slot].missing.get_mut((chunk.index / length) as usize) {
            *n = n.wrapping_add_signed(change);
        }
    }

    /// After the budget was lowered: lets go of what is not in use.
    pub(super) fn shrink(&mut self) {
        while self.frames.is_over() {
            if !self.evict_stock(true) && !self.preempt_any() {
                return;
            }
        }
    }

    fn preempt_any(&mut self) -> bool {
        let last = self.visit + self.plans.len() as u64 - 1;
        for visit in (self.visit..=last).rev() {
            let Some(slot) = self.plan_of(visit) else { continue };
            if self.take_last(slot, 0) {
                return true;
            }
        }
        false
    }

    fn bytes_of(&self, chunk: Chunk) -> u64 {
        self.layout.layers[chunk.layer as usize].chunk_bytes.into()
    }

    /// The chunk's read is over, whatever came of it.
    fn land(&mut self, chunk: Chunk) -> Option<usize> {
        let is_it = |f: &super::Flight| {
            let bit = chunk.index.wrapping_sub(f.read.first);
            f.read.layer == chunk.layer && bit < 64 && f.left >> bit & 1 == 1
        };
        let i = self.flights.iter().position(is_it)?;
        let flight = &mut self.flights[i];
        flight.left &= !(1 << (chunk.index - flight.read.first));
        Some(i)
    }

    pub(super) fn n_flights(&self) -> usize {
        self.flights.iter().filter(|flight| flight.left != 0).count()
    }

    pub(super) fn arrived(&mut self, chunk: Chunk) {
        let mut bytes = self.bytes_of(chunk);
        let n_read = bytes;
        if let Some(i) = self.land(chunk)
            && !std::mem::replace(&mut self.flights[i].is_counted, true)
        {
            let read = self.flights[i].read;
            let gap = u64::from(read.len() - read.wanted.count_ones()) * n_read;
            self.stats.gap_bytes += gap;
            bytes += gap;
        }
        self.stats.read_bytes += bytes;
        self.costs.arrived(bytes);
        self.costs.reading(self.n_flights(), self.now);
        self.frames.clear(chunk, READING | CANCELLING | ORPHAN);
        self.frames.set(chunk, RESIDENT);
        let Some(slot) = self.plan_of_layer(chunk.layer) else {
            self.stats.unused_bytes += n_read;
            return;
        };
        self.frames.set(chunk, FRESH);
        if self.frames.has(chunk, HELD) {
            // Once there are enough for a stage, computing does not wait for what came with them. In exact mode
            // it waits for segments, whatever else is there.
            let is_awaited = self.stalled.is_some()
                && self.plans[slot].visit == Some(self.visit)
                && (self.config.mode == Mode::Exact
                    || self.plans[slot].n_ready < self.least_chunks(slot));
            self.stats.stall_miss_bytes += if is_awaited { n_read } else { 0 };
            self.plans[slot].n_ready += 1;
            self.count_missing(slot, chunk, -1);
        }
    }

    pub(super) fn cancelled(&mut self, chunk: Chunk) {
        self.stats.cancelled += 1;
        self.let_go(chunk);
    }

    /// The chunk was not read, and has no frame any more.
    pub(super) fn let_go(&mut self, chunk: Chunk) {
        self.land(chunk);
        self.costs.reading(self.n_flights(), self.now);
        self.frames.clear(chunk, READING | CANCELLING | ORPHAN);
        if let Some(slot) = self.plan_of_layer(chunk.layer) {
            self.plans[slot].is_stale |= self.frames.has(chunk, HELD);
        }
    }

    pub(super) fn read_failed(&mut self, chunk: Chunk) {
        self.stats.failed += 1;
        self.let_go(chunk);
        let Some(slot) = self.plan_of_layer(chunk.layer) else { return };
        if self.frames.has(chunk, HELD)
            && !self.plans[slot].retry(chunk.index, self.config.max_retries)
        {
            self.lose(slot, chunk, Cause::Failed);
        }
    }

    pub(super) fn gone(&mut self, chunk: Chunk) {
        if let Some(slot) = self.plan_of_layer(chunk.layer).filter(|_| self.frames.has(chunk, HELD))
        {
            self.lost_from_plan(slot, chunk);
        }
        if self.frames.has(chunk, FRESH) {
            self.stats.unused_bytes += self.bytes_of(chunk);
        }
        self.frames.clear(chunk, RESIDENT | FRESH | LEASED);
    }

    /// A chunk that is needed cannot be had.
    pub(super) fn lose(&mut self, slot: usize, chunk: Chunk, cause: Cause) {
        let plan = &mut self.plans[slot];
        let share = plan.share(chunk.index);
        let may_drop = self.config.mode == Mode::Sparse
            && plan.lost_share + share <= self.config.fidelity.lost_share;
        if may_drop {
            plan.lost_share += share;
            self.stats.lost_chunks += 1;
            self.stats.lost_share += f64::from(share);
            let command = plan.drop_chunk(chunk, &mut self.frames);
            self.commands.push_back(command);
        } else if plan.visit == Some(self.visit) && self.phase == Phase::Inside {
            self.abort(chunk, cause);
        } else {
            // What is computed now does not need it. Nothing waits for it before it is entered.
            plan.failed = Some((chunk, cause));
            plan.marks[chunk.index as usize] |= crate::plan::DROPPED;
            plan.n_dropped += 1;
            self.frames.clear(chunk, HELD);
        }
    }

    /// Gives up reads that take too long. Their frames stay taken until they are reported.
    pub(super) fn give_up_late_reads(&mut self) {
        for i in 0..self.flights.len() {
            let flight = self.flights[i];
            let limit = flight.since.saturating_add(self.config.read_deadline_ns);
            if flight.left == 0 || self.now < limit {
                continue;
            }
            self.cancel_flight(i);
            self.flights[i].left = 0;
            for chunk in (Read { wanted: flight.left, ..flight.read }).chunks() {
                self.frames.set(chunk, ORPHAN);
                let slot = self.plan_of_layer(chunk.layer);
                if let Some(slot) = slot.filter(|_| self.frames.has(chunk, HELD)) {
                    self.lose(slot, chunk, Cause::Late);
                }
            }
        }
    }
}

/// The lowest `n` bits that are set.
fn first_bits(bits: u64, n: u32) -> u64 {
    ones(bits).take(n as usize).fold(0, |kept, bit| kept | 1 << bit)
}

/// Begins with the first wanted chunk.
fn trim(read: Read) -> Read {
    if read.wanted == 0 {
        return read;
    }
    let skipped = read.wanted.trailing_zeros();
    Read { first: read.first + skipped, wanted: read.wanted >> skipped, ..read }
}
