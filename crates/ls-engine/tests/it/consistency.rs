//! What must not change the answer.

use ls_cpu::Isa;
use ls_engine::{Engine, EngineError, LoadOptions, argmax};

use crate::fixtures;

fn tiny(threads: usize, isa: Option<Isa>) -> Engine {
    let options = LoadOptions { threads, context: 300, isa, ..LoadOptions::default() };
    Engine::load(&fixtures().join("tiny-book.gguf"), &options).unwrap()
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| 300 + i * 37 % 600).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn threads_do_not_change_a_bit() {
    let answer = |threads| {
        let engine = tiny(threads, None);
        let mut state = engine.new_state().unwrap();
        let mut all = engine.prefill(&mut state, &tokens(40)).unwrap().to_vec();
        all.extend(engine.decode(&mut state, 500).unwrap());
        all
    };
    let one = answer(1);
    assert_eq!(answer(2), one);
    assert_eq!(answer(3), one);
}

#[test]
fn every_instruction_set_gives_nearly_the_same_logits() {
    let answer = |isa| {
        let engine = tiny(1, Some(isa));
        let mut state = engine.new_state().unwrap();
        let mut all = engine.prefill(&mut state, &tokens(20)).unwrap().to_vec();
        all.extend(engine.decode(&mut state, 500).unwrap());
        all
    };
    let scalar = answer(Isa::SCALAR);
    for isa in Isa::available() {
        // A rounding difference can move an activation to its neighbouring 8-bit value.
        assert!(largest_difference(&answer(isa), &scalar) < 0.1, "{isa}");
    }
}

#[test]
fn a_prompt_in_any_pieces_gives_nearly_the_same_logits() {
    let engine = tiny(2, None);
    let prompt = tokens(290);
    let answer = |pieces: &[usize]| {
        let mut state = engine.new_state().unwrap();
        let (mut at, mut last) = (0, Vec::new());
        for piece in pieces {
            last = engine.prefill(&mut state, &prompt[at..at + piece]).unwrap().to_vec();
            at += piece;
        }
        assert_eq!((at, state.position()), (prompt.len(), prompt.len()));
        last
    };
    let whole = answer(&[290]);
    for pieces in [&[1, 289][..], &[7, 256, 27], &[100, 100, 90], &[256, 34]] {
        assert!(largest_difference(&answer(pieces), &whole) < 0.1, "{pieces:?}");
    }
}

#[test]
fn a_truncated_state_continues_as_a_fresh_one() {
    let engine = tiny(1, None);
    let (mut a, mut b) = (engine.new_state().unwrap(), engine.new_state().unwrap());
    engine.prefill(&mut a, &tokens(30)).unwrap();
    a.truncate(10);
    engine.prefill(&mut b, &tokens(10)).unwrap();
    let after_a = engine.decode(&mut a, 400).unwrap().to_vec();
    assert!(largest_difference(&after_a, engine.decode(&mut b, 400).unwrap()) < 0.1);
}

#[test]
fn refused_tokens_leave_the_state_as_it_was() {
    let engine = tiny(1, None);
    let mut state = engine.new_state().unwrap();
    engine.prefill(&mut state, &tokens(5)).unwrap();
    let vocab_size = engine.config().vocab_size as u32;
    let unknown = engine.prefill(&mut state, &[3, vocab_size]).map(drop);
    assert!(matches!(unknown, Err(EngineError::UnknownToken { .. })), "{unknown:?}");
    let full = engine.prefill(&mut state, &tokens(296)).map(drop);
    assert!(matches!(full, Err(EngineError::ContextFull { limit: 300 })), "{full:?}");
    let empty = engine.prefill(&mut state, &[]).map(drop);
    assert!(matches!(empty, Err(EngineError::NoTokens)), "{empty:?}");
    assert_eq!(state.position(), 5);
    engine.prefill(&mut state, &tokens(295)).unwrap();
    assert!(engine.decode(&mut state, 3).is_err());
}

#[test]
fn the_trained_fixture_writes_english() {
    let engine = tiny(2, None);
    let options = ls_model::tokenizer::EncodeOptions::PROMPT;
    let prompt = engine.tokenizer().encode("The Rust compiler", options).unwrap();
    let mut state = engine.new_state().unwrap();
    let mut token = argmax(engine.prefill(&mut state, &prompt).unwrap()).unwrap();
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(token);
        token = argmax(engine.decode(&mut state, token).unwrap()).unwrap();
    }
    let text = engine.tokenizer().decode(&ids).unwrap();
    let common = ["the", "to", "a", "of", "is", "that", "we", "you", "in", "and", "will", "code"];
    let hits = text.split_whitespace().filter(|w| common.contains(w)).count();
    assert!(hits >= 5, "few common words in: {text}");
}
