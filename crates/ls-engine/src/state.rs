//! The state of one sequence: all memory of its forward passes.

use ls_cpu::{Activations, KvCache};
use ls_model::Config;

use crate::refine::Refined;
use crate::rotary::Angles;
use crate::sparse::Sparse;
use crate::{EngineError, SparseCounts};

/// Prompt tokens that go through the layers together.
///
/// Each tile of weights is unpacked once for a batch: larger ones gain little more and their
/// buffers grow.
pub(crate) const BATCH: usize = 256;

/// The same where the MLP is chunks, if the budget allows it: each batch takes every chunk once,
/// so that a prompt that is one batch reads what is not in memory once.
pub(crate) const CHUNK_BATCH: usize = 512;

/// Bytes of one activation: a float, its 8-bit form, and its share of scales and sums.
const ACTIVATION: usize = 6;

/// Rows of logits that exist at once when every token's logits are asked for.
pub(crate) const LOGIT_ROWS: usize = 32;

/// Keys, values and buffers of one sequence.
#[derive(Debug)]
pub struct State {
    pub(crate) len: usize,
    pub(crate) capacity: usize,
    pub(crate) cache: Vec<KvCache>,
    pub(crate) buffers: Buffers,
    /// `[vocab_size]`
    pub(crate) logits: Vec<f32>,
    /// `None`: every neuron is computed, unless `refined` says otherwise.
    pub(crate) sparse: Option<Box<Sparse>>,
    /// `None`: nothing but what is needed is known of the chunks that are read.
    pub(crate) refined: Option<Box<Refined>>,
}

/// Intermediate values of a batch of tokens.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The residual stream, `[batch, d_model]`.
    pub x: Vec<f32>,
    /// Normalised input of a block, `[batch, d_model]`.
    pub normed: Activations,
    /// `[batch, n_heads, head_dim]`
    pub q: Vec<f32>,
    /// `[batch, n_kv_heads, head_dim]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// `[batch, n_heads, head_dim]`
    pub attended: Vec<f32>,
    pub attended_q8: Activations,
    /// What a block adds to the residual stream, `[batch, d_model]`.
    pub delta: Vec<f32>,
    /// The MLP's neurons, `[batch, d_ff]`; of a segment where the MLP is chunks, `[batch, neurons]`.
    pub hidden: Hidden,
    /// Inputs of the output head, `[LOGIT_ROWS, d_model]`.
    pub last: Activations,
    /// Angles of layers that see everything, and of those with a window.
    pub angles: [Angles; 2],
}

impl Buffers {
    /// Tokens that fit; `d_model` is the width of the residual stream.
    pub fn batch(&self, d_model: usize) -> usize {
        self.x.len() / d_model
    }
}

/// The MLP's neurons.
#[derive(Debug)]
pub(crate) enum Hidden {
    /// Of all neurons, `[batch, d_ff]`.
    Rows(Activations),
    /// For chunks.
    Segments {
        /// What each segment adds to the output of few tokens, `[segments, tokens, d_model]`.
        partial: Vec<f32>,
        /// Neurons of one segment, for many tokens.
        neurons: Vec<f32>,
    },
}

impl Hidden {
    /// Room for the neurons of one segment, for many tokens.
    pub fn neurons(&mut self) -> &mut Vec<f32> {
        match self {
            Self::Segments { neurons, .. } => neurons,
            Self::Rows(_) => unreachable!("buffers are made for the weights"),
        }
    }
}

/// What the buffers of the MLP depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MlpSize {
    /// Matrices.
    Rows,
    /// Chunks: tokens of a batch, the most segments of a layer, and the most neurons of a segment.
    Chunks { batch: usize, segments: usize, neurons: usize },
}

impl MlpSize {
    /// Tokens of a batch.
    pub fn batch(self) -> usize {
        match self {
            Self::Rows => BATCH,
            Self::Chunks { batch, .. } => batch,
        }
    }

    fn hidden(self, config: &Config, batch: usize) -> Hidden {
        match self {
            Self::Rows => Hidden::Rows(Activations::new(batch, config.d_ff)),
            Self::Chunks { segments, neurons, .. } => Hidden::Segments {
                partial: vec![0.0; segments * (ls_cpu::BATCH - 1).min(batch) * config.d_model],
                neurons: Vec::with_capacity(neurons * batch),
            },
        }
    }

    fn hidden_bytes(self, config: &Config, batch: usize) -> Option<usize> {
        match self {
            Self::Rows => config.d_ff.checked_mul(ACTIVATION)?.checked_mul(batch),
            Self::Chunks { segments, neurons, .. } => {
                let partial = segments.checked_mul(ls_cpu::BATCH)?.checked_mul(config.d_model)?;
                partial.checked_add(neurons.checked_mul(batch)?)?.checked_mul(4)
            }
        }
    }
}

