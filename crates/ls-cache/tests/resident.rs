//! Pages of evicted frames return to the system. Alone in its process, whose memory it measures.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use ls_cache::{Cache, Key, Layout, PolicyKind};

const FRAME: u64 = 1 << 20;
const FRAMES: u32 = 64;

/// Anonymous memory of this process in bytes, counted page by page.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn fill(cache: &Cache, index: u32) {
    if let Ok(mut fill) = cache.reserve(Key { group: 0, index }) {
        fill.fill(1);
        cache.unpin(fill.publish());
    }
}

/// Tests measure the whole process, so one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn memory_follows_the_budget() {
    let _alone = ALONE.lock();
    let layout = Layout { frame_bytes: FRAME as usize, groups: vec![FRAMES] };
    let before = anonymous();
    let cache = Cache::new(layout, u64::from(FRAMES) * FRAME, PolicyKind::Lru).unwrap();
    let used = || anonymous().saturating_sub(before) / FRAME;
    assert!(used() < 2, "frames are touched only when they are used");
    (0..FRAMES).for_each(|index| fill(&cache, index));
    assert!(used() >= 64, "{}", used());
    cache.set_budget(4 * FRAME);
    assert!(used() < 6, "{}", used());
    // It does not creep back.
    for index in (0..FRAMES).cycle().take(1000) {
        fill(&cache, index);
    }
    assert!(used() < 6, "{}", used());
    cache.set_budget(u64::MAX);
    (0..FRAMES).for_each(|index| fill(&cache, index));
    assert!(used() >= 64, "{}", used());
}

#[test]
fn what_is_on_loan_stays_until_the_loan_ends() {
    let _alone = ALONE.lock();
    let layout = Layout { frame_bytes: FRAME as usize, groups: vec![FRAMES] };
    let before = anonymous();
    let cache = Cache::new(layout, u64::from(FRAMES) * FRAME, PolicyKind::Lru).unwrap();
    let used = || anonymous().saturating_sub(before) / FRAME;
    let loans = (cache.lend(), cache.lend());
    (0..FRAMES).for_each(|index| fill(&cache, index));
    cache.set_budget(4 * FRAME);
    assert_eq!(cache.stats().bytes, 4 * FRAME);
    assert!(used() >= 64, "{}", used());
    drop(loans.0);
    assert!(used() >= 64, "{}", used());
    drop(loans.1);
    assert!(used() < 6, "{}", used());
    // The ledger lost no frame on the way.
    cache.set_budget(u64::MAX);
    (0..FRAMES).for_each(|index| fill(&cache, index));
    assert_eq!(cache.stats().bytes, u64::from(FRAMES) * FRAME);
}
