//! A GPU that reads streamed chunks in the cache's own frames.

use std::path::Path;
use std::time::Duration;

use ls_engine::{
    Control, Engine, EngineError, FaultPlan, GpuFault, LoadOptions, Profile, StreamOptions,
    VulkanOptions,
};

use super::{TINY, assert_same, assert_silent, greedy, load, load_options, options};
use crate::streaming::{chunk_bytes, in_memory, prompt};

const NO_LIMIT: u64 = 1 << 40;

fn stream(cache_limit: u64) -> StreamOptions {
    StreamOptions { cache_limit: Some(cache_limit), ..StreamOptions::default() }
}

/// An engine with so large a cache; `None` where there is no Vulkan.
fn engine(path: &Path, vulkan: VulkanOptions, stream: StreamOptions) -> Option<Engine> {
    // Skips, or says what is wrong.
    load(path, VulkanOptions { memory: Some(0), ..options() }, None)?;
    let options = LoadOptions { stream, ..load_options(vulkan, Some(NO_LIMIT)) };
    Some(Engine::load(path, &options).unwrap())
}

/// Loads that leave the smallest cache, some frames, most and all of them.
fn cache_limits(path: &Path) -> [u64; 4] {
    let all = chunk_bytes(path);
    [1, all / 3, all * 3 / 4, all]
}

#[test]
fn tokens_are_those_of_copied_chunks() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    let controls = [Control::Blocking, Control::Staged].into_iter().cycle();
    for (limit, control) in cache_limits(path).into_iter().zip(controls) {
        let vulkan = VulkanOptions { control: Some(control), ..options() };
        let what = format!("{limit} bytes, {control:?}");
        let Some(gpu) = engine(path, vulkan.clone(), stream(limit)) else { return };
        let (status, plan) = (gpu.device(), gpu.plan().unwrap());
        assert_eq!((status.device, status.in_place, status.held_bytes), ("vulkan", true, 0));
        assert_eq!((status.copy_reason, plan.gpu_bytes), (None, 0), "{what}");
        assert_same(&gpu, &cpu, &what);
        assert_silent(&gpu);

        let fault = Some(GpuFault::Import);
        let copying = engine(path, VulkanOptions { fault, ..vulkan }, stream(limit)).unwrap();
        let status = copying.device();
        assert_eq!((status.device, status.in_place), ("vulkan", false), "{what}");
        assert!(status.copy_reason.unwrap().contains("does not import"), "{what}");
        assert_eq!(greedy(&gpu, 8).0, greedy(&copying, 8).0, "{what}");
        // The bytes of the ring are the cache's.
        let copying = copying.plan().unwrap();
        assert!(copying.io_bytes > plan.io_bytes, "{what}");
        assert!(plan.streamed_bytes() <= copying.streamed_bytes() + limit.min(1 << 16));
    }
}

#[test]
fn the_same_cache_gives_the_same_bits_whatever_is_in_it() {
    let (_, path) = &*TINY;
    for limit in [1, chunk_bytes(path) / 2] {
        let Some(gpu) = engine(path, options(), stream(limit)) else { return };
        let cold = greedy(&gpu, 6);
        assert_eq!(cold, greedy(&gpu, 6), "{limit} bytes, warm");
        let max_delay = Duration::from_millis(1);
        let fault = FaultPlan { seed: 9, delay: 0.5, max_delay, ..FaultPlan::default() };
        let slow = StreamOptions { fault: Some(fault), ..stream(limit) };
        let slow = engine(path, options(), slow).unwrap();
        assert_eq!(cold, greedy(&slow, 6), "{limit} bytes, slow reads");
    }
}

#[test]
fn devices_that_are_not_at_hand_share_memory_if_they_can() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    for (profile, in_place) in
        [(Profile::Least, false), (Profile::Adreno7xx, false), (Profile::Orin, true)]
    {
        let vulkan = VulkanOptions { profile: Some(profile), ..options() };
        let Some(gpu) = engine(path, vulkan, stream(chunk_bytes(path) / 2)) else { return };
        let status = gpu.device();
        assert_eq!((status.device, status.in_place), ("vulkan", in_place), "{profile:?}");
        // What is not promised is not missed.
        assert_eq!(status.copy_reason, None, "{profile:?}");
        assert_same(&gpu, &cpu, &format!("{profile:?}"));
        assert_silent(&gpu);
    }
}