/// Bytes of keys and values for `capacity` tokens; `None` when they cannot be counted.
pub(crate) fn kv_bytes(config: &Config, capacity: usize) -> Option<usize> {
    let width = config.n_kv_heads.checked_mul(config.head_dim)?;
    width.checked_mul(capacity)?.checked_mul(config.n_layers)?.checked_mul(4)
}

/// Bytes of a state without keys and values; `None` when they cannot be counted.
pub(crate) fn buffer_bytes(config: &Config, capacity: usize, mlp: MlpSize) -> Option<usize> {
    let (heads, kv_heads) = (
        config.n_heads.checked_mul(config.head_dim)?,
        config.n_kv_heads.checked_mul(config.head_dim)?,
    );
    let batch = mlp.batch().min(capacity);
    // The residual stream, its normalised form and what is added to it; queries, what they attend
    // to and its 8-bit form; keys and values; angles.
    let row = [
        config.d_model.checked_mul(8 + ACTIVATION)?,
        heads.checked_mul(8 + ACTIVATION)?,
        kv_heads.checked_mul(8)?,
        config.head_dim.checked_mul(8)?,
    ];
    let row = row.into_iter().try_fold(0usize, usize::checked_add)?;
    let last = LOGIT_ROWS.checked_mul(config.d_model)?.checked_mul(ACTIVATION)?;
    let logits = config.vocab_size.checked_mul(4)?;
    let hidden = mlp.hidden_bytes(config, batch)?;
    row.checked_mul(batch)?.checked_add(hidden)?.checked_add(last)?.checked_add(logits)
}

impl State {
    pub(crate) fn new(config: &Config, capacity: usize, mlp: MlpSize) -> Result<Self, EngineError> {
        Self::of_layers(config, config.n_layers, capacity, mlp)
    }

    /// With keys and values of so many layers.
    pub(crate) fn of_layers(
        config: &Config,
        n_layers: usize,
        capacity: usize,
        mlp: MlpSize,
    ) -> Result<Self, EngineError> {
        let kv = kv_bytes(config, capacity).map(|all| all / config.n_layers.max(1) * n_layers);
        let buffers = buffer_bytes(config, capacity, mlp);
        let bytes = kv.zip(buffers).and_then(|(kv, buffers)| kv.checked_add(buffers));
        // Allocations that fail end the process, so the whole of it is asked for once before.
        let mut probe = Vec::<u8>::new();
        let fits = bytes.is_some_and(|bytes| probe.try_reserve_exact(bytes).is_ok());
        if !fits {
            return Err(EngineError::Memory { bytes, context: capacity });
        }
        drop(probe);
        let batch = mlp.batch().min(capacity);
        let (heads, kv_heads) =
            (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        let cache = || KvCache::new(config.n_kv_heads, config.head_dim, capacity);
        Ok(Self {
            len: 0,
            capacity,
            cache: (0..n_layers).map(|_| cache()).collect(),
            buffers: Buffers {
                x: vec![0.0; batch * config.d_model],
                normed: Activations::new(batch, config.d_model),
                q: vec![0.0; batch * heads],
                k: vec![0.0; batch * kv_heads],
                v: vec![0.0; batch * kv_heads],
                attended: vec![0.0; batch * heads],
                attended_q8: Activations::new(batch, heads),
                delta: vec![0.0; batch * config.d_model],
                hidden: mlp.hidden(config, batch),
                last: Activations::new(LOGIT_ROWS, config.d_model),
                angles: [Angles::new(&config.rope, batch), Angles::new(&config.rope, batch)],
            },
            logits: vec![0.0; config.vocab_size],
            sparse: None,
            refined: None,
        })
    }

    /// Tokens in the sequence.
    pub fn position(&self) -> usize {
        self.len
    }

    /// Tokens that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all but the first `n` tokens.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// What sparse passes computed since the choice was set; `None` in exact mode.
    pub fn sparse_counts(&self) -> Option<SparseCounts> {
        let refined = self.refined.as_ref().map(|refined| refined.counts);
        refined.or_else(|| self.sparse.as_ref().map(|sparse| sparse.counts))
    }

    /// Bytes of keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.cache.iter().map(KvCache::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_than_there_is_is_refused() {
        let here = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures").into();
        // Tests that run on another machine are told where their fixtures are.
        let fixtures = std::env::var_os("LEANSTREAM_FIXTURES").unwrap_or_else(here);
        let fixtures = std::path::PathBuf::from(fixtures);
        let model = ls_model::ModelFile::open(fixtures.join("tiny-book.gguf")).unwrap();
        for capacity in [usize::MAX, usize::MAX / 1000, 1 << 50] {
            let state = State::new(model.config(), capacity, MlpSize::Rows).map(drop);
            assert!(matches!(state, Err(EngineError::Memory { .. })), "{capacity}: {state:?}");
        }
        assert!(State::new(model.config(), 64, MlpSize::Rows).is_ok());
    }
}
