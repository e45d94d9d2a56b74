//! Sparse computation: the same sums of fewer neurons, whichever way they are computed.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ls_cpu::{Cpu, Masks};
use ls_engine::sparse::{ChoiceError, Choose, Choosing, MlpInput, MlpShape, Needs};
use ls_engine::{
    Choice, Engine, EngineError, Grain, Hot, Keep, LastSet, LoadOptions, Oracle, Random, State,
    StreamOptions,
};

use crate::fixtures;
use crate::streaming::{in_memory, packed, prompt, streamed, tiny_pack};

const DECODED: usize = 8;

fn random(keep: f64) -> Arc<dyn Choose> {
    Arc::new(Random::new(Keep::uniform(keep), Grain::Neuron, 5))
}

fn state(engine: &Engine, choice: Option<Choice>) -> State {
    let mut state = engine.new_state().unwrap();
    engine.set_choice(&mut state, choice).unwrap();
    state
}

/// Logits after a prompt and after each of some tokens that follow.
fn answer(engine: &Engine, state: &mut State) -> Vec<Vec<f32>> {
    let mut all = vec![engine.prefill(state, &prompt(24)).unwrap().to_vec()];
    for token in prompt(DECODED as u32) {
        all.push(engine.decode(state, token).unwrap().to_vec());
    }
    all
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Root of the mean square of the differences, over that of the values.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    let squares = |it: &mut dyn Iterator<Item = f32>| it.map(|x| f64::from(x).powi(2)).sum::<f64>();
    assert_eq!(a.len(), b.len());
    (squares(&mut pairs().map(|(a, b)| a - b)) / squares(&mut pairs().map(|(_, b)| *b))).sqrt()
}

#[test]
fn all_neurons_give_what_exact_mode_gives() {
    let dir = tempfile::tempdir().unwrap();
    let models = std::fs::read_dir(fixtures().join("models")).unwrap();
    let mut models: Vec<_> = models.map(|entry| entry.unwrap().path()).collect();
    models.retain(|path| path.extension().is_some_and(|ext| ext == "gguf"));
    models.sort();
    assert!(models.len() > 3, "{models:?}");
    for model in models {
        let engine = in_memory(&packed(&model, dir.path()));
        let vocab_size = engine.config().vocab_size as u32;
        let run = |choice: Option<Choice>| {
            let mut state = state(&engine, choice);
            let tokens: Vec<u32> = (0..12).map(|i| (7 * i + 3) % vocab_size).collect();
            let mut all = vec![engine.prefill(&mut state, &tokens).unwrap().to_vec()];
            all.push(engine.decode(&mut state, 5).unwrap().to_vec());
            all
        };
        let exact = run(None);
        let all = Keep::uniform(1.0);
        let choosers: [Arc<dyn Choose>; 3] = [
            Arc::new(Hot::first(all.clone(), Grain::Chunk)),
            Arc::new(Oracle::new(all.clone(), Grain::Neuron)),
            Arc::new(Random::new(all, Grain::Chunk, 1)),
        ];
        for chooser in choosers {
            let got = run(Some(Choice::for_every_token(chooser.clone())));
            let distance = distance(&got, &exact);
            assert!(distance < 0.02, "{} {chooser:?}: {distance}", model.display());
        }
    }
}

