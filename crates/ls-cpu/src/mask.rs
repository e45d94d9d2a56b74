//! Which neurons are computed: a bit for each.

use std::ops::Range;
use std::sync::Arc;

use crate::Cpu;

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// A row of bits for each token of a batch; bit `j` stands for neuron `j` of a layer.
///
/// The words of a row hold bit `j` at `j % 64` of word `j / 64`, as most bit vectors do.
///
/// ```
/// use ls_cpu::Masks;
///
/// let mut masks = Masks::new(2, 100);
/// masks.set(0, 7);
/// masks.set_range(1, 60..70);
/// assert_eq!(masks.row(0).ones(0..100).collect::<Vec<_>>(), [7]);
/// assert_eq!(masks.row(1).count(64..100), 6);
/// ```
///
/// A row can also say how important a neuron must turn out to be: then, of those that are set, only
/// neurons whose value times the norm of their down column is at least so large are added to the
/// output. What the others' values cost was spent, but not what their columns would.
#[derive(Clone, Debug, PartialEq)]
pub struct Masks {
    len: usize,
    row_words: usize,
    words: Vec<u64>,
    /// For each row.
    least: Vec<f32>,
    /// Norms of the down columns; without them, all that is set is added.
    norms: Option<Arc<[f32]>>,
}

impl Masks {
    /// `rows` rows of `len` bits, all clear.
    pub fn new(rows: usize, len: usize) -> Self {
        let row_words = len.div_ceil(WORD);
        let (words, least) = (vec![0; rows * row_words], vec![0.0; rows]);
        Self { len, row_words, words, least, norms: None }
    }

    /// Rows that there is room for.
    pub fn rows(&self) -> usize {
        self.words.len().checked_div(self.row_words).unwrap_or(0)
    }

    /// Bits of a row: neurons.
    pub fn n_neurons(&self) -> usize {
        self.len
    }

    /// Clears the first `n` rows, of which each has `n_neurons` bits from now on.
    ///
    /// # Panics
    ///
    /// If they do not fit in the memory that there is.
    pub fn begin(&mut self, n: usize, n_neurons: usize) {
        (self.len, self.row_words) = (n_neurons, n_neurons.div_ceil(WORD));
        self.words[..n * self.row_words].fill(0);
        self.least.fill(0.0);
        self.norms = None;
    }

    /// Of the neurons that are set, only those are added that are important enough, by `norms` of all
    /// down columns and [`Masks::set_least`].
    ///
    /// # Panics
    ///
    /// If there is not a norm for each neuron.
    pub fn set_norms(&mut self, norms: Arc<[f32]>) {
        assert_eq!(norms.len(), self.len, "a norm for each neuron");
        self.norms = Some(norms);
    }

    /// The least importance, |value| · ‖down column‖, of what is added for row `t`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn set_least(&mut self, t: usize, least: f32) {
        self.least[t] = least;
    }

    /// The bits of row `t`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, t: usize) -> Mask<'_> {
        Mask {
            words: &self.words[t * self.row_words..][..self.row_words],
            len: self.len,
            least: self.least.get(t).copied().unwrap_or(0.0),
            norms: self.norms.as_deref().unwrap_or(&[]),
        }
    }

    /// The words of row `t`. Bits beyond the last neuron mean nothing.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn words_mut(&mut self, t: usize) -> &mut [u64] {
        &mut self.words[t * self.row_words..][..self.row_words]
    }

    /// Sets bit `j` of row `t`.
    ///
    /// # Panics
    ///
    /// If there is no such row or bit.
    pub fn set(&mut self, t: usize, j: usize) {
        assert!(j < self.len, "neuron {j} of {}", self.len);
        self.words_mut(t)[j / WORD] |= 1 << (j % WORD);
    }

    /// Sets consecutive bits of row `t`.
    ///
    /// # Panics
    ///
    /// If there is no such row or bit.
    pub fn set_range(&mut self, t: usize, range: Range<usize>) {
        assert!(range.end <= self.len, "neurons {range:?} of {}", self.len);
        set_range(self.words_mut(t), range);
    }

    /// Calls `row(t, words)` for the first `n` rows, on all threads.
    ///
    /// # Panics
    ///
    /// If there are fewer rows.
    pub fn for_each_row(&mut self, cpu: &Cpu, n: usize, row: &(dyn Fn(usize, &mut [u64]) + Sync)) {
        let words = &mut self.words[..n * self.row_words];
        // Rows of no words are no rows to be visited.
        cpu.pool().for_each_chunk(words, self.row_words.max(1), row);
    }
}

/// Sets consecutive bits of a row's words, in the order of [`Masks`].
///
/// # Panics
///
/// If a bit is beyond the last word.
pub fn set_range(words: &mut [u64], range: Range<usize>) {
    let first = range.start / WORD;
    let touched = &mut words[first..range.end.div_ceil(WORD).max(first)];
    for (i, word) in touched.iter_mut().enumerate() {
        *word |= within(first + i, &range);
    }
}

