//! Steady decoding allocates nothing.

#![allow(clippy::unwrap_used)]

use std::alloc::System;

use ls_engine::{Engine, LoadOptions};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

// The only test of its program: the allocator counts what every thread does.
#[test]
fn decode_does_not_allocate() {
    let here = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures").into();
    // Tests that run on another machine are told where their fixtures are.
    let fixtures = std::env::var_os("LEANSTREAM_FIXTURES").unwrap_or_else(here);
    let fixtures = std::path::PathBuf::from(fixtures);
    for model in ["tiny-book.gguf", "models/gemma3.gguf", "models/q4_k.gguf", "models/f16.gguf"] {
        let options = LoadOptions { threads: 2, context: 128, ..LoadOptions::default() };
        let engine = Engine::load(&fixtures.join(model), &options).unwrap();
        let mut state = engine.new_state().unwrap();
        engine.prefill(&mut state, &[5; 40]).unwrap();
        let region = Region::new(ALLOCATOR);
        for _ in 0..50 {
            engine.decode(&mut state, 7).unwrap();
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{model}: {change:?}");
    }
}
