//! Plays tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::board::{Board, Host, Shape};
use super::device::{Device, Queued};
use super::neurons::Neurons;
use super::report::Outcome;
use super::rng::Rng;
use super::trace::{OWN, Trace};
use crate::command::{Basis, ones};
use crate::error::within;
use crate::{
    Chunk, Command, Config, Controller, Event, Layer, Layout, Mode, SchedError, StageId, Table,
    solve,
};

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The machine.
    pub board: Board,
    /// The model; as many layers and chunks as the trace has, or neurons.
    pub shape: Shape,
    /// How the controller decides. Whether it ranks inline is as the board says.
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
    pub fn new(board: Board, shape: Shape, config: Config) -> Self {
        let (table, warm_up, hot, recent_weight, seed) = (None, 8, Vec::new(), None, 1);
        Self { board, shape, config, table, warm_up, hot, recent_weight, seed }
    }
}

/// What will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Token,
    Enter { layer: u32 },
    Ranked { layer: u32, level: u8 },
    Stage { stage: StageId },
}

struct Simulation<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    controller: Controller,
    device: Device,
    neurons: Neurons,
    rng: Rng,
    now: u64,
    /// By time, then by number.
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    n_happenings: u64,
    token: u32,
    token_since: u64,
    /// Whether a layer is entered, and what is computed of it not marked since it was ranked.
    is_inside: bool,
    is_ranked: bool,
    /// Chunks that stages of the layer took.
    taken: Vec<u16>,
    /// Nanoseconds by which rankings delay the next stage.
    delay_ns: f64,
    host_free_at: u64,
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
    let per_chunk = setup.shape.neurons_per_chunk.max(1);
    let is_like = n_chunks.iter().all(|n| n.div_ceil(per_chunk) == setup.shape.n_chunks);
    let n_layers = if is_like { n_chunks.len() as f64 } else { 0.0 };
    let expected = f64::from(setup.shape.n_layers);
    within("layers of the trace", n_layers, expected..=expected, "those of the shape")?;
    let mut simulation = Simulation::new(trace, setup)?;
    simulation.run()?;
    Ok(simulation.outcome())
}

