//! Streaming what is chosen gives what choosing in memory gives, or says what is wrong.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ls_engine::predict::{KeepPlan, Predicted, Predictors};
use ls_engine::refine::{Count, Policy, Retain};
use ls_engine::{
    Choice, Engine, EngineError, FaultPlan, Prompts, RefineOptions, Refiner, State, StreamOptions,
};

use ls_sched::sim::Trace;

use crate::predict::trained;
use crate::streaming::{chunk_bytes, faulty, in_memory, prompt, streamed, tiny_pack};

/// More chunks than there are.
const ALL: f64 = 1e6;

const POLICIES: [Policy; 4] = [Policy::Serial, Policy::OneShot, Policy::Fixed(1), Policy::Refine];

/// A pack with predictors, made once.
fn predicted() -> &'static (PathBuf, Arc<Predictors>) {
    static MADE: OnceLock<(tempfile::TempDir, (PathBuf, Arc<Predictors>))> = OnceLock::new();
    let (_, made) = MADE.get_or_init(|| {
        let (dir, path) = tiny_pack();
        let (_, predictors) = trained(&in_memory(&path), dir.path());
        (dir, (path, Arc::new(predictors)))
    });
    made
}

fn plan(engine: &Engine, keep: f64) -> Vec<KeepPlan> {
    predicted().1.plan(keep, engine.row_share())
}

/// An engine that streams with a cache of such a part of all chunks.
fn engine(part: f64, fault: Option<FaultPlan>) -> Engine {
    let path = &predicted().0;
    let limit = Some((chunk_bytes(path) as f64 * part) as u64);
    let stream = StreamOptions { cache_limit: limit, fault, ..StreamOptions::default() };
    faulty(path, 2, stream).0
}

fn refined(engine: &Engine, keep: f64, options: &RefineOptions) -> (State, Arc<Refiner>) {
    let (predictors, plan) = (predicted().1.clone(), plan(engine, keep));
    let refiner = Refiner::new(engine, predictors, plan, options).unwrap();
    let mut state = engine.new_state().unwrap();
    engine.set_refiner(&mut state, Some((refiner.clone(), Prompts::Dense))).unwrap();
    (state, refiner)
}

/// The same neurons, chosen and computed in memory.
fn chosen(memory: &Engine, keep: f64) -> State {
    let mut state = memory.new_state().unwrap();
    let by = Predicted::new(predicted().1.clone(), plan(memory, keep));
    memory.set_choice(&mut state, Some(Choice::new(Arc::new(by)))).unwrap();
    state
}

/// How far apart logits are, as a share of their size.
fn off(got: &[f32], want: &[f32]) -> f64 {
    let norm =
        |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

/// Sums in another order round some activations otherwise, and then near ties are chosen otherwise.
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    let off = off(got, want);
    assert!(off <= 0.3, "{what}: off by {off}");
}

#[test]
fn what_reaches_every_chunk_is_what_is_chosen_in_memory() {
    let memory = in_memory(&predicted().0);
    for (policy, retain) in POLICIES.into_iter().zip(Retain::ALL) {
        for (part, keep, count) in [
            (0.0, 0.5, Count::Fixed),
            (0.3, 0.4, Count::ByWorth),
            (2.0, 0.6, Count::ByWorth),
            (0.3, 1.0, Count::Fixed),
        ] {
            let engine = engine(part, None);
            // What costs nothing to read is read.
            let (reach, price) = (ALL, Some(0.0));
            let options = RefineOptions {
                policy,
                retain: Some(retain),
                count,
                reach,
                price,
                ..Default::default()
            };
            let (mut state, refiner) = refined(&engine, keep, &options);
            let (mut want, mut dense) = (chosen(&memory, keep), memory.new_state().unwrap());
            memory.prefill(&mut dense, &prompt(20)).unwrap();
            let (mut error, mut loss) = (0.0, 0.0);
            let what = format!("{policy}, {retain:?}, cache {part}, keep {keep}");
            assert_close(
                engine.prefill(&mut state, &prompt(20)).unwrap(),
                memory.prefill(&mut want, &prompt(20)).unwrap(),
                &what,
            );
            for token in prompt(12) {
                let got = engine.decode(&mut state, token).unwrap();
                let want = memory.decode(&mut want, token).unwrap();
                assert_close(got, want, &what);
                error += off(got, want);
                loss += off(want, memory.decode(&mut dense, token).unwrap());
            }
            // Rounding is little beside what choosing less costs.
            let limit = if keep < 1.0 { 0.4 * loss } else { 0.1 };
            assert!(error < limit, "{what}: {error} beside {loss}");
            let (got, want) = (state.sparse_counts().unwrap(), want.sparse_counts().unwrap());
            assert_eq!((got.neurons, got.neurons_all), (want.neurons, want.neurons_all), "{what}");
            assert_eq!(refiner.stats().tokens, 12);
        }
    }
}

