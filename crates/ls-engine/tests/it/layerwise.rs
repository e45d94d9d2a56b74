//! A text one layer at a time is the text all layers at a time.

use std::path::Path;
use std::sync::Arc;

use ls_cpu::{Cpu, Masks};
use ls_engine::sparse::{ChoiceError, Choose, Choosing, MlpInput, MlpShape};
use ls_engine::{Choice, Engine, EngineError, Layerwise, Part, Position, StreamOptions};
use ls_model::ModelFile;
use proptest::prelude::*;

use crate::streaming::{chunk_bytes, in_memory, packed, streamed, tiny_pack};
use crate::{fixtures, load};

fn windows(lengths: &[usize], vocab_size: usize) -> Vec<Vec<u32>> {
    let token = |i: usize| (i * 37 % vocab_size) as u32;
    let mut at = 3;
    let window = |n: &usize| {
        at += n;
        (at..at + n).map(token).collect()
    };
    lengths.iter().map(window).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The logits after every token of every window, from an empty state each.
fn reference(engine: &Engine, windows: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut state = engine.new_state().unwrap();
    let mut all = Vec::new();
    for window in windows {
        state.truncate(0);
        engine.prefill_each(&mut state, window, 0, &mut |_, l| all.push(bits(l))).unwrap();
    }
    all
}

fn logits(pass: &mut Layerwise<'_>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for window in 0..pass.windows().len() {
        pass.logits(window, 0, &mut |_, l| all.push(bits(l))).unwrap();
    }
    all
}

fn run(engine: &Engine, windows: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut pass = Layerwise::new(engine, windows).unwrap();
    let mut layers = 0;
    while let Some(layer) = pass.attend().unwrap() {
        assert_eq!(layer, layers);
        pass.mlp().unwrap();
        layers += 1;
    }
    assert_eq!(layers, engine.config().n_layers);
    logits(&mut pass)
}

#[test]
fn every_architecture_gives_the_bits_of_a_prefill() {
    for name in ["llama.gguf", "qwen2.gguf", "qwen3.gguf", "gemma3.gguf", "q4_k.gguf"] {
        let dir = tempfile::tempdir().unwrap();
        let source = fixtures().join("models").join(name);
        let path = packed(&source, dir.path());
        for engine in [load(&source, 2), in_memory(&path)] {
            let limit = engine.context().min(200);
            let windows = windows(&[limit, 8, limit - 1], engine.config().vocab_size);
            let want = reference(&engine, &windows);
            assert!(run(&engine, &windows) == want, "{name}");
        }
    }
}

#[test]
fn windows_that_are_shorter_than_a_batch_round_otherwise() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let windows = windows(&[1, 3, 1], engine.config().vocab_size);
    let (want, got) = (reference(&engine, &windows), run(&engine, &windows));
    for (want, got) in want.iter().flatten().zip(got.iter().flatten()) {
        let (want, got) = (f32::from_bits(*want), f32::from_bits(*got));
        assert!((want - got).abs() < 0.1, "{got} for {want}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn neither_budget_nor_a_stop_changes_a_bit(
        lengths in prop::collection::vec(8..70usize, 1..12),
        share in 0.0..1.1f64,
        small_batch in any::<bool>(),
        stop_at in 0..60usize,
    ) {
        let (_dir, path) = tiny_pack();
        let engine = in_memory(&path);
        let windows = windows(&lengths, engine.config().vocab_size);
        let want = reference(&engine, &windows);
        prop_assert!(run(&engine, &windows) == want);
        let limit = (chunk_bytes(&path) as f64 * share) as u64;
        let stream = StreamOptions {
            cache_limit: Some(limit),
            prompt_batch: small_batch.then_some(32),
            ..StreamOptions::default()
        };
        let streamed = streamed(&path, 2, stream).unwrap();
        // Stopped somewhere with one engine, resumed with the other.
        let mut pass = Layerwise::new(&engine, &windows).unwrap();
        for _ in 0..stop_at {
            pass.step().unwrap();
        }
        let (position, residual) = (pass.position(), pass.residual().to_vec());
        let mut pass = Layerwise::resume(&streamed, &windows, position, residual).unwrap();
        while pass.position().layer < engine.config().n_layers {
            pass.step().unwrap();
        }
        prop_assert!(logits(&mut pass) == want);
        // A token of an ordinary pass in between disturbs nothing.
        let mut pass = Layerwise::new(&streamed, &windows).unwrap();
        let mut state = streamed.new_state().unwrap();
        while pass.attend().unwrap().is_some() {
            streamed.prefill(&mut state, &windows[0][..1]).unwrap();
            pass.mlp().unwrap();
        }
        prop_assert!(logits(&mut pass) == want);
    }
}

