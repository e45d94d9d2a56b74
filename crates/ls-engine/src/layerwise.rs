//! A text through the model one layer at a time.
//!
//! All windows of the text go through layer 0, then all through layer 1, and so on. What they need of
//! a layer is read once for some thousands of tokens, where a pass of every window through all layers
//! would read the whole model for each window. Between a layer's attention and its MLP the residual
//! streams of all tokens are at hand: that is what predictors of the MLP's neurons see.
//!
//! Memory: the residual stream of every token, inputs and outputs of the MLP of one group of tokens
//! (64 MiB at most), keys and values of one window in one layer, and the buffers of a batch. See
//! [`layerwise_bytes`].

mod mlp;

use std::ops::Range;

use ls_cpu::{Activations, Masks, rms_norm};
use ls_model::Config;

use crate::forward::Forward;
use crate::model::{Engine, batches};
use crate::sparse::Choosing;
use crate::weights::Layer;
use crate::{EngineError, State};

/// Bytes of the MLP's inputs and outputs that exist at once: so many tokens use each chunk of a layer
/// when it has been read.
const GROUP_BYTES: usize = 64 << 20;

/// Bytes of an input, as a float and in 8 bits, and of an output.
const IN_AND_OUT: usize = 10;

/// Bytes that a [`Layerwise`] of `n_tokens` tokens holds beside what a [`State`] would; for
/// [`LoadOptions::reserve`](crate::LoadOptions::reserve).
pub fn layerwise_bytes(config: &Config, n_tokens: usize) -> u64 {
    let values = (config.d_model as u64).saturating_mul(n_tokens as u64);
    let group = values.saturating_mul(IN_AND_OUT as u64).min(GROUP_BYTES as u64);
    values.saturating_mul(4).saturating_add(group)
}

/// A part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its attention.
    Attention,
    /// Its MLP.
    Mlp,
}

/// How far a text has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The layer that comes next, or is under way; the number of layers when all are done.
    pub layer: usize,
    /// Its part.
    pub part: Part,
    /// Tokens, from the first on, that have been through this part.
    pub done: usize,
}

impl Position {
    /// Before the first layer.
    pub const START: Self = Self { layer: 0, part: Part::Attention, done: 0 };
}

/// Windows of a text on their way through the layers.
///
/// The residual streams have the same bits as in [`Engine::prefill`] of each window from an empty
/// state, if it has at least [`ls_cpu::BATCH`] tokens; shorter ones round otherwise.
///
/// ```
/// # use std::path::Path;
/// use ls_engine::{Engine, Layerwise, LoadOptions};
///
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
/// let engine = Engine::load(Path::new(model), &LoadOptions::default())?;
/// let windows = [vec![300; 24], vec![500; 16]];
/// let mut pass = Layerwise::new(&engine, &windows)?;
/// while let Some(layer) = pass.attend()? {
///     let features = pass.residual();
///     assert_eq!(features.len(), 40 * engine.config().d_model, "layer {layer}");
///     pass.mlp()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Layerwise<'a> {
    engine: &'a Engine,
    /// Where each window's tokens are among all.
    windows: Vec<Range<usize>>,
    position: Position,
    /// The residual streams, `[n_tokens, d_model]`.
    x: Vec<f32>,
    /// What the MLP adds for a group of tokens, `[group, d_model]`.
    delta: Vec<f32>,
    /// What the MLP of a group of tokens sees, by batches.
    normed: Vec<Activations>,
    /// What was chosen of their neurons, by batches; empty until something is.
    masks: Vec<Masks>,
    /// Tokens of a group, and of a batch.
    group: usize,
    batch: usize,
    /// Buffers, with keys and values of one layer.
    state: State,
    /// The first position, and the number of tokens, that the buffers' angles are for.
    angles: (usize, usize),
}

impl<'a> Layerwise<'a> {
    /// All `windows` before the first layer. Each is a sequence of its own, from position 0 on.
    ///
    /// # Errors
    ///
    /// If there is no window or an empty one, one is longer than [`Engine::context`], a token is
    /// unknown, or there is not enough memory.
    pub fn new(engine: &'a Engine, windows: &[Vec<u32>]) -> Result<Self, EngineError> {
        let mut pass = Self::prepare(engine, windows)?;
        let forward = engine.forward();
        let d = engine.config().d_model;
        for (tokens, range) in windows.iter().zip(&pass.windows) {
            let x = &mut pass.x[range.start * d..range.end * d];
            for (tokens, x) in tokens.chunks(pass.batch).zip(x.chunks_mut(pass.batch * d)) {
                forward.embed(tokens, x)?;
            }
        }
        Ok(pass)
    }

