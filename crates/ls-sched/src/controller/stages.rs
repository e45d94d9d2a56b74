//! What is computed when.

use super::{Controller, Flight, Phase};
use crate::command::{Cause, StageId};
use crate::frames::{FRESH, HELD, LEASED, RESIDENT};
use crate::plan::TAKEN;
use crate::{Chunk, Command, Mode};

impl Controller {
    /// Starts stages of what is in memory, as long as a lane is free.
    pub(super) fn start_stages(&mut self) {
        if self.phase != Phase::Inside {
            return;
        }
        let Some(slot) = self.plan_of(self.visit).filter(|slot| self.plans[*slot].is_chosen) else {
            return;
        };
        while let Some(lane) = self.lanes.iter().position(|lane| lane.visit.is_none()) {
            let is_any = match self.config.mode {
                Mode::Exact => self.fill_with_segment(slot, lane),
                Mode::Sparse => self.fill_with_best(slot, lane),
            };
            if !is_any {
                return;
            }
            self.run(slot, lane);
        }
    }

    /// The chunks of the first segment that is complete.
    fn fill_with_segment(&mut self, slot: usize, lane: usize) -> bool {
        let plan = &mut self.plans[slot];
        let length = self.layout.layers[plan.layer as usize].segment_chunks;
        let is_open = |s: usize| plan.marks[s * length as usize] & TAKEN == 0;
        while plan.first < plan.missing.len() && !is_open(plan.first) {
            plan.first += 1;
        }
        let mut rest = plan.first..plan.missing.len();
        let Some(segment) = rest.find(|s| plan.missing[*s] == 0 && is_open(*s)) else {
            return false;
        };
        let start = segment as u32 * length;
        let end = (start + length).min(plan.marks.len() as u32);
        let chunks = &mut self.lanes[lane].chunks;
        chunks.clear();
        chunks.extend(start as u16..=(end - 1) as u16);
        true
    }

    /// The best of what is ready, if that is enough.
    fn fill_with_best(&mut self, slot: usize, lane: usize) -> bool {
        let target = self.stage_chunks(slot);
        let least = self.least_chunks(slot);
        let plan = &self.plans[slot];
        let is_vain = self.stall_ns() >= self.config.late_ns || !self.is_read_from(slot);
        if plan.n_ready == 0 || plan.n_ready < least && !is_vain {
            return false;
        }
        let plan = &mut self.plans[slot];
        let chunks = &mut self.lanes[lane].chunks;
        chunks.clear();
        let mut first = None;
        for (place, index) in plan.order.iter().enumerate().skip(plan.first) {
            if !plan.is_open_to((*index).into()) {
                continue;
            }
            let chunk = plan.chunk(*index);
            if !self.frames.has(chunk, RESIDENT) {
                first.get_or_insert(place);
                continue;
            }
            if chunks.len() == target as usize {
                first.get_or_insert(place);
                break;
            }
            chunks.push(*index);
        }
        plan.first = first.unwrap_or(plan.order.len());
        !self.lanes[lane].chunks.is_empty()
    }

    /// Chunks of a full stage. Stages are there for what comes in between, and each costs something.
    pub(super) fn stage_chunks(&self, slot: usize) -> u32 {
        let plan = &self.plans[slot];
        let one = plan.n_total.div_ceil(self.config.stages);
        let is_ranking = self.due.is_some() || self.rankings.iter().any(|r| r.asked.is_some());
        let n = if is_ranking {
            one
        } else if self.has_reads() {
            // Until the device is through with half of what it was asked for: it is never to run out.
            let bytes: u64 = self.flights.iter().map(|flight| self.bytes_left(flight)).sum();
            one.max(self.costs.chunks_in(bytes / 2) / self.config.lanes)
        } else {
            plan.n_left().div_ceil(self.config.lanes)
        };
        n.max(1)
    }

    fn bytes_left(&self, flight: &Flight) -> u64 {
        let bytes = self.layout.layers[flight.read.layer as usize].chunk_bytes;
        u64::from(flight.left.count_ones()) * u64::from(bytes)
    }

    /// Whether there are reads that were not asked for yet.
    fn has_reads(&self) -> bool {
        let mut open = self.plans.iter().filter(|plan| plan.is_chosen);
        open.any(|plan| plan.is_stale || plan.next_run < plan.runs.len())
    }

    /// Chunks that a stage waits for: what comes last is not to keep all waiting for long.
    pub(super) fn least_chunks(&self, slot: usize) -> u32 {
        let stage = self.plans[slot].n_total.div_ceil(self.config.stages).max(1);
        let least = (f64::from(stage) * f64::from(self.config.least_stage)).ceil() as u32;
        least.clamp(1, stage).min(self.plans[slot].n_left())
    }

    /// Whether anything that the plan waits for is being read.
    pub(super) fn is_read_from(&self, slot: usize) -> bool {
        let layer = self.plans[slot].layer;
        self.flights.iter().filter(|f| f.left != 0 && f.read.layer == layer).any(|flight| {
            let mut rest = crate::Read { wanted: flight.left, ..flight.read }.chunks();
            rest.any(|chunk| self.frames.has(chunk, HELD))
        })
    }

