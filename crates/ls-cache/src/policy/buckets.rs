//! Keys ordered by a rank that many of them share.

use crate::bits::BitSet;

/// Keys of one group with a rank each, some of them listed. The listed one of the lowest rank goes
/// first; among equals the one of the highest index, so that what stays is the group's beginning.
#[derive(Debug)]
pub(crate) struct Buckets {
    ranks: Box<[u32]>,
    /// Listed keys by rank, the lowest last; none is empty.
    buckets: Vec<Bucket>,
    /// Emptied sets, kept so that the steady state does not allocate.
    spare: Vec<BitSet>,
}

#[derive(Debug)]
struct Bucket {
    rank: u32,
    keys: BitSet,
}

impl Buckets {
    pub fn new(n_keys: u32) -> Self {
        Self { ranks: vec![0; n_keys as usize].into(), buckets: Vec::new(), spare: Vec::new() }
    }

    pub fn n_keys(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub fn rank(&self, i: u32) -> u32 {
        self.ranks[i as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Lists `i`, if it is not.
    pub fn insert(&mut self, i: u32) {
        let rank = self.rank(i);
        let at = self.find(rank).unwrap_or_else(|at| {
            let keys = self.spare.pop().unwrap_or_else(|| BitSet::new(self.ranks.len()));
            self.buckets.insert(at, Bucket { rank, keys });
            at
        });
        self.buckets[at].keys.insert(i);
    }

    /// Whether `i` was listed; it is not any more.
    pub fn remove(&mut self, i: u32) -> bool {
        let Ok(at) = self.find(self.rank(i)) else { return false };
        let was = self.buckets[at].keys.remove(i);
        self.drop_if_empty(at);
        was
    }

    /// Takes out the listed key that goes first.
    pub fn pop(&mut self) -> Option<u32> {
        let last = self.buckets.len().checked_sub(1)?;
        let i = self.buckets[last].keys.pop();
        self.drop_if_empty(last);
        i
    }

    /// Gives `i` another rank.
    pub fn set_rank(&mut self, i: u32, rank: u32) {
        if self.rank(i) == rank {
            return;
        }
        let listed = self.remove(i);
        self.ranks[i as usize] = rank;
        if listed {
            self.insert(i);
        }
    }

    /// Gives all keys the same rank.
    pub fn set_all(&mut self, rank: u32) {
        self.ranks.fill(rank);
        let mut rest = self.buckets.drain(..);
        let Some(mut all) = rest.next() else { return };
        for mut bucket in rest {
            all.keys.take_all(&mut bucket.keys);
            self.spare.push(bucket.keys);
        }
        self.buckets.push(Bucket { rank, keys: all.keys });
    }

    /// Where the bucket of `rank` is, or would be.
    fn find(&self, rank: u32) -> Result<usize, usize> {
        self.buckets.binary_search_by(|bucket| rank.cmp(&bucket.rank))
    }

    fn drop_if_empty(&mut self, at: usize) {
        if self.buckets[at].keys.is_empty() {
            let bucket = self.buckets.remove(at);
            self.spare.push(bucket.keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u32),
        Remove(u32),
        Pop,
        Rank(u32, u32),
        All(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = 0..100u32;
        prop_oneof![
            8 => key.clone().prop_map(Op::Insert),
            2 => key.clone().prop_map(Op::Remove),
            4 => Just(Op::Pop),
            4 => (key, 0..6u32).prop_map(|(i, rank)| Op::Rank(i, rank)),
            1 => (0..6u32).prop_map(Op::All),
        ]
    }

    proptest! {
        #[test]
        fn it_orders_by_rank_and_then_from_the_end(ops in prop::collection::vec(op(), 0..200)) {
            let mut buckets = Buckets::new(100);
            let (mut ranks, mut listed) = ([0; 100], std::collections::BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(i) => {
                        buckets.insert(i);
                        listed.insert(i);
                    }
                    Op::Remove(i) => prop_assert_eq!(buckets.remove(i), listed.remove(&i)),
                    Op::Pop => {
                        let first = listed.iter().copied().min_by_key(|i| (ranks[*i as usize], u32::MAX - i));
                        prop_assert_eq!(buckets.pop(), first);
                        first.map(|i| listed.remove(&i));
                    }
                    Op::Rank(i, rank) => {
                        buckets.set_rank(i, rank);
                        ranks[i as usize] = rank;
                    }
                    Op::All(rank) => {
                        buckets.set_all(rank);
                        ranks.fill(rank);
                    }
                }
                prop_assert_eq!(buckets.is_empty(), listed.is_empty());
            }
        }
    }
}
