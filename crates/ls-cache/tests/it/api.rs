//! What each call promises.

use std::ops::ControlFlow;

use ls_cache::{
    Cache, CacheError, Fill, Key, Layout, Offer, Policy, PolicyKind, ReserveError, Used,
};

use crate::{FRAME, assert_bytes, cache, key, put, write};

#[test]
fn a_layout_that_cannot_be_is_refused() {
    let new = |frame_bytes, groups, budget| {
        Cache::new(Layout { frame_bytes, groups }, budget, PolicyKind::Lru).map(|_| ())
    };
    for frame_bytes in [0, 1, 4095, 6144] {
        assert!(matches!(
            new(frame_bytes, vec![4], 1 << 20),
            Err(CacheError::FrameBytes { frame_bytes: found, .. }) if found == frame_bytes
        ));
    }
    assert!(matches!(new(4096, vec![], 1 << 20), Err(CacheError::Keys { found: 0, .. })));
    assert!(matches!(new(4096, vec![u32::MAX; 2], 1 << 20), Err(CacheError::Keys { .. })));
    let error = new(8192, vec![4], 8191).unwrap_err().to_string();
    assert_eq!(error, "a budget of 8191 bytes is below one frame of 8192 bytes");
    assert!(new(8192, vec![4], 8192).is_ok());
    let huge = new(1 << 40, vec![1 << 30], u64::MAX);
    assert!(matches!(huge, Err(CacheError::Reserve { .. })));
}

#[test]
fn a_budget_beyond_all_keys_reserves_no_more_than_they_need() {
    let cache = cache(&[2, 3], 1_000_000, PolicyKind::Lru);
    assert_eq!(cache.stats().capacity_frames, 5);
    for (group, index) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)] {
        assert!(put(&cache, key(group, index)));
    }
    assert_eq!((cache.stats().resident, cache.stats().evictions), (5, 0));
}

#[test]
fn a_key_goes_from_reserved_to_resident() {
    let cache = cache(&[4], 2, PolicyKind::Lru);
    assert!(cache.get(key(0, 1)).is_none());
    let mut fill = cache.reserve(key(0, 1)).unwrap();
    assert_eq!((fill.key(), fill.len()), (key(0, 1), FRAME));
    assert!(cache.get(key(0, 1)).is_none() && !cache.contains(key(0, 1)));
    let error = cache.reserve(key(0, 1)).unwrap_err();
    assert_eq!(error, ReserveError::Filling { key: key(0, 1) });
    write(key(0, 1), &mut fill);
    let pin = fill.publish();
    assert_bytes(key(0, 1), cache.pinned_bytes(&pin));
    assert_eq!(cache.reserve(key(0, 1)).unwrap_err(), ReserveError::Present { key: key(0, 1) });
    let lease = cache.lease(pin);
    assert_bytes(key(0, 1), &lease);
    assert_eq!(cache.stats().pinned, 1);
    drop(lease);
    let stats = cache.stats();
    assert_eq!(
        (stats.pinned, stats.resident, stats.free, stats.hits, stats.misses),
        (0, 1, 1, 0, 2)
    );
    assert_eq!((stats.bytes, stats.group_resident), (FRAME as u64, vec![1]));
}

#[test]
fn keys_outside_of_the_layout_are_misses() {
    let cache = cache(&[4, 0], 2, PolicyKind::Lru);
    for key in [key(0, 4), key(1, 0), key(2, 0), key(u32::MAX, u32::MAX)] {
        assert!(cache.get(key).is_none() && cache.pin(key).is_none() && !cache.contains(key));
        assert_eq!(cache.reserve(key).unwrap_err(), ReserveError::Unknown { key });
    }
    cache.visit(77);
    cache.used(77, Used::All);
    cache.used(1, Used::Mask(&[u64::MAX; 5]));
    assert!(matches!(cache.set_hot(2, &[]), Err(CacheError::Group { group: 2, n_groups: 2 })));
    for order in [&[4][..], &[1, 2, 1]] {
        assert!(matches!(cache.set_hot(0, order), Err(CacheError::HotOrder { .. })));
    }
}

#[test]
fn a_dropped_fill_gives_its_frame_back() {
    let cache = cache(&[4], 1, PolicyKind::Lru);
    drop(cache.reserve(key(0, 0)).unwrap());
    assert_eq!((cache.stats().free, cache.stats().filling), (1, 0));
    assert!(put(&cache, key(0, 0)) && put(&cache, key(0, 1)));
}

#[test]
fn fills_outlive_their_handle_and_move_between_threads() {
    let cache = cache(&[4], 2, PolicyKind::Lru);
    let mut fill = cache.reserve(key(0, 3)).unwrap();
    let start = fill.as_ptr().addr();
    let handle = cache.clone();
    drop(cache);
    let pin = std::thread::spawn(move || {
        write(key(0, 3), &mut fill);
        assert_eq!(fill.as_ptr().addr(), start);
        fill.publish()
    });
    let pin = pin.join().unwrap();
    assert_eq!(handle.pinned_bytes(&pin).as_ptr().addr(), start);
    handle.unpin(pin);
    // A fill that is the last to know of its cache.
    let fill = handle.reserve(key(0, 0)).unwrap();
    drop(handle);
    drop(fill);
}

#[test]
fn a_lease_becomes_a_pin_and_back() {
    let cache = cache(&[4], 1, PolicyKind::Lru);
    put(&cache, key(0, 0));
    let pin = cache.get(key(0, 0)).unwrap().into_pin();
    assert_eq!(pin.key(), key(0, 0));
    assert_eq!(cache.reserve(key(0, 1)).unwrap_err(), ReserveError::NoFrame);
    drop(cache.lease(pin));
    assert!(put(&cache, key(0, 1)));
}

