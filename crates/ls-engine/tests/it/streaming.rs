//! Streaming computes the same bits as memory does, or says what is wrong.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ls_cpu::{Cpu, Isa};
use ls_engine::{
    BackendKind, Curve, Engine, EngineError, FaultPlan, LoadOptions, PolicyKind, Prefetch,
    StreamOptions, default_column_type, down_types, pack, plan_for, smallest_budget,
};
use ls_model::ModelFile;
use ls_model::pack::PackOptions;
use proptest::prelude::*;

use crate::fixtures;

/// Context of every engine here.
const CONTEXT: usize = 256;

/// Packs a fixture, with small chunks so that there are many.
pub fn packed(model: &Path, folder: &Path) -> PathBuf {
    let model = ModelFile::open(model).unwrap();
    let out = folder.join("model.lspack");
    let d_model = model.config().d_model;
    let types = down_types(&model).into_iter();
    let options = PackOptions {
        chunk_kib: 4,
        layer_down: types.map(|down| default_column_type(down, d_model)).collect(),
        force: true,
        ..PackOptions::default()
    };
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    pack(&cpu, &model, &out, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    out
}

pub fn tiny_pack() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = packed(&fixtures().join("tiny-book.gguf"), dir.path());
    (dir, path)
}

pub fn in_memory(path: &Path) -> Engine {
    let options = LoadOptions { threads: 2, context: CONTEXT, ..LoadOptions::default() };
    Engine::load(path, &options).unwrap()
}

/// Under a budget that is no limit but for the cache.
pub fn streamed(path: &Path, threads: usize, stream: StreamOptions) -> Result<Engine, EngineError> {
    let budget = Some(1 << 40);
    let options = LoadOptions { threads, context: CONTEXT, budget, stream, ..Default::default() };
    Engine::load(path, &options)
}

/// An engine whose disk fails, and how often it failed to load: loading reads too.
pub fn faulty(path: &Path, threads: usize, mut stream: StreamOptions) -> (Engine, u64) {
    for errors in 0.. {
        match streamed(path, threads, stream.clone()) {
            Ok(engine) => return (engine, errors),
            // With the same seed it would meet the same fault for ever.
            Err(EngineError::Read(_)) => {
                stream.fault.as_mut().expect("nothing else fails").seed += 1000;
            }
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!("a fault is not certain")
}

pub fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 300 + i * 37 % 600).collect()
}

/// The bits of all logits of a prompt, a short one and some single tokens.
fn answer(engine: &Engine) -> Result<Vec<u32>, EngineError> {
    let mut state = engine.new_state()?;
    let mut bits = Vec::new();
    for piece in [prompt(40), prompt(3), prompt(1), prompt(9), prompt(1), prompt(1)] {
        let logits = engine.prefill(&mut state, &piece)?;
        bits.extend(logits.iter().map(|x| x.to_bits()));
    }
    Ok(bits)
}

/// Gaps of up to some chunks are read through.
fn curve() -> impl Strategy<Value = Curve> {
    (0.0..60.0).prop_map(|fixed_us| Curve { fixed_us, us_per_kib: 1.0 })
}

/// Bytes of all chunks.
pub fn chunk_bytes(path: &Path) -> u64 {
    let model = ModelFile::open(path).unwrap();
    model.pack().unwrap().layers().iter().map(|layer| layer.stored_bytes()).sum()
}

fn backend() -> impl Strategy<Value = BackendKind> {
    prop_oneof![
        4 => Just(BackendKind::Auto),
        2 => Just(BackendKind::Pread),
        1 => Just(BackendKind::Mmap),
    ]
}

