//! How much faster a pack decodes when only some neurons are computed.
//!
//! ```text
//! cargo run --release -p ls-engine --example sparse_speed -- model.lspack [rounds] [model.lspred]
//! ```
//!
//! Neurons are chosen at random, or by predictors if there are any. Modes take turns, a few tokens of a
//! text each, so that what else the machine does hits all of them alike; printed are the median and the
//! least time of a token, how many times faster than exact mode both are, and the median of that ratio
//! over the rounds.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ls_engine::predict::{Predicted, Predictors};
use ls_engine::sparse::Choose;
use ls_engine::{Choice, Engine, EngineError, Grain, Keep, LoadOptions, Random, State};
use ls_model::tokenizer::EncodeOptions;

/// Tokens of a turn; the first is not counted, since it finds the caches as another mode left them.
const TURN: usize = 5;
const CONTEXT: usize = 256;
const TEXT: &str = include_str!("../../../fixtures/real/book-held.txt");

/// A way to compute.
struct Mode {
    name: String,
    state: State,
    times: Vec<Duration>,
}

impl Mode {
    fn new(
        engine: &Engine,
        name: String,
        chooser: Option<Arc<dyn Choose>>,
    ) -> Result<Self, EngineError> {
        let mut state = engine.new_state()?;
        engine.set_choice(&mut state, chooser.map(Choice::new))?;
        Ok(Self { name, state, times: Vec::new() })
    }

    fn turn(&mut self, engine: &Engine, text: &[u32]) -> Result<(), EngineError> {
        if self.state.position() + TURN > CONTEXT {
            self.state.truncate(0);
        }
        for i in 0..TURN {
            let token = text[self.state.position() % text.len()];
            let start = Instant::now();
            engine.decode(&mut self.state, token)?;
            if i > 0 {
                self.times.push(start.elapsed());
            }
        }
        Ok(())
    }

    /// Median and least milliseconds of a token.
    fn milliseconds(&self) -> [f64; 2] {
        let mut times = self.times.clone();
        times.sort_unstable();
        [times[times.len() / 2], times[0]].map(|time| time.as_secs_f64() * 1e3)
    }

    /// Median over the turns of how many times faster it was than `exact` in the same round.
    fn ratio(&self, exact: &Self) -> f64 {
        let turns = |mode: &Self| -> Vec<f64> {
            let turns = mode.times.chunks(TURN - 1);
            turns.map(|turn| turn.iter().sum::<Duration>().as_secs_f64()).collect()
        };
        let mut ratios: Vec<f64> =
            turns(exact).iter().zip(turns(self)).map(|(exact, mine)| exact / mine).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which pack? see the top of this example")?;
    let rounds: usize = args.next().map_or(Ok(20), |rounds| rounds.parse())?;
    let options = LoadOptions { context: CONTEXT, ..LoadOptions::default() };
    let engine = Engine::load(Path::new(&path), &options)?;
    let text = engine.tokenizer().encode(&TEXT[..4096], EncodeOptions::PROMPT)?;
    let mut modes = vec![Mode::new(&engine, "exact".to_owned(), None)?];
    match args.next() {
        Some(predictors) => {
            let predictors = Arc::new(Predictors::open(Path::new(&predictors), engine.model())?);
            for keep in [0.3, 0.4, 0.5, 0.7] {
                let plan = predictors.plan(keep, engine.row_share());
                let by = Arc::new(Predicted::new(predictors.clone(), plan));
                modes.push(Mode::new(&engine, format!("{keep} predicted"), Some(by))?);
            }
        }
        None => {
            for grain in [Grain::Neuron, Grain::Chunk] {
                for keep in [0.3, 0.5, 0.7, 1.0] {
                    let by = Arc::new(Random::new(Keep::uniform(keep), grain, 1));
                    let name = format!("{keep} by {grain:?}").to_lowercase();
                    modes.push(Mode::new(&engine, name, Some(by))?);
                }
            }
        }
    }
    for _ in 0..rounds.max(1) {
        for mode in &mut modes {
            mode.turn(&engine, &text)?;
        }
    }
    let exact = modes[0].milliseconds();
    for mode in &modes {
        let [median, least] = mode.milliseconds();
        println!(
            "{:<14} median {median:7.2} ms ({:.2}×)   least {least:7.2} ms ({:.2}×)   by turns {:.2}×   \
             computed {:.3}, neurons {:.3}",
            mode.name,
            exact[0] / median,
            exact[1] / least,
            mode.ratio(&modes[0]),
            mode.state.sparse_counts().unwrap_or_default().computed_fraction(),
            mode.state.sparse_counts().unwrap_or_default().chosen_fraction(),
        );
    }
    Ok(())
}
