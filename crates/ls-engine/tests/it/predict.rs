//! Predictors: trained from a trace, written, read, and better than what needs no training.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ls_cpu::{Cpu, Isa};
use ls_engine::predict::{
    LookupConfig, PredictError, Predicted, Predictors, STAGES, TracedLayer, TracedMlp,
    TrainOptions, Trained, train,
};
use ls_engine::trace::{RecordOptions, Trace, cut_into_windows, record};
use ls_engine::{Choice, Engine, Grain, Keep, PerplexityOptions, Random, argmax, fidelity, pack};
use ls_hash::{FeatureKind, GatedLayer};
use ls_model::ModelFile;
use ls_model::pack::PackOptions;
use ls_model::tokenizer::EncodeOptions;
use ndarray::Array2;

use crate::fixtures;
use crate::streaming::{in_memory, tiny_pack};

const TEXT: &str = "The borrow checker makes sure that references are valid. A reference is like a \
    pointer in that it is an address we can follow to access the data stored at that address. \
    Ownership is a set of rules that govern how a program manages memory. Some languages have \
    garbage collection that looks for memory that is no longer used as the program runs. ";

pub fn text(engine: &Engine) -> Vec<u32> {
    engine.tokenizer().encode(&TEXT.repeat(24), EncodeOptions::PROMPT).unwrap()
}

fn options(resume: bool) -> TrainOptions {
    TrainOptions {
        share: 0.3,
        lookup: LookupConfig { n_steps: 4, batch: 128, ..LookupConfig::default() },
        resume,
        windows: 1,
        n_ctx: 64,
        ..TrainOptions::default()
    }
}

fn traced(engine: &Engine, dir: &Path) -> Trace {
    let windows = cut_into_windows(&text(engine), 64, engine.tokenizer().bos(), 1200);
    let out = dir.join("t.lstrace");
    let options = RecordOptions { force: true, ..RecordOptions::default() };
    record(engine, &windows, &out, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    Trace::open(&out).unwrap()
}

pub fn trained(engine: &Engine, dir: &Path) -> (PathBuf, Predictors) {
    let (mut trace, out) = (traced(engine, dir), dir.join("t.lspred"));
    let mut state = engine.new_state().unwrap();
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let text = text(engine);
    match train(engine, &mut state, &mut trace, &text, &out, &options(false), go_on).unwrap() {
        Trained::Whole(predictors) => (out, predictors),
        Trained::Stopped(n) => panic!("stopped after {n}"),
    }
}

#[test]
fn predictors_beat_chance_and_cost_less_the_more_is_computed() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let (out, predictors) = trained(&engine, dir.path());
    let model = ModelFile::open(&path).unwrap();
    let predictors = Arc::new({
        let read = Predictors::open(&out, &model).unwrap();
        assert_eq!(read.costs(), predictors.costs());
        read
    });
    let by = |fraction| {
        let plan = predictors.plan(fraction, engine.row_share());
        Choice::for_every_token(Arc::new(Predicted::new(predictors.clone(), plan)))
    };
    let random = Random::new(Keep::uniform(0.5), Grain::Neuron, 1);
    let choices = [by(0.8), by(0.5), Choice::for_every_token(Arc::new(random)), by(1.0)];
    let options = PerplexityOptions { n_ctx: 96, max_chunks: Some(3), bos: None };
    let mut state = engine.new_state().unwrap();
    let (tokens, go_on) = (text(&engine), &mut |_: &_| ControlFlow::Continue(()));
    let got = fidelity(&engine, &mut state, &choices, &tokens, &options, go_on).unwrap();
    let [more, half, random, all] = &got.ways[..] else { panic!("four ways") };
    assert!(more.kl < half.kl && half.kl < 0.7 * random.kl, "{got:?}");
    assert!((half.counts.computed_fraction() - 0.5).abs() < 0.04, "{:?}", half.counts);
    assert!((more.counts.computed_fraction() - 0.8).abs() < 0.04, "{:?}", more.counts);
    assert!(half.counts.columns < half.counts.neurons, "{:?}", half.counts);
    assert_eq!((all.rise, all.counts.computed_fraction()), (0.0, 1.0));
    // What is decoded token by token is what a batch computes, but for rounding.
    let few = PerplexityOptions { n_ctx: 6, max_chunks: Some(12), ..options };
    let single = fidelity(&engine, &mut state, &[by(0.5)], &tokens, &few, go_on).unwrap();
    assert!((single.ways[0].counts.computed_fraction() - 0.5).abs() < 0.08);
}