#[test]
fn reads_that_fail_now_and_then_cost_a_pass_and_no_token() {
    let (_, path) = &*TINY;
    let fault = FaultPlan { seed: 5, eio: 0.05, short: 0.1, eintr: 0.1, ..FaultPlan::default() };
    let failing = StreamOptions { fault: Some(fault), ..stream(1) };
    // Loading reads as well: it has its luck some time.
    let loaded = (0..40).find_map(|seed| {
        let fault = failing.fault.clone().map(|fault| FaultPlan { seed, ..fault });
        let stream = StreamOptions { fault, ..failing.clone() };
        let options = LoadOptions { stream, ..load_options(options(), Some(NO_LIMIT)) };
        Engine::load(path, &options).ok()
    });
    let Some(gpu) = loaded else {
        assert!(load(path, options(), None).is_none(), "no load had any luck");
        return;
    };
    let (sure, mut failures) = (engine(path, options(), stream(1)).unwrap(), 0);
    let (mut state, mut sure_state) = (gpu.new_state().unwrap(), sure.new_state().unwrap());
    for token in prompt(60) {
        let want = sure.decode(&mut sure_state, token).unwrap().to_vec();
        let got = loop {
            match gpu.decode(&mut state, token) {
                Ok(got) => break got,
                Err(error) => assert!(matches!(error, EngineError::ChunkRead { .. }), "{error}"),
            }
            failures += 1;
            assert!(failures < 1000, "nothing is ever read");
        };
        assert!(got == want);
    }
    assert!(failures > 0);
    assert_eq!((gpu.device().device, gpu.device().in_place), ("vulkan", true));
    assert_silent(&gpu);
}

#[test]
fn a_device_lost_between_stages_loses_no_token() {
    let (_, path) = &*TINY;
    let cpu = in_memory(path);
    for limit in [1, chunk_bytes(path) / 2] {
        for after in [0, 1, 3, 2 * cpu.config().n_layers as u64 + 1] {
            let fault = Some(GpuFault::LostAfterStages(after));
            let vulkan = VulkanOptions { fault, ..options() };
            let Some(gpu) = engine(path, vulkan, stream(limit)) else { return };
            assert!(gpu.device().in_place);
            let (what, before) = (format!("lost after {after} stages"), gpu.plan().unwrap());
            assert_same(&gpu, &cpu, &what);
            let status = gpu.device();
            assert_eq!((status.device, status.in_place), ("cpu", false), "{what}");
            assert!(status.notice.unwrap().contains("nothing is lost"), "{what}");
            // The cache goes on as it was, and is the CPU's alone.
            let plan = gpu.plan().unwrap();
            assert_eq!((plan.cache_bytes, plan.gpu_bytes), (before.cache_bytes, 0), "{what}");
            let fixed = plan.planned_bytes() - plan.cache_bytes;
            let less = plan.cache_bytes * 3 / 4;
            if limit > 1 {
                let lowered = gpu.set_budget(fixed + less).unwrap().cache_bytes;
                assert!(lowered < plan.cache_bytes, "{what}");
                assert!(gpu.stream_stats().unwrap().cache.bytes <= lowered, "{what}");
            }
        }
    }
}

#[test]
fn a_cache_that_a_device_has_cannot_become_less() {
    let (_, path) = &*TINY;
    let Some(gpu) = engine(path, options(), stream(chunk_bytes(path) / 2)) else { return };
    let plan = gpu.plan().unwrap();
    let fixed = plan.planned_bytes() - plan.cache_bytes;
    match gpu.set_budget(fixed + plan.cache_bytes / 2).unwrap_err() {
        EngineError::Budget { floor, .. } => {
            let least = gpu.set_budget(floor.bytes()).unwrap();
            assert_eq!(least.cache_bytes, plan.cache_bytes);
        }
        other => panic!("{other}"),
    }
    assert_same(&gpu, &in_memory(path), "the least budget");
    assert_silent(&gpu);
}

#[test]
fn sequences_that_share_a_lost_device_go_on_without_it() {
    let (_, path) = &*TINY;
    let want = greedy(&in_memory(path), 4).0;
    for fault in [None, Some(GpuFault::LostAfterStages(30))] {
        let vulkan = VulkanOptions { fault, ..options() };
        let Some(gpu) = engine(path, vulkan, stream(chunk_bytes(path) / 2)) else { return };
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| greedy(&gpu, 4).0)).collect();
            for run in runs {
                assert_eq!(run.join().unwrap(), want, "{fault:?}");
            }
        });
        assert_eq!(gpu.device().device, if fault.is_some() { "cpu" } else { "vulkan" });
    }
}
