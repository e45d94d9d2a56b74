//! A budget that is lowered holds at once and stays.

use ls_cache::{Cache, PolicyKind, ReserveError, Used};

use crate::{FRAME, assert_bytes, cache, key, put};

const BYTES: u64 = FRAME as u64;

fn fill_up(cache: &Cache, n: u32) {
    (0..n).for_each(|index| {
        put(cache, key(0, index));
    });
}

#[test]
fn a_lowered_budget_stays_low_over_the_next_thousand_misses() {
    for policy in PolicyKind::ALL {
        let cache = cache(&[50, 50], 60, policy);
        fill_up(&cache, 50);
        cache.set_budget(7 * BYTES + 1);
        for i in 0..1000 {
            assert!(cache.stats().bytes <= 7 * BYTES, "{policy}");
            let key = key(i / 50 % 2, i % 50);
            if i % 50 == 0 {
                cache.used(1 - key.group, Used::All);
                cache.visit(key.group);
            }
            let _ = cache.contains(key) || put(&cache, key);
        }
        assert_eq!(cache.stats().budget_frames, 7);
    }
}

#[test]
fn what_is_held_goes_when_it_is_let_go() {
    for policy in PolicyKind::ALL {
        let cache = cache(&[10], 6, policy);
        let held: Vec<_> = (0..3).map(|i| cache.reserve(key(0, i)).unwrap().publish()).collect();
        let fill = cache.reserve(key(0, 3)).unwrap();
        let ahead = cache.reserve(key(0, 4)).unwrap();
        cache.set_budget(BYTES);
        let left = |expected: u64| assert_eq!(cache.stats().bytes / BYTES, expected, "{policy}");
        left(5);
        assert_eq!(cache.reserve(key(0, 9)).unwrap_err(), ReserveError::NoFrame);
        ahead.publish_unpinned();
        left(4);
        let mut held = held.into_iter();
        held.next().map(|pin| cache.unpin(pin)).unwrap();
        left(3);
        drop(fill);
        left(2);
        held.next().map(|pin| cache.unpin(pin)).unwrap();
        left(1);
        // The last one fits, and may stay where something is kept.
        held.next().map(|pin| cache.unpin(pin)).unwrap();
        left(u64::from(policy != PolicyKind::None));
        assert!(put(&cache, key(0, 9)));
    }
}

#[test]
fn a_budget_of_nothing_keeps_nothing_and_can_be_raised_again() {
    let cache = cache(&[10], 6, PolicyKind::Lru);
    fill_up(&cache, 6);
    cache.set_budget(0);
    assert_eq!((cache.stats().bytes, cache.stats().free), (0, 0));
    assert!(!put(&cache, key(0, 0)));
    cache.set_budget(u64::MAX);
    assert_eq!(cache.stats().budget_frames, 6);
    fill_up(&cache, 10);
    assert_eq!(cache.stats().resident, 6);
    for index in 0..10 {
        cache.get(key(0, index)).iter().for_each(|lease| assert_bytes(key(0, index), lease));
    }
}

#[test]
fn lowering_spares_the_keys_that_the_policy_values() {
    let cache = cache(&[10, 10], 20, PolicyKind::Hot);
    cache.set_hot(0, &[7, 3]).unwrap();
    (0..20).for_each(|i| {
        put(&cache, key(i / 10, i % 10));
    });
    cache.set_budget(6 * BYTES);
    assert_eq!(crate::residents(&cache, 0, 10), [0, 3, 7]);
    assert_eq!(crate::residents(&cache, 1, 10), [0, 1, 2]);
}
