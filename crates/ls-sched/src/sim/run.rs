//! Plays tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::board::{Board, Shape};
use super::device::{Device, Queued};
use super::report::Outcome;
use super::rng::Rng;
use super::trace::{OWN, Trace};
use crate::command::ones;
use crate::error::within;
use crate::{Chunk, Command, Config, Controller, Event, Layout, SchedError, StageId, Table, solve};

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub board: Board,
    /// The model; as many layers and chunks as the trace has.
    pub shape: Shape,
    /// Share of the chunks that are computed.
    pub keep: f64,
    /// How the controller decides.
    pub config: Config,
    /// What the adaptive interval goes by from the start. Without one it is solved for when the
    /// controller asks for it.
    pub table: Option<Table>,
    /// Tokens that are not counted.
    pub warm_up: u32,
    /// The order of each layer's chunks for [`Keep::Hot`](crate::Keep::Hot), the hottest first.
    pub hot: Vec<Vec<u16>>,
    /// How much the short history counts, of 256, if not as much as usual.
    pub recent_weight: Option<u8>,
    /// For the times of reads.
    pub seed: u64,
}

impl Setup {
    /// A set-up with the usual settings.
    #[must_use]
    pub fn new(board: Board, shape: Shape, keep: f64, config: Config) -> Self {
        let (table, warm_up, hot, recent_weight, seed) = (None, 8, Vec::new(), None, 1);
        Self { board, shape, keep, config, table, warm_up, hot, recent_weight, seed }
    }
}

/// What will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Token,
    Enter { layer: u32 },
    Arrive { layer: u32, first: u32, wanted: u64 },
    Taken { layer: u32, index: u32 },
    Ranked { layer: u32, level: u8 },
    Stage,
}

struct Simulation<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    controller: Controller,
    device: Device,
    rng: Rng,
    now: u64,
    /// By time, then by number.
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    n_happenings: u64,
    token: u32,
    token_since: u64,
    stage: Option<StageId>,
    /// Share of the layer that is computed, in chunks.
    layer_done: u32,
    /// Nanoseconds by which rankings delay the next stage.
    delay_ns: f64,
    host_free_at: u64,
    numbers: [f32; 256],
    scores: Vec<f32>,
    token_ns: Vec<u64>,
    covered: f64,
    total: f64,
    computed: u64,
    warm_busy_ns: f64,
    warm_bytes: u64,
    is_aborted: bool,
}

