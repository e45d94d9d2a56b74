//! What a cache has done and what it holds.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts and sizes of a cache; see [`Cache::stats`](crate::Cache::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Times that a key was asked for and found.
    pub hits: u64,
    /// Times that a key was asked for and not found.
    pub misses: u64,
    /// Frames that were emptied for another key, for the budget, or because nothing is kept.
    pub evictions: u64,
    /// Frames of the present budget.
    pub budget_frames: u64,
    /// Frames of the largest budget that can be set.
    pub capacity_frames: u64,
    /// Frames that hold a key's bytes.
    pub resident: u64,
    /// Resident frames that someone holds.
    pub pinned: u64,
    /// Frames that are being filled.
    pub filling: u64,
    /// Frames of the budget that hold nothing; zero also while the budget is exceeded.
    pub free: u64,
    /// Bytes of the frames that are resident or being filled.
    pub bytes: u64,
    /// Resident frames of each group.
    pub group_resident: Vec<u32>,
}

const SHARDS: usize = 16;

/// Hits and misses, counted apart by thread so that counting does not make threads wait for each
/// other's cache lines. Always the standard library's atomics: nothing depends on them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    shards: [Shard; SHARDS],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Counts {
    #[inline]
    pub fn count(&self, is_hit: bool) {
        let shard = &self.shards[shard()];
        let count = if is_hit { &shard.hits } else { &shard.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn hits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.hits.load(Ordering::Relaxed)).sum()
    }

    pub fn misses(&self) -> u64 {
        self.shards.iter().map(|shard| shard.misses.load(Ordering::Relaxed)).sum()
    }
}

#[inline]
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread that is ending counts with the first.
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}
