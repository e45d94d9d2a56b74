//! Training: what it reaches, and that it always comes to the same.

use std::ops::ControlFlow;

use ls_hash::synthetic::{Data, Synthetic};
use ls_hash::{
    Form, Hash, HashError, LastSet, LowRank, Matrices, Norm, Oracle, Random, Report, Samples,
    Scorer, Shape, StaticHot, TrainConfig, Trainer, WeightType,
};

const N_TRAIN: usize = 2048;
const N_HELD: usize = 128;

fn data() -> Data {
    Synthetic { n_inputs: 96, n_outputs: 200, rank: 16, ..Synthetic::default() }
        .rows(N_TRAIN + N_HELD)
}

fn config() -> TrainConfig {
    TrainConfig { n_steps: 60, batch: 128, ..TrainConfig::default() }
}

fn shape(form: Form) -> Shape {
    Shape { form, blocks_per_bit: 2, norm: Norm::Rms, ..Shape::new(96, 200) }
}

fn trained(shape: Shape, samples: &dyn Samples) -> ls_hash::Predictor {
    let mut trainer = Trainer::new(shape, config(), samples).expect("the shape fits");
    assert!(trainer.train(samples, |_| ControlFlow::Continue(())).is_continue());
    trainer.finish(samples).expect("all numbers are finite")
}

#[test]
fn trained_predictors_beat_what_needs_no_training() {
    let data = data();
    let (train, held) = data.split(N_TRAIN);
    let (train, held) = (train.unwrap(), held.unwrap());
    let direct = shape(Form::Direct);
    let kinds = [
        ("direct", Shape { stacks: vec![256], ..direct.clone() }),
        ("dense", Shape { blocks_per_bit: Shape::DENSE, ..direct.clone() }),
        ("ternary", Shape { weights: WeightType::Ternary, ..direct.clone() }),
        ("stacked", Shape { stacks: vec![128, 64], ..direct.clone() }),
        ("residual", Shape { n_codes: 2, ..direct }),
        ("bilinear", shape(Form::Bilinear)),
        (
            "bilinear, residual",
            Shape { n_codes: 2, stacks: vec![128, 64], ..shape(Form::Bilinear) },
        ),
    ];
    let predictors = kinds.map(|(name, shape)| (name, trained(shape, &train)));
    let mut hashes: Vec<_> = predictors.iter().map(|(name, of)| Hash::new(*name, of)).collect();
    let slower = TrainConfig { learning_rate: 2e-3, ..config() };
    let mut low_rank = LowRank::train(64, Norm::Rms, slower, &train).unwrap();
    let (mut hot, mut random) = (StaticHot::new(&train), Random::new(1));
    let (mut last, mut oracle) = (LastSet, Oracle);
    let mut scorers: Vec<&mut dyn Scorer> =
        vec![&mut low_rank, &mut hot, &mut random, &mut last, &mut oracle];
    scorers.extend(hashes.iter_mut().map(|hash| hash as &mut dyn Scorer));
    let report = Report::measure(&mut scorers, &held, 0..N_HELD, 1, &[0.3]);
    let coverage = |name: &str| report.line(name, 0.3).unwrap().coverage;
    assert!((coverage("random") - 0.3).abs() < 0.05, "{report}");
    assert!(coverage("oracle") > 0.95, "{report}");
    assert!(coverage("low rank 64") > coverage("static hot set") + 0.1, "{report}");
    for (name, _) in &predictors {
        let reached = coverage(name);
        assert!(reached > coverage("static hot set") + 0.1, "{name}\n{report}");
        assert!(reached > coverage("last set") + 0.1, "{name}\n{report}");
        assert!(reached < coverage("oracle"), "{name}\n{report}");
    }
    assert!(report.to_string().lines().count() == 2 + report.lines.len());
}

#[test]
fn threads_do_not_change_the_result() {
    let data = data();
    let samples = data.samples().unwrap();
    for form in [Form::Direct, Form::Bilinear] {
        let train = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let config = TrainConfig { n_steps: 12, ..config() };
            pool.install(|| {
                let shape = Shape { stacks: vec![128, 64], ..shape(form) };
                let mut trainer = Trainer::new(shape, config, &samples).unwrap();
                let _ = trainer.train(&samples, |_| ControlFlow::Continue(()));
                (trainer.to_bytes(), trainer.finish(&samples).unwrap().to_bytes())
            })
        };
        assert!(train(1) == train(2), "{form:?}");
    }
}

#[test]
fn an_interrupted_training_comes_to_the_same() {
    let data = data();
    let samples = data.samples().unwrap();
    let config = TrainConfig { n_steps: 30, ..config() };
    let shape = Shape { stacks: vec![128, 64], n_codes: 2, ..shape(Form::Bilinear) };
    let mut whole = Trainer::new(shape.clone(), config, &samples).unwrap();
    let _ = whole.train(&samples, |_| ControlFlow::Continue(()));

    let mut part = Trainer::new(shape.clone(), config, &samples).unwrap();
    let stopped = part.train(&samples, |progress| match progress.step {
        // In the middle of the second epoch.
        20 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(stopped.is_break() && part.step_idx() == 20 && !part.is_finished());
    let saved = part.to_bytes();
    let mut resumed = Trainer::resume(&saved, shape.clone(), config, &samples).unwrap();
    assert!(resumed.to_bytes() == saved);
    let _ = resumed.train(&samples, |_| ControlFlow::Continue(()));
    assert!(resumed.is_finished());
    assert!(resumed.to_bytes() == whole.to_bytes());
    assert_eq!(resumed.finish(&samples), whole.finish(&samples));

    let other = TrainConfig { seed: 7, ..config };
    let refused = Trainer::resume(&saved, shape.clone(), other, &samples);
    assert_eq!(refused.unwrap_err(), HashError::OtherSettings);
    let mut damaged = saved.clone();
    damaged[saved.len() / 2] ^= 1;
    let refused = Trainer::resume(&damaged, shape, config, &samples);
    assert!(matches!(refused.unwrap_err(), HashError::Checksum { .. }));
}

#[test]
fn samples_that_do_not_fit_are_refused() {
    let data = data();
    let samples = data.samples().unwrap();
    let new = |shape| Trainer::new(shape, config(), &samples).unwrap_err();
    let narrow = Shape { n_inputs: 95, ..shape(Form::Direct) };
    assert_eq!(
        new(narrow),
        HashError::Length { what: "a row of features", found: 96, expected: 95 }
    );
    let odd = Shape { stacks: vec![100], ..shape(Form::Direct) };
    assert!(matches!(new(odd), HashError::Size { found: 100, .. }));
    let importance = Matrices::with_importance(data.features.view(), data.up.view()).unwrap();
    let refused = Trainer::new(shape(Form::Bilinear), config(), &importance);
    assert_eq!(refused.unwrap_err(), HashError::Missing { what: "factors" });
}

#[test]
fn outputs_that_never_matter_are_no_trouble() {
    let mut data = data();
    data.up.slice_mut(ndarray::s![.., ..40]).fill(0.0);
    data.features.slice_mut(ndarray::s![.., .., ..10]).fill(0.0);
    let samples = data.samples().unwrap();
    let predictor = trained(shape(Form::Bilinear), &samples);
    let mut state = predictor.state();
    predictor.set(&mut state, data.features.slice(ndarray::s![0, 1, ..]).as_slice().unwrap());
    let dead = state.scores()[..40].iter().sum::<f32>();
    let alive = state.scores()[40..80].iter().sum::<f32>();
    assert!(dead < 0.1 * alive, "{dead} {alive}");
}
