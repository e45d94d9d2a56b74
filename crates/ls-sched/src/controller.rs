//! The state machine.

mod ranks;
mod reads;
mod stages;
mod tokens;

use std::collections::VecDeque;

use crate::choose::{Chooser, Price};
use crate::command::{Read, ReadId, Stage, StageId};
use crate::costs::Costs;
use crate::error::within;
use crate::frames::{Frames, HELD, READING, RESIDENT};
use crate::interval::Table;
use crate::plan::{Plan, Ranking};
use crate::solve::Profile;
use crate::{Chunk, Command, Config, Count, Event, Layout, Mode, Policy, SchedError, Stats, Worth};

/// What the token is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Idle,
    /// What comes before a layer's MLP is computed.
    Between,
    /// An MLP is computed.
    Inside,
}

/// A read that was submitted.
#[derive(Clone, Copy, Debug)]
struct Flight {
    read: Read,
    /// Chunks that were not reported yet; none: the place is free.
    left: u64,
    since: u64,
    /// Whether bytes of gaps were counted.
    is_counted: bool,
}

/// A stage's place.
#[derive(Debug)]
struct Lane {
    serial: u32,
    /// Of the stage that runs.
    visit: Option<u64>,
    layer: u32,
    n_done: u32,
    since: u64,
    /// Whether something was ranked while it ran.
    was_ranking: bool,
    chunks: Vec<u16>,
}

/// Decides what is ranked, read, computed and kept.
///
/// It is told what happens ([`Controller::handle`]) and says what to do
/// ([`Controller::next_command`]). It has no clock: each event says the time, in nanoseconds from
/// anywhere; if it goes backwards, the latest counts.
#[derive(Debug)]
pub struct Controller {
    layout: Layout,
    config: Config,
    prices: Vec<Price>,
    frames: Frames,
    plans: Vec<Plan>,
    rankings: Vec<Ranking>,
    chooser: Chooser,
    /// What chunks of a layer are worth beyond a visit.
    lasting: Vec<f32>,
    flights: Vec<Flight>,
    lanes: Vec<Lane>,
    commands: VecDeque<Command>,
    now: u64,
    phase: Phase,
    /// The visit that is under way, or the next one, counted over all tokens.
    visit: u64,
    /// When this phase began.
    since: u64,
    /// A frame was refused.
    is_blocked: bool,
    /// Since when computing waits for reads.
    stalled: Option<u64>,
    /// How long it waited in this layer before.
    waited_ns: u64,
    /// Of how many stages the next layer is to be ranked again.
    due: Option<u32>,
    /// Chunks of a plan that are read because of its last ranking.
    watched: Vec<u16>,
    /// When the event before came, and since when computing has stood still for a ranking.
    before: u64,
    chosen_since: Option<u64>,
    table: Option<Table>,
    solve_asked: bool,
    /// Tokens from which on a new table may be asked for.
    solve_from: u64,
    costs: Costs,
    stats: Stats,
}

/// Fewest tokens between two tables; each time twice as many.
const SOLVE_TOKENS: u64 = 2;

impl Controller {
    /// A controller for the chunks of `layout`, none of which is in memory.
    ///
    /// # Errors
    ///
    /// If a size or setting makes no sense, or the budget is below what must be there at once: in
    /// exact mode the longest segment, else one chunk.
    pub fn new(layout: Layout, config: Config) -> Result<Self, SchedError> {
        layout.check()?;
        config.check(layout.n_layers())?;
        let longest = layout.layers.iter().map(|layer| layer.n_chunks as usize).max().unwrap_or(1);
        let empty = Read { layer: 0, first: 0, wanted: 0, priority: 0 };
        let flight = Flight { read: empty, left: 0, since: 0, is_counted: true };
        let lane = |_| {
            let chunks = Vec::with_capacity(longest);
            Lane {
                serial: 0,
                visit: None,
                layer: 0,
                n_done: 0,
                since: 0,
                was_ranking: false,
                chunks,
            }
        };
        let n_plans = if config.policy == Policy::Serial { 0 } else { config.ahead } + 1;
        let controller = Self {
            prices: prices(&layout, &config),
            frames: Frames::new(&layout, &config),
            plans: (0..n_plans).map(|_| Plan::new(longest)).collect(),
            rankings: vec![Ranking::default(); layout.layers.len()],
            chooser: Chooser::new(longest),
            lasting: Vec::with_capacity(longest),
            flights: vec![flight; config.max_reads as usize],
            lanes: (0..config.lanes).map(lane).collect(),
            commands: VecDeque::with_capacity(64 + 2 * longest),
            now: 0,
            phase: Phase::Idle,
            visit: 0,
            since: 0,
            is_blocked: false,
            stalled: None,
            waited_ns: 0,
            due: None,
            watched: Vec::with_capacity(longest),
            before: 0,
            chosen_since: None,
            table: None,
            solve_asked: false,
            solve_from: 0,
            costs: Costs::new(&layout, &config),
            stats: Stats::default(),
            layout,
            config,
        };
        controller.check_budget(controller.frames.budget())?;
        Ok(controller)
    }

