//! Fits look-up predictors of several sizes to a gated layer, trains them, and prints how well they
//! choose and what was lost.
//!
//! ```sh
//! cargo run --release -p ls-hash --example lookup [-- STEPS [BYTES] [FOLDER/PREFIX. INPUTS OUTPUTS]]
//! ```
//!
//! Without a folder the layer is made up. With one, it is read from raw little-endian f32 files:
//! `train` and `held` (features, row by row), optionally `train_spec` and `held_spec` (what was known
//! of them earlier), `gate`, `up` (weights, output by output) and `gain`.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use ls_hash::synthetic::Synthetic;
use ls_hash::{
    FeatureKind, HashError, LayerData, Lookup, LookupConfig, LookupPredictor, LookupShape,
    LookupTrainer, Mask, Matrices, Oracle, Report, Samples, Scorer, Selector, StaticHot,
};
use ndarray::{Array1, Array2, Array3, ArrayView3, Axis, s};

const KEEPS: [f32; 2] = [0.5, 0.3];
const N_HELD: usize = 2048;

struct Layer {
    /// `[kinds, rows, inputs]`.
    train: Array3<f32>,
    held: Array3<f32>,
    gate: Array2<f32>,
    up: Array2<f32>,
    gains: Array1<f32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |x| x.parse());
    let n_steps = number(0, 100)?;
    let layer = match args.get(2) {
        Some(prefix) => Layer::read(prefix, number(3, 0)?, number(4, 0)?)?,
        None => Layer::made_up(),
    };
    let (n_inputs, n_outputs) = (layer.gate.ncols(), layer.gate.nrows());
    let bytes = number(1, n_inputs * n_outputs / 8)?;
    let train = layer.data(layer.train.view())?;
    let held = Held::new(&layer)?;
    let held = held.samples(&layer)?;
    let shape = LookupShape::within(n_inputs, n_outputs, bytes, layer.train.len_of(Axis(0)))?;
    println!("{shape:?}");

    let begin = Instant::now();
    let config = LookupConfig { n_steps, ..LookupConfig::default() };
    let mut trainer = LookupTrainer::new(shape, config, &train)?;
    let fitted = trainer.finish(&train)?;
    println!("fitted in {:.1?}", begin.elapsed());
    let begin = Instant::now();
    let _ = trainer.train(&train, |progress| {
        if progress.step % 20 == 0 || progress.step == 1 {
            println!("step {}: {:.4} of the energy missed", progress.step, progress.loss);
        }
        ControlFlow::Continue(())
    });
    let trained = trainer.finish(&train)?;
    println!("trained in {:.1?}", begin.elapsed());

    let mut scorers = [
        Lookup::new("fitted", &fitted, FeatureKind::Exact),
        Lookup::new("trained", &trained, FeatureKind::Exact),
    ];
    let n_held = held.n_rows();
    let mut all: Vec<&mut dyn Scorer> = Vec::new();
    all.extend(scorers.iter_mut().map(|scorer| scorer as &mut dyn Scorer));
    let some = layer.train.slice(s![.., ..2048.min(layer.train.len_of(Axis(1))), ..]);
    let (mut hot, mut oracle) = (StaticHot::new(&layer.data(some)?), Oracle);
    all.extend([&mut hot as &mut dyn Scorer, &mut oracle]);
    println!("\n{}", Report::measure(&mut all, &held, 0..n_held, 0, &KEEPS));
    if shape.n_kinds > 1 {
        let mut early = Lookup::new("trained, speculative", &trained, FeatureKind::Speculative);
        println!("{}", Report::measure(&mut [&mut early], &held, 0..n_held, 1, &KEEPS));
    }
    for (name, predictor) in [("fitted", &fitted), ("trained", &trained)] {
        let coverage = online(predictor, &held);
        println!("{name}, corrected by what was computed: coverage {coverage:.4} at 0.5");
    }
    Ok(())
}

impl Layer {
    fn data<'a>(&'a self, features: ArrayView3<'a, f32>) -> Result<LayerData<'a>, HashError> {
        LayerData::new(features, self.gate.view(), self.up.view(), self.gains.view())
    }

