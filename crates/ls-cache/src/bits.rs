//! Sets of small numbers from which the largest is found at once.

/// A set of numbers below a bound: a bit for each, and a bit for each word that is not zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitSet {
    words: Vec<u64>,
    tops: Vec<u64>,
}

impl BitSet {
    /// An empty set of numbers below `n`.
    pub fn new(n: usize) -> Self {
        let words = n.div_ceil(64);
        Self { words: vec![0; words], tops: vec![0; words.div_ceil(64)] }
    }

    /// Whether it was not in the set before.
    pub fn insert(&mut self, i: u32) -> bool {
        let (word, bit) = place(i);
        let was = self.words[word];
        self.words[word] = was | bit;
        self.tops[word / 64] |= 1 << (word % 64);
        was & bit == 0
    }

    /// Whether it was in the set.
    pub fn remove(&mut self, i: u32) -> bool {
        let (word, bit) = place(i);
        let was = self.words[word];
        self.words[word] = was & !bit;
        if self.words[word] == 0 {
            self.tops[word / 64] &= !(1 << (word % 64));
        }
        was & bit != 0
    }

    pub fn set(&mut self, i: u32, is_in: bool) {
        if is_in {
            self.insert(i);
        } else {
            self.remove(i);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tops.iter().all(|top| *top == 0)
    }

    /// The largest number.
    pub fn last(&self) -> Option<u32> {
        let top = self.tops.iter().rposition(|top| *top != 0)?;
        Some(self.last_of_top(top, self.tops[top]))
    }

    /// The largest number that is not above `i`.
    pub fn last_up_to(&self, i: u32) -> Option<u32> {
        let (word, bit) = place(i);
        let low = self.words.get(word)? & (bit | (bit - 1));
        if low != 0 {
            return Some(word as u32 * 64 + highest(low));
        }
        let (top, top_bit) = place(word as u32);
        let low = self.tops[top] & (top_bit - 1);
        if low != 0 {
            return Some(self.last_of_top(top, low));
        }
        let top = self.tops[..top].iter().rposition(|top| *top != 0)?;
        Some(self.last_of_top(top, self.tops[top]))
    }

    fn last_of_top(&self, top: usize, bits: u64) -> u32 {
        let word = top as u32 * 64 + highest(bits);
        word * 64 + highest(self.words[word as usize])
    }

    /// Takes out the largest number.
    pub fn pop(&mut self) -> Option<u32> {
        let last = self.last()?;
        self.remove(last);
        Some(last)
    }

    /// Moves all of `other` into this set; both are of one bound.
    pub fn take_all(&mut self, other: &mut Self) {
        for (mine, theirs) in self.words.iter_mut().zip(&mut other.words) {
            *mine |= std::mem::take(theirs);
        }
        for (mine, theirs) in self.tops.iter_mut().zip(&mut other.tops) {
            *mine |= std::mem::take(theirs);
        }
    }
}

fn place(i: u32) -> (usize, u64) {
    ((i / 64) as usize, 1 << (i % 64))
}

fn highest(bits: u64) -> u32 {
    63 - bits.leading_zeros()
}

/// Numbers below `n` whose bits are set in `words`; missing words count as zero.
pub(crate) fn ones(words: &[u64], n: u32) -> impl Iterator<Item = u32> + '_ {
    let of_word = |(i, word): (usize, &u64)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(i as u32 * 64 + bit)
        })
    };
    let used = words.len().min(n.div_ceil(64) as usize);
    words[..used].iter().enumerate().flat_map(of_word).take_while(move |i| *i < n)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BOUND: u32 = 10_000;

    proptest! {
        #[test]
        fn it_is_a_set(numbers in prop::collection::vec((0..BOUND, any::<bool>()), 0..200), probe in 0..BOUND) {
            let (mut bits, mut set) = (BitSet::new(BOUND as usize), BTreeSet::new());
            for (i, insert) in numbers {
                if insert {
                    prop_assert_eq!(bits.insert(i), set.insert(i));
                } else {
                    prop_assert_eq!(bits.remove(i), set.remove(&i));
                }
                prop_assert_eq!(bits.last(), set.last().copied());
                prop_assert_eq!(bits.is_empty(), set.is_empty());
            }
            prop_assert_eq!(bits.last_up_to(probe), set.range(..=probe).next_back().copied());
            let mut all = BitSet::new(BOUND as usize);
            all.take_all(&mut bits);
            prop_assert!(bits.is_empty());
            let words: Vec<u32> = ones(&all.words, BOUND).collect();
            prop_assert_eq!(words, set.iter().copied().collect::<Vec<_>>());
            while let Some(i) = all.pop() {
                prop_assert_eq!(Some(i), set.pop_last());
            }
            prop_assert!(set.is_empty());
        }
    }

    #[test]
    fn bits_beyond_the_bound_do_not_count() {
        assert_eq!(ones(&[u64::MAX, u64::MAX], 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(ones(&[1 << 63], 65).collect::<Vec<_>>(), [63]);
    }
}
