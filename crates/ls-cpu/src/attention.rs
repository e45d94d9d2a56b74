//! Attention with grouped heads over a key-value cache in f16.

use std::cell::RefCell;

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

    /// Stores the keys and values of positions from `start` on; each is `[n, n_kv_heads,
    /// head_dim]`.
    ///
    /// # Panics
    ///
    /// If a position is beyond the capacity or the lengths do not fit.
    pub fn store(&mut self, cpu: &Cpu, start: usize, keys: &[f32], values: &[f32]) {
        let (d, width) = (self.head_dim, self.n_kv_heads * self.head_dim);
        let n = keys.len() / width;
        assert_eq!((keys.len(), values.len()), (n * width, n * width), "keys and values");
        assert!(start + n <= self.capacity, "positions up to {} of {}", start + n, self.capacity);
        for (to, from) in [(&mut self.keys, keys), (&mut self.values, values)] {
            let head = |head: usize, to: &mut [u16]| {
                for (t, to) in to[start * d..].chunks_exact_mut(d).take(n).enumerate() {
                    simd::to_f16(cpu.isa, &from[t * width + head * d..][..d], to);
                }
            };
            if n == 1 {
                // Less work than handing it over.
                to.chunks_mut(self.capacity * d).enumerate().for_each(|(i, to)| head(i, to));
            } else {
                cpu.pool.for_each_chunk(to, self.capacity * d, &head);
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

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    /// Ordinary values that f16 holds exactly.
    fn values(n: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 513) as f32 / 256.0 - 1.0;
        (0..n).map(|i| f16::from_f32(value(i)).to_f32()).collect()
    }

    /// The definition, in f64.
    #[allow(clippy::too_many_arguments)] // a formula's variables
    fn naive(
        shape: AttentionShape,
        n_kv_heads: usize,
        d: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        position: usize,
        head: usize,
    ) -> Vec<f64> {
        let kv = head / (shape.n_heads / n_kv_heads);
        let row = |x: &[f32], p: usize| -> Vec<f64> {
            let at = (p * n_kv_heads + kv) * d;
            x[at..at + d].iter().map(|x| f64::from(*x)).collect()
        };
        let first = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let weight = |p: usize| {
            let dot: f64 = row(k, p).iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum();
            (f64::from(shape.scale) * dot).exp()
        };
        let weights: Vec<f64> = (first..=position).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; d];
        for (w, p) in weights.iter().zip(first..) {
            out.iter_mut().zip(row(v, p)).for_each(|(o, v)| *o += w / sum * v);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn attention_matches_its_definition(
            start in 0usize..9, n in 1usize..11, window in prop::option::of(1usize..7),
            n_kv_heads in 1usize..4, group in 1usize..4, d in prop::sample::select(vec![4, 8, 24]),
            seed in 0usize..1000, threads in 1usize..3
        ) {
            let (end, kv_width) = (start + n, n_kv_heads * d);
            let shape = AttentionShape { n_heads: n_kv_heads * group, scale: 0.3, window };
            let (k, v) = (values(end * kv_width, seed), values(end * kv_width, seed + 1));
            let q = values(n * shape.n_heads * d, seed + 2);
            for isa in Isa::available() {
                let cpu = Cpu::new(threads, isa).unwrap();
                let mut cache = KvCache::new(n_kv_heads, d, end + 2);
                cache.store(&cpu, 0, &k[..start * kv_width], &v[..start * kv_width]);
                cache.store(&cpu, start, &k[start * kv_width..], &v[start * kv_width..]);
                let mut out = vec![f32::NAN; q.len()];
                cpu.attention(shape, &cache, start, n, &q, &mut out);
                for (i, (q, out)) in q.chunks(d).zip(out.chunks(d)).enumerate() {
                    let (t, head) = (i / shape.n_heads, i % shape.n_heads);
                    let want = naive(shape, n_kv_heads, d, q, &k, &v, start + t, head);
                    for (got, want) in out.iter().zip(want) {
                        prop_assert!((f64::from(*got) - want).abs() < 1e-4, "{isa}: {got} for {want}");
                    }
                }
            }
        }
    }
}
