//! Many threads at once: readers, fillers, and one that changes the budget.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use ls_cache::{PolicyKind, Used};

use crate::{FRAME, assert_bytes, cache, key, put, write};

/// Numbers that look random and are the same each time.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    }
}

#[test]
fn no_reader_sees_foreign_bytes_and_no_frame_is_lost() {
    for policy in PolicyKind::ALL {
        let cache = cache(&[16, 16, 16], 12, policy);
        let (stop, n_read) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for seed in 1..4 {
                let (cache, n_read) = (&cache, &n_read);
                scope.spawn(move || {
                    let mut below = numbers(seed);
                    for _ in 0..20_000 {
                        let key = key(below(3) as u32, below(16) as u32);
                        if let Some(lease) = cache.get(key) {
                            assert_bytes(key, &lease);
                            n_read.fetch_add(1, Ordering::Relaxed);
                        } else if let Ok(mut fill) = cache.reserve(key) {
                            write(key, &mut fill);
                            match below(8) {
                                0 => drop(fill),
                                1 => fill.publish_unpinned(),
                                _ => assert_bytes(key, &cache.lease(fill.publish())),
                            }
                        }
                        if below(64) == 0 {
                            cache.visit(key.group);
                            cache.used(key.group, Used::All);
                        }
                    }
                });
            }
            let (cache, stop) = (&cache, &stop);
            let changer = scope.spawn(move || {
                let mut below = numbers(9);
                while !stop.load(Ordering::Relaxed) {
                    cache.set_budget((2 + below(11)) * FRAME as u64);
                    thread::yield_now();
                }
            });
            // Ends with its scope: the readers stop by themselves.
            scope.spawn(move || {
                while cache.stats().misses < 10_000 {
                    thread::yield_now();
                }
                stop.store(true, Ordering::Relaxed);
            });
            changer.join().unwrap();
        });
        assert!(policy == PolicyKind::None || n_read.into_inner() > 0, "{policy}");
        cache.set_budget(12 * FRAME as u64);
        let stats = cache.stats();
        assert_eq!((stats.pinned, stats.filling), (0, 0), "{policy}");
        assert_eq!(stats.free + stats.resident, 12, "{policy}");
        // Each frame can still be had.
        let wanted = (0..48).map(|i| key(i / 16, i % 16)).filter(|key| !cache.contains(*key));
        let fills: Vec<_> = wanted.filter_map(|key| cache.reserve(key).ok()).collect();
        assert_eq!((fills.len(), cache.stats().resident), (12, 0), "{policy}");
        drop(fills);
        assert!(put(&cache, key(0, 0)));
    }
}