    fn run(&mut self, slot: usize, lane: usize) {
        let plan = &mut self.plans[slot];
        let bytes = u64::from(self.layout.layers[plan.layer as usize].chunk_bytes);
        let Some(place) = self.lanes.get_mut(lane) else { return };
        for index in &place.chunks {
            let chunk = plan.chunk(*index);
            plan.marks[usize::from(*index)] |= TAKEN;
            self.frames.set(chunk, LEASED);
            self.frames.clear(chunk, HELD);
        }
        let n = place.chunks.len() as u32;
        plan.n_taken += n;
        plan.n_ready -= n;
        place.serial = place.serial.wrapping_add(1);
        place.visit = plan.visit;
        place.layer = plan.layer;
        place.n_done = plan.n_stages;
        place.since = self.now;
        place.was_ranking = self.rankings.iter().any(|ranking| ranking.asked.is_some());
        self.stats.wanted_bytes += u64::from(n) * bytes;
        let stage = StageId { lane: lane as u32, serial: place.serial };
        self.commands.push_back(Command::RunStage { stage });
    }

    pub(super) fn end_stage(&mut self, stage: StageId) {
        let lane = &mut self.lanes[stage.lane as usize];
        let (visit, layer) = (lane.visit.take(), lane.layer);
        for index in &lane.chunks {
            self.frames.clear(Chunk { layer, index: (*index).into() }, LEASED | FRESH);
        }
        self.costs.stage(self.now - lane.since, lane.chunks.len() as u32, lane.was_ranking);
        self.stats.stages += 1;
        self.is_blocked = false;
        let slot = visit.and_then(|visit| self.plan_of(visit));
        if let Some(slot) = slot {
            self.plans[slot].n_stages += 1;
            self.refine();
        }
    }

    /// Notes whether computing waits for reads, and gives up what comes too late; whether
    /// that changed anything.
    pub(super) fn note_stall(&mut self) -> bool {
        let Some(slot) = self.stalled_plan() else {
            if let Some(since) = self.stalled.take() {
                self.stats.stall_ns += self.now - since;
                self.waited_ns += self.now - since;
            }
            return false;
        };
        if self.stalled.is_none() {
            // What is read now may have to take what else would be kept.
            self.stalled = Some(self.now);
            return true;
        }
        if self.stall_ns() >= self.patience_ns() {
            return self.lose_next(slot);
        }
        self.is_past_late() && self.drop_late(slot)
    }

    /// The plan that computing waits for.
    fn stalled_plan(&self) -> Option<usize> {
        let slot = self.plan_of(self.visit).filter(|_| self.phase == Phase::Inside)?;
        let plan = &self.plans[slot];
        let is_idle = self.lanes.iter().all(|lane| lane.visit.is_none());
        (is_idle && plan.is_chosen && plan.n_left() > 0).then_some(slot)
    }

    /// How long computing waits now.
    pub(super) fn stall_ns(&self) -> u64 {
        self.stalled.map_or(0, |since| self.now - since)
    }

    pub(super) fn is_past_late(&self) -> bool {
        self.waited_ns.saturating_add(self.stall_ns()) >= self.config.late_ns
    }

    /// Gives up the least important of what is missing, as far as fidelity allows.
    fn drop_late(&mut self, slot: usize) -> bool {
        let plan = &mut self.plans[slot];
        if self.config.mode == Mode::Exact {
            return false;
        }
        let limit = self.config.fidelity.late_share;
        let mut is_any = false;
        for place in (plan.first..plan.order.len()).rev() {
            let index = plan.order[place];
            let share = plan.share(index.into());
            if plan.late_share + share > limit || limit <= 0.0 {
                break;
            }
            let chunk = plan.chunk(index);
            if !plan.is_open_to(index.into()) || self.frames.has(chunk, RESIDENT) {
                continue;
            }
            plan.late_share += share;
            self.stats.late_chunks += 1;
            self.stats.late_share += f64::from(share);
            let command = plan.drop_chunk(chunk, &mut self.frames);
            self.commands.push_back(command);
            is_any = true;
        }
        if is_any {
            self.cancel_unwanted(slot);
        }
        is_any
    }

    /// Takes back reads of which no chunk is wanted any more.
    fn cancel_unwanted(&mut self, slot: usize) {
        let layer = self.plans[slot].layer;
        for i in 0..self.flights.len() {
            let flight = self.flights[i];
            let rest = crate::Read { wanted: flight.left, ..flight.read };
            let is_wanted = rest.chunks().any(|chunk| self.frames.has(chunk, HELD));
            if rest.layer == layer && !is_wanted {
                self.cancel_flight(i);
            }
        }
    }

    /// Nothing has come for so long that nothing will: gives up the best that is missing.
    fn lose_next(&mut self, slot: usize) -> bool {
        let plan = &self.plans[slot];
        let is_missing = |i: &&u16| {
            plan.is_open_to(u32::from(**i)) && !self.frames.has(plan.chunk(**i), RESIDENT)
        };
        let Some(&index) = plan.order.iter().find(is_missing) else { return false };
        let chunk = plan.chunk(index);
        self.lose(slot, chunk, Cause::Late);
        true
    }
}
