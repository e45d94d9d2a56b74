//! Which chunk has a frame, and who has to go when one is needed.

use crate::choose::sane;
use crate::retention::Retention;
use crate::{Chunk, Config, Event, Keep, Layout, Mode, SchedError};

/// Being read.
pub(crate) const READING: u8 = 1;
/// In memory.
pub(crate) const RESIDENT: u8 = 2;
/// Chosen by a plan, and not yet computed.
pub(crate) const HELD: u8 = 4;
/// Used by a stage.
pub(crate) const LEASED: u8 = 8;
/// Read, and no stage that used it is done.
pub(crate) const FRESH: u8 = 16;
/// It was asked to take the read back.
pub(crate) const CANCELLING: u8 = 32;
/// The read was given up, and still has its frame.
pub(crate) const ORPHAN: u8 = 64;

/// All frames. A frame is occupied from the submission of a read to an eviction.
#[derive(Debug)]
pub(crate) struct Frames {
    frame_bytes: u32,
    /// Number of the first chunk of each layer, and of all at the end.
    starts: Vec<u32>,
    flags: Vec<u8>,
    occupied: u64,
    budget: u64,
    transit: u64,
    keep: Keep,
    pub retention: Retention,
    layers: Vec<LayerFrames>,
    /// For sorting.
    keys: Vec<u16>,
}

#[derive(Debug, Default)]
struct LayerFrames {
    n_resident: u32,
    /// Resident, and neither held nor leased.
    n_stock: u32,
    /// Being read, or read and not computed yet.
    n_passing: u32,
    /// Frames that the layer may keep, if others need some too.
    quota: u64,
    /// Stock of a moment ago, the one to go first at the end.
    victims: Vec<u16>,
    is_stale: bool,
    /// Value of the first to go, while it is known.
    least: Option<u8>,
    /// Stock that the list does not have yet.
    n_new: u32,
}

impl Frames {
    pub fn new(layout: &Layout, config: &Config) -> Self {
        let mut starts = vec![0];
        for layer in &layout.layers {
            starts.push(starts[starts.len() - 1] + layer.n_chunks);
        }
        let layers = layout.layers.iter().map(|layer| LayerFrames {
            victims: Vec::with_capacity(layer.n_chunks as usize),
            is_stale: true,
            ..LayerFrames::default()
        });
        let longest = layout.layers.iter().map(|layer| u64::from(layer.segment_chunks)).max();
        // A segment is computed when all of it is there, so one must fit while another is read.
        let segments = match config.mode {
            Mode::Exact => (u64::from(config.lanes) + 1) * longest.unwrap_or(1),
            Mode::Sparse => 0,
        };
        let mut frames = Self {
            frame_bytes: layout.frame_bytes,
            flags: vec![0; starts[starts.len() - 1] as usize],
            starts,
            occupied: 0,
            budget: 0,
            transit: segments.max(config.transit_frames.into()),
            keep: config.keep,
            retention: Retention::new(config.keep, layout),
            layers: layers.collect(),
            keys: Vec::with_capacity(
                layout.layers.iter().map(|l| l.n_chunks).max().unwrap_or(0) as usize
            ),
        };
        frames.set_budget(config.budget_bytes);
        frames
    }

    pub fn n_layers(&self) -> u32 {
        self.layers.len() as u32
    }

    pub fn n_chunks(&self, layer: u32) -> u32 {
        self.starts[layer as usize + 1] - self.starts[layer as usize]
    }

    /// An error unless there is such a chunk.
    pub fn check(&self, chunk: Chunk) -> Result<(), SchedError> {
        let there = chunk.layer < self.n_layers() && chunk.index < self.n_chunks(chunk.layer);
        if there { Ok(()) } else { Err(SchedError::NoChunk(chunk)) }
    }

    /// An error unless the chunk is being read.
    pub fn check_reading(&self, chunk: Chunk, event: &Event<'_>) -> Result<(), SchedError> {
        self.check(chunk)?;
        if self.has(chunk, READING) {
            return Ok(());
        }
        Err(SchedError::Order { event: event.name(), why: "the chunk is not being read" })
    }

    /// Flags of a layer's chunks.
    pub fn layer(&self, layer: u32) -> &[u8] {
        &self.flags[self.starts[layer as usize] as usize..self.starts[layer as usize + 1] as usize]
    }

    pub fn flags(&self, chunk: Chunk) -> u8 {
        self.flags[(self.starts[chunk.layer as usize] + chunk.index) as usize]
    }

    /// Whether any of these flags is set.
    pub fn has(&self, chunk: Chunk, flags: u8) -> bool {
        self.flags(chunk) & flags != 0
    }

    pub fn set(&mut self, chunk: Chunk, flags: u8) {
        let is = self.flags(chunk);
        self.change(chunk, is | flags);
    }

    pub fn clear(&mut self, chunk: Chunk, flags: u8) {
        let is = self.flags(chunk);
        self.change(chunk, is & !flags);
    }

    /// All counts follow from flags.
    pub fn change(&mut self, chunk: Chunk, flags: u8) {
        let slot = (self.starts[chunk.layer as usize] + chunk.index) as usize;
        let was = std::mem::replace(&mut self.flags[slot], flags);
        let layer = &mut self.layers[chunk.layer as usize];
        let resident = |flags: u8| u32::from(flags & RESIDENT != 0);
        let occupied = |flags: u8| u64::from(flags & (RESIDENT | READING) != 0);
        let stock = |flags: u8| u32::from(flags & (RESIDENT | HELD | LEASED) == RESIDENT);
        layer.n_resident = layer.n_resident + resident(flags) - resident(was);
        layer.n_new += stock(flags) & !stock(was);
        let passing = |flags: u8| u32::from(flags & (READING | FRESH) != 0);
        layer.n_stock = layer.n_stock + stock(flags) - stock(was);
        layer.n_passing = layer.n_passing + passing(flags) - passing(was);
        self.occupied = self.occupied + occupied(flags) - occupied(was);
    }

