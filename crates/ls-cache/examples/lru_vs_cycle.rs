//! Hit ratios of each policy when all chunks of all layers are used in a cycle, as a dense model
//! uses its weights: `cargo run --release -p ls-cache --example lru_vs_cycle`.

use std::collections::VecDeque;

use ls_cache::{Cache, CacheError, Key, Layout, Pin, PolicyKind, Used};

const LAYERS: u32 = 16;
const CHUNKS: u32 = 100;
const TRANSIT: u32 = 20;

fn main() -> Result<(), CacheError> {
    println!("{LAYERS} layers of {CHUNKS} chunks, {TRANSIT} frames for chunks on their way");
    println!("{:>8}  {}", "memory", PolicyKind::ALL.map(|kind| format!("{kind:>10}")).join(""));
    for percent in [10, 25, 50, 75, 90] {
        let n_frames = LAYERS * CHUNKS * percent / 100;
        let ratios: Vec<String> = PolicyKind::ALL
            .into_iter()
            .map(|kind| Ok(format!("{:>9.1}%", 100.0 * third_cycle(kind, n_frames)?)))
            .collect::<Result<_, CacheError>>()?;
        println!("{percent:>7}%  {}", ratios.join(""));
    }
    Ok(())
}

/// The hit ratio of the third cycle.
fn third_cycle(kind: PolicyKind, n_frames: u32) -> Result<f64, CacheError> {
    let layout = Layout { frame_bytes: 4096, groups: vec![CHUNKS; LAYERS as usize] };
    let cache = Cache::new(layout, u64::from(n_frames) * 4096, kind)?;
    cache.set_transit(TRANSIT);
    let mut window = VecDeque::new();
    let mut ratio = 0.0;
    for _ in 0..3 {
        let before = cache.stats();
        for group in 0..LAYERS {
            for index in 0..CHUNKS {
                if window.len() == TRANSIT as usize {
                    compute(&cache, &mut window);
                }
                fetch(&cache, Key { group, index }, &mut window);
            }
        }
        let after = cache.stats();
        ratio = (after.hits - before.hits) as f64 / f64::from(LAYERS * CHUNKS);
    }
    window.into_iter().for_each(|pin| cache.unpin(pin));
    Ok(ratio)
}

/// Holds the key's frame, filling it first where it has to be.
fn fetch(cache: &Cache, key: Key, window: &mut VecDeque<Pin>) {
    let pin = cache.pin(key).or_else(|| cache.reserve(key).ok().map(|fill| fill.publish()));
    window.extend(pin);
}

/// Computes with the oldest key of the window.
fn compute(cache: &Cache, window: &mut VecDeque<Pin>) {
    let Some(pin) = window.pop_front() else { return };
    let Key { group, index } = pin.key();
    if index == 0 {
        cache.visit(group);
    }
    cache.unpin(pin);
    if index == CHUNKS - 1 {
        cache.used(group, Used::All);
    }
}