    /// Features of some rank that remember each other, random weights.
    fn made_up() -> Self {
        let made = Synthetic { n_inputs: 256, n_outputs: 1024, ..Synthetic::default() };
        let (layer, features) = made.layer(10_240);
        let part = |rows: std::ops::Range<usize>| features.slice(s![.., rows, ..]).to_owned();
        let [gate, up] = layer.weights;
        Self { train: part(0..8192), held: part(8192..10_240), gate, up, gains: layer.gains }
    }

    fn read(prefix: &str, n_inputs: usize, n_outputs: usize) -> Result<Self, Box<dyn Error>> {
        let read = |name: &str| -> std::io::Result<Vec<f32>> {
            let bytes = std::fs::read(Path::new(&format!("{prefix}{name}")))?;
            Ok(bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
        };
        let features = |name: &str| -> Result<Array3<f32>, Box<dyn Error>> {
            let mut kinds = read(name)?;
            let n_rows = kinds.len() / n_inputs;
            if let Ok(early) = read(&format!("{name}_spec")) {
                kinds.extend(early);
            }
            let n_kinds = kinds.len() / (n_rows * n_inputs);
            Ok(Array3::from_shape_vec((n_kinds, n_rows, n_inputs), kinds)?)
        };
        Ok(Self {
            train: features("train")?,
            held: features("held")?,
            gate: Array2::from_shape_vec((n_outputs, n_inputs), read("gate")?)?,
            up: Array2::from_shape_vec((n_outputs, n_inputs), read("up")?)?,
            gains: read("gain")?.into(),
        })
    }
}

/// Rows to report on, with what their factors are.
struct Held {
    /// `[rows, kinds, inputs]`.
    features: Array3<f32>,
    gate: Array2<f32>,
    up: Array2<f32>,
}

impl Held {
    fn new(layer: &Layer) -> Result<Self, HashError> {
        let n = layer.held.len_of(Axis(1)).min(N_HELD);
        let features = layer.held.slice(s![.., ..n, ..]);
        let shape = (n, layer.gate.nrows());
        let (mut gate, mut up) = (Array2::zeros(shape), Array2::zeros(shape));
        let rows: Vec<usize> = (0..n).collect();
        layer.data(features)?.factors(&rows, gate.view_mut(), up.view_mut());
        Ok(Self { features: features.permuted_axes([1, 0, 2]).to_owned(), gate, up })
    }

    fn samples<'a>(&'a self, layer: &'a Layer) -> Result<Matrices<'a>, HashError> {
        let (gate, up) = (self.gate.view(), self.up.view());
        Matrices::with_factors(self.features.view(), gate, up, Some(layer.gains.view()))
    }
}

/// Coverage where the predictor sees what it chose, row after row.
fn online(predictor: &LookupPredictor, held: &Matrices<'_>) -> f64 {
    let n_rows = held.n_rows();
    let n = predictor.shape().n_outputs;
    let mut state = predictor.state();
    let (mut selector, mut mask) = (Selector::default(), Mask::new());
    let mut sum = 0.0;
    for row in 0..n_rows {
        let mut x = Array2::zeros((1, predictor.shape().n_inputs));
        let pick = ls_hash::Pick { row, stage: 0 };
        Samples::features(held, &[pick], x.view_mut());
        let (mut gate, mut up) = (Array2::zeros((1, n)), Array2::zeros((1, n)));
        held.factors(&[row], gate.view_mut(), up.view_mut());
        let mut truth = Array2::zeros((1, n));
        held.importance(&[row], truth.view_mut());
        predictor.set(&mut state, x.as_slice().unwrap_or(&[]), FeatureKind::Exact);
        selector.top_k(state.scores(), n / 2, &mut mask);
        let (gate, up) = (gate.into_raw_vec_and_offset().0, up.into_raw_vec_and_offset().0);
        predictor.observe(&mut state, &mask, &gate, &up);
        let energy = |i: usize| f64::from(truth[[0, i]]).powi(2);
        sum += mask.iter_ones().map(energy).sum::<f64>() / (0..n).map(energy).sum::<f64>();
    }
    sum / n_rows as f64
}
