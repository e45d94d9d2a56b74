//! How well predictors choose at each stage at which a layer's input is known, beside other choosers.
//!
//! ```text
//! cargo run --release -p ls-engine --example stages -- model.lspack model.lspred model.lstrace [layers] [steps]
//! ```
//!
//! The trace is one of `leanstream train --trace FILE`, or of `leanstream calibrate`. Rows that the
//! predictors were not trained on are scored: the last eighth, if they were trained on the same trace.
//! `layers` is a list as `3,12,20` [default: three of them]; the low-rank network trains for `steps`
//! [default: 300] on the rows before.

use std::error::Error;
use std::path::Path;

use ls_engine::predict::{Predictors, STAGES, TracedLayer, TracedMlp};
use ls_engine::trace::Trace;
use ls_engine::{Engine, LoadOptions};
use ls_hash::{
    FeatureKind, GatedLayer, LastSet, Lookup, LowRank, Matrices, Norm, Oracle, Random, Report,
    Scorer, StaticHot, TrainConfig,
};
use ndarray::{Array3, Axis};

/// Of the outputs, what is kept.
const KEEP: f32 = 0.5;
/// Rows that are scored, and rows that other choosers learn from.
const HELD: usize = 512;
const LEARN: usize = 4096;
/// Of the low-rank network.
const RANK: usize = 512;
/// Stages of the MLP before that are done; the last column is the true input.
const DONE: [usize; 4] = [0, 2, 4, STAGES];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, predictors, trace, rest @ ..] = &args[..] else {
        return Err("usage: stages model.lspack model.lspred model.lstrace [layers] [steps]".into());
    };
    let engine = Engine::load(Path::new(model), &LoadOptions::default())?;
    let predictors = Predictors::open(Path::new(predictors), engine.model())?;
    let mut trace = Trace::open(Path::new(trace))?;
    let n_layers = predictors.layers().len();
    let layers: Vec<usize> = match rest.first() {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![n_layers / 5, n_layers / 2, n_layers * 4 / 5],
    };
    let n_steps = rest.get(1).map_or(Ok(300), |x| x.parse())?;
    let n = trace.info().sampled.len();
    let n_held = (n / 8).min(HELD);
    let rows: Vec<usize> = (n - n_held - LEARN.min(n - n_held)..n).collect();
    let mut sums: Vec<(String, f64)> = Vec::new();
    for layer in &layers {
        let here = TracedMlp::read(&engine, &mut trace, *layer, &rows)?;
        let before = layer.checked_sub(1);
        let before = before.map(|i| TracedMlp::read(&engine, &mut trace, i, &rows)).transpose()?;
        let predictor = |i: usize| &predictors.layers()[i].predictor;
        let with = before.as_ref().map(|before| (before, predictor(layer - 1)));
        let data = TracedLayer::new(&engine, &here, with);
        let lines = report(&data, predictor(*layer), rows.len() - n_held, n_steps)?;
        for (i, (name, coverage)) in lines.into_iter().enumerate() {
            println!("layer {layer}: {name}: {coverage:.4}");
            if sums.len() <= i {
                sums.push((name, 0.0));
            }
            sums[i].1 += coverage / layers.len() as f64;
        }
    }
    println!("\n| chooser, {KEEP} kept | coverage, mean of layers {layers:?} |\n|---|---|");
    sums.iter().for_each(|(name, coverage)| println!("| {name} | {coverage:.3} |"));
    Ok(())
}

/// Coverage of each chooser on the rows from `first_held`.
fn report(
    data: &TracedLayer<'_>,
    predictor: &ls_hash::LookupPredictor,
    first_held: usize,
    n_steps: usize,
) -> Result<Vec<(String, f64)>, Box<dyn Error>> {
    let held = first_held..data.n_rows();
    // `[stages, rows, inputs]`: the true input first, then by stages done.
    let mut features = Array3::zeros((DONE.len() + 1, held.len(), data.n_inputs()));
    data.features(FeatureKind::Exact, held.clone(), features.index_axis_mut(Axis(0), 0));
    for (i, done) in DONE.iter().enumerate() {
        let out = features.index_axis_mut(Axis(0), i + 1);
        match done {
            0 => data.features(FeatureKind::Speculative, held.clone(), out),
            _ => data.refined(held.clone(), &|_| *done, out),
        }
    }
    let by_row = features.permuted_axes([1, 0, 2]);
    let by_row = by_row.as_standard_layout();
    let gains = ndarray::Array1::from(data.gains());
    let [gate, up] = data.factors(held.clone());
    let samples =
        Matrices::with_factors(by_row.view(), gate.view(), up.view(), Some(gains.view()))?;
    let learn = 0..first_held;
    let mut early = Array3::zeros((learn.len(), 1, data.n_inputs()));
    data.features(FeatureKind::Exact, learn.clone(), early.index_axis_mut(Axis(1), 0));
    let [gate, up] = data.factors(learn);
    let train = Matrices::with_factors(early.view(), gate.view(), up.view(), Some(gains.view()))?;
    let config = TrainConfig { n_steps, ..TrainConfig::default() };
    let mut low_rank = LowRank::train(RANK, Norm::None, config, &train)?;
    let mut hot = StaticHot::new(&train);

    let mut out = Vec::new();
    let mut measure = |name: String, scorer: &mut dyn Scorer, stage: usize| {
        let rows = 0..held.len();
        let report = Report::measure(&mut [scorer], &samples, rows, stage, &[KEEP]);
        out.push((name, report.lines[0].coverage));
    };
    for (i, done) in DONE.iter().enumerate() {
        let kind = if *done == 0 { FeatureKind::Speculative } else { FeatureKind::Refined };
        if kind.idx() < predictor.shape().n_kinds {
            let mut scorer = Lookup::new("", predictor, kind);
            measure(format!("predictor, {done} of {STAGES} stages"), &mut scorer, i + 1);
        }
    }
    let mut exact = Lookup::new("", predictor, FeatureKind::Exact);
    measure("predictor, true input".into(), &mut exact, 0);
    measure(format!("low rank {RANK}, true input"), &mut low_rank, 0);
    measure("static hot set".into(), &mut hot, 0);
    measure("last set".into(), &mut LastSet, 0);
    measure("random".into(), &mut Random::new(1), 0);
    measure("oracle".into(), &mut Oracle, 0);
    Ok(out)
}