/// Plays all tokens of the trace.
///
/// # Errors
///
/// If a setting makes no sense, or the trace is not of the model's shape, or not longer than the warm-up.
pub fn simulate(trace: &Trace, setup: &Setup) -> Result<Outcome, SchedError> {
    let n_tokens = f64::from(trace.shape().n_tokens);
    let least = f64::from(setup.warm_up) + 1.0;
    within("tokens of the trace", n_tokens, least..=f64::MAX, "more than are for warming up")?;
    within("compute rate", setup.board.compute_rate, 1e-9..=1e9, "more than 0")?;
    let n_chunks = &trace.shape().n_chunks;
    let is_like = n_chunks.iter().all(|n| *n == setup.shape.n_chunks);
    let n_layers = if is_like { n_chunks.len() as f64 } else { 0.0 };
    let expected = f64::from(setup.shape.n_layers);
    within("layers of the trace", n_layers, expected..=expected, "those of the shape")?;
    let mut simulation = Simulation::new(trace, setup)?;
    simulation.run()?;
    Ok(simulation.outcome())
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, setup: &'a Setup) -> Result<Self, SchedError> {
        let layout: Layout = setup.shape.layout(setup.keep);
        let mut controller = Controller::new(layout, setup.config.clone())?;
        if let Some(table) = &setup.table {
            controller.set_table(table.clone());
        }
        for (layer, order) in (0..).zip(&setup.hot) {
            controller.set_hot(layer, order)?;
        }
        if let Some(weight) = setup.recent_weight {
            controller.set_recent_weight(weight);
        }
        Ok(Self {
            trace,
            setup,
            controller,
            device: Device::new(&setup.board),
            rng: Rng::new(setup.seed),
            now: 0,
            agenda: BinaryHeap::new(),
            n_happenings: 0,
            token: 0,
            token_since: 0,
            stage: None,
            layer_done: 0,
            delay_ns: 0.0,
            host_free_at: 0,
            numbers: std::array::from_fn(|byte| Trace::decode(byte as u8)),
            scores: Vec::new(),
            token_ns: Vec::new(),
            covered: 0.0,
            total: 0.0,
            computed: 0,
            warm_busy_ns: 0.0,
            warm_bytes: 0,
            is_aborted: false,
        })
    }

    fn plan(&mut self, at: u64, happening: Happening) {
        self.n_happenings += 1;
        self.agenda.push(Reverse((at, self.n_happenings, happening)));
    }

    fn run(&mut self) -> Result<(), SchedError> {
        self.plan(0, Happening::Token);
        while self.token < self.trace.shape().n_tokens && !self.is_aborted {
            let next = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let deadline = self.controller.next_deadline();
            if let Some(at) = deadline.filter(|at| next.is_none_or(|next| *at < next)) {
                self.now = self.now.max(at);
                self.tell(Event::Time)?;
                continue;
            }
            let Some(Reverse((at, _, happening))) = self.agenda.pop() else { return Ok(()) };
            self.now = self.now.max(at);
            self.happen(happening)?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), SchedError> {
        match happening {
            Happening::Token => {
                self.token_since = self.now;
                let between = self.setup.shape.between_ns(&self.setup.board);
                self.plan(self.now + between as u64, Happening::Enter { layer: 0 });
                self.tell(Event::TokenBegun)
            }
            Happening::Enter { layer } => {
                self.layer_done = 0;
                self.tell(Event::LayerEntered { layer })
            }
            Happening::Arrive { layer, first, wanted } => {
                self.device.end();
                ones(wanted).try_for_each(|bit| {
                    self.tell(Event::Arrived(Chunk { layer, index: first + bit }))
                })?;
                self.feed();
                Ok(())
            }
            Happening::Taken { layer, index } => {
                self.tell(Event::Cancelled(Chunk { layer, index }))
            }
            Happening::Ranked { layer, level } => {
                let mut scores = std::mem::take(&mut self.scores);
                scores.clear();
                let row = self.trace.scores(self.token, layer, level);
                scores.extend(row.iter().map(|byte| self.numbers[usize::from(*byte)]));
                let told = self.tell(Event::Scores { layer, scores: &scores });
                self.scores = scores;
                told
            }
            Happening::Stage => {
                let Some(stage) = self.stage.take() else { return Ok(()) };
                let n = self.controller.stage(stage).map_or(0, |stage| stage.chunks.len());
                self.layer_done += n as u32;
                self.tell(Event::StageDone { stage })
            }
        }
    }

    fn tell(&mut self, event: Event<'_>) -> Result<(), SchedError> {
        self.controller.handle(event, self.now)?;
        while let Some(command) = self.controller.next_command() {
            self.obey(command)?;
        }
        self.feed();
        Ok(())
    }

    /// The device begins what it can.
    fn feed(&mut self) {
        while let Some((read, end)) = self.device.begin(self.now, &mut self.rng) {
            let Queued { layer, first, wanted, .. } = read;
            self.plan(end, Happening::Arrive { layer, first, wanted });
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), SchedError> {
        match command {
            Command::Rank { layer, basis } => self.rank(layer, basis.layer),
            Command::Submit { read: id } => {
                if let Some(read) = self.controller.read(id) {
                    let bytes = u64::from(read.len()) * u64::from(self.setup.shape.chunk_bytes);
                    let crate::Read { layer, first, wanted, priority } = read;
                    self.device.submit(Queued { layer, first, wanted, bytes, priority });
                }
            }
            Command::Reprioritise { chunk, priority } => self.device.move_to(chunk, priority),
            Command::Cancel { chunk } => {
                if self.device.cancel(chunk) {
                    let Chunk { layer, index } = chunk;
                    self.plan(self.now, Happening::Taken { layer, index });
                }
            }
            Command::RunStage { stage } => self.run_stage(stage),
            Command::LayerDone { layer } => self.end_layer(layer),
            Command::Abort { .. } => self.is_aborted = true,
            Command::Solve => {
                let table = solve(&self.controller.profile())?;
                self.controller.set_table(table);
            }
            Command::Retain { .. } | Command::Evict { .. } | Command::Drop { .. } => {}
        }
        Ok(())
    }

    fn rank(&mut self, layer: u32, basis: u32) {
        let board = &self.setup.board;
        let keep = self.controller.layout().layers[basis as usize].n_keep;
        let share = f64::from(self.layer_done) / f64::from(keep);
        let level = if layer == basis { OWN } else { (share.min(1.0) * 254.0) as u8 };
        // One ranking after the other.
        self.host_free_at = self.host_free_at.max(self.now) + board.rank_ns as u64;
        self.delay_ns += board.rank_stall_ns;
        self.plan(self.host_free_at, Happening::Ranked { layer, level });
    }

    fn run_stage(&mut self, id: StageId) {
        let Some(stage) = self.controller.stage(id) else { return };
        let board = &self.setup.board;
        let bytes = stage.chunks.len() as f64 * f64::from(self.setup.shape.chunk_bytes);
        let ns = bytes / board.compute_rate + board.stage_ns + std::mem::take(&mut self.delay_ns);
        if self.token >= self.setup.warm_up {
            let truth = self.trace.truth(self.token, stage.layer);
            let importance = |i: &u16| f64::from(self.numbers[usize::from(truth[usize::from(*i)])]);
            self.covered += stage.chunks.iter().map(importance).sum::<f64>();
            self.computed += stage.chunks.len() as u64;
        }
        self.stage = Some(id);
        self.plan(self.now + ns as u64, Happening::Stage);
    }

    fn end_layer(&mut self, layer: u32) {
        let (board, shape) = (self.setup.board, self.setup.shape);
        if self.token >= self.setup.warm_up {
            let truth = self.trace.truth(self.token, layer);
            let all = truth.iter().map(|byte| f64::from(self.numbers[usize::from(*byte)]));
            self.total += all.sum::<f64>();
        }
        if layer + 1 < shape.n_layers {
            let at = self.now + shape.between_ns(&board) as u64;
            self.plan(at, Happening::Enter { layer: layer + 1 });
            return;
        }
        let end = self.now + (shape.token_bytes as f64 / board.compute_rate) as u64;
        self.token += 1;
        if self.token > self.setup.warm_up {
            self.token_ns.push(end - self.token_since);
        } else if self.token == self.setup.warm_up {
            self.controller.take_stats();
            (self.warm_busy_ns, self.warm_bytes) = (self.device.busy_ns, self.device.bytes);
        }
        self.plan(end, Happening::Token);
    }

    fn outcome(mut self) -> Outcome {
        self.token_ns.sort_unstable();
        let chunks = f64::from(self.setup.shape.n_chunks) * f64::from(self.setup.shape.n_layers);
        let tokens = self.token_ns.len().max(1) as f64;
        let time = self.token_ns.iter().sum::<u64>().max(1) as f64;
        Outcome {
            stats: *self.controller.stats(),
            profile: self.controller.profile(),
            coverage: self.covered / self.total.max(f64::MIN_POSITIVE),
            computed: self.computed as f64 / (chunks * tokens),
            disk_busy: (self.device.busy_ns - self.warm_busy_ns) / time,
            disk_bytes: self.device.bytes - self.warm_bytes,
            token_ns: self.token_ns,
        }
    }
}