    /// Windows on their way, as [`Layerwise::position`] and [`Layerwise::residual`] were earlier,
    /// of the same engine's model and the same windows.
    ///
    /// # Errors
    ///
    /// As [`Layerwise::new`], or if the position is none or the residual streams are more or fewer.
    pub fn resume(
        engine: &'a Engine,
        windows: &[Vec<u32>],
        position: Position,
        residual: Vec<f32>,
    ) -> Result<Self, EngineError> {
        let wrong = |reason| Err(EngineError::Resume { reason });
        let mut pass = Self::prepare(engine, windows)?;
        if residual.len() != pass.x.len() {
            return wrong("it has the residual streams of another number of tokens");
        }
        let n_layers = engine.config().n_layers;
        let is_window = pass.windows.iter().any(|window| window.start == position.done);
        let is_there = match position.part {
            _ if position.layer >= n_layers => position == pass.end(),
            Part::Attention => is_window,
            Part::Mlp => position.done < pass.n_tokens(),
        };
        if !is_there {
            return wrong("it is of a place where nothing stops");
        }
        pass.x = residual;
        pass.position = position;
        Ok(pass)
    }

    fn prepare(engine: &'a Engine, windows: &[Vec<u32>]) -> Result<Self, EngineError> {
        engine.check_on_cpu("one layer after the other")?;
        let config = engine.config();
        let mut ranges = Vec::with_capacity(windows.len());
        let (mut n_tokens, mut longest) = (0usize, 0);
        for tokens in windows {
            engine.check_tokens(tokens)?;
            if tokens.len() > engine.context() {
                return Err(EngineError::ContextFull { limit: engine.context() });
            }
            ranges.push(n_tokens..n_tokens + tokens.len());
            n_tokens += tokens.len();
            longest = longest.max(tokens.len());
        }
        if n_tokens == 0 {
            return Err(EngineError::NoTokens);
        }
        let d = config.d_model;
        let capacity = longest.max(engine.batch().min(n_tokens).min(engine.context()));
        let state = engine.one_layer_state(capacity)?;
        let batch = state.buffers.batch(d);
        let group = match engine.is_streaming() {
            // Chunks in the mapped file can be used again for the next batch.
            false => batch,
            true => (GROUP_BYTES / IN_AND_OUT / d.max(1)).max(batch),
        };
        let group = group.min(n_tokens);
        let (x, delta) = (zeros(n_tokens, d)?, zeros(group, d)?);
        // Allocations that fail end the process, so room for these is asked for before.
        drop(room(group, 2 * d)?);
        let normed = (0..group.div_ceil(batch)).map(|_| Activations::new(batch.min(group), d));
        Ok(Self {
            engine,
            windows: ranges,
            position: Position::START,
            x,
            delta,
            normed: normed.collect(),
            masks: Vec::new(),
            group,
            batch,
            state,
            angles: (0, 0),
        })
    }

    /// Tokens of all windows.
    pub fn n_tokens(&self) -> usize {
        self.windows.last().map_or(0, |last| last.end)
    }

    /// Where each window's tokens are among all.
    pub fn windows(&self) -> &[Range<usize>] {
        &self.windows
    }

    /// How far it has come.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The residual streams, `[n_tokens, d_model]`. After [`Layerwise::attend`]: what enters the
    /// layer's MLP; after [`Layerwise::mlp`]: what leaves the layer.
    pub fn residual(&self) -> &[f32] {
        &self.x
    }

    /// What the MLP of the present layer sees of `tokens`: their residual streams after the norm
    /// before it, `[tokens, d_model]`. After the last layer: after the norm before the output head.
    ///
    /// # Panics
    ///
    /// If there are no such tokens, or `out` is not that long.
    pub fn normed(&self, tokens: Range<usize>, out: &mut [f32]) {
        let (config, cpu) = (self.engine.config(), self.engine.cpu());
        let d = config.d_model;
        let x = &self.x[tokens.start * d..tokens.end * d];
        assert_eq!(out.len(), x.len(), "rows of {tokens:?}");
        let weights = self.engine.weights();
        let layer = weights.layers.get(self.position.layer);
        let weight = layer.map_or(&weights.output_norm, |layer| &layer.ffn_norm);
        cpu.pool().for_each_chunk(out, d, &|t, out| {
            rms_norm(cpu.isa(), &x[t * d..][..d], weight, config.norm_eps, out);
        });
    }

