//! MLPs on a GPU: lavapipe, which computes on the processor, with validation, unless
//! `LEANSTREAM_VK_DEVICE` names another device. Without Vulkan the tests are skipped, unless
//! `LEANSTREAM_REQUIRE_VULKAN` is set.

mod in_place;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use ls_engine::{
    Choice, Device, Engine, EngineError, FaultPlan, GpuError, GpuFault, Grain, Hot, Keep,
    Layerwise, LoadOptions, PerplexityOptions, Profile, StreamOptions, VulkanOptions, argmax,
    perplexity,
};
use ls_model::ModelFile;
use ls_model::tokenizer::EncodeOptions;
use ls_vk::VkError;

use crate::fixtures;
use crate::streaming::{chunk_bytes, in_memory, packed, prompt, tiny_pack};

const CONTEXT: usize = 256;

/// The self-test runs once for all tests.
static CACHE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
static TINY: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(tiny_pack);

fn options() -> VulkanOptions {
    let name = std::env::var("LEANSTREAM_VK_DEVICE").unwrap_or_else(|_| "llvmpipe".to_owned());
    VulkanOptions {
        name: Some(name),
        cache: Some(CACHE.path().to_owned()),
        validation: std::env::var_os("LEANSTREAM_VK_UNCHECKED").is_none(),
        ..VulkanOptions::default()
    }
}

fn load_options(vulkan: VulkanOptions, budget: Option<u64>) -> LoadOptions {
    let device = Device::Vulkan(vulkan);
    LoadOptions { threads: 2, context: CONTEXT, budget, device, ..LoadOptions::default() }
}

/// A device whose driver imports no memory: chunks are held, or copied.
fn copying() -> VulkanOptions {
    VulkanOptions { fault: Some(GpuFault::Import), ..options() }
}

/// An engine with a GPU; `None`, and the reason is said, where there is no Vulkan.
fn load(path: &Path, vulkan: VulkanOptions, budget: Option<u64>) -> Option<Engine> {
    match Engine::load(path, &load_options(vulkan, budget)) {
        Ok(engine) => Some(engine),
        Err(EngineError::Gpu(GpuError::Vulkan(
            error @ (VkError::LoaderMissing { .. }
            | VkError::NoDriver
            | VkError::NoDevice { .. }
            | VkError::Missing { .. }),
        ))) => {
            let required = std::env::var_os("LEANSTREAM_REQUIRE_VULKAN").is_some();
            assert!(!required, "Vulkan is required: {error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn assert_silent(engine: &Engine) {
    let messages = engine.device().messages;
    assert!(messages.is_empty(), "validation: {}", messages.join("\n"));
}

fn half() -> Choice {
    Choice::new(Arc::new(Hot::first(Keep::uniform(0.5), Grain::Neuron)))
}

/// The largest difference of two rows of logits, relative to the largest logit.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let size = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / size
}

/// Greedy tokens after a prompt, with the logits of each step.
fn greedy(engine: &Engine, n: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
    let mut state = engine.new_state().unwrap();
    let vocab_size = engine.config().vocab_size as u32;
    let prompt: Vec<u32> = prompt(40).iter().map(|token| token % vocab_size).collect();
    let mut logits = engine.prefill(&mut state, &prompt).unwrap().to_vec();
    let (mut tokens, mut all) = (vec![], vec![]);
    for _ in 0..n {
        let token = argmax(&logits).unwrap();
        tokens.push(token);
        all.push(logits);
        logits = engine.decode(&mut state, token).unwrap().to_vec();
    }
    (tokens, all)
}

/// Bytes are what inputs of both become; they differ in where sums are rounded.
const CLOSE: f32 = 0.02;

fn assert_same(gpu: &Engine, cpu: &Engine, what: &str) {
    let (want, want_logits) = greedy(cpu, 8);
    let (got, got_logits) = greedy(gpu, 8);
    for (step, (got, want)) in got_logits.iter().zip(&want_logits).enumerate() {
        let difference = difference(got, want);
        assert!(difference < CLOSE, "{what}, step {step}: {difference}");
    }
    assert_eq!(got, want, "{what}");
}

#[test]
fn every_architecture_computes_the_same() {
    for name in ["llama", "qwen2", "qwen3", "gemma3", "f16", "q4_0", "q5_1", "q8_0"] {
        let dir = tempfile::tempdir().unwrap();
        let path = packed(&fixtures().join(format!("models/{name}.gguf")), dir.path());
        let Some(gpu) = load(&path, options(), None) else { return };
        let status = gpu.device();
        assert_eq!((status.device, &status.notice), ("vulkan", &None), "{name}");
        assert_eq!(status.held_bytes, chunk_bytes(&path), "{name}");
        assert_same(&gpu, &in_memory(&path), name);
        assert_eq!(gpu.device().device, "vulkan");
        assert_silent(&gpu);
    }
}

#[test]
fn perplexity_is_that_of_the_cpu() {
    let (_, path) = &*TINY;
    let Some(gpu) = load(path, options(), None) else { return };
    let text = std::fs::read_to_string(fixtures().join("real/book-held.txt")).unwrap();
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= 6000).unwrap_or(text.len());
    let measure = |engine: &Engine| {
        let encode = EncodeOptions { add_special: true, parse_special: false };
        let tokens = engine.tokenizer().encode(&text[..end], encode).unwrap();
        let bos = engine.tokenizer().bos().filter(|_| engine.tokenizer().adds_bos());
        let options = PerplexityOptions { n_ctx: 128, max_chunks: Some(6), bos };
        let mut state = engine.new_state().unwrap();
        let mut go = |_: &_| std::ops::ControlFlow::Continue(());
        perplexity(engine, &mut state, &tokens, &options, &mut go).unwrap().ppl
    };
    let (got, want) = (measure(&gpu), measure(&in_memory(path)));
    assert!((got / want - 1.0).abs() < 0.005, "{got} {want}");
    assert_silent(&gpu);
}

#[test]
fn what_is_not_held_passes_through() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    let all = chunk_bytes(path);
    for memory in [0, all / 3, all] {
        let vulkan = VulkanOptions { memory: Some(memory), ..options() };
        let Some(gpu) = load(path, vulkan, None) else { return };
        let held = gpu.device().held_bytes;
        assert!(held <= memory && held >= memory.saturating_sub(all / 8), "{held} of {memory}");
        assert_same(&gpu, &cpu, &format!("{memory} bytes"));
        assert_silent(&gpu);
    }
}