#[test]
fn each_layer_is_read_once_for_all_tokens() {
    let (_dir, path) = tiny_pack();
    let stream = StreamOptions { cache_limit: Some(0), ..StreamOptions::default() };
    let engine = streamed(&path, 2, stream).unwrap();
    let windows = windows(&[200; 9], engine.config().vocab_size);
    let before = engine.stream_stats().unwrap().bytes_read();
    run(&engine, &windows);
    let read = engine.stream_stats().unwrap().bytes_read() - before;
    assert_eq!(read, chunk_bytes(&path));
}

#[test]
fn what_was_not_saved_so_is_refused() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let windows = windows(&[10, 12], engine.config().vocab_size);
    let (d, n_layers) = (engine.config().d_model, engine.config().n_layers);
    let at = |layer, part, done| Position { layer, part, done };
    let resume = |position, len| {
        let result = Layerwise::resume(&engine, &windows, position, vec![0.0; len]);
        result.map(drop)
    };
    for position in [
        at(0, Part::Attention, 9),
        at(0, Part::Attention, 22),
        at(1, Part::Mlp, 22),
        at(n_layers, Part::Mlp, 0),
        at(n_layers, Part::Attention, 10),
        at(n_layers + 1, Part::Attention, 0),
        at(usize::MAX, Part::Mlp, usize::MAX),
    ] {
        let error = resume(position, 22 * d).unwrap_err();
        assert!(matches!(error, EngineError::Resume { .. }), "{position:?}: {error}");
    }
    let error = resume(Position::START, 22 * d - 1).unwrap_err();
    assert!(matches!(error, EngineError::Resume { .. }), "{error}");
    resume(at(0, Part::Attention, 10), 22 * d).unwrap();
    resume(at(n_layers, Part::Attention, 0), 22 * d).unwrap();
    let new = |windows: &[Vec<u32>]| Layerwise::new(&engine, windows).map(drop);
    assert!(matches!(new(&[]), Err(EngineError::NoTokens)));
    assert!(matches!(new(&[vec![1], vec![]]), Err(EngineError::NoTokens)));
    assert!(matches!(new(&[vec![u32::MAX]]), Err(EngineError::UnknownToken { .. })));
    assert!(matches!(new(&[vec![1; 257]]), Err(EngineError::ContextFull { limit: 256 })));
}