    /// Finishes the attention of the next layer for all windows: then what enters its MLP is at hand.
    /// `None` after the last layer.
    ///
    /// # Errors
    ///
    /// If the model's files were cut.
    ///
    /// # Panics
    ///
    /// If the MLP of the layer before was not finished.
    pub fn attend(&mut self) -> Result<Option<usize>, EngineError> {
        assert_eq!(self.position.part, Part::Attention, "an MLP comes first");
        let layer = self.position.layer;
        if layer == self.engine.config().n_layers {
            return Ok(None);
        }
        while self.position.part == Part::Attention {
            self.step()?;
        }
        Ok(Some(layer))
    }

    /// Does a little of what comes next: the attention of a window, or the MLP of a group of tokens.
    /// [`Layerwise::position`] says how far it has come then; where it stops, it can be resumed.
    /// After the last layer it does nothing.
    ///
    /// # Errors
    ///
    /// If weights could not be read; then nothing has changed.
    pub fn step(&mut self) -> Result<(), EngineError> {
        self.step_with(None)
    }

    fn step_with(&mut self, choosing: Option<&mut dyn Choosing>) -> Result<(), EngineError> {
        let engine = self.engine;
        let Some(layer) = engine.weights().layers.get(self.position.layer) else { return Ok(()) };
        engine.check_whole()?;
        let forward = engine.forward();
        match self.position.part {
            Part::Attention => self.attend_window(&forward, layer),
            Part::Mlp => self.mlp_group(&forward, layer, choosing)?,
        }
        if self.position.done == self.n_tokens() {
            self.position = match self.position.part {
                Part::Attention => Position { part: Part::Mlp, done: 0, ..self.position },
                Part::Mlp => Position { layer: self.position.layer + 1, ..Position::START },
            };
        }
        Ok(())
    }

    fn end(&self) -> Position {
        Position { layer: self.engine.config().n_layers, ..Position::START }
    }

    fn attend_window(&mut self, forward: &Forward<'_>, layer: &Layer) {
        let d = self.engine.config().d_model;
        let first = self.windows.partition_point(|window| window.end <= self.position.done);
        let window = self.windows[first].clone();
        let (b, cache) = (&mut self.state.buffers, &mut self.state.cache[0]);
        for batch in batches(window.len(), self.batch) {
            let (start, n) = (batch.start, batch.len());
            if self.angles != (start, n) {
                forward.set_angles(b, start, n);
                self.angles = (start, n);
            }
            let x = &mut self.x[(window.start + start) * d..][..n * d];
            b.x[..n * d].copy_from_slice(x);
            forward.attend(self.position.layer, layer, cache, b, start, n);
            x.copy_from_slice(&b.x[..n * d]);
        }
        self.position.done = window.end;
    }

    /// After the last layer: hands `each` the logits after token `i` of a window, `[vocab_size]`, for
    /// `i` from `from` on.
    ///
    /// # Errors
    ///
    /// If the model's files were cut.
    ///
    /// # Panics
    ///
    /// If a layer is left to do, or there is no such window.
    pub fn logits(
        &mut self,
        window: usize,
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        assert_eq!(self.position, self.end(), "all layers come first");
        self.engine.check_whole()?;
        let (d, window) = (self.engine.config().d_model, self.windows[window].clone());
        let b = &mut self.state.buffers;
        for batch in batches(window.len(), self.batch) {
            let x = &self.x[(window.start + batch.start) * d..][..batch.len() * d];
            b.x[..x.len()].copy_from_slice(x);
            self.engine.each_logits(b, batch, from, each);
        }
        Ok(())
    }
}

/// `[rows, cols]`, or an error where allocating would end the process.
fn zeros(rows: usize, cols: usize) -> Result<Vec<f32>, EngineError> {
    let mut values = room(rows, cols)?;
    values.resize(rows * cols, 0.0);
    Ok(values)
}

fn room(rows: usize, cols: usize) -> Result<Vec<f32>, EngineError> {
    let fail = |source| EngineError::Allocate {
        bytes: (rows as u64).saturating_mul(cols as u64).saturating_mul(4),
        source,
    };
    let len = rows.checked_mul(cols).ok_or_else(|| fail(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| fail(std::io::ErrorKind::OutOfMemory.into()))?;
    Ok(values)
}
