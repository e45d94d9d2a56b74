//! When layers are ranked, and what follows from it.

use super::{Controller, Phase};
use crate::command::Basis;
use crate::frames::{FRESH, RESIDENT};
use crate::plan::has_moved;
use crate::{Chunk, Command, Count, Mode, Policy};

/// Rankings of a layer ahead that are left out in a row.
const MOST_SKIPPED: u8 = 7;
/// How much one observation counts of what a layer is missing.
const MISSING_WEIGHT: f64 = 0.25;

impl Controller {
    /// Asks for a ranking of the layer of `visit`: now, or when the last one is answered.
    pub(super) fn ask_rank(&mut self, visit: u64, basis: Basis) {
        let layer = self.layer_of(visit);
        let ranking = &mut self.rankings[layer as usize];
        if ranking.asked.is_some() {
            ranking.again = Some((visit, basis));
            return;
        }
        ranking.asked = Some((visit, self.now));
        self.stats.ranks += 1;
        self.lanes.iter_mut().for_each(|lane| lane.was_ranking = true);
        self.commands.push_back(Command::Rank { layer, basis });
    }

    /// Whether it is not worth it to rank the layer of a visit ahead: what would be read for it takes less time
    /// than ranking, which delays all that is computed. Now and then it is ranked all the same.
    pub(super) fn is_in_vain(&mut self, visit: u64) -> bool {
        let layer = self.layer_of(visit) as usize;
        let (policy, bytes) = (self.config.policy, self.layout.layers[layer].chunk_bytes);
        let ranking = &mut self.rankings[layer];
        let Some(missing) = ranking.missing.filter(|_| policy == Policy::Refine) else {
            return false;
        };
        let reads = missing * f64::from(bytes) * self.costs.byte_ns();
        let is_worth_it = self.costs.stall_ns().is_none_or(|ns| reads >= ns);
        ranking.skipped =
            if is_worth_it || ranking.skipped == MOST_SKIPPED { 0 } else { ranking.skipped + 1 };
        ranking.skipped > 0
    }

    pub(super) fn take_scores(&mut self, layer: u32, scores: Option<&[f32]>) {
        let ranking = &mut self.rankings[layer as usize];
        let asked = ranking.asked.take();
        let again = ranking.again.take();
        if let Some((_, since)) = asked.filter(|_| scores.is_some()) {
            // Of rankings that were asked for together, each begins when the one before is over.
            let since = if self.config.ranks_inline { since.max(self.before) } else { since };
            self.costs.rank(self.now - since);
            self.chosen_since = self.config.ranks_inline.then_some(since);
        }
        // An answer to what an earlier token asked is of no use.
        let slot = self.plan_of_layer(layer);
        let slot =
            slot.filter(|s| asked.is_none_or(|(visit, _)| self.plans[*s].visit == Some(visit)));
        if let Some(slot) = slot.filter(|_| self.config.mode == Mode::Sparse) {
            self.choose(slot, scores);
        }
        if let Some((visit, basis)) = again.filter(|(visit, _)| self.plan_of(*visit).is_some()) {
            self.ask_rank(visit, basis);
        }
    }

    fn choose(&mut self, slot: usize, scores: Option<&[f32]>) {
        let layer = self.plans[slot].layer;
        let shape = self.layout.layers[layer as usize];
        let was_chosen = self.plans[slot].is_chosen;
        if was_chosen && scores.is_none() {
            return;
        }
        let before = self.plans[slot].n_left();
        let held = self.count_held(slot);
        let guess;
        let scores = match scores {
            Some(scores) => scores,
            // What was worth keeping is what will probably be used. This allocates; it is rare.
            None => {
                let value = |index| self.frames.retention.value(Chunk { layer, index });
                guess = (0..shape.n_chunks).map(|i| f32::from(value(i))).collect::<Vec<_>>();
                &guess[..]
            }
        };
        let mut price = self.prices[layer as usize];
        // What is ranked when it is entered has to be waited for.
        if self.phase == Phase::Inside && self.plans[slot].visit == Some(self.visit) {
            price.open *= self.config.late_price;
            price.chunk *= self.config.late_price;
        }
        let by_worth = self.config.count == Count::ByWorth;
        let lasting = if by_worth {
            self.lasting.clear();
            if self.config.horizon > 0.0 {
                let room = self.frames.quota(layer) as usize;
                self.frames.retention.lasting(layer, room, &mut self.lasting);
                self.lasting.iter_mut().for_each(|gain| *gain *= self.config.horizon);
            }
            Some(&self.lasting[..])
        } else {
            None
        };
        let (progress, is_here) = (self.progress(), self.plans[slot].visit == Some(self.visit));
        let plan = &mut self.plans[slot];
        let ranked_at = plan.ranked_at;
        plan.ranked_at = if is_here || !was_chosen { 0 } else { progress };
        // What was read, or is to be, because of the last ranking.
        self.watched.clear();
        let is_read = |index: &u16| {
            let flags = self.frames.flags(plan.chunk(*index));
            flags & RESIDENT == 0 || flags & FRESH != 0
        };
        if !by_worth {
            self.watched.extend(plan.order.iter().copied().filter(is_read));
        }
        mark_chosen(&mut plan.marks, &plan.order);
        plan.choose(&shape, lasting, price, scores, &mut self.chooser, &mut self.frames);
        let kept = unmark_chosen(&mut plan.marks, &plan.order);
        if was_chosen {
            let in_vain = |index: &&u16| plan.scores[usize::from(**index)] < plan.bound;
            let n_in_vain = self.watched.iter().filter(in_vain).count();
            let until = (!is_here).then_some(progress);
            self.costs.stale(n_in_vain, self.watched.len(), ranked_at, until);
            self.stats.refinements += 1;
            self.stats.replaced += u64::from(before.saturating_sub(kept));
            self.revise_flights(slot, held);
        } else {
            let missing = plan.n_missing();
            self.stats.demand_miss_bytes += u64::from(missing) * u64::from(shape.chunk_bytes);
            let of = if by_worth { plan.n_total.max(1) } else { shape.n_keep };
            self.costs.missed(missing, of);
            if self.plans[slot].visit != Some(self.visit) {
                let ranking = &mut self.rankings[layer as usize];
                let was = ranking.missing.unwrap_or(missing.into());
                ranking.missing = Some(was + MISSING_WEIGHT * (f64::from(missing) - was));
            }
        }
        self.set_due(slot);
    }

