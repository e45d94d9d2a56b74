//! The lock-free parts under the model checker, which tries all orders of what threads do:
//! `RUSTFLAGS="--cfg loom" cargo test -p ls-cache --test loom --release`.

#![cfg(loom)]

use loom::thread;
use ls_cache::{Cache, Key, Layout, PolicyKind, ReserveError};

const FRAME: u64 = 4096;

fn key(index: u32) -> Key {
    Key { group: 0, index }
}

fn cache(n_frames: u64, policy: PolicyKind) -> Cache {
    let layout = Layout { frame_bytes: FRAME as usize, groups: vec![3] };
    Cache::new(layout, n_frames * FRAME, policy).expect("a small cache")
}

/// Makes `index` resident, its first byte saying which it is.
fn put(cache: &Cache, index: u32) -> bool {
    let Ok(mut fill) = cache.reserve(key(index)) else { return false };
    fill[0] = index as u8 + 1;
    cache.unpin(fill.publish());
    true
}

/// Whether `index` was found; its byte has to be right.
fn look(cache: &Cache, index: u32) -> bool {
    let lease = cache.get(key(index));
    lease.is_some_and(|lease| {
        assert_eq!(lease[0], index as u8 + 1);
        true
    })
}

/// Whatever has happened, a frame that no one holds can be had.
fn assert_nothing_is_lost(cache: &Cache, n_frames: u64) {
    let stats = cache.stats();
    assert_eq!((stats.pinned, stats.filling), (0, 0));
    assert_eq!(stats.free + stats.resident, n_frames);
    let fills: Vec<_> = (0..3).filter_map(|index| cache.reserve(key(index)).ok()).collect();
    let n_had = fills.len() as u64;
    let n_kept = (0..3).filter(|index| cache.contains(key(*index))).count() as u64;
    assert!(n_had + n_kept >= n_frames.min(3), "{n_had} frames had, {n_kept} resident");
}

#[test]
fn a_reader_never_sees_the_bytes_of_another_key() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::Lru);
        assert!(put(&cache, 0));
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || (look(&cache, 0), look(&cache, 1)))
        };
        put(&cache, 1);
        reader.join().expect("reader");
        assert!(put(&cache, 2));
        assert_nothing_is_lost(&cache, 1);
    });
}

#[test]
fn two_readers_and_an_evictor() {
    let mut model = loom::model::Builder::new();
    // Three threads have too many orders to try all of them.
    model.preemption_bound = Some(2);
    model.check(|| {
        let cache = cache(1, PolicyKind::Hot);
        assert!(put(&cache, 0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let cache = cache.clone();
                thread::spawn(move || look(&cache, 0))
            })
            .collect();
        put(&cache, 1);
        readers.into_iter().for_each(|reader| {
            reader.join().expect("reader");
        });
        assert!(put(&cache, 2));
        assert_nothing_is_lost(&cache, 1);
    });
}

#[test]
fn what_exceeds_a_lowered_budget_goes_with_its_last_holder() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::Lru);
        assert!(put(&cache, 0));
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || look(&cache, 0))
        };
        cache.set_budget(0);
        reader.join().expect("reader");
        let stats = cache.stats();
        assert_eq!((stats.resident, stats.bytes, stats.free), (0, 0, 0));
        assert!(matches!(cache.reserve(key(1)), Err(ReserveError::NoFrame)));
        cache.set_budget(FRAME);
        assert!(put(&cache, 1));
    });
}

#[test]
fn a_frame_published_while_the_budget_is_lowered_goes_too() {
    for pinned in [false, true] {
        loom::model(move || {
            let cache = cache(1, PolicyKind::Lru);
            let fill = cache.reserve(key(0)).expect("a frame");
            let filler = {
                let cache = cache.clone();
                thread::spawn(move || {
                    if pinned {
                        cache.unpin(fill.publish());
                    } else {
                        fill.publish_unpinned();
                    }
                })
            };
            cache.set_budget(0);
            filler.join().expect("filler");
            assert_eq!(cache.stats().bytes, 0);
        });
    }
}

#[test]
fn one_of_two_fills_of_a_key_wins() {
    loom::model(|| {
        let cache = cache(2, PolicyKind::Lru);
        let other = {
            let cache = cache.clone();
            thread::spawn(move || put(&cache, 0))
        };
        let mine = put(&cache, 0);
        let theirs = other.join().expect("filler");
        assert!(mine != theirs);
        assert!(look(&cache, 0));
        assert_eq!(cache.stats().resident, 1);
        assert_nothing_is_lost(&cache, 2);
    });
}

#[test]
fn a_dropped_fill_is_seen_by_no_one() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::Lru);
        let fill = cache.reserve(key(0)).expect("a frame");
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                assert!(!look(&cache, 0));
                put(&cache, 1)
            })
        };
        drop(fill);
        reader.join().expect("reader");
        assert_nothing_is_lost(&cache, 1);
    });
}

#[test]
fn what_is_read_ahead_is_found_or_evicted() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::Lru);
        let mut fill = cache.reserve(key(0)).expect("a frame");
        fill[0] = 1;
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || look(&cache, 0))
        };
        fill.publish_unpinned();
        put(&cache, 1);
        reader.join().expect("reader");
        assert!(put(&cache, 2));
        assert_nothing_is_lost(&cache, 1);
    });
}

#[test]
fn where_nothing_is_kept_the_last_holder_frees() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::None);
        let mut fill = cache.reserve(key(0)).expect("a frame");
        fill[0] = 1;
        let pin = fill.publish();
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || look(&cache, 0))
        };
        cache.unpin(pin);
        reader.join().expect("reader");
        assert_eq!(cache.stats().resident, 0);
        assert_nothing_is_lost(&cache, 1);
    });
}

#[test]
fn a_pin_taken_while_another_is_reported_is_reported_too() {
    loom::model(|| {
        let cache = cache(1, PolicyKind::Lfu);
        assert!(put(&cache, 0));
        let held = cache.pin(key(0)).expect("resident");
        // Parks it.
        assert!(!put(&cache, 1));
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || look(&cache, 0))
        };
        cache.unpin(held);
        put(&cache, 1);
        reader.join().expect("reader");
        assert!(put(&cache, 2));
        assert_nothing_is_lost(&cache, 1);
    });
}
