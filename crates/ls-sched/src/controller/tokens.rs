//! Tokens and layers: what begins and ends with them.

use super::{Controller, Phase};
use crate::command::{Basis, Cause};
use crate::frames::{CANCELLING, FRESH};
use crate::plan::TAKEN;
use crate::{Chunk, Command, Mode, Policy};

impl Controller {
    pub(super) fn begin_token(&mut self) {
        self.phase = Phase::Between;
        self.since = self.now;
        self.open_plans();
        if self.config.mode == Mode::Sparse && self.config.policy != Policy::Serial {
            let layer = self.layer_of(self.visit);
            self.ask_rank(self.visit, Basis { layer, stages: 0 });
        }
    }

    /// Opens the plans of the visits that reads may be for.
    pub(super) fn open_plans(&mut self) {
        let is_serial = self.config.policy == Policy::Serial;
        if is_serial && self.phase != Phase::Inside {
            return;
        }
        let n_layers = u64::from(self.layout.n_layers());
        for visit in self.visit..self.visit + self.plans.len() as u64 {
            let is_next_token = visit / n_layers != self.visit / n_layers;
            // What the next token needs is not ranked before it begins.
            if self.config.mode == Mode::Sparse && (is_next_token || self.phase == Phase::Idle) {
                return;
            }
            if self.plan_of(visit).is_none() {
                self.open_plan(visit);
            }
        }
    }

    fn open_plan(&mut self, visit: u64) {
        let (slot, layer) = (self.plan_slot(visit), self.layer_of(visit));
        let shape = self.layout.layers[layer as usize];
        let plan = &mut self.plans[slot];
        plan.open(visit, layer, shape.n_chunks);
        if self.config.mode == Mode::Exact {
            plan.choose_all(&shape, &mut self.frames);
            let missing = u64::from(plan.n_missing());
            self.stats.demand_miss_bytes += missing * u64::from(shape.chunk_bytes);
        }
    }

    pub(super) fn enter_layer(&mut self, layer: u32) {
        self.costs.between(self.now - self.since);
        self.phase = Phase::Inside;
        self.since = self.now;
        (self.due, self.waited_ns) = (None, 0);
        self.open_plans();
        if let Some(slot) = self.plan_of(self.visit)
            && let Some((chunk, cause)) = self.plans[slot].failed
        {
            self.abort(chunk, cause);
            return;
        }
        if self.config.mode == Mode::Sparse {
            self.rank_on_entry(layer);
        }
    }

    fn rank_on_entry(&mut self, layer: u32) {
        let basis = Basis { layer, stages: 0 };
        let slot = self.plan_of(self.visit);
        let is_chosen = slot.is_some_and(|slot| self.plans[slot].is_chosen);
        let is_asked = self.rankings[layer as usize].asked.is_some();
        if self.config.correct || !is_chosen && !is_asked {
            self.ask_rank(self.visit, basis);
        }
        for ahead in 1..self.plans.len() as u64 {
            let visit = self.visit + ahead;
            if self.plan_of(visit).is_some() && !self.is_in_vain(visit) {
                self.ask_rank(visit, basis);
            }
        }
    }

    /// Ends the layer if all of it is computed; whether it did.
    pub(super) fn end_layer(&mut self) -> bool {
        let Some(slot) = self.plan_of(self.visit).filter(|_| self.phase == Phase::Inside) else {
            return false;
        };
        let runs = self.lanes.iter().any(|lane| lane.visit == Some(self.visit));
        if runs || !self.plans[slot].is_chosen || self.plans[slot].n_left() > 0 {
            return false;
        }
        let layer = self.layer_of(self.visit);
        self.account(slot, layer);
        self.plans[slot].close(&mut self.frames);
        self.frames.refresh(layer);
        self.commands.push_back(Command::Retain { layer });
        self.commands.push_back(Command::LayerDone { layer });
        self.costs.layer_done(self.now);
        self.stats.layers += 1;
        self.visit += 1;
        self.since = self.now;
        self.phase = Phase::Between;
        if self.layer_of(self.visit) == 0 {
            self.phase = Phase::Idle;
            self.stats.tokens += 1;
            self.ask_solve();
        }
        self.open_plans();
        true
    }

    /// Counts what was read in vain, and tells the history what was used.
    fn account(&mut self, slot: usize, layer: u32) {
        let plan = &self.plans[slot];
        let bytes = u64::from(self.layout.layers[layer as usize].chunk_bytes);
        for index in 0..plan.marks.len() as u32 {
            let chunk = Chunk { layer, index };
            if self.frames.has(chunk, FRESH) {
                self.stats.unused_bytes += bytes;
                self.frames.clear(chunk, FRESH);
            }
        }
        let scores = match self.config.mode {
            Mode::Exact => None,
            Mode::Sparse => {
                Some((&plan.scores[..], plan.bound / self.layout.layers[layer as usize].weight))
            }
        };
        self.frames.retention.used(layer, |i| plan.marks[i] & TAKEN != 0, scores);
    }

    pub(super) fn abort(&mut self, chunk: Chunk, cause: Cause) {
        self.commands.push_back(Command::Abort { chunk, cause });
        self.end_token_early();
    }

    /// Leaves nothing of the token but the stages that run.
    pub(super) fn end_token_early(&mut self) {
        for slot in 0..self.plans.len() {
            self.plans[slot].close(&mut self.frames);
        }
        for i in 0..self.flights.len() {
            self.cancel_flight(i);
        }
        let n_layers = u64::from(self.layout.n_layers());
        self.visit = (self.visit / n_layers + 1) * n_layers;
        self.phase = Phase::Idle;
        self.stalled = None;
        self.stats.aborted += 1;
    }

    /// Asks to take back what is left of a read.
    pub(super) fn cancel_flight(&mut self, i: usize) {
        let flight = self.flights[i];
        for chunk in (Read { wanted: flight.left, ..flight.read }).chunks() {
            if !self.frames.has(chunk, CANCELLING) {
                self.frames.set(chunk, CANCELLING);
                self.commands.push_back(Command::Cancel { chunk });
            }
        }
    }
}

use crate::command::Read;
