use proptest::prelude::*;

use super::*;

/// Everything off but the draw itself.
fn plain(temperature: f32, seed: u64) -> SampleParams {
    SampleParams {
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_last_n: 0,
        seed,
    }
}

/// The tokens that `n` draws bring, sorted and without repeats.
fn support(params: SampleParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    let mut seen: Vec<u32> = (0..n).map(|_| sampler.sample(logits).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn greedy_takes_the_lowest_id_of_equal_logits() {
    let mut sampler = Sampler::new(SampleParams::greedy()).unwrap();
    assert_eq!(sampler.sample(&[0.0, 3.0, 3.0, 1.0]).unwrap(), 1);
}

#[test]
fn bad_logits_are_errors_in_every_mode() {
    for params in [SampleParams::greedy(), SampleParams::default()] {
        let mut sampler = Sampler::new(params).unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            let error = sampler.sample(&[0.0, bad]).unwrap_err();
            assert!(matches!(error, SampleError::NotFinite { token: 1, .. }), "{error}");
        }
        assert_eq!(sampler.sample(&[]), Err(SampleError::NoCandidate { n_logits: 0 }));
        let nothing = [f32::NEG_INFINITY; 3];
        assert_eq!(sampler.sample(&nothing), Err(SampleError::NoCandidate { n_logits: 3 }));
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    for (params, name) in [
        (SampleParams { temperature: -1.0, ..Default::default() }, "temperature"),
        (SampleParams { temperature: f32::NAN, ..Default::default() }, "temperature"),
        (SampleParams { top_p: 0.0, ..Default::default() }, "top-p"),
        (SampleParams { min_p: 1.5, ..Default::default() }, "min-p"),
        (SampleParams { repeat_penalty: 0.0, ..Default::default() }, "repeat-penalty"),
    ] {
        let error = Sampler::new(params).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn draws_follow_the_softmax() {
    // Weights 1 : 2 : 5.
    let logits = [0.0, 2f32.ln(), 5f32.ln()];
    let mut sampler = Sampler::new(plain(1.0, 3)).unwrap();
    let mut counts = [0u32; 3];
    for _ in 0..8000 {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    for (count, expected) in counts.iter().zip([1000u32, 2000, 5000]) {
        assert!(count.abs_diff(expected) < 150, "{counts:?}");
    }
}

#[test]
fn temperature_sharpens() {
    let logits = [0.0, 1.0];
    let mut cold = Sampler::new(plain(0.1, 3)).unwrap();
    let n = (0..1000).filter(|_| cold.sample(&logits).unwrap() == 1).count();
    assert!(n > 990, "{n}");
}

#[test]
fn top_k_keeps_the_k_likeliest_and_the_lowest_ids_of_ties() {
    let params = SampleParams { top_k: 2, ..plain(5.0, 1) };
    assert_eq!(support(params, &[1.0, 0.0, 2.0, 1.0, 1.0], 500), [0, 2]);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_the_sum() {
    // Probabilities 0.5, 0.3, 0.2.
    let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
    let with = |top_p| SampleParams { top_p, ..plain(1.0, 1) };
    assert_eq!(support(with(0.45), &logits, 500), [1]);
    assert_eq!(support(with(0.55), &logits, 500), [1, 2]);
    assert_eq!(support(with(0.85), &logits, 500), [0, 1, 2]);
}

#[test]
fn min_p_drops_the_unlikely_and_temperature_comes_after_it() {
    let logits = [0.0, 0.2f32.ln(), 0.05f32.ln()];
    let params = SampleParams { min_p: 0.1, ..plain(100.0, 1) };
    assert_eq!(support(params, &logits, 500), [0, 1]);
}

#[test]
fn penalty_counts_recent_tokens_once_and_forgets_old_ones() {
    let params = SampleParams { repeat_penalty: 2.0, repeat_last_n: 2, ..SampleParams::greedy() };
    let mut sampler = Sampler::new(params).unwrap();
    let logits = [3.0, 2.0, -1.0];
    // Twice in the window, divided once: 1.5 against 2.0; divided twice it would be the same token.
    sampler.accept(0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits).unwrap(), 1);
    // The window holds 0 and 1: 1.5 against 1.0.
    assert_eq!(sampler.sample(&logits).unwrap(), 0);
    // 1 and 0 again, then 0 alone when 1 has left.
    assert_eq!(sampler.sample(&[3.0, 2.5, -1.0]).unwrap(), 0);
    assert_eq!(sampler.sample(&[3.0, 2.5, -1.0]).unwrap(), 1);
}

#[test]
fn penalty_makes_negative_logits_smaller() {
    let params = SampleParams { repeat_penalty: 3.0, ..SampleParams::greedy() };
    let mut sampler = Sampler::new(params).unwrap();
    sampler.accept(0);
    assert_eq!(sampler.sample(&[-1.0, -2.0]).unwrap(), 1);
}

#[test]
fn a_seed_gives_these_tokens() {
    let logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 101) as f32 * 0.05).collect();
    let mut sampler = Sampler::new(SampleParams { seed: 42, ..Default::default() }).unwrap();
    let tokens: Vec<u32> = (0..8).map(|_| sampler.sample(&logits).unwrap()).collect();
    // Recorded once; integer random numbers and libm's exp make it the same everywhere.
    assert_eq!(tokens, [38, 21, 49, 79, 68, 49, 49, 68]);
}

#[test]
fn buffers_stop_growing_after_the_first_token() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5003) as f32 * 1e-3).collect();
    let params = SampleParams { repeat_penalty: 1.1, ..Default::default() };
    let mut sampler = Sampler::new(params).unwrap();
    sampler.accept(1);
    sampler.sample(&logits).unwrap();
    let sizes = |s: &Sampler| (s.candidates.capacity(), s.penalised.capacity());
    let before = sizes(&sampler);
    for _ in 0..100 {
        sampler.sample(&logits).unwrap();
    }
    assert_eq!(sizes(&sampler), before);
}

proptest! {
    #[test]
    fn top_k_agrees_with_a_full_sort(
        logits in prop::collection::vec((-8i32..8).prop_map(|x| x as f32), 1..200),
        k in 1usize..50,
    ) {
        let mut sampler = Sampler::new(SampleParams { top_k: k, ..plain(1.0, 0) }).unwrap();
        sampler.collect(&logits);
        let got: Vec<u32> = sampler.candidates.iter().map(|c| c.token).collect();
        let mut expected: Vec<u32> = (0..logits.len() as u32).collect();
        expected.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        expected.truncate(k);
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn any_finite_logits_give_a_token(
        logits in prop::collection::vec(-1e30f32..1e30, 1..50),
        temperature in 0f32..3.0,
        top_p in 0.01f32..=1.0,
        min_p in 0f32..=1.0,
        seed: u64,
    ) {
        let params = SampleParams { top_p, min_p, ..plain(temperature, seed) };
        let token = Sampler::new(params).unwrap().sample(&logits).unwrap();
        prop_assert!((token as usize) < logits.len());
    }
}