#[test]
fn a_budget_counts_what_the_gpu_holds() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    let all = chunk_bytes(path);
    let Some(large) = load(path, copying(), Some(1 << 40)) else { return };
    let plan = large.plan().unwrap();
    assert_eq!((plan.gpu_bytes, plan.streamed_bytes()), (all, 0));
    assert!(plan.cache_bytes < all);
    assert_same(&large, &cpu, "a large budget");
    assert_silent(&large);
    for limit in [all / 4, all / 2, all * 3 / 4] {
        let stream = StreamOptions { cache_limit: Some(limit), ..StreamOptions::default() };
        let options = LoadOptions { stream, ..load_options(copying(), Some(1 << 40)) };
        let gpu = Engine::load(path, &options).unwrap();
        let plan = gpu.plan().unwrap();
        assert!(plan.gpu_bytes + plan.cache_bytes <= limit.max(plan.cache_bytes), "{plan:?}");
        assert_eq!(plan.gpu_bytes, gpu.device().held_bytes);
        let counts = || gpu.stream_stats().unwrap().counts;
        let before = counts();
        assert_same(&gpu, &cpu, &format!("{limit} bytes"));
        // Nothing that is held is read.
        let (after, passes) = (counts(), counts().passes - before.passes);
        let missed = after.demand_miss_bytes - before.demand_miss_bytes;
        assert!(missed > 0 && missed <= (passes + 1) * plan.streamed_bytes(), "{plan:?} {after:?}");
        // Without the GPU the cache would have what it holds.
        let lower = gpu.set_budget(1 << 39).unwrap();
        assert_eq!(lower.gpu_bytes, plan.gpu_bytes);
        assert_same(&gpu, &cpu, "another budget");
        assert_silent(&gpu);
    }
}

#[test]
fn a_lost_device_loses_no_token() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    let n_layers = cpu.config().n_layers as u64;
    for (memory, budget) in
        [(None, None), (Some(0), None), (None, Some(1 << 40)), (Some(0), Some(1 << 40))]
    {
        // Within the prompt, at the begin of a token, within one.
        for after in [1, n_layers, 3 * n_layers + 1] {
            let fault = Some(GpuFault::LostAfter(after));
            let vulkan = VulkanOptions { memory, fault, ..options() };
            let Some(gpu) = load(path, vulkan, budget) else { return };
            let before = gpu.plan();
            let what = format!("{memory:?} {budget:?} lost after {after}");
            assert_same(&gpu, &cpu, &what);
            let status = gpu.device();
            assert_eq!((status.device, status.held_bytes), ("cpu", 0), "{what}");
            let notice = status.notice.unwrap();
            assert!(notice.contains("was lost") && notice.contains("nothing is lost"), "{notice}");
            if let (Some(before), Some(after)) = (before, gpu.plan()) {
                assert!(after.gpu_bytes == 0 && after.cache_bytes >= before.cache_bytes, "{what}");
            }
            // Everything works as if there had never been one.
            let mut state = gpu.new_state().unwrap();
            let choice = half();
            gpu.set_choice(&mut state, Some(choice)).unwrap();
            assert!(Layerwise::new(&gpu, &[prompt(8)]).is_ok());
        }
    }
}