/// The bits of word `i` that lie in `range`.
fn within(i: usize, range: &Range<usize>) -> u64 {
    let low = range.start.saturating_sub(i * WORD).min(WORD);
    let high = range.end.saturating_sub(i * WORD).min(WORD);
    if low >= high {
        return 0;
    }
    (u64::MAX >> (WORD - (high - low))) << low
}

/// One row of [`Masks`].
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    words: &'a [u64],
    len: usize,
    least: f32,
    norms: &'a [f32],
}

impl<'a> Mask<'a> {
    /// Bits of the row.
    pub fn n_neurons(self) -> usize {
        self.len
    }

    /// Whether what is set is added however little it matters.
    pub(crate) fn adds_all(self) -> bool {
        self.norms.is_empty() || self.least <= 0.0
    }

    /// Whether neuron `j`, which is set, matters enough with this value to be added.
    #[inline]
    pub(crate) fn adds(self, j: usize, value: f32) -> bool {
        // What is no number is added, so that it is seen.
        let importance = || value.abs() * self.norms[j];
        self.norms.is_empty() || importance() >= self.least || importance().is_nan()
    }

    /// The row's words. Bits beyond the last neuron mean nothing.
    pub fn words(self) -> &'a [u64] {
        self.words
    }

    /// Whether bit `j` is set.
    ///
    /// # Panics
    ///
    /// If there is no such bit.
    pub fn get(self, j: usize) -> bool {
        self.words[j / WORD] >> (j % WORD) & 1 == 1
    }

    /// Bits that are set in a range, which is cut off at the row's end.
    pub fn count(self, range: Range<usize>) -> usize {
        let range = range.start..range.end.min(self.len);
        let words = range.start / WORD..range.end.div_ceil(WORD);
        words.map(|i| (self.words[i] & within(i, &range)).count_ones() as usize).sum()
    }

    /// The bits that are set in a range, which is cut off at the row's end, in order.
    #[inline]
    pub fn ones(self, range: Range<usize>) -> impl Iterator<Item = usize> + use<'a> {
        let (mut at, end) = (range.start, range.end.min(self.len));
        std::iter::from_fn(move || {
            while at < end {
                let rest = self.words[at / WORD] >> (at % WORD);
                if rest != 0 {
                    let found = at + rest.trailing_zeros() as usize;
                    at = found + 1;
                    return (found < end).then_some(found);
                }
                at = (at / WORD + 1) * WORD;
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_sets_of_neurons(
            len in 1usize..300,
            bits in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
            ranges in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..3),
            seen in any::<[prop::sample::Index; 2]>(),
        ) {
            let between = |ends: [prop::sample::Index; 2]| {
                let [a, b] = ends.map(|end| end.index(len + 1));
                a.min(b)..a.max(b)
            };
            let (mut masks, mut want) = (Masks::new(3, len), std::collections::BTreeSet::new());
            for bit in bits {
                masks.set(1, bit.index(len));
                want.insert(bit.index(len));
            }
            for range in ranges {
                masks.set_range(1, between(range));
                want.extend(between(range));
            }
            let (mask, seen) = (masks.row(1), between(seen));
            let want: Vec<usize> = want.range(seen.clone()).copied().collect();
            prop_assert_eq!(mask.ones(seen.clone()).collect::<Vec<_>>(), want.clone());
            prop_assert_eq!(mask.count(seen.clone()), want.len());
            prop_assert!(seen.clone().all(|j| mask.get(j) == want.contains(&j)));
            for other in [0, 2] {
                prop_assert_eq!(masks.row(other).count(0..len), 0);
            }
        }
    }

    #[test]
    fn memory_is_used_again_for_layers_of_other_sizes() {
        let mut masks = Masks::new(2, 100);
        masks.set_range(0, 0..100);
        masks.set_range(1, 0..100);
        masks.begin(2, 60);
        assert_eq!((masks.rows(), masks.n_neurons()), (4, 60));
        assert!((0..2).all(|t| masks.row(t).count(0..60) == 0));
        assert_eq!(masks.row(0).ones(0..usize::MAX).count(), 0);
    }

    #[test]
    fn rows_are_written_side_by_side() {
        let cpu = Cpu::new(2, crate::Isa::detect()).unwrap();
        let mut masks = Masks::new(5, 130);
        masks.for_each_row(&cpu, 4, &|t, words| set_range(words, t..t + 100));
        for t in 0..4 {
            assert_eq!(masks.row(t).ones(0..130).collect::<Vec<_>>(), Vec::from_iter(t..t + 100));
        }
        assert_eq!(masks.row(4).count(0..130), 0);
    }
}