    /// Takes in what happened at `now`, and decides what follows from it.
    ///
    /// # Errors
    ///
    /// If that cannot have happened; nothing is changed then.
    pub fn handle(&mut self, event: Event<'_>, now: u64) -> Result<(), SchedError> {
        self.take_in(event, now)?;
        self.advance();
        Ok(())
    }

    /// Takes in all that happened until `now`, and decides once what follows from it.
    ///
    /// # Errors
    ///
    /// If one of them cannot have happened. Those before it are taken in then, those after it are not.
    pub fn handle_all<'e>(
        &mut self,
        events: impl IntoIterator<Item = Event<'e>>,
        now: u64,
    ) -> Result<(), SchedError> {
        let taken = events.into_iter().try_for_each(|event| self.take_in(event, now));
        self.advance();
        taken
    }

    fn take_in(&mut self, event: Event<'_>, now: u64) -> Result<(), SchedError> {
        self.check(&event)?;
        self.before = self.now;
        self.now = self.now.max(now);
        if let Some(since) = self.chosen_since.take() {
            self.costs.stall(self.now - since);
        }
        match event {
            Event::TokenBegun => self.begin_token(),
            Event::LayerEntered { layer } => self.enter_layer(layer),
            Event::Scores { layer, scores } => self.take_scores(layer, Some(scores)),
            Event::RankFailed { layer } => self.take_scores(layer, None),
            Event::StageDone { stage } => self.end_stage(stage),
            Event::Arrived(chunk) => self.arrived(chunk),
            Event::ReadFailed(chunk) => self.read_failed(chunk),
            Event::Cancelled(chunk) => self.cancelled(chunk),
            Event::Refused(chunk) => {
                self.is_blocked = true;
                self.let_go(chunk);
            }
            Event::FrameFreed => self.is_blocked = false,
            Event::Found(chunk) => self.frames.set(chunk, RESIDENT),
            Event::Gone(chunk) => self.gone(chunk),
            Event::BudgetChanged { bytes } => self.frames.set_budget(bytes),
            Event::TokenAbandoned => self.end_token_early(),
            Event::Time => {}
        }
        Ok(())
    }

    /// What to do next, until there is nothing more to do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The chunks of a read, and its priority; `None` when all were reported.
    #[must_use]
    pub fn read(&self, id: ReadId) -> Option<Read> {
        let flight = self.flights.get(id.0 as usize)?;
        (flight.left != 0).then_some(flight.read)
    }

    /// The chunks of a stage; `None` when it was reported as done.
    #[must_use]
    pub fn stage(&self, id: StageId) -> Option<Stage<'_>> {
        let lane = self.lanes.get(id.lane as usize)?;
        let is_it = lane.visit.is_some() && lane.serial == id.serial;
        let Lane { layer, n_done, chunks, .. } = lane;
        is_it.then_some(Stage { layer: *layer, n_done: *n_done, chunks })
    }

    /// The chunks that were chosen for the visit of `layer` that is under way or awaited, and that no
    /// stage has taken yet when they were chosen last: the best first. `None` while nothing is chosen.
    #[must_use]
    pub fn chosen(&self, layer: u32) -> Option<&[u16]> {
        let plan = &self.plans[self.plan_of_layer(layer)?];
        plan.is_chosen.then_some(&plan.order)
    }

    /// When to report [`Event::Time`], unless something else happens before: then waiting has
    /// lasted too long for something.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let reads = self.flights.iter().filter(|flight| flight.left != 0);
        let late = reads.map(|flight| flight.since.saturating_add(self.config.read_deadline_ns));
        let stalled = self.stalled.map(|since| {
            let Config { late_ns, fidelity, .. } = self.config;
            let wait = if fidelity.late_share > 0.0 && !self.is_past_late() {
                late_ns.saturating_sub(self.waited_ns)
            } else if self.stall_ns() < late_ns {
                late_ns
            } else {
                self.patience_ns()
            };
            since.saturating_add(wait)
        });
        late.chain(stalled).min()
    }

    /// How long a token may stand still: until all repetitions of a read are late.
    fn patience_ns(&self) -> u64 {
        self.config.read_deadline_ns.saturating_mul(2 + u64::from(self.config.max_retries))
    }

    /// What it is worth to keep a chunk, from 0 to 255; 255 if it is about to be computed.
    ///
    /// # Errors
    ///
    /// If there is no such chunk.
    pub fn value(&self, chunk: Chunk) -> Result<u8, SchedError> {
        self.frames.check(chunk)?;
        let held = self.frames.has(chunk, HELD);
        Ok(if held { u8::MAX } else { self.frames.retention.value(chunk) })
    }

    /// Whether a chunk is in memory.
    #[must_use]
    pub fn is_resident(&self, chunk: Chunk) -> bool {
        self.frames.check(chunk).is_ok() && self.frames.has(chunk, RESIDENT)
    }

    /// Frames in use: of chunks in memory, and of those being read.
    #[must_use]
    pub fn occupied_frames(&self) -> u64 {
        self.frames.occupied()
    }

    /// Counts and sizes.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Counts and sizes, which begin anew.
    pub fn take_stats(&mut self) -> Stats {
        std::mem::take(&mut self.stats)
    }

    /// The order of a layer's chunks for [`Keep::Hot`](crate::Keep::Hot), the hottest first; those
    /// that are not named come after. Only 256 steps of it are told apart.
    ///
    /// # Errors
    ///
    /// If there is no such layer.
    pub fn set_hot(&mut self, layer: u32, order: &[u16]) -> Result<(), SchedError> {
        let n_layers = self.layout.n_layers();
        if layer >= n_layers {
            return Err(SchedError::Layer { layer, n_layers });
        }
        self.frames.retention.set_hot(layer, order);
        self.frames.refresh(layer);
        Ok(())
    }

    /// How much the short history counts for [`Keep::Priority`](crate::Keep::Priority), of 256.
    pub fn set_recent_weight(&mut self, weight: u8) {
        self.frames.retention.set_recent_weight(weight);
    }

    /// The table that [`Policy::Refine`] goes by. Until there is one, layers are ranked again
    /// after each quarter.
    pub fn set_table(&mut self, table: Table) {
        self.table = Some(table);
        self.solve_asked = false;
        // Solving takes a processor that computes otherwise: costs that never settle must not be followed for ever.
        let tokens = self.n_tokens();
        self.solve_from = tokens + tokens.max(SOLVE_TOKENS);
    }

    /// What chunks must add to be read from now on.
    ///
    /// # Errors
    ///
    /// If it makes no sense.
    pub fn set_worth(&mut self, worth: Worth) -> Result<(), SchedError> {
        let Worth { price, horizon } = worth;
        let config = Config { price, horizon, ..self.config.clone() };
        config.check(self.layout.n_layers())?;
        self.prices = prices(&self.layout, &config);
        self.config = config;
        Ok(())
    }

    /// Tokens since the controller was made.
    fn n_tokens(&self) -> u64 {
        self.visit / u64::from(self.layout.n_layers())
    }

    /// What things cost, as far as it was seen. What cannot be seen from here, how stale rankings
    /// are, is as in the table's profile.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.costs.profile(self.table.as_ref().map(Table::profile))
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The settings. [`Event::BudgetChanged`] does not change them.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn check(&self, event: &Event<'_>) -> Result<(), SchedError> {
        let order = |why| Err(SchedError::Order { event: event.name(), why });
        match event {
            Event::TokenBegun if self.phase != Phase::Idle => order("a token is under way"),
            Event::TokenBegun if self.lanes.iter().any(|lane| lane.visit.is_some()) => {
                order("a stage of the last token still runs")
            }
            Event::TokenAbandoned if self.phase == Phase::Idle => order("there is no token"),
            Event::LayerEntered { layer } => {
                if self.phase != Phase::Between {
                    return order("no layer is awaited");
                }
                if *layer != self.layer_of(self.visit) {
                    return order("another layer comes next");
                }
                Ok(())
            }
            Event::Scores { layer, scores } => self.check_scores(*layer, scores.len()),
            Event::RankFailed { layer } => self.check_layer(*layer),
            Event::StageDone { stage } if self.stage(*stage).is_none() => {
                order("no such stage runs")
            }
            Event::Arrived(chunk)
            | Event::ReadFailed(chunk)
            | Event::Cancelled(chunk)
            | Event::Refused(chunk) => self.frames.check_reading(*chunk, event),
            Event::Found(chunk) => {
                self.frames.check(*chunk)?;
                if self.phase != Phase::Idle {
                    return order("a token is under way");
                }
                if self.frames.has(*chunk, RESIDENT | READING) {
                    return order("the chunk has a frame");
                }
                Ok(())
            }
            Event::Gone(chunk) => {
                self.frames.check(*chunk)?;
                if !self.frames.has(*chunk, RESIDENT) {
                    return order("the chunk is not in memory");
                }
                if self.frames.has(*chunk, crate::frames::LEASED) {
                    return order("a stage uses the chunk");
                }
                Ok(())
            }
            Event::BudgetChanged { bytes } => {
                self.check_budget(bytes / u64::from(self.layout.frame_bytes))
            }
            _ => Ok(()),
        }
    }

    fn check_layer(&self, layer: u32) -> Result<(), SchedError> {
        let n_layers = self.layout.n_layers();
        if layer < n_layers { Ok(()) } else { Err(SchedError::Layer { layer, n_layers }) }
    }

    fn check_scores(&self, layer: u32, found: usize) -> Result<(), SchedError> {
        self.check_layer(layer)?;
        let expected = self.layout.layers[layer as usize].n_chunks as usize;
        if found == expected {
            return Ok(());
        }
        Err(SchedError::Scores { layer, found, expected })
    }

    fn check_budget(&self, found: u64) -> Result<(), SchedError> {
        let longest = self.layout.layers.iter().map(|layer| u64::from(layer.segment_chunks)).max();
        let least = if self.config.mode == Mode::Exact { longest.unwrap_or(1) } else { 1 };
        within("frames", found as f64, 0.0..=f64::from(u32::MAX), "below 2^32")?;
        if found < least { Err(SchedError::Budget { found, least }) } else { Ok(()) }
    }

    fn layer_of(&self, visit: u64) -> u32 {
        // Below the number of layers, which is a u32.
        (visit % u64::from(self.layout.n_layers())) as u32
    }

    fn plan_slot(&self, visit: u64) -> usize {
        (visit % self.plans.len() as u64) as usize
    }

    /// The plan of a visit, if it is open.
    fn plan_of(&self, visit: u64) -> Option<usize> {
        let slot = self.plan_slot(visit);
        (self.plans[slot].visit == Some(visit)).then_some(slot)
    }

    /// The open plan of a layer.
    fn plan_of_layer(&self, layer: u32) -> Option<usize> {
        self.plans.iter().position(|plan| plan.visit.is_some() && plan.layer == layer)
    }

    /// Does what can be done, until nothing changes.
    fn advance(&mut self) {
        self.give_up_late_reads();
        loop {
            self.shrink();
            self.submit();
            self.start_stages();
            let goes_on = self.note_stall() || self.end_layer();
            if !goes_on {
                return;
            }
        }
    }
}

/// What reads of each layer cost.
fn prices(layout: &Layout, config: &Config) -> Vec<Price> {
    let price = |layer: &crate::Layer| match (config.mode, config.count) {
        (Mode::Exact, _) => Price::NOTHING,
        (Mode::Sparse, Count::Fixed) => Price::new(config.price, &config.curve, layer.chunk_bytes),
        (Mode::Sparse, Count::ByWorth) => {
            let (bytes, n) = (layer.chunk_bytes, layer.n_chunks);
            Price::of_layer(config.price / layer.weight, &config.curve, bytes, n)
        }
    };
    layout.layers.iter().map(price).collect()
}