#[test]
fn one_by_one_or_together_gives_nearly_the_same() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    for grain in [Grain::Neuron, Grain::Chunk] {
        let run = |pieces: &[usize]| {
            let chooser = Arc::new(Random::new(Keep::uniform(0.6), grain, 3));
            let mut state = state(&engine, Some(Choice::for_every_token(chooser)));
            let (tokens, mut at, mut all) = (prompt(24), 0, Vec::new());
            for n in pieces {
                let logits = engine.prefill(&mut state, &tokens[at..at + n]).unwrap();
                all = logits.to_vec();
                at += n;
            }
            (vec![all], state.sparse_counts().unwrap())
        };
        let (together, counts) = run(&[24]);
        assert_eq!((counts.computed_fraction() * 10.0).round(), 6.0, "{counts:?}");
        for pieces in [&[1; 24][..], &[9, 3, 12], &[7, 7, 10]] {
            let (logits, counted) = run(pieces);
            assert!(distance(&logits, &together) < 0.02, "{}", distance(&logits, &together));
            assert_eq!(counted, counts);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let (_dir, path) = tiny_pack();
    let run = |threads| {
        let options = LoadOptions { threads, context: 64, ..LoadOptions::default() };
        let engine = Engine::load(&path, &options).unwrap();
        let choosers: [Arc<dyn Choose>; 3] = [
            random(0.4),
            Arc::new(Oracle::new(Keep::uniform(0.4), Grain::Neuron)),
            Arc::new(LastSet::new(Keep::uniform(0.4), Grain::Chunk)),
        ];
        choosers.map(|chooser| {
            let mut state = state(&engine, Some(Choice::for_every_token(chooser)));
            bits(&answer(&engine, &mut state))
        })
    };
    let one = run(1);
    assert_eq!(run(2), one);
    assert_eq!(run(3), one);
}

#[test]
fn streaming_changes_no_bit() {
    let (_dir, path) = tiny_pack();
    let memory = in_memory(&path);
    let stream = StreamOptions { cache_limit: Some(64 << 10), ..StreamOptions::default() };
    let streamed = streamed(&path, 2, stream).unwrap();
    for choice in [Choice::new(random(0.5)), Choice::for_every_token(random(0.5))] {
        let run = |engine: &Engine| bits(&answer(engine, &mut state(engine, Some(choice.clone()))));
        assert_eq!(run(&streamed), run(&memory));
    }
    assert!(streamed.stream_stats().unwrap().counts.demand_miss_bytes > 0);
}

#[test]
fn exact_mode_keeps_its_bits_beside_a_sparse_state() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let exact = answer(&engine, &mut state(&engine, None));
    let mut sparse = state(&engine, Some(Choice::new(random(0.3))));
    let got = answer(&engine, &mut sparse);
    // Prompts are dense unless asked otherwise; what follows is not.
    assert_eq!(bits(&got[..1]), bits(&exact[..1]));
    assert!(got[1..].iter().zip(&exact[1..]).all(|(a, b)| a != b));
    assert_eq!(bits(&answer(&engine, &mut state(&engine, None))), bits(&exact));
    engine.set_choice(&mut sparse, None).unwrap();
    assert_eq!(sparse.sparse_counts(), None);
    sparse.truncate(0);
    assert_eq!(bits(&answer(&engine, &mut sparse)), bits(&exact));
}

#[test]
fn the_oracle_loses_less_than_others_do() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let exact = answer(&engine, &mut state(&engine, None));
    let loss = |chooser: Arc<dyn Choose>| {
        let mut state = state(&engine, Some(Choice::for_every_token(chooser)));
        let loss = distance(&answer(&engine, &mut state), &exact);
        let fraction = state.sparse_counts().unwrap().computed_fraction();
        (loss, fraction)
    };
    let keep = || Keep::uniform(0.5);
    let (oracle, fraction) = loss(Arc::new(Oracle::new(keep(), Grain::Neuron)));
    assert!((fraction - 0.5).abs() < 0.01, "{fraction}");
    let (by_chunk, _) = loss(Arc::new(Oracle::new(keep(), Grain::Chunk)));
    let (last, _) = loss(Arc::new(LastSet::new(keep(), Grain::Neuron)));
    let (hot, _) = loss(Arc::new(Hot::first(keep(), Grain::Neuron)));
    let (random, _) = loss(random(0.5));
    let all =
        format!("oracle {oracle}, by chunk {by_chunk}, last {last}, hot {hot}, random {random}");
    assert!(oracle < 0.6 * by_chunk && oracle < 0.6 * last && oracle < 0.5 * random, "{all}");
    assert!(oracle < hot, "{all}");
}

/// Marks nothing, keeps what it was asked for, and adds a constant instead.
#[derive(Clone, Debug)]
struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
    constant: f32,
    needs: Needs,
}

/// Layer, position, tokens and importance of a call.
type Seen = (usize, usize, usize, Vec<f32>);

impl Choose for Recorder {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        assert!(
            layers.iter().all(|layer| layer.n_chunks() * layer.neurons_per_chunk >= layer.d_ff)
        );
        Ok(Box::new(self.clone()))
    }

    fn needs(&self) -> Needs {
        self.needs
    }
}

impl Choosing for Recorder {
    fn choose(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        assert!((0..at.n).all(|t| masks.row(t).count(0..masks.n_neurons()) == 0));
        let importance = at.importance.unwrap_or_default().to_vec();
        self.seen.lock().unwrap().push((at.layer, at.position, at.n, importance));
    }

    fn compensate(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &Masks, out: &mut [f32]) {
        assert_eq!(out.len(), at.x.len());
        assert_eq!(masks.row(at.n - 1).count(0..masks.n_neurons()), 0);
        // Nothing was chosen, so nothing was added yet.
        assert!(out.iter().all(|x| *x == 0.0));
        out.fill(self.constant);
    }
}

