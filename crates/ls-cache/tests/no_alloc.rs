//! The steady state does not allocate. Alone in its process, since all threads' allocations count.

#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::ops::ControlFlow;

use ls_cache::{Cache, Key, Layout, PolicyKind, Used};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const GROUPS: u32 = 8;
const KEYS: u32 = 300;

/// One visit that uses a part of the keys, another one each time.
fn visit(cache: &Cache, group: u32, round: u32) {
    cache.visit(group);
    let mut mask = [0; KEYS.div_ceil(64) as usize];
    let used = |index: &u32| (index * 7 + round * index * index) % 5 < 2;
    for index in (0..KEYS).filter(used) {
        mask[index as usize / 64] |= 1 << (index % 64);
        if let Some(lease) = cache.get(Key { group, index }) {
            assert_eq!(lease.len(), cache.frame_bytes());
        }
    }
    let keys = (0..KEYS).filter(used).map(|index| Key { group, index });
    let absent = keys.filter(|key| !cache.contains(*key));
    cache.reserve_many(absent, |key, fill| {
        match fill {
            Ok(fill) if key.index % 3 == 0 => fill.publish_unpinned(),
            Ok(fill) => cache.unpin(fill.publish()),
            Err(error) => panic!("{error}"),
        }
        ControlFlow::Continue(())
    });
    let used = if round % 10 == 9 { Used::All } else { Used::Mask(&mask) };
    cache.used(group, used);
}

#[test]
fn visits_do_not_allocate() {
    for policy in PolicyKind::ALL {
        let layout = Layout { frame_bytes: 4096, groups: vec![KEYS; GROUPS as usize] };
        let cache = Cache::new(layout, 1000 * 4096, policy).unwrap();
        cache.set_transit(64);
        let mut rounds = 0..;
        let mut run = |n| {
            for round in rounds.by_ref().take(n) {
                (0..GROUPS).for_each(|group| visit(&cache, group, round));
                if round % 40 == 39 {
                    cache.new_context();
                }
            }
        };
        run(200);
        let region = Region::new(ALLOCATOR);
        run(100);
        assert_eq!(region.change().allocations, 0, "{policy}");
        assert_eq!(region.change().reallocations, 0, "{policy}");
    }
}
