//! A world in which a controller works: reads, stages and rankings end when, and how, choices say.
//! It checks every command against a simple model of what is where.

use std::collections::{BTreeMap, BTreeSet};

use ls_sched::{Chunk, Command, Config, Controller, Count, Event, Layout, Mode, StageId};

/// What may go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Of 16 reads, how many fail, and how many never end.
    pub failing: u8,
    pub hanging: u8,
    /// Whether reads find no frame now and then.
    pub refusing: bool,
    /// Of 16 rankings, how many fail.
    pub unranked: u8,
    /// Whether the budget changes, and chunks vanish.
    pub shaky: bool,
}

impl Faults {
    fn is_any(self) -> bool {
        self.failing > 0 || self.hanging > 0 || self.refusing || self.unranked > 0 || self.shaky
    }

    pub const NONE: Self =
        Self { failing: 0, hanging: 0, refusing: false, unranked: 0, shaky: false };
}

/// Numbers that decide; when they come to their end, everything goes on in order.
#[derive(Debug)]
pub struct Choices(Vec<u16>, usize);

impl Choices {
    pub fn new(choices: Vec<u16>) -> Self {
        Self(choices, 0)
    }

    fn below(&mut self, n: usize) -> usize {
        let choice = self.0.get(self.1).copied().unwrap_or(0);
        self.1 += 1;
        usize::from(choice) % n.max(1)
    }
}

/// How a token ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    Aborted,
}

#[derive(Debug)]
pub struct World {
    pub controller: Controller,
    layout: Layout,
    config: Config,
    choices: Choices,
    faults: Faults,
    pub now: u64,
    budget: u64,
    /// Chunks being read, and whether they hang.
    reading: BTreeMap<Chunk, bool>,
    cancels: BTreeSet<Chunk>,
    resident: BTreeSet<Chunk>,
    leased: BTreeSet<Chunk>,
    stages: Vec<(StageId, Vec<Chunk>)>,
    ranks: Vec<u32>,
    /// Of the layer that is computed.
    executed: BTreeSet<u32>,
    dropped: BTreeSet<u32>,
    /// Of layers to come.
    dropped_ahead: BTreeSet<Chunk>,
    /// Of each layer, in this token.
    dropped_share: Vec<f32>,
    layer: Option<u32>,
    /// To be entered.
    next: Option<u32>,
    refused: bool,
    had_fault: bool,
    pub n_late: usize,
    token: u64,
    end: Option<End>,
}

impl World {
    pub fn new(layout: Layout, config: Config, choices: Vec<u16>, faults: Faults) -> Self {
        let budget = config.budget_bytes / u64::from(layout.frame_bytes);
        let is_strict = config.read_deadline_ns < 1 << 30;
        Self {
            controller: Controller::new(layout.clone(), config.clone()).unwrap(),
            layout,
            config,
            choices: Choices::new(choices),
            faults,
            now: 0,
            budget,
            reading: BTreeMap::new(),
            cancels: BTreeSet::new(),
            resident: BTreeSet::new(),
            leased: BTreeSet::new(),
            stages: Vec::new(),
            ranks: Vec::new(),
            executed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            dropped_ahead: BTreeSet::new(),
            dropped_share: Vec::new(),
            layer: None,
            next: None,
            refused: false,
            // With a short deadline reads are late now and then.
            had_fault: faults.is_any() || is_strict,
            n_late: 0,
            token: 0,
            end: None,
        }
    }

    /// Runs a token to its end.
    pub fn token(&mut self) -> End {
        while !self.stages.is_empty() {
            self.step_stage();
        }
        self.token += 1;
        (self.end, self.layer, self.next) = (None, None, Some(0));
        self.dropped_ahead.clear();
        self.dropped_share = vec![0.0; self.layout.layers.len()];
        self.tell(Event::TokenBegun);
        for _ in 0..100_000 {
            if let Some(end) = self.end {
                return end;
            }
            self.step();
        }
        panic!("no progress: {:#?}", self.controller);
    }

