//! What is kept when all keys are used in a cycle.

use std::collections::VecDeque;

use ls_cache::{Cache, Key, Pin, PolicyKind, Used};

use crate::{assert_bytes, cache, key, put, residents, write};

const KNOWING: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::Hot];

/// Computes in exact mode, with a window of keys held ahead of computing.
struct Run {
    cache: Cache,
    groups: Vec<u32>,
    window: VecDeque<Pin>,
    ahead: usize,
}

impl Run {
    fn new(groups: &[u32], n_frames: u32, ahead: usize, policy: PolicyKind) -> Self {
        let cache = cache(groups, n_frames, policy);
        cache.set_transit(ahead as u32);
        Self { cache, groups: groups.to_vec(), window: VecDeque::new(), ahead }
    }

    /// Runs all keys through the window; returns how many were resident.
    fn cycle(&mut self) -> u64 {
        let before = self.cache.stats().hits;
        for (group, n_keys) in self.groups.clone().into_iter().enumerate() {
            for index in 0..n_keys {
                if self.window.len() == self.ahead {
                    self.compute();
                }
                self.fetch(key(group as u32, index));
            }
        }
        self.cache.stats().hits - before
    }

    fn fetch(&mut self, key: Key) {
        let pin = self.cache.pin(key).unwrap_or_else(|| {
            let mut fill = self.cache.reserve(key).expect("a frame for the window");
            write(key, &mut fill);
            fill.publish()
        });
        self.window.push_back(pin);
    }

    fn compute(&mut self) {
        let pin = self.window.pop_front().unwrap();
        let Key { group, index } = pin.key();
        if index == 0 {
            self.cache.visit(group);
        }
        assert_bytes(pin.key(), self.cache.pinned_bytes(&pin));
        self.cache.unpin(pin);
        if index + 1 == self.groups[group as usize] {
            self.cache.used(group, Used::All);
        }
    }

    fn finish(&mut self) {
        while !self.window.is_empty() {
            self.compute();
        }
    }
}

#[test]
fn in_the_second_cycle_all_frames_but_those_in_transit_hit() {
    for policy in KNOWING {
        for (groups, n_frames, ahead) in [
            (vec![40; 8], 200, 16),
            (vec![40; 8], 100, 30),
            (vec![40; 8], 310, 1),
            (vec![40; 8], 9, 8),
            (vec![7, 90, 23, 1, 60], 95, 20),
            (vec![100], 50, 10),
        ] {
            let mut run = Run::new(&groups, n_frames, ahead, policy);
            run.cycle();
            let retained = u64::from(n_frames) - ahead as u64;
            for cycle in 2..6 {
                let hits = run.cycle();
                assert!(hits >= retained, "{policy} {groups:?} {cycle}: {hits} of {retained}");
            }
        }
    }
}

#[test]
fn what_stays_is_the_beginning_of_each_group() {
    for policy in KNOWING {
        let mut run = Run::new(&[40; 8], 200, 40, policy);
        (0..3).for_each(|_| {
            run.cycle();
        });
        run.finish();
        for group in 0..8 {
            let kept = residents(&run.cache, group, 40);
            assert_eq!(kept[..20], (0..20).collect::<Vec<_>>(), "{policy} {group}");
        }
    }
}

#[test]
fn frames_are_shared_out_by_the_groups_sizes() {
    let mut run = Run::new(&[10, 30, 0, 60], 60, 10, PolicyKind::Lru);
    (0..3).for_each(|_| {
        run.cycle();
    });
    run.finish();
    let counts = run.cache.stats().group_resident;
    assert_eq!((counts[2], counts.iter().sum::<u32>()), (0, 60));
    for (count, quota) in [(counts[0], 5), (counts[1], 15), (counts[3], 30)] {
        assert!((quota..=quota + 10).contains(&count), "{counts:?}");
    }
}

#[test]
fn plain_lru_never_hits_in_a_cycle() {
    let mut run = Run::new(&[40; 8], 200, 16, PolicyKind::LruPlain);
    let hits: u64 = (0..4).map(|_| run.cycle()).sum();
    assert_eq!(hits, 0);
}

#[test]
fn a_cache_for_everything_hits_always() {
    for policy in [KNOWING.as_slice(), &[PolicyKind::LruPlain]].concat() {
        let mut run = Run::new(&[40; 8], 320, 16, policy);
        assert_eq!((run.cycle(), run.cycle(), run.cycle()), (0, 320, 320));
    }
}

#[test]
fn after_a_lowered_budget_the_rest_still_hits() {
    let mut run = Run::new(&[40; 8], 300, 16, PolicyKind::Lru);
    run.cycle();
    run.cache.set_budget(120 * crate::FRAME as u64);
    run.cycle();
    assert!(run.cycle() >= 120 - 16);
    assert!(run.cache.stats().resident <= 120);
}

#[test]
fn what_was_filled_ahead_outlives_what_is_released() {
    for policy in KNOWING {
        let cache = cache(&[10, 10], 8, policy);
        cache.visit(0);
        (0..4).for_each(|index| cache.reserve(key(1, index)).unwrap().publish_unpinned());
        // Streams through the other four frames.
        assert!((0..10).all(|index| put(&cache, key(0, index))));
        cache.used(0, Used::All);
        assert_eq!(residents(&cache, 1, 10), [0, 1, 2, 3], "{policy}");
        // Once their visit has passed, they are like all others.
        cache.visit(1);
        cache.used(1, Used::Mask(&[]));
        cache.visit(0);
        assert!((0..10).all(|index| cache.contains(key(0, index)) || put(&cache, key(0, index))));
        assert!(residents(&cache, 0, 10).len() >= 4, "{policy}");
    }
}

#[test]
fn recency_keeps_what_masks_name() {
    let cache = cache(&[20], 10, PolicyKind::Lru);
    let visit = |used: &[u32]| {
        cache.visit(0);
        let mut mask = 0;
        for index in used {
            mask |= 1 << index;
            assert!(cache.contains(key(0, *index)) || put(&cache, key(0, *index)));
        }
        cache.used(0, Used::Mask(&[mask]));
    };
    visit(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    visit(&[9, 8, 7]);
    visit(&[19, 18]);
    assert_eq!(residents(&cache, 0, 20), [0, 1, 2, 3, 4, 7, 8, 9, 18, 19]);
    visit(&[10, 11, 12, 13, 14]);
    assert_eq!(residents(&cache, 0, 20), [7, 8, 9, 10, 11, 12, 13, 14, 18, 19]);
}

#[test]
fn frequency_keeps_what_the_context_used_most() {
    let cache = cache(&[20], 5, PolicyKind::Lfu);
    let visit = |used: &[u32]| {
        let mask = used.iter().fold(0, |mask, index| mask | 1 << index);
        used.iter().for_each(|index| {
            let _ = cache.contains(key(0, *index)) || put(&cache, key(0, *index));
        });
        cache.used(0, Used::Mask(&[mask]));
    };
    (0..3).for_each(|_| visit(&[15, 16, 17]));
    (0..10).for_each(|index| visit(&[index]));
    let kept = residents(&cache, 0, 20);
    assert!([15, 16, 17].iter().all(|index| kept.contains(index)), "{kept:?}");
    cache.new_context();
    (0..2).for_each(|_| visit(&[0, 1, 2, 3, 4]));
    assert_eq!(residents(&cache, 0, 20), [0, 1, 2, 3, 4]);
}
