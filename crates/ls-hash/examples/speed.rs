//! How long training takes at the sizes of a model of half a billion parameters.
//!
//! ```sh
//! cargo run --release -p ls-hash --example speed [BITS]
//! ```

use std::ops::ControlFlow;
use std::time::Instant;

use ls_hash::synthetic::Synthetic;
use ls_hash::{HashError, Shape, TrainConfig, Trainer};

const N_INPUTS: usize = 896;
const N_OUTPUTS: usize = 4864;
const N_STEPS: usize = 8;

fn main() -> Result<(), HashError> {
    let bits = std::env::args().nth(1).and_then(|bits| bits.parse().ok()).unwrap_or(512);
    let made = Synthetic { n_inputs: N_INPUTS, n_outputs: N_OUTPUTS, ..Synthetic::default() };
    let data = made.rows(2048);
    let samples = data.samples()?;
    let config = TrainConfig { n_steps: N_STEPS, ..TrainConfig::default() };
    let shape = Shape { stacks: vec![bits], ..Shape::new(N_INPUTS, N_OUTPUTS) };
    let begin = Instant::now();
    let mut trainer = Trainer::new(shape, config, &samples)?;
    println!("2 × {bits} bits, {N_INPUTS} to {N_OUTPUTS}: start {:.1?}", begin.elapsed());
    let begin = Instant::now();
    let _ = trainer.train(&samples, |_| ControlFlow::Continue(()));
    let step = begin.elapsed() / N_STEPS as u32;
    let epoch = step * (100_000 / config.batch as u32);
    println!("a step of {} rows {step:.1?}, 100,000 rows {epoch:.1?}", config.batch);
    Ok(())
}