    /// One thing happens, of those that can.
    fn step(&mut self) {
        let can_arrive = self.reading.values().any(|hangs| !hangs);
        let can: Vec<fn(&mut Self)> = [
            (can_arrive, Self::step_read as fn(&mut Self)),
            (!self.stages.is_empty(), Self::step_stage),
            (!self.ranks.is_empty(), Self::step_rank),
            (self.next.is_some(), Self::step_enter),
            (!self.cancels.is_empty(), Self::step_cancel),
            (self.refused, Self::step_freed),
        ]
        .into_iter()
        .filter_map(|(can, step)| can.then_some(step))
        .collect();
        if self.faults.shaky && self.choices.below(8) == 7 {
            return self.step_shake();
        }
        self.now += 1 + self.choices.below(1000) as u64;
        if can.is_empty() || self.choices.below(32) == 31 {
            let deadline = self.controller.next_deadline();
            // If nothing can happen, waiting must have an end.
            assert!(deadline.is_some() || !can.is_empty(), "stuck: {:#?}", self.controller);
            // Unless something is to fail, reads are not that late.
            let is_read = deadline.is_some_and(|at| at > self.now + self.config.late_ns);
            if !is_read || self.faults.is_any() || can.is_empty() {
                self.now = self.now.max(deadline.unwrap_or(0));
            }
            return self.tell(Event::Time);
        }
        let i = self.choices.below(can.len());
        can[i](self);
    }

    fn step_read(&mut self) {
        let can: Vec<Chunk> =
            self.reading.iter().filter(|(_, hangs)| !**hangs).map(|(chunk, _)| *chunk).collect();
        let chunk = can[self.choices.below(can.len())];
        let luck = self.choices.below(16) as u8;
        if self.faults.refusing && self.choices.below(8) == 7 {
            self.reading.remove(&chunk);
            self.cancels.remove(&chunk);
            self.refused = true;
            return self.tell(Event::Refused(chunk));
        }
        self.cancels.remove(&chunk);
        if luck > 15 - self.faults.hanging.min(15) {
            self.reading.insert(chunk, true);
            return;
        }
        self.reading.remove(&chunk);
        if luck > 0 && luck <= self.faults.failing {
            return self.tell(Event::ReadFailed(chunk));
        }
        self.resident.insert(chunk);
        self.tell(Event::Arrived(chunk));
    }

    fn step_cancel(&mut self) {
        let Some(chunk) = self.cancels.pop_first() else { return };
        // Whether it had begun.
        if self.choices.below(2) == 0 && self.reading.remove(&chunk).is_some() {
            self.tell(Event::Cancelled(chunk));
        }
    }

    fn step_freed(&mut self) {
        self.refused = false;
        self.tell(Event::FrameFreed);
    }

    fn step_stage(&mut self) {
        let i = self.choices.below(self.stages.len());
        let (stage, chunks) = self.stages.swap_remove(i);
        chunks.iter().for_each(|chunk| assert!(self.leased.remove(chunk)));
        self.tell(Event::StageDone { stage });
        assert!(self.controller.stage(stage).is_none());
    }

    fn step_rank(&mut self) {
        let i = self.choices.below(self.ranks.len());
        let layer = self.ranks.swap_remove(i);
        if self.choices.below(16) as u8 > 15 - self.faults.unranked.min(15) {
            return self.tell(Event::RankFailed { layer });
        }
        let n = self.layout.layers[layer as usize].n_chunks;
        let seed = self.choices.below(997) as u32;
        let scores: Vec<f32> = (0..n).map(|i| ((i * 31 + seed * 17) % 101) as f32 / 7.0).collect();
        self.tell(Event::Scores { layer, scores: &scores });
    }

    fn step_enter(&mut self) {
        let Some(layer) = self.next.take() else { return };
        self.layer = Some(layer);
        self.executed.clear();
        self.dropped.clear();
        let (here, later): (BTreeSet<_>, _) =
            self.dropped_ahead.iter().partition(|chunk| chunk.layer == layer);
        self.dropped_ahead = later;
        self.dropped = here.iter().map(|chunk| chunk.index).collect();
        self.tell(Event::LayerEntered { layer });
    }

    /// Memory comes and goes.
    fn step_shake(&mut self) {
        let idle = self.resident.difference(&self.leased).next().copied();
        match (self.choices.below(3), idle) {
            (0, Some(chunk)) => {
                self.resident.remove(&chunk);
                self.tell(Event::Gone(chunk));
            }
            (choice, _) => {
                let most = self.config.budget_bytes / u64::from(self.layout.frame_bytes);
                let frames = (most / (1 + choice as u64)).max(self.least());
                self.budget = frames;
                self.tell(Event::BudgetChanged {
                    bytes: frames * u64::from(self.layout.frame_bytes),
                });
            }
        }
    }

    /// Frames that must be there.
    fn least(&self) -> u64 {
        self.layout.layers.iter().map(|layer| u64::from(layer.segment_chunks)).max().unwrap()
    }

