//! How much faster a pack decodes when only some neurons are computed, chosen at random.
//!
//! ```text
//! cargo run --release -p ls-engine --example sparse_speed -- model.lspack [rounds]
//! ```
//!
//! Modes take turns, a few tokens each, so that what else the machine does hits all of them alike;
//! printed are the median and the least time of a token, and how many times faster than exact mode
//! both are.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ls_engine::{Choice, Engine, EngineError, Grain, Keep, LoadOptions, Random, State};

/// Tokens of a turn; the first is not counted, since it finds the caches as another mode left them.
const TURN: usize = 5;
const CONTEXT: usize = 256;

/// A way to compute.
struct Mode {
    name: String,
    state: State,
    times: Vec<Duration>,
}

impl Mode {
    fn new(engine: &Engine, keep: Option<(f64, Grain)>) -> Result<Self, EngineError> {
        let mut state = engine.new_state()?;
        let name = match keep {
            None => "exact".to_owned(),
            Some((keep, grain)) => format!("{keep} by {grain:?}").to_lowercase(),
        };
        let choice = keep
            .map(|(keep, grain)| Choice::new(Arc::new(Random::new(Keep::uniform(keep), grain, 1))));
        engine.set_choice(&mut state, choice)?;
        Ok(Self { name, state, times: Vec::new() })
    }

    fn turn(&mut self, engine: &Engine) -> Result<(), EngineError> {
        if self.state.position() + TURN > CONTEXT {
            self.state.truncate(0);
        }
        for i in 0..TURN {
            let start = Instant::now();
            engine.decode(&mut self.state, 100 + i as u32)?;
            if i > 0 {
                self.times.push(start.elapsed());
            }
        }
        Ok(())
    }

    /// Median and least milliseconds of a token.
    fn milliseconds(&mut self) -> [f64; 2] {
        self.times.sort_unstable();
        [self.times[self.times.len() / 2], self.times[0]].map(|time| time.as_secs_f64() * 1e3)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which pack? see the top of this example")?;
    let rounds: usize = args.next().map_or(Ok(20), |rounds| rounds.parse())?;
    let options = LoadOptions { context: CONTEXT, ..LoadOptions::default() };
    let engine = Engine::load(Path::new(&path), &options)?;
    let grains = [Grain::Neuron, Grain::Chunk];
    let keeps = grains.into_iter().flat_map(|grain| [0.3, 0.5, 0.7, 1.0].map(|keep| (keep, grain)));
    let mut modes = vec![Mode::new(&engine, None)?];
    for keep in keeps {
        modes.push(Mode::new(&engine, Some(keep))?);
    }
    for _ in 0..rounds.max(1) {
        for mode in &mut modes {
            mode.turn(&engine)?;
        }
    }
    let exact = modes[0].milliseconds();
    for mode in &mut modes {
        let [median, least] = mode.milliseconds();
        let ratios = [exact[0] / median, exact[1] / least];
        println!(
            "{:<16} median {median:7.2} ms ({:.2}×)   least {least:7.2} ms ({:.2}×)",
            mode.name, ratios[0], ratios[1]
        );
    }
    Ok(())
}
