//! In which order the keys of one group go.

use std::fmt;

use super::Used;
use super::buckets::Buckets;
use crate::bits::{BitSet, ones};

/// Orders the keys of one group; some of them are listed as candidates.
pub(crate) trait Ranking: fmt::Debug + Send {
    fn new(n_keys: u32) -> Self;
    fn n_keys(&self) -> u32;
    /// Key `i` has a new frame.
    fn admit(&mut self, _i: u32) {}
    fn insert(&mut self, i: u32);
    fn remove(&mut self, i: u32);
    fn pop(&mut self) -> Option<u32>;
    fn is_empty(&self) -> bool;
    fn used(&mut self, _used: Used<'_>) {}
    fn new_context(&mut self) {}
    fn set_hot(&mut self, _order: &[u32]) {}
}

/// The oldest first; age counts the group's visits since the last use.
#[derive(Debug)]
pub(crate) struct Recency {
    /// Ranks are the visit of the last use.
    keys: Buckets,
    visits: u32,
}

impl Ranking for Recency {
    fn new(n_keys: u32) -> Self {
        Self { keys: Buckets::new(n_keys), visits: 0 }
    }

    fn n_keys(&self) -> u32 {
        self.keys.n_keys()
    }

    /// As old as what the last visit used, until the present one says what it used. If it counted
    /// as younger, whatever streams through in a visit would drive out what stayed from the last.
    fn admit(&mut self, i: u32) {
        self.keys.set_rank(i, self.visits);
    }

    fn insert(&mut self, i: u32) {
        self.keys.insert(i);
    }

    fn remove(&mut self, i: u32) {
        self.keys.remove(i);
    }

    fn pop(&mut self) -> Option<u32> {
        self.keys.pop()
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn used(&mut self, used: Used<'_>) {
        self.visits = self.visits.saturating_add(1);
        match used {
            Used::All => self.keys.set_all(self.visits),
            Used::Mask(mask) => {
                ones(mask, self.keys.n_keys()).for_each(|i| self.keys.set_rank(i, self.visits));
            }
        }
    }
}

/// The least often used first; a key's count outlives its frame, but not the context.
#[derive(Debug)]
pub(crate) struct Frequency {
    /// Ranks are the number of uses, less the visits that used all keys.
    keys: Buckets,
}

impl Ranking for Frequency {
    fn new(n_keys: u32) -> Self {
        Self { keys: Buckets::new(n_keys) }
    }

    fn n_keys(&self) -> u32 {
        self.keys.n_keys()
    }

    fn insert(&mut self, i: u32) {
        self.keys.insert(i);
    }

    fn remove(&mut self, i: u32) {
        self.keys.remove(i);
    }

    fn pop(&mut self) -> Option<u32> {
        self.keys.pop()
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn used(&mut self, used: Used<'_>) {
        // One use more of each changes no order.
        let Used::Mask(mask) = used else { return };
        for i in ones(mask, self.keys.n_keys()) {
            self.keys.set_rank(i, self.keys.rank(i).saturating_add(1));
        }
    }

    fn new_context(&mut self) {
        self.keys.set_all(0);
    }
}

/// The coldest of a fixed order first.
#[derive(Debug)]
pub(crate) struct Hot {
    /// Listed places of the order, the hottest is 0.
    places: BitSet,
    place_of: Box<[u32]>,
    key_at: Box<[u32]>,
}

impl Ranking for Hot {
    fn new(n_keys: u32) -> Self {
        let order: Box<[u32]> = (0..n_keys).collect();
        Self { places: BitSet::new(n_keys as usize), place_of: order.clone(), key_at: order }
    }

    fn n_keys(&self) -> u32 {
        self.key_at.len() as u32
    }

    fn insert(&mut self, i: u32) {
        self.places.insert(self.place_of[i as usize]);
    }

    fn remove(&mut self, i: u32) {
        self.places.remove(self.place_of[i as usize]);
    }

    fn pop(&mut self) -> Option<u32> {
        self.places.pop().map(|place| self.key_at[place as usize])
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn set_hot(&mut self, order: &[u32]) {
        let listed: Vec<u32> = std::iter::from_fn(|| self.pop()).collect();
        let mut named = BitSet::new(self.key_at.len());
        order.iter().for_each(|i| {
            named.insert(*i);
        });
        let rest = (0..self.key_at.len() as u32).filter(|i| named.insert(*i));
        self.key_at = order.iter().copied().chain(rest).collect();
        for (place, i) in self.key_at.iter().enumerate() {
            self.place_of[*i as usize] = place as u32;
        }
        listed.into_iter().for_each(|i| self.insert(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All keys of a group of `n`, in the order in which they go.
    fn order<R: Ranking>(rank: &mut R, n: u32) -> Vec<u32> {
        (0..n).for_each(|i| rank.insert(i));
        std::iter::from_fn(|| rank.pop()).collect()
    }

    #[test]
    fn recency_counts_visits_and_breaks_ties_from_the_end() {
        let mut rank = Recency::new(5);
        assert_eq!(order(&mut rank, 5), [4, 3, 2, 1, 0]);
        rank.used(Used::Mask(&[0b10001]));
        rank.used(Used::Mask(&[0b01001]));
        assert_eq!(order(&mut rank, 5), [2, 1, 4, 3, 0]);
        rank.admit(2);
        assert_eq!(order(&mut rank, 5), [1, 4, 3, 2, 0]);
        rank.used(Used::All);
        assert_eq!(order(&mut rank, 5), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn frequency_counts_uses_of_the_context() {
        let mut rank = Frequency::new(4);
        rank.used(Used::Mask(&[0b1001]));
        rank.used(Used::All);
        rank.used(Used::Mask(&[0b1010]));
        assert_eq!(order(&mut rank, 4), [2, 1, 0, 3]);
        rank.admit(3);
        assert_eq!(order(&mut rank, 4), [2, 1, 0, 3]);
        rank.new_context();
        assert_eq!(order(&mut rank, 4), [3, 2, 1, 0]);
    }

    #[test]
    fn the_hot_order_is_kept_and_completed() {
        let mut rank = Hot::new(5);
        assert_eq!(order(&mut rank, 5), [4, 3, 2, 1, 0]);
        rank.insert(3);
        rank.insert(0);
        rank.set_hot(&[3, 1]);
        assert_eq!([rank.pop(), rank.pop(), rank.pop()], [Some(0), Some(3), None]);
        assert_eq!(order(&mut rank, 5), [4, 2, 0, 1, 3]);
    }
}
