//! Neurons of chunks: what chunks score by them, and which are computed.

use super::trace::Trace;
use crate::{Count, gains};

/// Scores of a token's neurons, and those of the layer under way that are computed.
///
/// As the engine does it: the chunks that are there are computed in part, namely the best neurons of all of them.
#[derive(Debug)]
pub(crate) struct Neurons {
    /// To a chunk.
    per_chunk: usize,
    /// The number of each byte.
    numbers: [f32; 256],
    /// Bytes of each layer's last ranking; none: it was not ranked for this token.
    ranked: Vec<Vec<u8>>,
    decoded: Vec<f32>,
    chunks: Vec<f32>,
    is_reachable: Vec<bool>,
    is_computed: Vec<bool>,
}

impl Neurons {
    pub fn new(n_layers: usize, per_chunk: u32) -> Self {
        Self {
            per_chunk: per_chunk.max(1) as usize,
            numbers: std::array::from_fn(|byte| Trace::decode(byte as u8)),
            ranked: vec![Vec::new(); n_layers],
            decoded: Vec::new(),
            chunks: Vec::new(),
            is_reachable: Vec::new(),
            is_computed: Vec::new(),
        }
    }

    pub fn number(&self, byte: u8) -> f32 {
        self.numbers[usize::from(byte)]
    }

    pub fn forget(&mut self, layer: u32) {
        self.ranked[layer as usize].clear();
    }

    /// What the chunks of a layer score if its neurons score `row`, and `n_keep` of these are computed at most.
    pub fn rank(&mut self, layer: u32, row: &[u8], n_keep: u32, count: Count) -> &[f32] {
        let ranked = &mut self.ranked[layer as usize];
        ranked.clear();
        ranked.extend_from_slice(row);
        self.decoded.clear();
        self.decoded.extend(row.iter().map(|byte| self.numbers[usize::from(*byte)]));
        self.chunks.clear();
        match count {
            Count::Fixed => {
                let neurons = self.decoded.chunks(self.per_chunk);
                self.chunks.extend(neurons.map(|neurons| neurons.iter().sum::<f32>()));
            }
            Count::ByWorth => {
                let (least, _) = least(row.iter().copied(), n_keep as usize);
                let least = self.numbers[usize::from(least)];
                self.chunks.extend(gains(&self.decoded, self.per_chunk, least));
            }
        }
        &self.chunks
    }

    /// Marks the best `n_keep` neurons of some chunks as those that are computed; all if the layer was not ranked.
    pub fn mark<'a>(
        &mut self,
        layer: u32,
        n: usize,
        n_keep: u32,
        chunks: impl Iterator<Item = &'a u16>,
    ) {
        let ranked = &self.ranked[layer as usize];
        self.is_computed.clear();
        self.is_computed.resize(n, ranked.is_empty());
        if ranked.is_empty() {
            return;
        }
        self.is_reachable.clear();
        self.is_reachable.resize(n, false);
        for chunk in chunks {
            let first = usize::from(*chunk) * self.per_chunk;
            self.is_reachable[first..n.min(first + self.per_chunk)].fill(true);
        }
        let reachable = ranked.iter().zip(&self.is_reachable).filter(|(_, is)| **is);
        let (least, mut n_least) = least(reachable.map(|(byte, _)| *byte), n_keep as usize);
        let all = self.is_computed.iter_mut().zip(ranked).zip(&self.is_reachable);
        for ((is_computed, byte), _) in all.filter(|(_, is)| **is) {
            *is_computed = *byte > least || *byte == least && n_least > 0;
            n_least -= usize::from(*byte == least && n_least > 0);
        }
    }

    /// The neurons of a chunk that are computed.
    pub fn computed(&self, chunk: u16) -> impl Iterator<Item = usize> + '_ {
        let first = usize::from(chunk) * self.per_chunk;
        let range = first..self.is_computed.len().min(first + self.per_chunk);
        range.filter(|i| self.is_computed[*i])
    }
}

/// The least of the `n` greatest, and how many of those equal it.
fn least(bytes: impl Iterator<Item = u8>, n: usize) -> (u8, usize) {
    let mut counts = [0usize; 256];
    bytes.for_each(|byte| counts[usize::from(byte)] += 1);
    let mut left = n;
    for (byte, count) in counts.iter().enumerate().rev() {
        if *count >= left {
            return (byte as u8, left);
        }
        left -= count;
    }
    (0, counts[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_neurons_of_what_is_there_are_computed() {
        let mut neurons = Neurons::new(2, 2);
        let row = [200, 10, 150, 150, 150, 140, 0, 130];
        let scores = neurons.rank(1, &row, 4, Count::Fixed).to_vec();
        assert!((scores[1] - 2.0 * Trace::decode(150)).abs() < 1e-3, "{scores:?}");
        // The fourth best is 150, and only 200 exceeds it.
        let worth = neurons.rank(1, &row, 4, Count::ByWorth).to_vec();
        assert!(worth[0] > 100.0 * worth[1] && worth[1] > worth[2] && worth[3] > 0.0, "{worth:?}");
        let computed = |of: &Neurons| (0..4).flat_map(|i| of.computed(i)).collect::<Vec<_>>();
        neurons.mark(1, 8, 4, [0, 2, 3].iter());
        assert_eq!(computed(&neurons), [0, 4, 5, 7]);
        neurons.mark(1, 8, 2, [1, 2].iter());
        assert_eq!(computed(&neurons), [2, 3]);
        neurons.mark(0, 8, 1, [0].iter());
        assert_eq!(computed(&neurons).len(), 8, "what was not ranked is computed whole");
    }
}
