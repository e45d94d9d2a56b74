//! A whole cache: its promises one by one, under random operations, in a cycle, under threads.

#![allow(clippy::unwrap_used)]

mod api;
mod budget;
mod cycle;
mod model;
mod threads;

use ls_cache::{Cache, Key, Layout, PolicyKind};

/// Bytes of the frames of these tests.
const FRAME: usize = 4096;

fn key(group: u32, index: u32) -> Key {
    Key { group, index }
}

/// A cache of `n_frames` for groups of these sizes.
fn cache(groups: &[u32], n_frames: u32, policy: PolicyKind) -> Cache {
    let layout = Layout { frame_bytes: FRAME, groups: groups.to_vec() };
    Cache::new(layout, u64::from(n_frames) * FRAME as u64, policy).unwrap()
}

/// What a frame of this key begins and ends with.
fn mark(key: Key) -> [u8; 8] {
    (u64::from(key.group) << 32 | u64::from(key.index) | 1 << 63).to_le_bytes()
}

fn write(key: Key, bytes: &mut [u8]) {
    bytes[..8].copy_from_slice(&mark(key));
    bytes[FRAME - 8..].copy_from_slice(&mark(key));
}

fn assert_bytes(key: Key, bytes: &[u8]) {
    assert_eq!(bytes.len(), FRAME);
    assert_eq!((&bytes[..8], &bytes[FRAME - 8..]), (&mark(key)[..], &mark(key)[..]), "{key}");
}

/// Makes `key` resident and lets it go; whether there was a frame for it.
fn put(cache: &Cache, key: Key) -> bool {
    let Ok(mut fill) = cache.reserve(key) else { return false };
    write(key, &mut fill);
    cache.unpin(fill.publish());
    true
}

/// Indices of `group` that are resident.
fn residents(cache: &Cache, group: u32, n_keys: u32) -> Vec<u32> {
    (0..n_keys).filter(|index| cache.contains(key(group, *index))).collect()
}