#[test]
fn choosers_see_every_layer_and_fill_in_what_is_left_out() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let recorder = |constant, needs| Recorder { seen: Arc::default(), constant, needs };
    let run = |recorder: &Recorder| {
        let mut state = state(&engine, Some(Choice::for_every_token(Arc::new(recorder.clone()))));
        engine.prefill(&mut state, &prompt(10)).unwrap();
        engine.decode(&mut state, 400).unwrap().to_vec()
    };
    let [none, some] = [0.0, 0.1].map(|constant| recorder(constant, Needs::Inputs));
    assert_ne!(run(&none), run(&some));
    let n_layers = engine.config().n_layers;
    let seen = std::mem::take(&mut *none.seen.lock().unwrap());
    let want = |position, n| (0..n_layers).map(move |layer| (layer, position, n, vec![]));
    assert_eq!(seen, want(0, 10).chain(want(10, 1)).collect::<Vec<_>>());
}

#[test]
fn importance_is_the_same_however_many_tokens_there_are() {
    let (_dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let run = |pieces: &[usize]| {
        let needs = Needs::Importance;
        let recorder = Recorder { seen: Arc::default(), constant: 0.0, needs };
        let mut state = state(&engine, Some(Choice::for_every_token(Arc::new(recorder.clone()))));
        let (tokens, mut at) = (prompt(12), 0);
        for n in pieces {
            engine.prefill(&mut state, &tokens[at..at + n]).unwrap();
            at += n;
        }
        let seen = recorder.seen.lock().unwrap();
        let of = |layer| seen.iter().filter(move |s| s.0 == layer).flat_map(|s| s.3.clone());
        (0..engine.config().n_layers).map(|layer| of(layer).collect()).collect::<Vec<Vec<f32>>>()
    };
    let together = run(&[12]);
    assert_eq!(together[0].len(), 12 * engine.config().d_ff);
    for pieces in [&[1; 12][..], &[5, 7], &[3, 8, 1]] {
        let distance = distance(&run(pieces), &together);
        assert!(distance < 0.01, "{pieces:?}: {distance}");
    }
    // By its definition: no neuron's importance is negative, and norms are those of all columns.
    assert!(together.iter().flatten().all(|x| *x >= 0.0 && x.is_finite()));
    let norms = engine.column_norms().unwrap();
    assert!(norms.iter().all(|norms| norms.len() == engine.config().d_ff));
    assert!(norms.iter().flatten().all(|norm| *norm > 0.0));
}

#[test]
fn what_cannot_be_chosen_is_refused() {
    let (_dir, path) = tiny_pack();
    let refuse = |engine: &Engine, chooser: Arc<dyn Choose>| {
        let mut state = engine.new_state().unwrap();
        let error = engine.set_choice(&mut state, Some(Choice::new(chooser))).unwrap_err();
        assert_eq!(state.sparse_counts(), None);
        error
    };
    let gguf = in_memory(&fixtures().join("tiny-book.gguf"));
    let error = refuse(&gguf, random(0.5));
    assert!(matches!(error, EngineError::SparseNeedsPack { .. }), "{error}");
    assert!(error.to_string().contains("pack it first"), "{error}");
    assert!(matches!(gguf.column_norms(), Err(EngineError::SparseNeedsPack { .. })));
    let streamed = streamed(&path, 2, StreamOptions::default()).unwrap();
    let oracle = || Arc::new(Oracle::new(Keep::uniform(0.5), Grain::Neuron));
    let error = refuse(&streamed, oracle());
    assert!(matches!(error, EngineError::ImportanceNeedsMemory { .. }), "{error}");
    // The norms alone are one pass, which streaming can do.
    assert_eq!(streamed.column_norms().unwrap(), in_memory(&path).column_norms().unwrap());
    let memory = in_memory(&path);
    let error = refuse(&memory, random(1.5));
    assert!(matches!(error, EngineError::Choice(ChoiceError::Fraction { .. })), "{error}");
    let error = refuse(&memory, Arc::new(Hot::list(vec![])));
    assert!(matches!(error, EngineError::Choice(ChoiceError::Layers { .. })), "{error}");
}

#[test]
fn a_damaged_chunk_is_an_error_here_too() {
    let (dir, path) = tiny_pack();
    let layout = ls_model::ModelFile::open(&path).unwrap().pack().unwrap().layers()[1];
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[layout.chunk_offset(2) as usize + 9] ^= 1;
    let damaged = dir.path().join("damaged.lspack");
    std::fs::write(&damaged, bytes).unwrap();
    let engine = in_memory(Path::new(&damaged));
    let error = engine.column_norms().unwrap_err();
    assert!(matches!(error, EngineError::ChunkDamage(_)), "{error}");
    let mut state = state(&engine, Some(Choice::for_every_token(random(0.5))));
    for n in [1, 12] {
        let error = engine.prefill(&mut state, &prompt(n)).map(drop).unwrap_err();
        assert!(matches!(error, EngineError::ChunkDamage(_)), "{error}");
        assert_eq!(state.position(), 0);
    }
}
