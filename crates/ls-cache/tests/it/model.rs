//! Random operations beside a reference that is too simple to be wrong.

use std::collections::{HashMap, HashSet};

use ls_cache::{Cache, Fill, Key, Pin, PolicyKind, ReserveError, Used};
use proptest::prelude::*;

use crate::{FRAME, assert_bytes, cache, key, write};

const GROUPS: [u32; 3] = [6, 1, 9];
const CAPACITY: u32 = 8;

#[derive(Clone, Debug)]
enum Op {
    Reserve(Key),
    ReserveFree(Key),
    Publish(usize),
    PublishUnpinned(usize),
    DropFill(usize),
    Pin(Key),
    Unpin(usize),
    Evict(Key),
    Visit(u32),
    Used(u32, Option<u64>),
    Budget(u64),
    Transit(u32),
    Context,
    Hot(u32),
}

fn any_key() -> impl Strategy<Value = Key> {
    (0..3u32).prop_flat_map(|g| (0..GROUPS[g as usize]).prop_map(move |i| key(g, i)))
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<prop::sample::Index>().prop_map(|i| i.index(1000));
    prop_oneof![
        20 => any_key().prop_map(Op::Reserve),
        4 => any_key().prop_map(Op::ReserveFree),
        10 => n.clone().prop_map(Op::Publish),
        5 => n.clone().prop_map(Op::PublishUnpinned),
        3 => n.clone().prop_map(Op::DropFill),
        10 => any_key().prop_map(Op::Pin),
        14 => n.prop_map(Op::Unpin),
        4 => any_key().prop_map(Op::Evict),
        4 => (0..4u32).prop_map(Op::Visit),
        4 => (0..4u32, prop::option::of(any::<u64>())).prop_map(|(g, mask)| Op::Used(g, mask)),
        2 => (0..=u64::from(CAPACITY) + 1).prop_map(Op::Budget),
        1 => (0..=CAPACITY).prop_map(Op::Transit),
        1 => Just(Op::Context),
        1 => (0..3u32).prop_map(Op::Hot),
    ]
}

/// What has to be true, kept by hand.
struct Reference {
    cache: Cache,
    policy: PolicyKind,
    budget: usize,
    resident: HashSet<Key>,
    /// Resident by `publish_unpinned`, and not held since.
    ahead: HashSet<Key>,
    pins: Vec<Pin>,
    fills: Vec<Fill>,
}

impl Reference {
    fn new(policy: PolicyKind) -> Self {
        Self {
            cache: cache(&GROUPS, CAPACITY, policy),
            policy,
            budget: CAPACITY as usize,
            resident: HashSet::new(),
            ahead: HashSet::new(),
            pins: Vec::new(),
            fills: Vec::new(),
        }
    }

    fn pinned(&self) -> HashMap<Key, usize> {
        let mut counts = HashMap::new();
        self.pins.iter().for_each(|pin| *counts.entry(pin.key()).or_default() += 1);
        counts
    }

