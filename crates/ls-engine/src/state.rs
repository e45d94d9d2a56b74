//! The state of one sequence: all memory of its forward passes.

use ls_cpu::{Activations, KvCache};
use ls_model::Config;

use crate::rotary::Angles;

/// Prompt tokens that go through the layers together.
///
/// Each tile of weights is unpacked once for a batch: larger ones gain little more and their
/// buffers grow.
pub(crate) const BATCH: usize = 256;

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
    /// The MLP's neurons, `[batch, d_ff]`.
    pub hidden: Activations,
    /// Inputs of the output head, `[LOGIT_ROWS, d_model]`.
    pub last: Activations,
    /// Angles of layers that see everything, and of those with a window.
    pub angles: [Angles; 2],
}

impl State {
    pub(crate) fn new(config: &Config, capacity: usize) -> Self {
        let batch = BATCH.min(capacity);
        let (heads, kv_heads) =
            (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
        let cache = || KvCache::new(config.n_kv_heads, config.head_dim, capacity);
        Self {
            len: 0,
            capacity,
            cache: (0..config.n_layers).map(|_| cache()).collect(),
            buffers: Buffers {
                x: vec![0.0; batch * config.d_model],
                normed: Activations::new(batch, config.d_model),
                q: vec![0.0; batch * heads],
                k: vec![0.0; batch * kv_heads],
                v: vec![0.0; batch * kv_heads],
                attended: vec![0.0; batch * heads],
                attended_q8: Activations::new(batch, heads),
                delta: vec![0.0; batch * config.d_model],
                hidden: Activations::new(batch, config.d_ff),
                last: Activations::new(LOGIT_ROWS, config.d_model),
                angles: [Angles::new(&config.rope, batch), Angles::new(&config.rope, batch)],
            },
            logits: vec![0.0; config.vocab_size],
        }
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

    /// Bytes of keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.cache.iter().map(KvCache::bytes).sum()
    }
}
