//! Trains on made-up data of a gated MLP and prints how well predictors choose.
//!
//! ```sh
//! cargo run --release -p ls-hash --example synthetic
//! ```

use std::ops::ControlFlow;
use std::time::Instant;

use ls_hash::synthetic::Synthetic;
use ls_hash::{
    Form, Hash, HashError, LastSet, LowRank, Norm, Oracle, Random, Report, Scorer, Shape,
    StaticHot, TrainConfig, Trainer, WeightType,
};

const N_TRAIN: usize = 6144;
const N_HELD: usize = 512;

fn main() -> Result<(), HashError> {
    let data = Synthetic { n_inputs: 256, n_outputs: 512, ..Synthetic::default() };
    let data = data.rows(N_TRAIN + N_HELD);
    let (train, held) = data.split(N_TRAIN);
    let (train, held) = (train?, held?);
    let config = TrainConfig { n_steps: 150, batch: 256, ..TrainConfig::default() };

    let base = Shape { norm: Norm::Rms, ..Shape::new(256, 512) };
    let direct = Shape { form: Form::Direct, stacks: vec![256], ..base.clone() };
    let shapes = [
        ("256 bits", direct.clone()),
        ("256 bits, dense", Shape { blocks_per_bit: Shape::DENSE, ..direct.clone() }),
        (
            "256 bits, dense ternary",
            Shape { blocks_per_bit: Shape::DENSE, weights: WeightType::Ternary, ..direct.clone() },
        ),
        ("2 stacks of 128 bits", Shape { stacks: vec![128, 128], ..direct.clone() }),
        ("2 codes of 128 bits", Shape { stacks: vec![128], n_codes: 2, ..direct }),
        ("2 × 128 bits, bilinear", base.clone()),
        ("2 × 256 bits, bilinear", Shape { stacks: vec![256], ..base }),
    ];
    let mut predictors = Vec::new();
    for (name, shape) in shapes {
        let begin = Instant::now();
        let mut trainer = Trainer::new(shape, config, &train)?;
        let mut losses = Vec::new();
        let _ = trainer.train(&train, |progress| {
            losses.push(progress.loss);
            ControlFlow::Continue(())
        });
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        println!("{name}: loss {first:.3} to {last:.3} in {:.1?}", begin.elapsed());
        predictors.push((name, trainer.finish(&train)?));
    }
    let slower = TrainConfig { learning_rate: 2e-3, ..config };
    let mut low_rank = LowRank::train(128, Norm::Rms, slower, &train)?;

    let mut hashes: Vec<Hash<'_>> =
        predictors.iter().map(|(name, predictor)| Hash::new(*name, predictor)).collect();
    let mut scorers: Vec<&mut dyn Scorer> = Vec::new();
    scorers.extend(hashes.iter_mut().map(|hash| hash as &mut dyn Scorer));
    let (mut hot, mut random) = (StaticHot::new(&train), Random::new(1));
    let (mut last, mut oracle) = (LastSet, Oracle);
    scorers.extend([
        &mut low_rank as &mut dyn Scorer,
        &mut hot,
        &mut last,
        &mut random,
        &mut oracle,
    ]);
    println!("\n{}", Report::measure(&mut scorers, &held, 0..N_HELD, 1, &[0.5, 0.3]));
    Ok(())
}
