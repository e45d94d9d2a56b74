//! What the cache adds to each chunk: holding it, replacing it, and keeping the books of a visit.
//!
//! 64 groups of 1500 keys and 50,000 frames, as a large model has; frames are reserved, but their
//! bytes are not touched. Times are of one call, or of one key where the counter says so.

use std::cell::Cell;
use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use ls_cache::{Cache, Key, Layout, PolicyKind, Used};

const GROUPS: u32 = 64;
const KEYS: u32 = 1500;
const FRAMES: u64 = 50_000;
const TRANSIT: u32 = 512;
const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::Hot, PolicyKind::LruPlain];
/// Without plain LRU, which would keep the very keys that these benches ask for.
const KNOWING: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::Hot];

fn main() {
    divan::main();
}

/// A cache that has seen two cycles of all keys.
fn warm(policy: PolicyKind) -> Cache {
    let layout = Layout { frame_bytes: 16 << 10, groups: vec![KEYS; GROUPS as usize] };
    let cache = Cache::new(layout, FRAMES * (16 << 10), policy).expect("address space");
    cache.set_transit(TRANSIT);
    for group in (0..GROUPS).chain(0..GROUPS) {
        visit(&cache, group);
    }
    cache
}

/// One visit in which all keys are used; returns how many were filled.
fn visit(cache: &Cache, group: u32) -> usize {
    cache.visit(group);
    let mut n_filled = 0;
    for index in 0..KEYS {
        let key = Key { group, index };
        match cache.pin(key) {
            Some(pin) => cache.unpin(pin),
            None => {
                cache.unpin(cache.reserve(key).expect("a frame").publish());
                n_filled += 1;
            }
        }
    }
    cache.used(group, Used::All);
    n_filled
}

/// `n` keys spread over what is resident.
fn resident(cache: &Cache) -> impl Iterator<Item = Key> {
    let all: Vec<Key> = (0..GROUPS)
        .flat_map(|group| (0..KEYS).map(move |index| Key { group, index }))
        .filter(|key| cache.contains(*key))
        .collect();
    (0usize..).map(move |i| all[i * 7919 % all.len()])
}

#[divan::bench]
fn get_and_release(bencher: Bencher<'_, '_>) {
    let cache = warm(PolicyKind::Lru);
    let mut keys = resident(&cache);
    bencher.counter(ItemsCount::new(1000u32)).bench_local(|| {
        for key in keys.by_ref().take(1000) {
            black_box(cache.get(key).is_some());
        }
    });
}

/// Two threads at once, each with its own keys.
#[divan::bench(threads = 2)]
fn get_and_release_on_two_threads(bencher: Bencher<'_, '_>) {
    let cache = warm(PolicyKind::Lru);
    let keys: Vec<Key> = resident(&cache).take(2000).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    bencher.counter(ItemsCount::new(1000u32)).bench(|| {
        let half = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2;
        for key in &keys[half * 1000..][..1000] {
            black_box(cache.get(*key).is_some());
        }
    });
}

#[divan::bench]
fn pin_and_unpin_one(bencher: Bencher<'_, '_>) {
    let cache = warm(PolicyKind::Lru);
    let key = resident(&cache).next().expect("a resident key");
    bencher.counter(ItemsCount::new(1000u32)).bench_local(|| {
        for _ in 0..1000 {
            if let Some(pin) = cache.pin(black_box(key)) {
                cache.unpin(pin);
            }
        }
    });
}

/// A key that is not resident takes a victim's frame, is published and let go.
#[divan::bench(args = KNOWING)]
fn reserve_evicting(bencher: Bencher<'_, '_>, policy: PolicyKind) {
    let cache = warm(policy);
    // The keys beyond the quota of each group, over and over.
    let next = Cell::new(0);
    bencher.counter(ItemsCount::new(1000u32)).bench_local(|| {
        for _ in 0..1000 {
            let i = next.replace(next.get() + 1);
            let key = Key { group: i / 700 % GROUPS, index: 800 + i % 700 };
            if let Ok(fill) = cache.reserve(key) {
                cache.unpin(fill.publish());
            }
        }
    });
}

/// As above, with a window of frames under way and a whole group pinned.
#[divan::bench(args = KNOWING)]
fn reserve_evicting_beside_pins(bencher: Bencher<'_, '_>, policy: PolicyKind) {
    let cache = warm(policy);
    let _held: Vec<_> =
        (0..KEYS).filter_map(|index| cache.get(Key { group: GROUPS - 1, index })).collect();
    let next = Cell::new(0);
    let mut window = std::collections::VecDeque::new();
    bencher.counter(ItemsCount::new(1000u32)).bench_local(|| {
        for _ in 0..1000 {
            let i = next.replace(next.get() + 1);
            let key = Key { group: i / 700 % GROUPS, index: 800 + i % 700 };
            if let Ok(fill) = cache.reserve(key) {
                window.push_back(fill.publish());
            }
            if window.len() >= TRANSIT as usize
                && let Some(pin) = window.pop_front()
            {
                cache.unpin(pin);
            }
        }
    });
    window.into_iter().for_each(|pin| cache.unpin(pin));
}

#[divan::bench(args = POLICIES)]
fn used_all_of_1500(bencher: Bencher<'_, '_>, policy: PolicyKind) {
    let cache = warm(policy);
    let mut groups = (0..GROUPS).cycle();
    bencher.bench_local(|| {
        let group = groups.next().expect("a cycle");
        cache.visit(group);
        cache.used(group, Used::All);
    });
}

/// A tenth of the keys, another one each time.
#[divan::bench(args = POLICIES)]
fn used_150_of_1500(bencher: Bencher<'_, '_>, policy: PolicyKind) {
    let cache = warm(policy);
    let next = Cell::new(0u32);
    bencher.bench_local(|| {
        let i = next.replace(next.get() + 1);
        let mut mask = [0u64; KEYS.div_ceil(64) as usize];
        for k in 0..KEYS / 10 {
            let key = (k * 10 + i * 7 % 10 + k * i % 10).min(KEYS - 1);
            mask[key as usize / 64] |= 1 << (key % 64);
        }
        cache.visit(i % GROUPS);
        cache.used(i % GROUPS, Used::Mask(&mask));
    });
}

/// A whole visit in exact mode, per key: half of them hit, the others take frames.
#[divan::bench(args = POLICIES)]
fn visit_of_1500(bencher: Bencher<'_, '_>, policy: PolicyKind) {
    let cache = warm(policy);
    let mut groups = (0..GROUPS).cycle();
    bencher.counter(ItemsCount::new(KEYS)).bench_local(|| {
        let group = groups.next().expect("a cycle");
        black_box(visit(&cache, group));
    });
}
