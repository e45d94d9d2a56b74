//! Attention with grouped heads over a key-value cache in f16.

use std::cell::RefCell;

use half::f16;

use crate::elementwise::softmax;
use crate::pool::Split;
use crate::{Cpu, simd};

/// Queries of one head that are computed together, so that a key is loaded once for all.
const QUERIES: usize = 4;

/// Keys and values of one layer, `[n_kv_heads][capacity][head_dim]` as f16 bits.
#[derive(Debug)]
pub struct KvCache {
    n_kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    keys: Vec<u16>,
    values: Vec<u16>,
}

impl KvCache {
    /// Room for `capacity` positions.
    pub fn new(n_kv_heads: usize, head_dim: usize, capacity: usize) -> Self {
        let n = n_kv_heads * head_dim * capacity;
        Self { n_kv_heads, head_dim, capacity, keys: vec![0; n], values: vec![0; n] }
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * 2
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Stores the keys and values of one position; each is `[n_kv_heads, head_dim]`.
    ///
    /// # Panics
    ///
    /// If the position is beyond the capacity or the lengths do not fit.
    pub fn store(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let d = self.head_dim;
        assert!(position < self.capacity, "position {position} of {}", self.capacity);
        assert_eq!((key.len(), value.len()), (self.n_kv_heads * d, self.n_kv_heads * d));
        for h in 0..self.n_kv_heads {
            let at = (h * self.capacity + position) * d;
            let rows = [(&mut self.keys, key), (&mut self.values, value)];
            for (to, from) in rows {
                for (to, x) in to[at..at + d].iter_mut().zip(&from[h * d..]) {
                    *to = f16::from_f32(*x).to_bits();
                }
            }
        }
    }

    fn rows<'a>(&self, of: &'a [u16], head: usize, positions: std::ops::Range<usize>) -> &'a [u16] {
        let at = head * self.capacity;
        &of[(at + positions.start) * self.head_dim..(at + positions.end) * self.head_dim]
    }
}

/// Which positions attend to which, and how strongly.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Factor on query · key.
    pub scale: f32,
    /// Latest positions (its own included) that a query sees; `None`: all.
    pub window: Option<usize>,
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Cpu {
    /// Lets each thread allocate what attention over up to `positions` positions needs, so that
    /// decoding allocates nothing from its first token on.
    pub fn reserve(&self, positions: usize) {
        self.pool.on_each_thread(&|| {
            SCORES.with_borrow_mut(|scores| {
                if scores.len() < QUERIES * positions {
                    scores.resize(QUERIES * positions, 0.0);
                }
            });
        });
    }

    /// Attention of `n` queries at positions `start..start + n`, whose keys and values are in the
    /// cache already. `q` and `out` are `[n, n_heads, head_dim]`.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn attention(
        &self,
        shape: AttentionShape,
        cache: &KvCache,
        start: usize,
        n: usize,
        q: &[f32],
        out: &mut [f32],
    ) {
        let width = shape.n_heads * cache.head_dim;
        assert_eq!((q.len(), out.len()), (n * width, n * width), "queries and outputs");
        assert!(start + n <= cache.capacity, "positions within the cache");
        assert!(shape.n_heads.is_multiple_of(cache.n_kv_heads), "grouped heads");
        let out = Split::new(out);
        let blocks = n.div_ceil(QUERIES);
        self.pool.run(shape.n_heads * blocks, &|task| {
            // The last queries see the most keys: longest tasks first.
            let (block, head) = (blocks - 1 - task / shape.n_heads, task % shape.n_heads);
            let first = block * QUERIES;
            match (n - first).min(QUERIES) {
                1 => self.queries::<1>(shape, cache, start, first, head, q, &out),
                2 => self.queries::<2>(shape, cache, start, first, head, q, &out),
                3 => self.queries::<3>(shape, cache, start, first, head, q, &out),
                _ => self.queries::<4>(shape, cache, start, first, head, q, &out),
            }
        });
    }

    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn queries<const Q: usize>(
        &self,
        shape: AttentionShape,
        cache: &KvCache,
        start: usize,
        first: usize,
        head: usize,
        q: &[f32],
        out: &Split<'_, f32>,
    ) {
        let d = cache.head_dim;
        let at = |i: usize| ((first + i) * shape.n_heads + head) * d;
        let kv_head = head / (shape.n_heads / cache.n_kv_heads);
        let oldest = |i: usize| {
            let end = start + first + i + 1;
            shape.window.map_or(0, |w| end.saturating_sub(w))
        };
        let seen = oldest(0)..start + first + Q;
        let keys = cache.rows(&cache.keys, kv_head, seen.clone());
        let values = cache.rows(&cache.values, kv_head, seen.clone());
        let q: [&[f32]; Q] = std::array::from_fn(|i| &q[at(i)..][..d]);
        SCORES.with_borrow_mut(|scores| {
            let len = seen.len();
            if scores.len() < Q * cache.capacity {
                scores.resize(Q * cache.capacity, 0.0);
            }
            let scores = &mut scores[..Q * len];
            simd::scores(self.isa, q, keys, shape.scale, scores);
            for (i, scores) in scores.chunks_exact_mut(len).enumerate() {
                let (from, to) = (oldest(i) - seen.start, len - (Q - 1 - i));
                softmax(self.isa, &mut scores[from..to]);
                scores[..from].fill(0.0);
                scores[to..].fill(0.0);
            }
            // SAFETY: each task has its own queries of its own head.
            #[allow(unsafe_code)]
            let out: [&mut [f32]; Q] = std::array::from_fn(|i| unsafe { out.slice(at(i), d) });
            simd::weighted_sums(self.isa, scores, values, out);
        });
    }
}
