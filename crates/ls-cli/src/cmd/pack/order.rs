//! The order of neurons in a pack: by scores that a file has, or that a text gives.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use ls_engine::{Engine, HotnessProgress, LoadOptions, hotness};
use ls_model::ModelFile;

use crate::args::PackArgs;
use crate::cmd::calibrate::{TOKEN_BYTES, windows};
use crate::interrupt::{self, Interrupted};
use crate::{cmd, output};

/// Tokens of a window of the text.
const WINDOW: usize = 512;

/// For each layer which neuron comes first, second, …; empty when all stay where they are.
pub fn orders(args: &PackArgs, model: &ModelFile, threads: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let scores = match (&args.calibrate, &args.scores) {
        (Some(text), _) => calibrated(args, text, threads)?,
        (None, Some(path)) => read(model, path)?,
        (None, None) => return Ok(Vec::new()),
    };
    if let Some(path) = &args.write_scores {
        let name = path.display();
        let json = serde_json::to_vec(&scores)?;
        std::fs::write(path, json).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(scores.iter().map(|scores| order(scores)).collect())
}

/// Neurons, the highest score first, those of equal scores as they were.
fn order(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
    order
}

/// What each neuron adds in a text.
fn calibrated(args: &PackArgs, text: &Path, threads: usize) -> anyhow::Result<Vec<Vec<f32>>> {
    let n_tokens = usize::try_from(args.calibrate_tokens)?;
    let text = cmd::read_start(text, args.calibrate_tokens.saturating_mul(TOKEN_BYTES))?;
    let options = LoadOptions { threads, context: WINDOW, ..LoadOptions::default() };
    let engine = Engine::load(&args.model, &options)?;
    let windows = windows(&engine, &text, engine.context().min(WINDOW), n_tokens)?;
    let bar = output::progress("calibrate", 0);
    let found = hotness(&engine, &windows, &mut |progress| {
        let HotnessProgress { layer, n_layers, done, total } = *progress;
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(format!("layer {}/{n_layers}", layer + 1));
        if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    found?.ok_or_else(|| {
        Interrupted("calibrating was interrupted; nothing was written".into()).into()
    })
}

/// Scores of a file.
fn read(model: &ModelFile, path: &Path) -> anyhow::Result<Vec<Vec<f32>>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let layers: Vec<Vec<f32>> = serde_json::from_reader(BufReader::new(file))
        .with_context(|| format!("{name} is not an array of arrays of numbers"))?;
    let config = model.config();
    anyhow::ensure!(
        layers.len() == config.n_layers && layers.iter().all(|l| l.len() == config.d_ff),
        "{name} must have {} arrays, one for each layer, of {} scores, one for each neuron",
        config.n_layers,
        config.d_ff
    );
    Ok(layers)
}