#[test]
fn less_is_read_and_the_budget_kept() {
    for (count, price) in [(Count::Fixed, 0.0), (Count::Fixed, 1.0), (Count::ByWorth, 1.0)] {
        let engine = engine(0.4, None);
        let options = RefineOptions { count, reach: 1.0, price: Some(price), ..Default::default() };
        let (mut state, refiner) = refined(&engine, 0.3, &options);
        for token in prompt(40) {
            engine.decode(&mut state, token).unwrap();
        }
        let (stats, io) = (refiner.stats(), engine.stream_stats().unwrap());
        let all = 40 * chunk_bytes(&predicted().0);
        // Gaps between chunks are read through, since on this disk that is cheaper.
        assert!(stats.read_bytes - stats.gap_bytes < all / 3, "{stats:?}");
        assert!(stats.ranks > 0 && stats.stages > 0, "{stats:?}");
        assert!(stats.refinements > 0, "{stats:?}");
        assert!(io.cache.resident + io.cache.filling <= io.cache.budget_frames, "{io:?}");
        let counts = state.sparse_counts().unwrap();
        assert!(
            counts.computed_fraction() > 0.2 && counts.computed_fraction() < 0.34,
            "{counts:?}"
        );
        assert_eq!(io.counts.passes, 40);
    }
}

#[test]
fn what_is_recorded_is_what_neurons_scored_and_were_worth() {
    let engine = engine(2.0, None);
    let options = RefineOptions { policy: Policy::Fixed(2), ..Default::default() };
    let (mut state, refiner) = refined(&engine, 0.5, &options);
    assert!(refiner.recorded().is_none());
    // What is not in memory yet is worth what it scores.
    for token in prompt(12) {
        engine.decode(&mut state, token).unwrap();
    }
    refiner.record();
    let before = refiner.times();
    state.truncate(0);
    for token in prompt(5) {
        engine.decode(&mut state, token).unwrap();
    }
    let trace = Trace::from_bytes(&refiner.recorded().unwrap()).unwrap();
    let (shape, n_layers) = (trace.shape(), engine.config().n_layers);
    assert_eq!((shape.n_tokens, shape.n_chunks.len()), (5, n_layers));
    let n = engine.config().d_ff;
    for layer in 0..n_layers as u32 {
        assert!(shape.n_keep[layer as usize] > 0 && shape.n_chunks[layer as usize] == n as u32);
        let rows: Vec<_> = trace.layer(4, layer).unwrap().chunks(n).collect();
        assert_eq!(rows.len(), 1 + shape.levels.len());
        let own = rows[rows.len() - 1];
        let sum = |row: &[u8]| row.iter().map(|byte| Trace::decode(*byte)).sum::<f32>();
        assert!(rows[0] != own && sum(rows[0]) > 0.0 && sum(own) > 0.0);
    }
    let times = refiner.times().since(&before);
    assert_eq!((times.pass.n, times.between.n), (5, 5 * (n_layers as u64 - 1)));
    assert!(times.n_stages() > 0 && times.rank.ns + times.choose.ns < times.pass.ns, "{times:?}");
}

#[test]
fn exact_tokens_and_chosen_ones_take_turns() {
    let memory = in_memory(&predicted().0);
    let engine = engine(0.3, None);
    let options = RefineOptions { count: Count::Fixed, reach: ALL, ..Default::default() };
    let (mut state, _) = refined(&engine, 0.5, &options);
    let (mut other, _) = refined(&engine, 0.5, &options);
    let mut exact = engine.new_state().unwrap();
    let (mut want, mut want_exact) = (chosen(&memory, 0.5), memory.new_state().unwrap());
    for (i, token) in prompt(24).into_iter().enumerate() {
        let expected = memory.decode(&mut want, token).unwrap();
        assert_close(engine.decode(&mut state, token).unwrap(), expected, "chosen");
        if i % 3 == 0 {
            let mut want = chosen(&memory, 0.5);
            let expected = memory.decode(&mut want, token).unwrap();
            assert_close(engine.decode(&mut other, token).unwrap(), expected, "another refiner");
            other.truncate(0);
        }
        if i % 4 == 0 {
            let expected = memory.decode(&mut want_exact, token).unwrap();
            assert!(engine.decode(&mut exact, token).unwrap() == expected, "exact");
        }
    }
}

#[test]
fn a_budget_that_changes_between_tokens_is_kept() {
    let memory = in_memory(&predicted().0);
    let engine = engine(0.6, None);
    let options = RefineOptions { count: Count::Fixed, reach: ALL, ..Default::default() };
    let (mut state, _) = refined(&engine, 0.5, &options);
    let mut want = chosen(&memory, 0.5);
    let before = engine.plan().unwrap();
    let fixed = before.planned_bytes() - before.cache_bytes;
    for (i, token) in prompt(16).into_iter().enumerate() {
        let bytes = if i % 4 < 2 { before.cache_bytes } else { before.cache_bytes / 2 };
        let plan = engine.set_budget(fixed + bytes).unwrap();
        let expected = memory.decode(&mut want, token).unwrap();
        assert_close(engine.decode(&mut state, token).unwrap(), expected, "after a change");
        let cache = engine.stream_stats().unwrap().cache;
        assert!(cache.bytes <= plan.cache_bytes, "{cache:?}");
    }
}

