//! From scores to priorities, masks and scores of chunks.

use bitvec::order::Lsb0;
use bitvec::vec::BitVec;

use crate::isa::Isa;
use crate::simd;

/// One bit for each output.
pub type Mask = BitVec<u64, Lsb0>;

/// How the scores of a chunk's outputs become the chunk's score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}

/// The upper 16 bits of scores, in an order that integers have: larger keys for larger scores.
#[inline(always)]
pub(crate) fn keys(scores: &[f32], out: &mut [u16]) {
    for (out, score) in out.iter_mut().zip(scores) {
        let bits = score.to_bits();
        let flip = (bits as i32 >> 31) as u32 | 0x8000_0000;
        *out = ((bits ^ flip) >> 16) as u16;
    }
}

/// How many keys are at least `least`.
#[inline(always)]
pub(crate) fn count_at_least(keys: &[u16], least: u16, n: &mut usize) {
    // Counts of 16 bits, as many lanes as keys have, of runs that do not overflow them.
    let runs = keys.chunks(1 << 15);
    let count = |run: &[u16]| run.iter().map(|key| u16::from(*key >= least)).sum::<u16>();
    *n = runs.map(|run| usize::from(count(run))).sum();
}

/// Selects by score, with memory of its own so that nothing is allocated from call to call.
///
/// Scores are compared by their upper 16 bits, which tell those apart that differ by more than
/// 0.8 %; among equals the first are taken.
///
/// ```
/// use ls_hash::{Mask, Selector};
///
/// let mut mask = Mask::new();
/// Selector::default().top_k(&[0.5, 3.0, -1.0, 2.0], 2, &mut mask);
/// assert_eq!(mask.iter_ones().collect::<Vec<_>>(), [1, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct Selector {
    isa: Isa,
    keys: Vec<u16>,
}

impl Default for Selector {
    fn default() -> Self {
        Self { isa: Isa::detect(), keys: Vec::new() }
    }
}

impl Selector {
    /// Priorities of 16 bits, ordered as `scores` are. They can be compared between calls.
    pub fn priorities(&mut self, scores: &[f32]) -> &[u16] {
        self.keys.resize(scores.len(), 0);
        simd::keys(self.isa, scores, &mut self.keys);
        &self.keys
    }

    /// Marks the `k` highest scores in `mask` (all, if there are fewer) and returns how many
    /// these are.
    pub fn top_k(&mut self, scores: &[f32], k: usize, mask: &mut Mask) -> usize {
        let k = k.min(scores.len());
        mask.resize(scores.len(), false);
        if k == 0 {
            mask.fill(false);
            return 0;
        }
        self.priorities(scores);
        let (least, mut surplus) = self.least_of(k);
        simd::at_least(self.isa, &self.keys, least, mask.as_raw_mut_slice());
        // Those that just reach it may be too many: the last of them go.
        for (i, word) in mask.as_raw_mut_slice().iter_mut().enumerate().rev() {
            if surplus == 0 {
                break;
            }
            let mut equal = *word & !self.above(i, least);
            while equal != 0 && surplus > 0 {
                let highest = 1 << equal.ilog2();
                *word &= !highest;
                equal &= !highest;
                surplus -= 1;
            }
        }
        k
    }

    /// Marks the scores that are at least `threshold`, but for the lower 16 bits of both, and
    /// returns how many these are.
    pub fn threshold(&mut self, scores: &[f32], threshold: f32, mask: &mut Mask) -> usize {
        let mut least = [0];
        keys(&[threshold], &mut least);
        mask.resize(scores.len(), false);
        self.priorities(scores);
        simd::at_least(self.isa, &self.keys, least[0], mask.as_raw_mut_slice());
        mask.count_ones()
    }

    /// Which of the 64 keys of word `i` are larger than `key`.
    fn above(&self, i: usize, key: u16) -> u64 {
        let Some(least) = key.checked_add(1) else { return 0 };
        let keys = &self.keys[i * 64..];
        let mut word = [0];
        simd::at_least(self.isa, &keys[..keys.len().min(64)], least, &mut word);
        word[0]
    }