/// Delays put completions in another order; the rest is what a healthy disk may do too.
fn harmless_faults() -> impl Strategy<Value = FaultPlan> {
    (any::<u64>(), 0.0..0.5f64, 0.0..0.2f64, any::<bool>()).prop_map(
        |(seed, delay, repeat, refuse_direct_read)| FaultPlan {
            seed,
            delay,
            max_delay: Duration::from_millis(1),
            short: repeat,
            eintr: repeat,
            refuse_direct_read,
            ..FaultPlan::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_of_streaming_changes_a_bit(
        share in 0.0..1.1f64,
        cache in prop::sample::select(PolicyKind::ALL.to_vec()),
        is_prefetched: bool,
        backend in backend(),
        threads in 1usize..4,
        depth in 1usize..20,
        curve in prop::option::of(curve()),
        fault in prop::option::of(harmless_faults()),
    ) {
        // Made once: packing is the same each time.
        use std::sync::LazyLock;
        static TINY: LazyLock<(tempfile::TempDir, PathBuf, Vec<u32>, u64)> = LazyLock::new(|| {
            let (dir, path) = tiny_pack();
            let expected = answer(&in_memory(&path)).unwrap();
            let bytes = chunk_bytes(&path);
            (dir, path, expected, bytes)
        });
        let (_, path, expected, bytes) = &*TINY;
        let stream = StreamOptions {
            cache,
            prefetch: if is_prefetched { Prefetch::On } else { Prefetch::Off },
            backend,
            depth,
            cache_limit: Some((share * *bytes as f64) as u64),
            curve,
            fault,
            ..StreamOptions::default()
        };
        let engine = streamed(path, threads, stream).unwrap();
        prop_assert!(answer(&engine).unwrap() == *expected);
    }
}

#[test]
fn every_model_streams_as_it_computes_in_memory() {
    let models = std::fs::read_dir(fixtures().join("models")).unwrap();
    for model in models.map(|entry| entry.unwrap().path()) {
        let dir = tempfile::tempdir().unwrap();
        let path = packed(&model, dir.path());
        let name = model.display();
        let vocab_size = ModelFile::open(&model).unwrap().config().vocab_size as u32;
        let tokens: Vec<u32> = (0..30).map(|i| i * 7 % vocab_size).collect();
        let run = |engine: &Engine| {
            let mut state = engine.new_state().unwrap();
            let mut all = engine.prefill(&mut state, &tokens).unwrap().to_vec();
            all.extend_from_slice(engine.decode(&mut state, 3).unwrap());
            all
        };
        let expected = run(&in_memory(&path));
        let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
        assert!(run(&streamed(&path, 2, stream).unwrap()) == expected, "{name}");
        // The source itself quantises its down matrices otherwise, so it is near only.
        let source = run(&in_memory(&model));
        let scale = source.iter().fold(0f32, |m, x| m.max(x.abs()));
        let error = source.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(error <= 0.05 * scale, "{name}: {error} of {scale}");
    }
}

#[test]
fn layers_with_records_of_different_sizes_share_the_cache() {
    let model = ModelFile::open(fixtures().join("tiny-book.gguf")).unwrap();
    let (dir, cpu) = (tempfile::tempdir().unwrap(), Cpu::new(1, Isa::detect()).unwrap());
    let path = dir.path().join("mixed.lspack");
    use ls_model::pack::ColumnType::{F32, Q4, Q6, Q8};
    let options = PackOptions { layer_down: vec![F32, Q4, Q8, Q6, F32], ..PackOptions::default() };
    pack(&cpu, &model, &path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let packed = ModelFile::open(&path).unwrap();
    let sizes: Vec<_> = packed.pack().unwrap().layers().iter().map(|l| l.record_bytes).collect();
    assert!(sizes.iter().any(|size| *size != sizes[0]), "{sizes:?}");
    let expected = answer(&in_memory(&path)).unwrap();
    for share in [0, 3, 1] {
        let cache_limit = Some(chunk_bytes(&path) * share / 3);
        let stream = StreamOptions { cache_limit, ..StreamOptions::default() };
        assert!(answer(&streamed(&path, 2, stream).unwrap()).unwrap() == expected);
    }
}

#[test]
fn under_any_faults_a_token_is_right_or_an_error() {
    let (_dir, path) = tiny_pack();
    let memory = in_memory(&path);
    let (mut expected_state, mut steps, mut errors) = (memory.new_state().unwrap(), 0, 0);
    for seed in 0..25 {
        let odd = |n: u64| seed % n == n - 1;
        let fault = FaultPlan {
            seed,
            short: 0.02,
            eio: 0.002,
            eintr: 0.02,
            eagain: 0.01,
            delay: 0.02,
            max_delay: Duration::from_micros(300),
            refuse_direct_open: odd(5),
            refuse_direct_read: odd(3),
            refuse_uring: odd(4).then_some(std::io::ErrorKind::PermissionDenied),
            ..FaultPlan::default()
        };
        let stream = StreamOptions {
            prefetch: if odd(2) { Prefetch::Off } else { Prefetch::On },
            cache: PolicyKind::ALL[seed as usize % PolicyKind::ALL.len()],
            cache_limit: Some(chunk_bytes(&path) / 3),
            fault: Some(fault),
            ..StreamOptions::default()
        };
        let (engine, failed) = faulty(&path, 2, stream.clone());
        errors += failed;
        let mut state = engine.new_state().unwrap();
        expected_state.truncate(0);
        for step in 0..400u32 {
            if state.position() == CONTEXT {
                state.truncate(0);
                expected_state.truncate(0);
            }
            let token = 300 + (step * 37 + seed as u32) % 600;
            let before = state.position();
            // A token that failed can be asked for again.
            loop {
                match engine.decode(&mut state, token) {
                    Ok(logits) => {
                        let expected = memory.decode(&mut expected_state, token).unwrap();
                        assert!(logits == expected, "seed {seed}, step {step}");
                        break;
                    }
                    Err(EngineError::ChunkRead { .. }) => {
                        errors += 1;
                        assert_eq!(state.position(), before);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            steps += 1;
        }
        if stream.prefetch == Prefetch::Off {
            let cache = engine.stream_stats().unwrap().cache;
            assert_eq!((cache.pinned, cache.filling), (0, 0), "seed {seed}: frames are held");
        }
    }
    assert_eq!(steps, 10_000);
    assert!(errors > 0, "no fault was met");
}

#[test]
fn a_read_that_fails_ends_the_token_and_no_other() {
    let (_dir, path) = tiny_pack();
    let layout = ModelFile::open(&path).unwrap().pack().unwrap().layers()[2];
    let at = layout.chunk_offset(7);
    for cache_limit in [None, Some(chunk_bytes(&path) / 2), Some(0)] {
        let fault = Some(FaultPlan { bad: Some(at..at + 1), ..FaultPlan::default() });
        let stream = StreamOptions { cache_limit, fault, ..StreamOptions::default() };
        let engine = streamed(&path, 2, stream).unwrap();
        let mut state = engine.new_state().unwrap();
        for tokens in [prompt(1), prompt(30)] {
            match engine.prefill(&mut state, &tokens) {
                Err(EngineError::ChunkRead { layer, chunk, .. }) => {
                    assert_eq!((layer, chunk), (2, 7));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_named_with_its_layer_and_chunk() {
    let (_dir, path) = tiny_pack();
    let model = ModelFile::open(&path).unwrap();
    let layout = model.pack().unwrap().layers()[3];
    let at = layout.chunk_offset(17) as usize + 100;
    drop(model);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
    let whole = StreamOptions::default();
    let streamed = |stream| streamed(&path, 2, stream).unwrap();
    for engine in [in_memory(&path), streamed(stream), streamed(whole)] {
        let mut state = engine.new_state().unwrap();
        for tokens in [prompt(30), prompt(1)] {
            match engine.prefill(&mut state, &tokens) {
                Err(EngineError::ChunkDamage(damage)) => {
                    assert_eq!((damage.layer, damage.chunk), (3, 17));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(state.position(), 0);
        }
    }
}

#[test]
fn a_pack_that_is_cut_while_it_streams_is_an_error() {
    let (_dir, path) = tiny_pack();
    let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
    let engine = streamed(&path, 2, stream).unwrap();
    let mut state = engine.new_state().unwrap();
    engine.decode(&mut state, 400).unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 4096).unwrap();
    let error = engine.decode(&mut state, 400).unwrap_err();
    assert!(
        matches!(error, EngineError::Model(_) | EngineError::ChunkRead { layer: 4, .. }),
        "{error}"
    );
    assert_eq!(state.position(), 1);
}

#[test]
fn exact_streaming_reads_what_does_not_fit_and_little_more() {
    let (_dir, path) = tiny_pack();
    let all = chunk_bytes(&path);
    for (share, cache) in [(2, PolicyKind::Lru), (2, PolicyKind::Lfu), (3, PolicyKind::Hot)] {
        let stream =
            StreamOptions { cache, cache_limit: Some(all / share), ..StreamOptions::default() };
        let engine = streamed(&path, 2, stream).unwrap();
        let mut state = engine.new_state().unwrap();
        engine.prefill(&mut state, &prompt(4)).unwrap();
        let plan = engine.plan().unwrap();
        let before = engine.stream_stats().unwrap();
        for token in prompt(40) {
            engine.decode(&mut state, token).unwrap();
        }
        let after = engine.stream_stats().unwrap();
        let read = (after.bytes_read() - before.bytes_read()) as f64 / 40.0;
        let least = (all - plan.cache_bytes) as f64;
        assert!(read >= 0.95 * least, "{cache}: {read} of {least}");
        assert!(read <= 1.05 * plan.streamed_bytes() as f64, "{cache}: {read} of {plan:?}");
        assert_eq!(after.counts.passes - before.counts.passes, 40);
    }
    // What fits is read once.
    let engine = streamed(&path, 2, StreamOptions::default()).unwrap();
    let mut state = engine.new_state().unwrap();
    for token in prompt(20) {
        engine.decode(&mut state, token).unwrap();
    }
    assert_eq!(engine.stream_stats().unwrap().bytes_read(), all);
}

#[test]
fn a_budget_can_be_lowered_while_tokens_are_computed() {
    let (_dir, path) = tiny_pack();
    let expected = answer(&in_memory(&path)).unwrap();
    let engine = streamed(&path, 2, StreamOptions::default()).unwrap();
    assert_eq!(answer(&engine).unwrap(), expected);
    let plan = engine.plan().unwrap();
    let fixed = plan.planned_bytes() - plan.cache_bytes;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| (0..20).all(|_| answer(&engine).unwrap() == expected));
        for kib in [800, 400, 600, 300] {
            engine.set_budget(fixed + (kib << 10)).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(running.join().unwrap());
    });
    let (cache, plan) = (engine.stream_stats().unwrap().cache, engine.plan().unwrap());
    assert!(plan.cache_bytes < 320 << 10, "{plan:?}");
    assert!(cache.bytes <= plan.cache_bytes, "{cache:?}");
    match engine.set_budget(1000) {
        Err(EngineError::Budget { floor, .. }) => {
            assert!(engine.set_budget(floor.bytes()).is_ok());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(answer(&engine).unwrap(), expected);
    assert!(matches!(in_memory(&path).set_budget(1 << 30), Err(EngineError::NoBudget)));
}

#[test]
fn states_take_turns() {
    let (_dir, path) = tiny_pack();
    let expected = answer(&in_memory(&path)).unwrap();
    let stream =
        StreamOptions { cache_limit: Some(chunk_bytes(&path) / 2), ..StreamOptions::default() };
    let engine = streamed(&path, 2, stream).unwrap();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| answer(&engine).unwrap())).collect();
        for run in runs {
            assert!(run.join().unwrap() == expected);
        }
    });
}

#[test]
fn only_packs_have_budgets() {
    let options = LoadOptions { budget: Some(1 << 40), ..LoadOptions::default() };
    let error = Engine::load(&fixtures().join("tiny-book.gguf"), &options).unwrap_err();
    assert!(matches!(error, EngineError::NotAPack { .. }), "{error}");
}

#[test]
fn a_plan_can_be_asked_for_without_loading() {
    let (_dir, path) = tiny_pack();
    let model = ModelFile::open(&path).unwrap();
    // A curve whose buffers must not raise the smallest budget.
    let curve = Some(Curve { fixed_us: 1e6, us_per_kib: 1.0 });
    let stream = StreamOptions { curve, ..StreamOptions::default() };
    for context in [0, 100] {
        let options = LoadOptions { context, stream: stream.clone(), ..LoadOptions::default() };
        let floor = smallest_budget(&model, &options).unwrap().bytes();
        let with = |bytes| LoadOptions { budget: Some(bytes), ..options.clone() };
        // What the process holds changes while other tests run beside this one.
        let least = plan_for(&model, &with(floor + (64 << 20))).unwrap();
        assert!(least.planned_bytes() <= floor + (64 << 20));
        let refused = plan_for(&model, &with(1 << 20)).unwrap_err();
        assert!(matches!(refused, EngineError::Budget { .. }), "{refused}");
        let whole = plan_for(&model, &options).unwrap();
        assert_eq!((whole.streamed_bytes(), whole.cache_bytes), (0, chunk_bytes(&path)));
    }
    let unpacked = ModelFile::open(fixtures().join("tiny-book.gguf")).unwrap();
    let refused = smallest_budget(&unpacked, &LoadOptions::default()).unwrap_err();
    assert!(matches!(refused, EngineError::NotAPack { .. }), "{refused}");
}

/// Options for a small budget with room for little beside the floor; what the process holds moves
/// while other tests run, so it is tried again.
fn under_a_small_budget(path: &Path, extra: u64) -> Engine {
    let model = ModelFile::open(path).unwrap();
    for attempt in 0..40 {
        let mut options = LoadOptions { threads: 2, context: CONTEXT, ..LoadOptions::default() };
        let floor = smallest_budget(&model, &options).unwrap();
        options.budget = Some(floor.bytes() + extra + (attempt << 20));
        match Engine::load(path, &options) {
            Ok(engine) => return engine,
            Err(EngineError::Budget { .. }) => continue,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the smallest budget keeps moving");
}

#[test]
fn a_prompt_of_any_length_has_the_same_bits_in_smaller_batches() {
    for name in ["tiny-book.gguf", "models/gemma3.gguf", "models/f16.gguf"] {
        let dir = tempfile::tempdir().unwrap();
        let path = packed(&fixtures().join(name), dir.path());
        let vocab_size = ModelFile::open(&path).unwrap().config().vocab_size as u32;
        let stream = StreamOptions { prompt_batch: Some(32), ..StreamOptions::default() };
        let (memory, small) = (in_memory(&path), streamed(&path, 2, stream).unwrap());
        let (mut a, mut b) = (memory.new_state().unwrap(), small.new_state().unwrap());
        for n in (1..140).chain([200, 233, 255]) {
            let tokens: Vec<u32> = (0..n).map(|i| (i * 37 + n) % vocab_size).collect();
            a.truncate(0);
            b.truncate(0);
            let expected = memory.prefill(&mut a, &tokens).unwrap();
            assert!(small.prefill(&mut b, &tokens).unwrap() == expected, "{name}: {n} tokens");
        }
        let passes = small.stream_stats().unwrap().counts.passes;
        assert!(passes > 142 * 2, "{name}: {passes} passes are not those of small batches");
    }
}

#[test]
fn the_smallest_budget_computes_the_same_bits() {
    let (_dir, path) = tiny_pack();
    let expected = answer(&in_memory(&path)).unwrap();
    assert!(answer(&under_a_small_budget(&path, 1 << 20)).unwrap() == expected);
}

#[test]
fn a_prompt_that_fails_in_its_second_batch_leaves_nothing() {
    let (_dir, path) = tiny_pack();
    let engine = under_a_small_budget(&path, 64 << 10);
    let mut state = engine.new_state().unwrap();
    let expected = engine.prefill(&mut state, &prompt(100)).unwrap().to_vec();
    state.truncate(0);
    // The last chunk of the last layer is gone: every pass fails at its end.
    let bytes = std::fs::read(&path).unwrap();
    let cut = &bytes[..bytes.len() - 4096];
    std::fs::write(&path, cut).unwrap();
    for _ in 0..3 {
        assert!(engine.prefill(&mut state, &prompt(100)).is_err());
        assert_eq!(state.position(), 0);
    }
    std::fs::write(&path, bytes).unwrap();
    assert!(engine.prefill(&mut state, &prompt(100)).unwrap() == expected);
}

#[test]
fn a_budget_lowered_between_tokens_frees_memory_at_once() {
    for name in ["tiny-book.gguf", "models/qwen2.gguf", "models/llama.gguf"] {
        let dir = tempfile::tempdir().unwrap();
        let path = packed(&fixtures().join(name), dir.path());
        let engine = streamed(&path, 2, StreamOptions::default()).unwrap();
        let mut state = engine.new_state().unwrap();
        let expected = engine.decode(&mut state, 5).unwrap().to_vec();
        let before = engine.plan().unwrap();
        let fixed = before.planned_bytes() - before.cache_bytes;
        // Small enough that not even all frames of the floor are left beside the embedding.
        let lowered = engine.set_budget(fixed + before.cache_bytes / 2).unwrap();
        let cache = engine.stream_stats().unwrap().cache;
        assert!(cache.bytes <= lowered.cache_bytes, "{name}: {cache:?}");
        // What is in memory for good still counts.
        let held = |plan: ls_engine::Plan| plan.resident_bytes + plan.embedding_bytes;
        assert_eq!(held(lowered), held(before), "{name}");
        state.truncate(0);
        assert!(engine.decode(&mut state, 5).unwrap() == expected, "{name}");
        let raised = engine.set_budget(1 << 40).unwrap();
        assert_eq!(raised.cache_bytes, before.cache_bytes, "{name}");
    }
}

#[test]
fn a_failure_keeps_no_thread_waiting() {
    let (_dir, path) = tiny_pack();
    let start = std::time::Instant::now();
    for threads in [1, 2, 3, 8] {
        let fault = FaultPlan { seed: threads as u64, eio: 0.02, ..FaultPlan::default() };
        let stream =
            StreamOptions { cache_limit: Some(0), fault: Some(fault), ..StreamOptions::default() };
        let (engine, _) = faulty(&path, threads, stream);
        let mut state = engine.new_state().unwrap();
        let mut errors = 0;
        for _ in 0..60 {
            state.truncate(0);
            errors += usize::from(engine.decode(&mut state, 400).is_err());
        }
        assert!(errors > 0, "{threads} threads met no fault");
    }
    // A thread that waited for what never comes would take a minute each time.
    assert!(start.elapsed() < Duration::from_secs(50));
}
