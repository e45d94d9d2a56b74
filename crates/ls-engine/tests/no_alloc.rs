//! Steady decoding allocates nothing.

#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ls_cpu::{Cpu, Isa};
use ls_engine::sparse::Choose;
use ls_engine::{
    Choice, Engine, Grain, Hot, Keep, LastSet, LoadOptions, Oracle, Random, State, pack,
};
use ls_model::ModelFile;
use ls_model::pack::PackOptions;
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
        becomes_steady(&engine, &mut state, model);
    }
    sparse_decode_does_not_allocate(&fixtures.join("tiny-book.gguf"));
}

fn sparse_decode_does_not_allocate(model: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.lspack");
    let (cpu, model) = (Cpu::new(1, Isa::detect()).unwrap(), ModelFile::open(model).unwrap());
    let packing = PackOptions { chunk_kib: 4, ..PackOptions::default() };
    pack(&cpu, &model, &path, &packing, &mut |_| ControlFlow::Continue(())).unwrap();
    let options = LoadOptions { threads: 2, context: 128, ..LoadOptions::default() };
    let engine = Engine::load(&path, &options).unwrap();
    let (keep, grain) = (|| Keep::uniform(0.5), Grain::Neuron);
    let choosers: [Option<Arc<dyn Choose>>; 5] = [
        None,
        Some(Arc::new(Random::new(keep(), grain, 1))),
        Some(Arc::new(Hot::first(keep(), grain))),
        Some(Arc::new(Oracle::new(keep(), grain))),
        Some(Arc::new(LastSet::new(keep(), Grain::Chunk))),
    ];
    for chooser in choosers {
        let mut state = engine.new_state().unwrap();
        engine.set_choice(&mut state, chooser.clone().map(Choice::new)).unwrap();
        engine.prefill(&mut state, &[5; 40]).unwrap();
        becomes_steady(&engine, &mut state, &format!("{chooser:?}"));
    }
}

/// Decodes until 16 tokens in a row allocate nothing. A thread takes what it needs for itself when it first has
/// a part of the work, which on a busy machine is late; what a token needs would be taken each time.
fn becomes_steady(engine: &Engine, state: &mut State, what: &str) {
    let mut last = None;
    for _ in 0..5 {
        let region = Region::new(ALLOCATOR);
        for _ in 0..16 {
            engine.decode(state, 7).unwrap();
        }
        let change = region.change();
        if (change.allocations, change.reallocations) == (0, 0) {
            return;
        }
        last = Some(change);
    }
    panic!("{what}: {last:?}");
}