#[test]
fn predictors_go_over_to_another_pack_of_the_model() {
    let (dir, path) = tiny_pack();
    let one = in_memory(&path);
    let (_, predictors) = trained(&one, dir.path());
    let source = ModelFile::open(fixtures().join("tiny-book.gguf")).unwrap();
    let config = source.config();
    let order = |layer: usize| {
        let n = config.d_ff as u32;
        (0..n).map(|i| (i * 37 + layer as u32) % n).rev().collect::<Vec<u32>>()
    };
    let options = PackOptions {
        chunk_kib: 8,
        orders: (0..config.n_layers).map(order).collect(),
        ..PackOptions::default()
    };
    let other = dir.path().join("other.lspack");
    let cpu = Cpu::new(1, Isa::detect()).unwrap();
    pack(&cpu, &source, &other, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    let two = in_memory(&other);
    let moved = predictors.for_other_pack(one.model(), two.model()).unwrap();
    let back = moved.for_other_pack(two.model(), one.model()).unwrap();
    for (back, first) in back.layers().iter().zip(predictors.layers()) {
        assert!(back.predictor == first.predictor && back.norms == first.norms);
    }
    // Opened like any, and the same neurons are computed in another order of sums.
    let out = dir.path().join("other.lspred");
    moved.write(&out).unwrap();
    let moved = Arc::new(Predictors::open(&out, two.model()).unwrap());
    let logits = |engine: &Engine, predictors: Arc<Predictors>| {
        let plan = predictors.plan(0.5, engine.row_share());
        let mut state = engine.new_state().unwrap();
        let choice = Choice::for_every_token(Arc::new(Predicted::new(predictors, plan)));
        engine.set_choice(&mut state, Some(choice)).unwrap();
        let logits = engine.prefill(&mut state, &text(engine)[..30]).unwrap().to_vec();
        (logits, state.sparse_counts().unwrap().neurons)
    };
    let (a, b) = (logits(&one, Arc::new(predictors.clone())), logits(&two, moved));
    assert_eq!(a.1, b.1);
    let size = a.0.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    for (a, b) in a.0.iter().zip(&b.0) {
        assert!((a - b).abs() < 0.05 * size, "{a} and {b}");
    }
    let stranger = ModelFile::open(fixtures().join("models/q4_k.gguf")).unwrap();
    let error = predictors.for_other_pack(one.model(), &stranger).unwrap_err();
    assert!(matches!(error, PredictError::NoPack { .. }), "{error}");
}

#[test]
fn decoding_by_predictors_does_not_depend_on_threads() {
    let (dir, path) = tiny_pack();
    let one = in_memory(&path);
    let (out, _) = trained(&one, dir.path());
    let decode = |threads| {
        let options = ls_engine::LoadOptions { threads, ..Default::default() };
        let engine = Engine::load(&path, &options).unwrap();
        let predictors = Arc::new(Predictors::open(&out, engine.model()).unwrap());
        let plan = predictors.plan(0.4, engine.row_share());
        let mut state = engine.new_state().unwrap();
        let choice = Choice::new(Arc::new(Predicted::new(predictors, plan)));
        engine.set_choice(&mut state, Some(choice)).unwrap();
        let mut logits = engine.prefill(&mut state, &text(&engine)[..20]).unwrap().to_vec();
        for _ in 0..12 {
            let next = argmax(&logits).unwrap();
            logits = engine.decode(&mut state, next).unwrap().to_vec();
        }
        (logits, state.sparse_counts().unwrap())
    };
    let (want, counts) = decode(1);
    assert!(counts.computed_fraction() < 0.5 && counts.neurons > 0, "{counts:?}");
    for threads in [2, 3] {
        assert_eq!(decode(threads), (want.clone(), counts));
    }
}

#[test]
fn inputs_become_better_known_by_stages() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let (_, predictors) = trained(&engine, dir.path());
    assert!(predictors.layers().iter().all(|layer| layer.predictor.shape().n_kinds == 3));
    let mut trace = traced(&engine, dir.path());
    let rows: Vec<usize> = (0..100).collect();
    let mut read = |layer| TracedMlp::read(&engine, &mut trace, layer, &rows).unwrap();
    let (before, here) = (read(0), read(1));
    let layer =
        TracedLayer::new(&engine, &here, Some((&before, &predictors.layers()[0].predictor)));
    let of = |kind| {
        let mut x = Array2::zeros((rows.len(), layer.n_inputs()));
        layer.features(kind, 0..rows.len(), x.view_mut());
        x
    };
    let at = |stage| {
        let mut x = Array2::zeros((rows.len(), layer.n_inputs()));
        layer.refined(0..rows.len(), &|_| stage, x.view_mut());
        x
    };
    let exact = of(FeatureKind::Exact);
    let off = |x: &Array2<f32>| (x - &exact).mapv(|x| x * x).sum();
    let nothing = of(FeatureKind::Speculative);
    assert!(off(&at(0)) < 1.001 * off(&nothing) && off(&nothing) < 1.001 * off(&at(0)));
    assert!(off(&at(STAGES)) < off(&at(STAGES / 2)) && off(&at(STAGES / 2)) < off(&nothing));
    let refined = of(FeatureKind::Refined);
    assert!(off(&at(STAGES)) < off(&refined) && off(&refined) < off(&nothing));
    // Of the first layer the input is known.
    let first = TracedLayer::new(&engine, &here, None);
    let mut x = Array2::zeros((rows.len(), layer.n_inputs()));
    first.refined(0..rows.len(), &|_| 1, x.view_mut());
    assert_eq!(x, exact);
}

