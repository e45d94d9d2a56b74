//! Policies that know that groups are visited one after the other, again and again.
//!
//! The next visit of the group that is visited now is the farthest away. If frames went to
//! whoever used them last, all would go to the groups just visited and none would live to see its
//! next use. So each group has a quota, and groups above theirs give frames first; among these,
//! and when there are none, the farthest group gives.

use super::rank::Ranking;
use super::{Offer, Policy, Used};
use crate::Key;
use crate::bits::BitSet;

/// Quotas and distances; `R` decides within a group.
#[derive(Debug)]
pub(crate) struct Cycle<R> {
    groups: Vec<Group<R>>,
    n_keys: u64,
    retains: bool,
    /// The group that is visited now; at first the last one, so that the first comes next.
    current: u32,
    /// Groups with candidates.
    any: BitSet,
    /// Groups with candidates that hold more than their quota.
    over: BitSet,
    /// Groups with frames that were filled ahead.
    ahead: BitSet,
}

#[derive(Debug)]
struct Group<R> {
    order: R,
    /// Keys that were offered as released since they were admitted, pinned again or not. Frames
    /// on their way through the first pin do not count: they are transit, not stock.
    held: BitSet,
    n_held: u64,
    quota: u64,
    /// Filled ahead and not held yet: near in the cycle, so the last to go.
    ahead: BitSet,
}

impl<R: Ranking> Group<R> {
    fn new(n_keys: u32) -> Self {
        let set = BitSet::new(n_keys as usize);
        let (held, ahead) = (set.clone(), set);
        Self { order: R::new(n_keys), held, n_held: 0, quota: 0, ahead }
    }

    fn hold(&mut self, i: u32) {
        self.n_held += u64::from(self.held.insert(i));
        self.order.insert(i);
    }

    /// The visit for which they were filled is over: they are stock like all others.
    fn settle(&mut self) {
        while let Some(i) = self.ahead.pop() {
            self.hold(i);
        }
    }
}

impl<R: Ranking> Cycle<R> {
    pub fn new(groups: &[u32], retains: bool) -> Self {
        let set = BitSet::new(groups.len());
        Self {
            groups: groups.iter().map(|n| Group::new(*n)).collect(),
            n_keys: groups.iter().map(|n| u64::from(*n)).sum(),
            retains,
            current: (groups.len() as u32).saturating_sub(1),
            any: set.clone(),
            over: set.clone(),
            ahead: set,
        }
    }

    /// Changes a group that may lack, and brings the sets of groups up to date.
    fn change(&mut self, group: u32, change: impl FnOnce(&mut Group<R>)) {
        let Some(g) = self.groups.get_mut(group as usize) else { return };
        change(g);
        let any = !g.order.is_empty();
        self.any.set(group, any);
        self.over.set(group, any && g.n_held > g.quota);
        self.ahead.set(group, !g.ahead.is_empty());
    }

    /// The one of `groups` whose next visit is the farthest away.
    fn farthest(&self, groups: &BitSet) -> Option<u32> {
        groups.last_up_to(self.current).or_else(|| groups.last())
    }
}

impl<R: Ranking> Policy for Cycle<R> {
    fn retains(&self) -> bool {
        self.retains
    }

    /// Shares `frames` out in proportion to the groups' keys, without a remainder.
    fn resize(&mut self, frames: u64) {
        let frames = u128::from(frames.min(self.n_keys));
        let total = u128::from(self.n_keys.max(1));
        let (mut keys, mut given) = (0, 0);
        for group in 0..self.groups.len() as u32 {
            self.change(group, |g| {
                keys += u128::from(g.order.n_keys());
                let quota = frames * keys / total - given;
                given += quota;
                g.quota = quota as u64;
            });
        }
    }

    fn admit(&mut self, key: Key) {
        self.change(key.group, |g| g.order.admit(key.index));
    }

    fn offer(&mut self, key: Key, offer: Offer) {
        self.change(key.group, |g| match offer {
            Offer::Ahead => {
                g.ahead.insert(key.index);
            }
            Offer::Released => {
                g.ahead.remove(key.index);
                g.hold(key.index);
            }
        });
    }

    fn victim(&mut self) -> Option<Key> {
        let listed = self.farthest(&self.over).or_else(|| self.farthest(&self.any));
        let mut index = None;
        if let Some(group) = listed {
            self.change(group, |g| index = g.order.pop());
            return index.map(|index| Key { group, index });
        }
        let group = self.farthest(&self.ahead)?;
        self.change(group, |g| index = g.ahead.pop());
        index.map(|index| Key { group, index })
    }

    fn forget(&mut self, key: Key) {
        self.change(key.group, |g| {
            g.ahead.remove(key.index);
            g.order.remove(key.index);
            g.n_held -= u64::from(g.held.remove(key.index));
        });
    }

    fn visit(&mut self, group: u32) {
        if group == self.current || group as usize >= self.groups.len() {
            return;
        }
        self.change(self.current, Group::settle);
        self.current = group;
    }

    fn used(&mut self, group: u32, used: Used<'_>) {
        self.change(group, |g| {
            g.order.used(used);
            g.settle();
        });
    }

    fn new_context(&mut self) {
        self.groups.iter_mut().for_each(|g| g.order.new_context());
    }

    fn set_hot(&mut self, group: u32, order: &[u32]) {
        self.change(group, |g| g.order.set_hot(order));
    }
}