    fn tell(&mut self, event: Event<'_>) {
        self.controller.handle(event, self.now).unwrap();
        while let Some(command) = self.controller.next_command() {
            self.obey(command);
        }
        let occupied = (self.reading.len() + self.resident.len()) as u64;
        assert_eq!(self.controller.occupied_frames(), occupied);
        // What is over the budget is in use.
        if occupied > self.budget {
            assert!(self.resident.iter().all(|chunk| self.leased.contains(chunk)));
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Rank { layer, .. } => {
                assert!(!self.ranks.contains(&layer), "one ranking of a layer at a time");
                self.ranks.push(layer);
            }
            Command::Submit { read } => {
                let read = self.controller.read(read).unwrap();
                assert!(read.len() <= 64 && !read.is_empty());
                for chunk in read.chunks() {
                    self.submit(chunk);
                }
            }
            Command::Reprioritise { chunk, .. } => assert!(self.reading.contains_key(&chunk)),
            Command::Cancel { chunk } => {
                assert!(self.reading.contains_key(&chunk));
                self.cancels.insert(chunk);
            }
            Command::RunStage { stage } => self.run(stage),
            Command::Evict { chunk } => {
                assert!(self.resident.remove(&chunk));
                assert!(!self.leased.contains(&chunk), "evicted in use");
            }
            Command::Drop { chunk, share } => self.drop_chunk(chunk, share),
            Command::LayerDone { layer } => self.layer_done(layer),
            Command::Abort { .. } => {
                assert!(self.had_fault, "given up without a reason");
                (self.end, self.layer, self.next) = (Some(End::Aborted), None, None);
            }
            Command::Retain { .. } | Command::Solve => {}
        }
    }

    fn submit(&mut self, chunk: Chunk) {
        assert!(!self.resident.contains(&chunk));
        assert_eq!(self.reading.insert(chunk, false), None, "read twice at once");
        let occupied = (self.reading.len() + self.resident.len()) as u64;
        assert!(occupied <= self.budget, "{occupied} frames of {}", self.budget);
    }

    fn run(&mut self, id: StageId) {
        let stage = self.controller.stage(id).unwrap();
        assert_eq!(Some(stage.layer), self.layer);
        let shape = self.layout.layers[stage.layer as usize];
        let chunk = |i: &u16| Chunk { layer: stage.layer, index: (*i).into() };
        let chunks: Vec<Chunk> = stage.chunks.iter().map(chunk).collect();
        assert!(!chunks.is_empty());
        for chunk in &chunks {
            assert!(self.resident.contains(chunk), "computed before it is there");
            assert!(self.executed.insert(chunk.index), "computed twice");
            assert!(!self.dropped.contains(&chunk.index), "given up and computed");
            assert!(self.leased.insert(*chunk));
        }
        if self.config.mode == Mode::Exact {
            let first = chunks[0].index;
            assert_eq!(first % shape.segment_chunks, 0);
            let n = shape.segment_chunks.min(shape.n_chunks - first);
            assert!(chunks.iter().map(|chunk| chunk.index).eq(first..first + n));
        }
        assert!(self.stages.len() < self.config.lanes as usize);
        self.stages.push((id, chunks));
    }

    fn drop_chunk(&mut self, chunk: Chunk, share: f32) {
        assert_eq!(self.config.mode, Mode::Sparse);
        self.n_late += 1;
        let dropped = &mut self.dropped_share[chunk.layer as usize];
        *dropped += share;
        let fidelity = self.config.fidelity;
        assert!(
            *dropped <= fidelity.late_share + fidelity.lost_share + 1e-5,
            "too much is dropped"
        );
        if self.layer == Some(chunk.layer) {
            assert!(!self.executed.contains(&chunk.index));
            assert!(self.dropped.insert(chunk.index));
        } else {
            assert!(self.dropped_ahead.insert(chunk));
        }
    }

    fn layer_done(&mut self, layer: u32) {
        assert_eq!(self.layer.take(), Some(layer));
        let shape = self.layout.layers[layer as usize];
        assert!(self.leased.iter().all(|chunk| chunk.layer != layer), "a lease outlives its stage");
        let n = (self.executed.len() + self.dropped.len()) as u32;
        match self.config.mode {
            Mode::Exact => assert_eq!(self.executed.len() as u32, shape.n_chunks),
            Mode::Sparse if self.config.count == Count::ByWorth => assert!(n <= shape.n_chunks),
            // Chunks whose reads hang cannot be chosen.
            Mode::Sparse if self.had_fault => assert!(n <= shape.n_keep),
            Mode::Sparse => assert_eq!(n, shape.n_keep),
        }
        if layer + 1 == self.layout.n_layers() {
            self.end = Some(End::Complete);
        } else {
            self.next = Some(layer + 1);
        }
    }
}