    fn occupied(&self) -> usize {
        self.resident.len() + self.fills.len()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Reserve(key) => self.reserve(key),
            Op::ReserveFree(key) if self.occupied() < self.budget => {
                let is_there =
                    self.resident.contains(&key) || self.fills.iter().any(|fill| fill.key() == key);
                let result = self.cache.reserve_free(key);
                assert_eq!(result.is_err(), is_there, "{key}");
                if let Ok(mut fill) = result {
                    write(key, &mut fill);
                    self.fills.push(fill);
                }
            }
            // None of those in use goes.
            Op::ReserveFree(key) => {
                self.cache.reserve_free(key).unwrap_err();
                self.forget(0);
            }
            Op::Publish(n) if !self.fills.is_empty() => {
                let fill = self.fills.swap_remove(n % self.fills.len());
                self.resident.insert(fill.key());
                self.pins.push(fill.publish());
            }
            Op::PublishUnpinned(n) if !self.fills.is_empty() => {
                let fill = self.fills.swap_remove(n % self.fills.len());
                self.resident.insert(fill.key());
                self.ahead.insert(fill.key());
                let key = fill.key();
                fill.publish_unpinned();
                self.let_go(key);
            }
            Op::DropFill(n) if !self.fills.is_empty() => {
                drop(self.fills.swap_remove(n % self.fills.len()));
            }
            Op::Pin(key) => {
                let pin = self.cache.pin(key);
                assert_eq!(pin.is_some(), self.resident.contains(&key), "{key}");
                if pin.is_some() {
                    self.ahead.remove(&key);
                }
                self.pins.extend(pin);
            }
            Op::Unpin(n) if !self.pins.is_empty() => {
                let pin = self.pins.swap_remove(n % self.pins.len());
                let key = pin.key();
                self.cache.unpin(pin);
                self.let_go(key);
            }
            Op::Evict(key) => {
                let is_idle = self.resident.contains(&key) && !self.pinned().contains_key(&key);
                assert_eq!(self.cache.evict(key), is_idle, "{key}");
                self.forget(usize::from(is_idle));
            }
            Op::Visit(group) => self.cache.visit(group),
            Op::Used(group, None) => self.cache.used(group, Used::All),
            Op::Used(group, Some(mask)) => self.cache.used(group, Used::Mask(&[mask])),
            Op::Budget(n_frames) => self.set_budget(n_frames),
            Op::Transit(n_frames) => self.cache.set_transit(n_frames),
            Op::Context => self.cache.new_context(),
            Op::Hot(group) => {
                let order: Vec<u32> = (0..GROUPS[group as usize]).rev().step_by(2).collect();
                self.cache.set_hot(group, &order).unwrap();
            }
            _ => {}
        }
    }

    fn reserve(&mut self, key: Key) {
        let result = self.cache.reserve(key);
        if self.resident.contains(&key) {
            assert_eq!(result.unwrap_err(), ReserveError::Present { key });
            return;
        }
        if self.fills.iter().any(|fill| fill.key() == key) {
            assert_eq!(result.unwrap_err(), ReserveError::Filling { key });
            return;
        }
        let pinned = self.pinned();
        let idle = self.resident.iter().filter(|key| !pinned.contains_key(key)).count();
        let has_room = self.occupied() < self.budget;
        let may_evict = idle > 0 && self.occupied() == self.budget;
        match result {
            Ok(mut fill) => {
                assert!(has_room || may_evict);
                write(key, &mut fill);
                self.fills.push(fill);
                self.forget(usize::from(!has_room));
            }
            Err(error) => {
                assert_eq!(error, ReserveError::NoFrame);
                assert!(!has_room && !may_evict, "a frame was to be had");
            }
        }
    }

    /// The cache has evicted `n` keys, of those that no one holds.
    fn forget(&mut self, n: usize) {
        let pinned = self.pinned();
        let gone: Vec<Key> =
            self.resident.iter().copied().filter(|key| !self.cache.contains(*key)).collect();
        assert_eq!(gone.len(), n);
        for key in gone {
            assert!(!pinned.contains_key(&key), "{key} was held");
            self.resident.remove(&key);
            self.ahead.remove(&key);
        }
    }

    /// A holder of `key` has let go, or no one ever held it.
    fn let_go(&mut self, key: Key) {
        let is_spent = self.policy == PolicyKind::None && !self.ahead.contains(&key);
        let goes = is_spent || self.occupied() > self.budget;
        self.forget(usize::from(goes && !self.pinned().contains_key(&key)));
    }

    fn set_budget(&mut self, n_frames: u64) {
        self.cache.set_budget(n_frames * FRAME as u64);
        self.budget = (n_frames as usize).min(CAPACITY as usize);
        let pinned = self.pinned().len();
        let excess = self.occupied().saturating_sub(self.budget);
        self.forget(excess.min(self.resident.len() - pinned));
    }

    fn check(&self) {
        let (stats, pinned) = (self.cache.stats(), self.pinned());
        let free = self.budget.saturating_sub(self.occupied());
        let expected = [self.resident.len(), pinned.len(), self.fills.len(), free, self.budget];
        let found = [stats.resident, stats.pinned, stats.filling, stats.free, stats.budget_frames];
        assert_eq!(found, expected.map(|n| n as u64));
        assert_eq!(stats.bytes, (self.occupied() * FRAME) as u64);
        for (group, n) in stats.group_resident.iter().enumerate() {
            let keys = self.resident.iter().filter(|key| key.group as usize == group);
            assert_eq!(*n as usize, keys.count());
        }
        if self.occupied() > self.budget {
            assert_eq!(self.resident.len(), pinned.len(), "above the budget all is held");
        }
        let mut places = HashMap::new();
        for pin in &self.pins {
            let bytes = self.cache.pinned_bytes(pin);
            assert_bytes(pin.key(), bytes);
            assert_eq!(*places.entry(bytes.as_ptr()).or_insert(pin.key()), pin.key());
        }
        for fill in &self.fills {
            assert!(places.insert(fill.as_ptr(), fill.key()).is_none(), "a frame has two owners");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn it_is_what_it_says(
        policy in prop::sample::select(&PolicyKind::ALL[..]),
        ops in prop::collection::vec(op(), 0..150),
    ) {
        let mut reference = Reference::new(policy);
        for op in ops {
            reference.apply(op);
            reference.check();
        }
        let Reference { cache, pins, fills, .. } = reference;
        pins.into_iter().for_each(|pin| cache.unpin(pin));
        drop(fills);
        cache.set_budget(u64::from(CAPACITY) * FRAME as u64);
        let stats = cache.stats();
        prop_assert_eq!((stats.pinned, stats.filling), (0, 0));
        prop_assert_eq!(stats.free + stats.resident, u64::from(CAPACITY));
    }
}