    /// Whether the layer has more than its share.
    pub fn is_rich(&self, layer: u32) -> bool {
        let layer = &self.layers[layer as usize];
        u64::from(layer.n_resident) > layer.quota
    }

    /// Frames that the layer may keep, if others need some too.
    pub fn quota(&self, layer: u32) -> u64 {
        self.layers[layer as usize].quota
    }

    /// How many more frames chunks of these layers may pass through.
    pub fn transit_left(&self, layers: impl Iterator<Item = u32>) -> u64 {
        let passing = layers.map(|layer| u64::from(self.layers[layer as usize].n_passing));
        self.transit.saturating_sub(passing.sum())
    }

    /// Frames that may be filled now.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.occupied)
    }

    pub fn occupied(&self) -> u64 {
        self.occupied
    }

    pub fn budget(&self) -> u64 {
        self.budget
    }

    pub fn is_over(&self) -> bool {
        self.occupied > self.budget
    }

    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes / u64::from(self.frame_bytes);
        let shared = self.budget.saturating_sub(self.transit);
        let total = self.flags.len() as u128;
        let mut given = 0;
        for (layer, end) in self.layers.iter_mut().zip(&self.starts[1..]) {
            // In proportion to chunks, without a remainder.
            let until = (u128::from(shared) * u128::from(*end) / total) as u64;
            layer.quota = until - given;
            given = until;
        }
    }

    /// What chunks of the layer are worth has changed.
    pub fn refresh(&mut self, layer: u32) {
        self.layers[layer as usize].is_stale = true;
    }

    /// Stock that has to go, so that a frame is free. `distance` says in how many visits a layer's
    /// stock is needed next. Unless it `must` be, no layer is left with less than its share.
    pub fn victim(&mut self, distance: impl Fn(u32) -> u64, must: bool) -> Option<Chunk> {
        while let Some(layer) = match self.keep {
            Keep::Priority => self.least_valued(&distance),
            _ => self.farthest(&distance, must),
        } {
            if let Some(chunk) = self.pop(layer) {
                return Some(chunk);
            }
        }
        None
    }

    fn farthest(&self, distance: impl Fn(u32) -> u64, must: bool) -> Option<u32> {
        let of = |is_over: bool| {
            let all = (0..self.n_layers())
                .zip(&self.layers)
                .filter(move |(i, layer)| layer.n_stock > 0 && (!is_over || self.is_rich(*i)));
            all.max_by_key(|(i, _)| distance(*i)).map(|(i, _)| i)
        };
        of(true).or_else(|| of(false).filter(|_| must))
    }

    fn least_valued(&mut self, distance: impl Fn(u32) -> u64) -> Option<u32> {
        let mut least: Option<(u8, u64, u32)> = None;
        for i in 0..self.n_layers() {
            let Some(value) = self.least_value(i) else { continue };
            if least.is_some_and(|(best, ..)| best < value) {
                continue;
            }
            // Of equals the farthest.
            let far = distance(i);
            if least.is_none_or(|(best, than, _)| value < best || far > than) {
                least = Some((value, far, i));
            }
        }
        least.map(|(.., layer)| layer)
    }

    /// Value of the first to go of a layer, if it has any stock.
    fn least_value(&mut self, i: u32) -> Option<u8> {
        if self.layers[i as usize].n_stock == 0 {
            return None;
        }
        self.renew(i);
        let this = &mut self.layers[i as usize];
        let index = u32::from(*this.victims.last()?);
        let value = || self.retention.value(Chunk { layer: i, index });
        Some(*this.least.get_or_insert_with(value))
    }

    /// Lists the stock of a layer anew, if it changed value or the list came to its end.
    fn renew(&mut self, layer: u32) {
        let this = &mut self.layers[layer as usize];
        // What a visit has computed is worth what it ranked as. To the others it is old until they
        // are told. Sorting anew for each new one would take long.
        let n_chunks = self.starts[layer as usize + 1] - self.starts[layer as usize];
        let has_grown = self.keep == Keep::Priority && this.n_new > n_chunks / 8;
        let is_old = this.is_stale || has_grown;
        if !is_old && !this.victims.is_empty() {
            return;
        }
        (this.is_stale, this.least, this.n_new) = (false, None, 0);
        let start = self.starts[layer as usize] as usize;
        let flags = &self.flags[start..self.starts[layer as usize + 1] as usize];
        let stock = |flags: u8| flags & (RESIDENT | HELD | LEASED) == RESIDENT;
        self.retention.sort(layer, |i| stock(flags[i]), &mut self.keys, &mut this.victims);
    }

    /// The first of the layer to go. It has one, so the list is renewed at most once in vain.
    fn pop(&mut self, layer: u32) -> Option<Chunk> {
        if self.layers[layer as usize].n_stock == 0 {
            return None;
        }
        loop {
            self.renew(layer);
            let this = &mut self.layers[layer as usize];
            this.least = None;
            let index = this.victims.pop()?.into();
            let chunk = Chunk { layer, index };
            // It may have been chosen since.
            if self.flags(chunk) & (RESIDENT | HELD | LEASED) == RESIDENT {
                return Some(chunk);
            }
        }
    }

    /// Predicted importance for a visit to come.
    pub fn scored(&mut self, layer: u32, scores: &[f32], bound: f32) {
        self.retention.scored(layer, scores.iter().map(|score| sane(*score)), bound);
        self.refresh(layer);
    }
}