#[test]
fn under_faults_a_token_is_right_or_an_error() {
    let memory = in_memory(&predicted().0);
    let (mut errors, mut steps) = (0, 0);
    for seed in 0..12 {
        let odd = |n: u64| seed % n == n - 1;
        let fault = FaultPlan {
            seed,
            short: 0.02,
            // A read of one chunk fails so: few reads are for one only.
            eio: 0.04,
            eintr: 0.02,
            eagain: 0.01,
            delay: 0.05,
            max_delay: Duration::from_micros(300),
            refuse_direct_read: odd(3),
            refuse_uring: odd(4).then_some(std::io::ErrorKind::PermissionDenied),
            ..FaultPlan::default()
        };
        let engine = engine(0.3, Some(fault));
        let policy = POLICIES[seed as usize % 4];
        let options =
            RefineOptions { policy, count: Count::Fixed, reach: ALL, ..Default::default() };
        let (mut state, _) = refined(&engine, 0.5, &options);
        let mut want = chosen(&memory, 0.5);
        for step in 0..60u32 {
            let token = 300 + (step * 37 + seed as u32) % 600;
            let before = state.position();
            loop {
                match engine.decode(&mut state, token) {
                    Ok(got) => {
                        let expected = memory.decode(&mut want, token).unwrap();
                        assert_close(got, expected, &format!("seed {seed}, step {step}"));
                        break;
                    }
                    Err(EngineError::ChunkRead { .. }) => {
                        errors += 1;
                        assert_eq!(state.position(), before);
                    }
                    Err(other) => panic!("seed {seed}, step {step}: {other}"),
                }
            }
            steps += 1;
        }
    }
    assert_eq!(steps, 720);
    assert!(errors > 0, "no fault was met");
}

#[test]
fn a_chunk_that_cannot_be_read_is_named() {
    let path = &predicted().0;
    let model = ls_model::ModelFile::open(path).unwrap();
    let at = model.pack().unwrap().layers()[2].chunk_offset(7);
    let fault = FaultPlan { bad: Some(at..at + 1), ..FaultPlan::default() };
    let engine = engine(0.2, Some(fault));
    let options = RefineOptions { count: Count::Fixed, reach: ALL, ..Default::default() };
    let (mut state, _) = refined(&engine, 0.5, &options);
    for _ in 0..3 {
        match engine.decode(&mut state, 400) {
            Err(EngineError::ChunkRead { layer, chunk, .. }) => assert_eq!((layer, chunk), (2, 7)),
            other => panic!("{other:?}"),
        }
    }
    // It may be left out, if that is allowed.
    let options = RefineOptions { lost_share: 0.5, ..options };
    let (mut state, refiner) = refined(&engine, 0.5, &options);
    engine.decode(&mut state, 400).unwrap();
    assert_eq!(refiner.stats().lost_chunks, 1);
}

#[test]
fn a_damaged_chunk_is_named() {
    let path = &predicted().0;
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged.lspack");
    let model = ls_model::ModelFile::open(path).unwrap();
    let at = model.pack().unwrap().layers()[3].chunk_offset(9) as usize + 100;
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&damaged, bytes).unwrap();
    let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
    let engine = streamed(&damaged, 2, stream).unwrap();
    let options = RefineOptions { count: Count::Fixed, reach: ALL, ..Default::default() };
    let (mut state, _) = refined(&engine, 0.5, &options);
    for _ in 0..3 {
        match engine.decode(&mut state, 400) {
            Err(EngineError::ChunkDamage(damage)) => {
                assert_eq!((damage.layer, damage.chunk), (3, 9));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_prompt_can_be_sparse_too() {
    let memory = in_memory(&predicted().0);
    let engine = engine(0.3, None);
    let options = RefineOptions { count: Count::Fixed, reach: ALL, ..Default::default() };
    let (mut state, refiner) = refined(&engine, 0.5, &options);
    engine.set_refiner(&mut state, Some((refiner, Prompts::Sparse))).unwrap();
    let mut want = chosen(&memory, 0.5);
    for token in prompt(7) {
        memory.decode(&mut want, token).unwrap();
    }
    let got = engine.prefill(&mut state, &prompt(8)).unwrap();
    let last = *prompt(8).last().unwrap();
    assert_close(got, memory.decode(&mut want, last).unwrap(), "prompt");
}

#[test]
fn only_what_streams_can_be_refined() {
    let memory = in_memory(&predicted().0);
    let plan = plan(&memory, 0.5);
    let options = RefineOptions::default();
    let error = Refiner::new(&memory, predicted().1.clone(), plan.clone(), &options).unwrap_err();
    assert!(matches!(error, EngineError::NoBudget), "{error}");
    let engine = engine(0.3, None);
    let few = plan[1..].to_vec();
    Refiner::new(&engine, predicted().1.clone(), few, &options).unwrap_err();
    let odd = RefineOptions { stages: 0, ..options };
    let error = Refiner::new(&engine, predicted().1.clone(), plan, &odd).unwrap_err();
    assert!(matches!(error, EngineError::Schedule(_)), "{error}");
}