    /// Reads of the plan that are under way.
    fn count_held(&self, slot: usize) -> usize {
        let layer = self.plans[slot].layer;
        self.flights.iter().filter(|f| f.left != 0 && f.read.layer == layer).count()
    }

    /// Takes back reads that nobody wants any more, and moves the others.
    fn revise_flights(&mut self, slot: usize, mut n: usize) {
        let layer = self.plans[slot].layer;
        for i in 0..self.flights.len() {
            let flight = self.flights[i];
            if n == 0 || flight.left == 0 || flight.read.layer != layer {
                continue;
            }
            n -= 1;
            let rest = crate::Read { wanted: flight.left, ..flight.read };
            if !rest.chunks().any(|chunk| self.frames.has(chunk, crate::frames::HELD)) {
                self.cancel_flight(i);
                continue;
            }
            let shape = &self.layout.layers[layer as usize];
            let priority = self.plans[slot].priority(&rest, shape, &self.config);
            if has_moved(priority, flight.read.priority) {
                self.flights[i].read.priority = priority;
                let moved = rest.chunks().map(|chunk| Command::Reprioritise { chunk, priority });
                self.commands.extend(moved);
            }
        }
    }

    /// Decides when the next layer is to be ranked again.
    fn set_due(&mut self, slot: usize) {
        let is_next = self.plans[slot].visit == Some(self.visit + 1);
        if self.phase != Phase::Inside || !is_next {
            return;
        }
        let progress = self.progress();
        let interval = match self.config.policy {
            Policy::Serial | Policy::OneShot => None,
            Policy::Fixed(stages) => Some(stages),
            Policy::Refine => Some(self.adapt(slot, progress)),
        };
        let due = interval.map(|interval| progress.saturating_add(interval));
        // After the last stage the layer is entered, and ranked then.
        self.due = due.filter(|due| *due < self.config.stages);
    }

    /// The interval that the table has for what is the case now.
    fn adapt(&self, next: usize, progress: u32) -> u32 {
        let Some(table) = &self.table else { return (self.config.stages / 4).max(1) };
        let units = |n: u32, slot: usize| {
            let plan = &self.plans[slot];
            n as f32 * self.config.stages as f32 / plan.n_total.max(1) as f32
        };
        // What is being computed is not done, so it counts as ready.
        let here = self.plan_of(self.visit);
        let ready = here.map_or(0.0, |s| units(self.plans[s].n_ready + self.n_running(), s));
        table.interval(progress, ready, units(self.plans[next].n_missing(), next))
    }

    /// Chunks of the layer that are being computed.
    fn n_running(&self) -> u32 {
        let running = self.lanes.iter().filter(|lane| lane.visit == Some(self.visit));
        running.map(|lane| lane.chunks.len() as u32).sum()
    }

    /// Stages of the layer that are computed, as if all were of one size.
    pub(super) fn progress(&self) -> u32 {
        let Some(slot) = self.plan_of(self.visit) else { return 0 };
        let plan = &self.plans[slot];
        let running = self.n_running();
        let done = u64::from(plan.n_taken - running) * u64::from(self.config.stages);
        (done / u64::from(plan.n_total.max(1))) as u32
    }

    /// After a stage: ranks the next layer, if it is time.
    pub(super) fn refine(&mut self) {
        let Some(due) = self.due else { return };
        let progress = self.progress();
        let next = self.visit + 1;
        if progress < due || progress >= self.config.stages || self.plan_of(next).is_none() {
            return;
        }
        let stages = self.plan_of(self.visit).map_or(0, |slot| self.plans[slot].n_stages);
        self.due = None;
        self.ask_rank(next, Basis { layer: self.layer_of(self.visit), stages });
    }

    /// Asks for a new table when costs have changed.
    pub(super) fn ask_solve(&mut self) {
        if self.config.policy != Policy::Refine || self.config.mode == Mode::Exact {
            return;
        }
        if self.n_tokens() < self.solve_from {
            return;
        }
        let has_drifted = match &self.table {
            None => self.costs.is_known(),
            Some(table) => self.profile().has_drifted(table.profile()),
        };
        if has_drifted && !self.solve_asked {
            self.solve_asked = true;
            self.stats.solves += 1;
            self.commands.push_back(Command::Solve);
        }
    }
}

/// Bit of a mark that is used while choosing only.
const WAS: u8 = 128;

fn mark_chosen(marks: &mut [u8], order: &[u16]) {
    for i in order {
        let mark = &mut marks[usize::from(*i)];
        *mark |= if *mark & (crate::plan::TAKEN | crate::plan::DROPPED) == 0 { WAS } else { 0 };
    }
}

/// How many of `order` were marked; clears all marks.
fn unmark_chosen(marks: &mut [u8], order: &[u16]) -> u32 {
    let kept = order.iter().filter(|i| marks[usize::from(**i)] & WAS != 0).count();
    marks.iter_mut().for_each(|mark| *mark &= !WAS);
    kept as u32
}