/// What the pack's source says of a matrix, as floats.
fn matrix(model: &ModelFile, name: &str) -> Vec<f32> {
    let tensor = model.tensor(name).unwrap().unwrap();
    tensor.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn neurons_are_those_of_the_source() {
    let source = fixtures().join("models/f32.gguf");
    let dir = tempfile::tempdir().unwrap();
    let path = packed(&source, dir.path());
    let model = ModelFile::open(&source).unwrap();
    let (d, d_ff) = (model.config().d_model, model.config().d_ff);
    for engine in [in_memory(&path), streamed(&path, 1, StreamOptions::default()).unwrap()] {
        for layer in 0..model.config().n_layers {
            let part = |part: &str| matrix(&model, &format!("blk.{layer}.ffn_{part}.weight"));
            let (gate, up, down) = (part("gate"), part("up"), part("down"));
            let mut next = 0;
            engine
                .mlp_weights(layer, &mut |rows| {
                    assert_eq!(rows.first, next);
                    next += rows.n;
                    let range = rows.first * d..next * d;
                    assert_eq!(rows.gate, &gate[range.clone()]);
                    assert_eq!(rows.up, &up[range]);
                    for (j, column) in rows.down.chunks_exact(d).enumerate() {
                        let want = down.iter().skip(rows.first + j).step_by(d_ff);
                        assert!(column.iter().eq(want));
                    }
                })
                .unwrap();
            assert_eq!(next, d_ff);
            let n = 20;
            let x: Vec<f32> = (0..n * d).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut values = vec![0.0; n * d_ff];
            engine.mlp_activations(layer, &x, &mut values).unwrap();
            for (i, value) in values.iter().enumerate() {
                let (x, j) = (&x[i / d_ff * d..][..d], i % d_ff);
                let dot = |w: &[f32]| -> f64 {
                    w[j * d..][..d].iter().zip(x).map(|(w, x)| f64::from(w * x)).sum()
                };
                let (g, u) = (dot(&gate), dot(&up));
                let want = g / (1.0 + (-g).exp()) * u;
                assert!((f64::from(*value) - want).abs() < 1e-4, "{value} for {want}");
            }
        }
    }
    let error = load(Path::new(&source), 1).mlp_weights(0, &mut |_| {}).unwrap_err();
    assert!(matches!(error, EngineError::NoChunks { .. }), "{error}");
}

/// The MLP by the values and columns that are handed out is the MLP.
#[test]
fn values_and_columns_add_up_to_the_output() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let windows = windows(&[40, 30], engine.config().vocab_size);
    let (d, d_ff) = (engine.config().d_model, engine.config().d_ff);
    let mut pass = Layerwise::new(&engine, &windows).unwrap();
    while let Some(layer) = pass.attend().unwrap() {
        let before = pass.residual().to_vec();
        let mut x = vec![0.0; 70 * d];
        pass.normed(0..70, &mut x);
        let mut values = vec![0.0; 70 * d_ff];
        engine.mlp_activations(layer, &x, &mut values).unwrap();
        let mut want: Vec<f64> = before.iter().map(|x| f64::from(*x)).collect();
        engine
            .mlp_weights(layer, &mut |rows| {
                for (j, column) in rows.down.chunks_exact(d).enumerate() {
                    for (t, want) in want.chunks_exact_mut(d).enumerate() {
                        let value = f64::from(values[t * d_ff + rows.first + j]);
                        want.iter_mut().zip(column).for_each(|(w, c)| *w += value * f64::from(*c));
                    }
                }
            })
            .unwrap();
        pass.mlp().unwrap();
        for (got, want) in pass.residual().iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-3 * (1.0 + want.abs()), "{got} for {want}");
        }
    }
}

/// Marks neurons by what enters them and the layer, and adds a constant for the others.
#[derive(Debug)]
struct ByInput;

impl Choosing for ByInput {
    fn choose(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        for (t, x) in at.x.chunks_exact(at.x.len() / at.n).enumerate() {
            for j in 0..masks.n_neurons() {
                if x[(j + at.layer) % x.len()] > 0.1 {
                    masks.set(t, j);
                }
            }
        }
    }

    fn compensate(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &Masks, out: &mut [f32]) {
        for (t, out) in out.chunks_exact_mut(out.len() / at.n).enumerate() {
            let chosen = masks.row(t).count(0..masks.n_neurons());
            out.iter_mut().for_each(|x| *x += 0.001 * chosen as f32);
        }
    }
}

impl Choose for ByInput {
    fn begin(&self, _: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        Ok(Box::new(Self))
    }
}

#[test]
fn chosen_neurons_give_the_bits_of_a_sparse_prompt() {
    let (_dir, path) = tiny_pack();
    let windows = windows(&[70, 8, 33], 700);
    let engine = in_memory(&path);
    let mut state = engine.new_state().unwrap();
    let choice = Choice::for_every_token(Arc::new(ByInput));
    engine.set_choice(&mut state, Some(choice)).unwrap();
    let mut want = Vec::new();
    for window in &windows {
        state.truncate(0);
        engine.prefill_each(&mut state, window, 0, &mut |_, l| want.push(bits(l))).unwrap();
    }
    assert!(want != reference(&engine, &windows));
    let stream = StreamOptions { prompt_batch: Some(32), ..StreamOptions::default() };
    for engine in [engine, streamed(&path, 2, stream).unwrap()] {
        let mut pass = Layerwise::new(&engine, &windows).unwrap();
        while pass.attend().unwrap().is_some() {
            pass.mlp_chosen(&mut ByInput).unwrap();
        }
        assert!(logits(&mut pass) == want);
    }
    let rows = load(&fixtures().join("tiny-book.gguf"), 1);
    let mut pass = Layerwise::new(&rows, &windows).unwrap();
    pass.attend().unwrap();
    let error = pass.mlp_chosen(&mut ByInput).unwrap_err();
    assert!(matches!(error, EngineError::NoChunks { .. }), "{error}");
}
