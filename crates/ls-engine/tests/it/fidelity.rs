//! Sparse beside dense: the bounds that any choice lies between.

use std::ops::ControlFlow;
use std::sync::Arc;

use ls_engine::sparse::Choose;
use ls_engine::{
    Choice, Engine, EngineError, Fidelity, Grain, Keep, Oracle, PerplexityError, PerplexityOptions,
    Random, StreamOptions, completions, fidelity, perplexity,
};
use ls_model::tokenizer::EncodeOptions;

use crate::streaming::{in_memory, streamed, tiny_pack};

const TEXT: &str = "The borrow checker makes sure that references are valid. A reference is like a \
    pointer in that it is an address we can follow to access the data stored at that address. \
    Ownership is a set of rules that govern how a program manages memory. ";

const OPTIONS: PerplexityOptions = PerplexityOptions { n_ctx: 96, max_chunks: Some(3), bos: None };

fn text(engine: &Engine) -> Vec<u32> {
    engine.tokenizer().encode(&TEXT.repeat(8), EncodeOptions::PROMPT).unwrap()
}

fn oracle(keep: f64, grain: Grain) -> Choice {
    every_token(Oracle::new(Keep::uniform(keep), grain))
}

fn every_token(chooser: impl Choose + 'static) -> Choice {
    Choice::for_every_token(Arc::new(chooser))
}

fn measure(engine: &Engine, choices: &[Choice]) -> Result<Fidelity, PerplexityError> {
    let mut state = engine.new_state().unwrap();
    let (tokens, mut windows) = (text(engine), 0);
    fidelity(engine, &mut state, choices, &tokens, &OPTIONS, &mut |so_far| {
        windows += 1;
        assert_eq!((so_far.dense.chunks, so_far.ways.len()), (windows, choices.len()));
        ControlFlow::Continue(())
    })
}

#[test]
fn dense_is_what_perplexity_says_and_everything_kept_is_dense() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let got = measure(&engine, &[oracle(1.0, Grain::Neuron)]).unwrap();
    let mut state = engine.new_state().unwrap();
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let want = perplexity(&engine, &mut state, &text(&engine), &OPTIONS, go_on).unwrap();
    assert_eq!(got.dense, want);
    let way = &got.ways[0];
    assert_eq!((way.estimate, way.rise, way.rise_stderr), (want, 0.0, 0.0));
    assert_eq!((way.top1_agreement, way.counts.computed_fraction()), (1.0, 1.0));
    assert!(way.kl < 1e-9 && way.kl_99 < 1e-9, "{way:?}");
}

#[test]
fn the_oracle_keeps_more_than_chance_and_the_more_the_better() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let random = every_token(Random::new(Keep::uniform(0.5), Grain::Neuron, 1));
    let neurons = |keep| oracle(keep, Grain::Neuron);
    let choices = [neurons(0.75), neurons(0.5), oracle(0.5, Grain::Chunk), random];
    let got = measure(&engine, &choices).unwrap();
    for pair in got.ways.windows(2) {
        assert!(pair[0].kl < pair[1].kl && pair[0].kl_99 < pair[1].kl_99, "{pair:?}");
        assert!(pair[0].top1_agreement >= pair[1].top1_agreement, "{pair:?}");
    }
    let (half, random) = (&got.ways[1], &got.ways[3]);
    assert!(half.estimate.ppl < random.estimate.ppl, "{got:?}");
    let ratio = half.estimate.ppl / got.dense.ppl - 1.0;
    assert!((half.rise - ratio).abs() < 1e-9, "{half:?} for {ratio}");
    assert!(half.rise_stderr < half.estimate.stderr / half.estimate.ppl, "{half:?}");
    for (way, keep) in got.ways.iter().zip([0.75, 0.5, 0.5, 0.5]) {
        assert!((way.counts.computed_fraction() - keep).abs() < 0.01, "{way:?}");
    }
}

#[test]
fn a_choice_is_measured_within_a_budget_but_for_the_oracle() {
    let (_dir, path) = tiny_pack();
    let random = [every_token(Random::new(Keep::uniform(0.5), Grain::Neuron, 1))];
    let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
    let streamed = streamed(&path, 2, stream).unwrap();
    let (got, want) =
        (measure(&streamed, &random).unwrap(), measure(&in_memory(&path), &random).unwrap());
    assert_eq!((got.dense, &got.ways[0]), (want.dense, &want.ways[0]));
    let error = measure(&streamed, &[oracle(0.5, Grain::Neuron)]).unwrap_err();
    let needs =
        |e: &_| matches!(e, PerplexityError::Engine(EngineError::ImportanceNeedsMemory { .. }));
    assert!(needs(&error), "{error}");
}

#[test]
fn texts_and_windows_that_cannot_be_measured_are_refused() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let mut state = engine.new_state().unwrap();
    let mut go_on = |_: &_| ControlFlow::Continue(());
    let mut run = |tokens: &[u32], n_ctx| {
        let options = PerplexityOptions { n_ctx, ..OPTIONS };
        fidelity(&engine, &mut state, &[], tokens, &options, &mut go_on).unwrap_err()
    };
    assert!(matches!(run(&[300; 100], 64), PerplexityError::TextTooShort { .. }));
    assert!(matches!(run(&[300; 1000], 257), PerplexityError::Window { .. }));
    assert!(matches!(run(&[300; 1000], 3), PerplexityError::Window { .. }));
}

#[test]
fn answers_agree_where_computing_does() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let mut state = engine.new_state().unwrap();
    let encode = |text: &&str| engine.tokenizer().encode(text, EncodeOptions::PROMPT).unwrap();
    let prompts: Vec<Vec<u32>> =
        ["The borrow checker", "Ownership is", "A reference is like", "fn main() {"]
            .iter()
            .map(encode)
            .collect();
    let random = every_token(Random::new(Keep::uniform(0.2), Grain::Neuron, 1));
    let choices = [oracle(1.0, Grain::Neuron), oracle(0.5, Grain::Neuron), random];
    let mut seen = 0;
    let mut count = |so_far: &[ls_engine::Agreement]| {
        seen += 1;
        assert!(so_far.iter().all(|agreement| agreement.prompts == seen));
        ControlFlow::Continue(())
    };
    let got = completions(&engine, &mut state, &choices, &prompts, 12, &mut count).unwrap();
    assert_eq!((got[0].prompts, got[0].exact, got[0].prefix), (4, 4, 1.0));
    assert!(got[1].prefix >= got[2].prefix && got[2].exact < 4, "{got:?}");
    let stop = &mut |_: &_| ControlFlow::Break(());
    let one = completions(&engine, &mut state, &choices, &prompts, 12, stop).unwrap();
    assert_eq!(one[2].prompts, 1);
}