#[test]
#[should_panic(expected = "goes back to the cache that made it")]
fn a_pin_of_another_cache_is_refused() {
    let (one, other) = (cache(&[4], 1, PolicyKind::Lru), cache(&[4], 1, PolicyKind::Lru));
    put(&one, key(0, 0));
    other.unpin(one.pin(key(0, 0)).unwrap());
}

#[test]
fn many_are_reserved_in_order_until_the_caller_breaks() {
    let cache = cache(&[100], 80, PolicyKind::Lru);
    put(&cache, key(0, 1));
    let (mut seen, mut fills) = (Vec::new(), Vec::new());
    cache.reserve_many((0..100).map(|index| key(0, index)), |key, result| {
        seen.push(key.index);
        match result {
            Ok(fill) => fills.push(fill),
            Err(error) => assert_eq!(error, ReserveError::Present { key }),
        }
        if key.index == 40 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(seen, (0..=40).collect::<Vec<_>>());
    // Those made in advance are free again.
    assert_eq!((cache.stats().filling, cache.stats().free), (40, 39));
    fills.into_iter().for_each(Fill::publish_unpinned);
    assert_eq!(cache.stats().resident, 41);
}

#[test]
fn where_frames_run_out_the_caller_may_free_some_and_go_on() {
    let cache = cache(&[100], 10, PolicyKind::Lru);
    let (mut held, mut results) = (Vec::new(), Vec::new());
    cache.reserve_many((0..50).map(|index| key(0, index)), |key, result| {
        results.push(result.is_ok());
        match result {
            Ok(fill) => held.push(fill.publish()),
            // This key's turn is over; the next ones find frames again.
            Err(error) => {
                assert_eq!((error, key.index % 11), (ReserveError::NoFrame, 10));
                held.drain(..).for_each(|pin| cache.unpin(pin));
            }
        }
        ControlFlow::Continue(())
    });
    held.into_iter().for_each(|pin| cache.unpin(pin));
    assert_eq!((results.len(), results.iter().filter(|ok| !**ok).count()), (50, 4));
}

#[test]
fn where_nothing_is_kept_frames_are_free_after_their_use() {
    let cache = cache(&[4], 2, PolicyKind::None);
    put(&cache, key(0, 0));
    assert_eq!((cache.stats().resident, cache.stats().free), (0, 2));
    // What was filled ahead waits for its use, unless its frame is needed.
    cache.reserve(key(0, 1)).unwrap().publish_unpinned();
    assert!(cache.contains(key(0, 1)));
    drop(cache.get(key(0, 1)).unwrap());
    assert!(!cache.contains(key(0, 1)));
    (2..4).for_each(|index| cache.reserve(key(0, index)).unwrap().publish_unpinned());
    assert!(put(&cache, key(0, 0)));
    assert_eq!(cache.stats().resident, 1);
}

#[test]
fn handles_cross_threads() {
    fn shared<T: Send + Sync>() {}
    fn owned<T: Send + 'static>() {}
    shared::<Cache>();
    shared::<ls_cache::Lease<'_>>();
    shared::<ls_cache::Pin>();
    owned::<Fill>();
    owned::<ls_cache::Pin>();
}

/// Names keys one after the other, there or not, held or not.
#[derive(Debug)]
struct Careless(u32);

impl Policy for Careless {
    fn resize(&mut self, _frames: u64) {}
    fn admit(&mut self, _key: Key) {}
    fn offer(&mut self, _key: Key, _offer: Offer) {}
    fn forget(&mut self, _key: Key) {}
    fn visit(&mut self, _group: u32) {}
    fn used(&mut self, _group: u32, _used: Used<'_>) {}

    fn victim(&mut self) -> Option<Key> {
        self.0 += 1;
        Some(key(self.0 % 3, self.0 % 7))
    }
}

#[test]
fn a_policy_that_errs_harms_no_one() {
    let layout = Layout { frame_bytes: FRAME, groups: vec![5, 5] };
    let cache = Cache::with_policy(layout, 4 * FRAME as u64, Box::new(Careless(0))).unwrap();
    let held: Vec<_> = (0..3)
        .map(|index| {
            let mut fill = cache.reserve(key(0, index)).unwrap();
            write(key(0, index), &mut fill);
            cache.lease(fill.publish())
        })
        .collect();
    let n_had = (0..500).filter(|i| put(&cache, key(1, i % 5))).count();
    assert!(n_had > 50, "{n_had}");
    held.iter().for_each(|lease| assert_bytes(lease.key(), lease));
    let last = cache.reserve(key(0, 4)).unwrap();
    assert_eq!(cache.reserve(key(0, 3)).unwrap_err(), ReserveError::NoFrame);
    drop((last, held));
    cache.set_budget(0);
    assert!(cache.stats().bytes <= 4 * FRAME as u64);
}

#[test]
fn a_loan_shows_frames_where_pins_say() {
    let cache = cache(&[5], 3, PolicyKind::Lru);
    let loan = cache.lend();
    assert_eq!((loan.frame_bytes(), loan.n_frames()), (FRAME, 3));
    let start = loan.as_ptr().cast::<u8>();
    for index in 0..5 {
        put(&cache, key(0, index));
        let pin = cache.pin(key(0, index)).unwrap();
        let bytes = cache.pinned_bytes(&pin);
        assert_eq!(bytes.as_ptr().addr() - start.addr(), cache.pinned_frame(&pin) as usize * FRAME);
        cache.unpin(pin);
    }
    // The memory outlives the cache's last handle.
    drop(cache);
    assert!(loan.len() >= 3 * FRAME);
}