/// The chunks of a model, of which as many are chosen as the trace says.
fn layout(trace: &Trace, shape: &Shape) -> Layout {
    let mut layout = shape.layout(1.0);
    let of = trace.shape();
    for (layer, (n, n_keep)) in layout.layers.iter_mut().zip(of.n_chunks.iter().zip(&of.n_keep)) {
        let share = f64::from(*n_keep) / f64::from(*n);
        let n_keep = (share * f64::from(layer.n_chunks)).ceil() as u32;
        *layer = Layer { n_keep: n_keep.clamp(1, layer.n_chunks), ..*layer };
    }
    layout
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, setup: &'a Setup) -> Result<Self, SchedError> {
        let shape = &setup.shape;
        let ranks_inline = setup.board.host == Host::Computes;
        let config = Config { ranks_inline, ..setup.config.clone() };
        let mut controller = Controller::new(layout(trace, shape), config)?;
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
            neurons: Neurons::new(shape.n_layers as usize, shape.neurons_per_chunk),
            rng: Rng::new(setup.seed),
            now: 0,
            agenda: BinaryHeap::new(),
            n_happenings: 0,
            token: 0,
            token_since: 0,
            is_inside: false,
            is_ranked: false,
            taken: Vec::new(),
            delay_ns: 0.0,
            host_free_at: 0,
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

    fn computes(&self) -> bool {
        self.setup.board.host == Host::Computes
    }

    fn run(&mut self) -> Result<(), SchedError> {
        self.plan(0, Happening::Token);
        while self.token < self.trace.shape().n_tokens && !self.is_aborted {
            let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
            // Whoever computes waits for nothing while there is something to compute.
            let is_busy = planned.is_some() && self.computes();
            if !is_busy && self.device.has_come() {
                self.land()?;
                self.obey()?;
                continue;
            }
            let before = |at: &u64| !is_busy && planned.is_none_or(|planned| *at < planned);
            let deadline = self.controller.next_deadline().filter(before);
            let end = self.device.next_end().filter(before);
            if let Some(at) = end.filter(|end| deadline.is_none_or(|at| *end <= at)) {
                self.spend(at.saturating_sub(self.now));
                self.land()?;
            } else if let Some(at) = deadline {
                self.spend(at.saturating_sub(self.now));
                self.tell(Event::Time)?;
            } else if let Some(Reverse((at, _, happening))) = self.agenda.pop() {
                self.spend(at.saturating_sub(self.now));
                self.happen(happening)?;
            } else {
                return Ok(());
            }
            self.obey()?;
        }
        Ok(())
    }

    /// Time goes by.
    fn spend(&mut self, ns: u64) {
        self.now += ns;
        self.device.advance(self.now, &mut self.rng);
    }

    fn tell(&mut self, event: Event<'_>) -> Result<(), SchedError> {
        self.controller.handle(event, self.now)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), SchedError> {
        match happening {
            Happening::Token => {
                self.land()?;
                self.token_since = self.now;
                let between = self.setup.shape.between_ns(&self.setup.board);
                self.plan(self.now + between as u64, Happening::Enter { layer: 0 });
                self.tell(Event::TokenBegun)
            }
            Happening::Enter { layer } => {
                self.land()?;
                (self.is_inside, self.is_ranked) = (true, true);
                self.taken.clear();
                self.tell(Event::LayerEntered { layer })
            }
            Happening::Ranked { layer, level } => self.score(layer, level),
            Happening::Stage { stage } => {
                self.tell(Event::StageDone { stage })?;
                self.land()
            }
        }
    }

    /// Takes in what has come.
    fn land(&mut self) -> Result<(), SchedError> {
        while let Some(Queued { layer, first, wanted, .. }) = self.device.take() {
            for bit in ones(wanted) {
                if self.computes() {
                    self.spend(self.setup.board.chunk_ns as u64);
                }
                self.tell(Event::Arrived(Chunk { layer, index: first + bit }))?;
            }
        }
        Ok(())
    }

    /// Carries out commands; if the host computes, until the layer is done.
    fn obey(&mut self) -> Result<(), SchedError> {
        while let Some(command) = self.controller.next_command() {
            self.carry_out(command)?;
            if self.computes() && matches!(command, Command::LayerDone { .. }) {
                break;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<(), SchedError> {
        match command {
            Command::Rank { layer, basis } => self.rank(layer, basis)?,
            Command::Submit { read: id } => {
                if let Some(read) = self.controller.read(id) {
                    let bytes = u64::from(read.len()) * u64::from(self.setup.shape.chunk_bytes);
                    let crate::Read { layer, first, wanted, priority } = read;
                    self.device.submit(Queued { layer, first, wanted, bytes, priority });
                    self.device.begin(self.now, &mut self.rng);
                }
            }
            Command::Reprioritise { chunk, priority } => self.device.move_to(chunk, priority),
            Command::Cancel { chunk } => {
                if self.device.cancel(chunk) {
                    self.tell(Event::Cancelled(chunk))?;
                }
            }
            Command::RunStage { stage } => {
                let ns = self.run_stage(stage);
                if !self.computes() {
                    self.plan(self.now + ns, Happening::Stage { stage });
                    return Ok(());
                }
                self.spend(ns);
                self.tell(Event::StageDone { stage })?;
                self.land()?;
            }
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

    fn rank(&mut self, layer: u32, basis: Basis) -> Result<(), SchedError> {
        if !self.is_inside {
            // Nothing is known of a token that is only beginning.
            self.neurons.forget(layer);
            return self.tell(Event::RankFailed { layer });
        }
        let board = &self.setup.board;
        let share = f64::from(basis.stages) / f64::from(self.setup.config.stages);
        let level = if layer == basis.layer { OWN } else { (share.min(1.0) * 254.0) as u8 };
        if self.computes() {
            self.spend(board.rank_ns as u64);
            self.score(layer, level)?;
            self.spend(board.choose_ns as u64);
            return self.tell(Event::Time);
        }
        // One ranking after the other.
        self.host_free_at = self.host_free_at.max(self.now) + board.rank_ns as u64;
        self.delay_ns += board.rank_stall_ns;
        self.plan(self.host_free_at, Happening::Ranked { layer, level });
        Ok(())
    }

    fn score(&mut self, layer: u32, level: u8) -> Result<(), SchedError> {
        self.is_ranked |= level == OWN;
        let row = self.trace.scores(self.token, layer, level);
        let n_keep = self.trace.shape().n_keep[layer as usize];
        let scores = self.neurons.rank(layer, row, n_keep, self.setup.config.count);
        self.controller.handle(Event::Scores { layer, scores }, self.now)
    }

    /// Begins a stage; how many nanoseconds it takes.
    fn run_stage(&mut self, id: StageId) -> u64 {
        let Some(stage) = self.controller.stage(id) else { return 0 };
        let (layer, board, shape) = (stage.layer, &self.setup.board, &self.setup.shape);
        self.taken.extend_from_slice(stage.chunks);
        if std::mem::take(&mut self.is_ranked) {
            let (of, i) = (self.trace.shape(), layer as usize);
            let chosen = self.controller.chosen(layer).unwrap_or_default();
            let n_keep = match self.setup.config.mode {
                Mode::Exact => of.n_chunks[i],
                Mode::Sparse => of.n_keep[i],
            };
            let chunks = chosen.iter().chain(&self.taken);
            self.neurons.mark(layer, of.n_chunks[i] as usize, n_keep, chunks);
        }
        let (truth, mut n) = (self.trace.truth(self.token, layer), 0);
        let mut covered = 0.0;
        for i in stage.chunks.iter().flat_map(|chunk| self.neurons.computed(*chunk)) {
            covered += f64::from(self.neurons.number(truth[i]));
            n += 1;
        }
        if self.token >= self.setup.warm_up {
            self.covered += covered;
            self.computed += n;
        }
        let bytes =
            n as f64 * f64::from(shape.chunk_bytes) / f64::from(shape.neurons_per_chunk.max(1));
        let ns = bytes / board.compute_rate + board.stage_ns + std::mem::take(&mut self.delay_ns);
        ns as u64
    }

    fn end_layer(&mut self, layer: u32) {
        let (board, shape) = (self.setup.board, self.setup.shape);
        self.is_inside = false;
        if self.token >= self.setup.warm_up {
            let truth = self.trace.truth(self.token, layer);
            let all = truth.iter().map(|byte| f64::from(self.neurons.number(*byte)));
            self.total += all.sum::<f64>();
        }
        if layer + 1 < shape.n_layers {
            let at = self.now + shape.between_ns(&board) as u64;
            self.plan(at, Happening::Enter { layer: layer + 1 });
            return;
        }
        let ns = shape.token_bytes as f64 / board.compute_rate + board.token_ns;
        let end = self.now + ns as u64;
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
        let chunks: f64 = self.trace.shape().n_chunks.iter().map(|n| f64::from(*n)).sum();
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