#[test]
fn a_device_that_fails_its_self_test_is_not_used() {
    let (_, path) = &*TINY;
    for budget in [None, Some(1 << 40)] {
        let vulkan = VulkanOptions { fault: Some(GpuFault::SelfTest), ..options() };
        let Some(gpu) = load(path, vulkan, budget) else { return };
        let status = gpu.device();
        assert_eq!(status.device, "cpu");
        assert!(status.notice.unwrap().contains("self-test failed (injected)"));
        // To the bit: it is the CPU alone.
        assert_eq!(greedy(&gpu, 4), greedy(&in_memory(path), 4));
    }
}

#[test]
fn devices_that_are_not_at_hand_compute_the_same() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    for profile in [Profile::Least, Profile::Adreno7xx, Profile::Orin] {
        for memory in [None, Some(chunk_bytes(path) / 2)] {
            let vulkan = VulkanOptions { profile: Some(profile), memory, ..options() };
            let Some(gpu) = load(path, vulkan, None) else { return };
            assert_eq!(gpu.device().device, "vulkan", "{profile:?}");
            assert_same(&gpu, &cpu, &format!("{profile:?}"));
            assert_silent(&gpu);
        }
    }
}

#[test]
fn a_damaged_chunk_is_an_error_and_no_reason_to_retire_the_gpu() {
    let (_dir, path) = tiny_pack();
    let mut bytes = std::fs::read(&path).unwrap();
    let model = ModelFile::open(&path).unwrap();
    let layer = model.pack().unwrap().layers()[1];
    let at = layer.chunk_offset(layer.n_chunks - 1) as usize + 5;
    drop(model);
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let vulkan = VulkanOptions { memory: Some(0), ..options() };
    let Some(gpu) = load(&path, vulkan, Some(1 << 40)) else { return };
    let mut state = gpu.new_state().unwrap();
    for n in [1, 12, 1] {
        let error = gpu.prefill(&mut state, &prompt(n)).unwrap_err();
        assert!(matches!(error, EngineError::ChunkDamage(_)), "{error}");
    }
    assert_eq!((gpu.device().device, state.position()), ("vulkan", 0));
    assert_silent(&gpu);
}

#[test]
fn what_a_gpu_cannot_do_is_said() {
    let (_, path) = &*TINY;
    let Some(gpu) = load(path, options(), None) else { return };
    let mut state = gpu.new_state().unwrap();
    let choice = half();
    let error = gpu.set_choice(&mut state, Some(choice)).unwrap_err();
    assert!(matches!(error, EngineError::OnlyOnCpu { .. }), "{error}");
    assert!(matches!(gpu.column_norms(), Err(EngineError::OnlyOnCpu { .. })));
    let windows = [prompt(8)];
    assert!(matches!(Layerwise::new(&gpu, &windows), Err(EngineError::OnlyOnCpu { .. })));

    let fails = |path: &Path, vulkan| {
        Engine::load(path, &load_options(vulkan, None)).map(drop).unwrap_err().to_string()
    };
    let error = fails(&fixtures().join("tiny-book.gguf"), options());
    assert!(error.contains("is no pack; a GPU computes packs only"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let q2 = packed(&fixtures().join("models/q2_k.gguf"), dir.path());
    let error = fails(&q2, options());
    assert!(
        error.contains("layer 0 cannot be computed on a GPU: its rows are stored as Q2_K"),
        "{error}"
    );
    let error = fails(path, VulkanOptions { name: Some("abacus".into()), ..options() });
    assert!(error.contains("no Vulkan device that is called abacus; there are: "), "{error}");
}

#[test]
fn a_processor_is_not_taken_for_a_gpu() {
    let (_, path) = &*TINY;
    let unnamed = VulkanOptions { name: None, ..options() };
    match Engine::load(path, &load_options(unnamed, None)) {
        // There may be a GPU.
        Ok(engine) => assert!(!engine.device().name.unwrap().contains("llvmpipe")),
        Err(error) => assert!(matches!(error, EngineError::Gpu(GpuError::Vulkan(_))), "{error}"),
    }
}

/// Streaming under faults of the disk, while a GPU computes.
#[test]
fn slow_reads_change_nothing() {
    let (_, path) = &*TINY;
    let max_delay = std::time::Duration::from_millis(1);
    let fault = Some(FaultPlan { seed: 3, delay: 0.5, max_delay, ..FaultPlan::default() });
    let stream = StreamOptions { cache_limit: Some(1 << 18), fault, ..StreamOptions::default() };
    let vulkan = VulkanOptions { memory: Some(chunk_bytes(path) / 4), ..copying() };
    let options = LoadOptions { stream, ..load_options(vulkan.clone(), Some(1 << 40)) };
    if load(path, vulkan, None).is_none() {
        return;
    }
    let gpu = Engine::load(path, &options).unwrap();
    assert_same(&gpu, &in_memory(path), "a small cache");
    assert_silent(&gpu);
}