#[test]
fn interrupted_training_goes_on_where_it_stopped() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let (out, whole) = trained(&engine, dir.path());
    let whole = (std::fs::read(&out).unwrap(), whole);
    let mut trace = traced(&engine, dir.path());
    let (mut state, text) = (engine.new_state().unwrap(), text(&engine));
    let stop = &mut |at: &ls_engine::predict::TrainProgress| match at.layer {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    let stopped = train(&engine, &mut state, &mut trace, &text, &out, &options(false), stop);
    assert!(matches!(stopped.unwrap(), Trained::Stopped(1)));
    // What was there is not touched before something whole takes its place.
    assert_eq!(std::fs::read(&out).unwrap(), whole.0);
    let part = dir.path().join("t.lspred.part");
    std::fs::copy(&part, dir.path().join("cut.lspred")).unwrap();
    let error = Predictors::open(&dir.path().join("cut.lspred"), engine.model()).unwrap_err();
    assert!(matches!(error, PredictError::Unfinished { found: 1, .. }), "{error}");
    std::fs::remove_file(&out).unwrap();
    let mut first = None;
    let see = &mut |at: &ls_engine::predict::TrainProgress| {
        first.get_or_insert(at.layer);
        ControlFlow::Continue(())
    };
    let resumed = train(&engine, &mut state, &mut trace, &text, &out, &options(true), see);
    assert!(matches!(resumed.unwrap(), Trained::Whole(_)));
    assert_eq!(first, Some(1));
    assert_eq!(std::fs::read(&out).unwrap(), whole.0);
    assert!(!part.exists());
}

#[test]
fn damaged_files_and_those_of_others_are_refused() {
    let (dir, path) = tiny_pack();
    let engine = in_memory(&path);
    let (out, _) = trained(&engine, dir.path());
    let bytes = std::fs::read(&out).unwrap();
    let model = ModelFile::open(&path).unwrap();
    let damaged = dir.path().join("d.lspred");
    let open = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        Predictors::open(&damaged, &model).unwrap_err()
    };
    for cut in [0, 7, 30, 60, bytes.len() / 2, bytes.len() - 1] {
        let error = open(&bytes[..cut]);
        assert!(error.to_string().contains("d.lspred"), "{error}");
    }
    for at in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 16;
        open(&flipped);
    }
    open(&[&bytes[..], &[0; 40]].concat());
    assert!(matches!(open(b"GGUF and so on"), PredictError::Magic { .. }));
    // Of another pack: the same model in other chunks.
    let other = dir.path().join("other.lspack");
    repack(&other);
    let error = Predictors::open(&out, &ModelFile::open(&other).unwrap()).unwrap_err();
    assert!(matches!(error, PredictError::Other { what: "pack", .. }), "{error}");
}

fn repack(to: &Path) {
    let model = ModelFile::open(crate::fixtures().join("tiny-book.gguf")).unwrap();
    let options = ls_model::pack::PackOptions { chunk_kib: 8, ..Default::default() };
    let cpu = ls_cpu::Cpu::new(1, ls_cpu::Isa::detect()).unwrap();
    ls_engine::pack(&cpu, &model, to, &options, &mut |_| ControlFlow::Continue(())).unwrap();
}