    /// The largest key that at least `k` keys reach, and by how many more than `k`. `k` keys are there.
    fn least_of(&self, k: usize) -> (u16, usize) {
        let reach = |key| {
            let mut n = 0;
            simd::count_at_least(self.isa, &self.keys, key, &mut n);
            n
        };
        let (mut least, mut reached) = (0, self.keys.len());
        for bit in (0..u16::BITS).rev() {
            let key = least | 1 << bit;
            let n = reach(key);
            if n >= k {
                (least, reached) = (key, n);
            }
        }
        (least, reached - k)
    }
}

/// Priorities of 8 bits: 255 for the highest of `scores`, 0 for the lowest, evenly between.
///
/// # Panics
///
/// If the lengths differ.
pub fn priorities_u8(scores: &[f32], out: &mut [u8]) {
    assert_eq!(scores.len(), out.len(), "one priority for each score");
    let low = scores.iter().copied().fold(f32::INFINITY, f32::min);
    let high = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let by = if high > low { 255.0 / (high - low) } else { 0.0 };
    for (out, score) in out.iter_mut().zip(scores) {
        *out = ((score - low) * by + 0.5) as u8;
    }
}

/// Scores of runs of `chunk` outputs, the last of which may be shorter.
///
/// # Panics
///
/// If `chunk` is 0 or `out` does not have one score for each run.
pub fn chunk_scores(scores: &[f32], chunk: usize, pool: Pool, out: &mut [f32]) {
    assert_eq!(out.len(), scores.len().div_ceil(chunk), "one score for each run");
    for (out, scores) in out.iter_mut().zip(scores.chunks(chunk)) {
        *out = match pool {
            Pool::Sum => scores.iter().sum(),
            Pool::Max => scores.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn top_k_takes_the_highest_keys_and_the_first_of_equals(
            scores in prop::collection::vec(-4.0f32..4.0, 0..300), k in 0usize..320,
        ) {
            let mut selector = Selector::default();
            let mut mask = Mask::new();
            let n = selector.top_k(&scores, k, &mut mask);
            let keys = selector.priorities(&scores).to_vec();
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by_key(|i| (std::cmp::Reverse(keys[*i]), *i));
            let mut expected: Vec<usize> = order[..k.min(scores.len())].to_vec();
            expected.sort_unstable();
            prop_assert_eq!(n, expected.len());
            prop_assert_eq!(mask.iter_ones().collect::<Vec<_>>(), expected);
        }

        #[test]
        fn keys_are_ordered_as_scores(a in any::<f32>(), b in any::<f32>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let mut selector = Selector::default();
            let keys = selector.priorities(&[a, b]);
            prop_assert!(a >= b || keys[0] <= keys[1]);
        }
    }

    #[test]
    fn threshold_counts_what_reaches_it() {
        let mut mask = Mask::new();
        let scores: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(Selector::default().threshold(&scores, 64.0, &mut mask), 36);
        assert_eq!(mask.len(), 100);
        assert!(mask[64] && !mask[63]);
    }

    #[test]
    fn a_shorter_call_leaves_no_bits_of_a_longer_one() {
        let (mut selector, mut mask) = (Selector::default(), Mask::new());
        selector.top_k(&[1.0; 200], 200, &mut mask);
        assert_eq!(selector.top_k(&[1.0; 70], 3, &mut mask), 3);
        assert_eq!((mask.len(), mask.count_ones()), (70, 3));
    }

    #[test]
    fn chunks_pool_their_scores() {
        let scores = [1.0, 2.0, 3.0, -4.0, 5.0];
        let mut out = [0.0; 3];
        chunk_scores(&scores, 2, Pool::Sum, &mut out);
        assert_eq!(out, [3.0, -1.0, 5.0]);
        chunk_scores(&scores, 2, Pool::Max, &mut out);
        assert_eq!(out, [2.0, 3.0, 5.0]);
        let mut bytes = [0; 5];
        priorities_u8(&scores, &mut bytes);
        assert_eq!((bytes[3], bytes[4]), (0, 255));
    }
}
