//! How much each neuron of the MLPs adds, over a text: what orders the neurons of a pack.

use std::ops::ControlFlow;

use ls_cpu::Activations;

use crate::model::{Engine, batches};
use crate::weights::{Mlp, Weight};
use crate::{EngineError, Layerwise, Part};

/// How far [`hotness`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotnessProgress {
    /// The layer that is under way.
    pub layer: usize,
    /// Layers.
    pub n_layers: usize,
    /// Tokens that have been through a part of a layer, over all parts and layers.
    pub done: u64,
    /// How many there are.
    pub total: u64,
}

/// The share of each layer's output that each neuron makes up in a text: its energy, `|silu(g)·u|²·‖d‖²`, as a
/// share of all neurons', in the mean over the tokens of `windows`. By layer and neuron, in the order that
/// the model has them.
///
/// A share, since a few tokens, like a window's first, have thousands of times the energy of others, and
/// would decide alone.
///
/// The text goes through the model one layer at a time ([`Layerwise`]), so that a mapped file is read once.
/// Results have the same bits for any number of threads. `progress` is asked between windows and batches;
/// on a `Break` there is no result.
///
/// # Errors
///
/// As [`Layerwise::new`], or if weights could not be read.
pub fn hotness(
    engine: &Engine,
    windows: &[Vec<u32>],
    progress: &mut dyn FnMut(&HotnessProgress) -> ControlFlow<()>,
) -> Result<Option<Vec<Vec<f32>>>, EngineError> {
    let mut pass = Layerwise::new(engine, windows)?;
    let (n_layers, n_tokens) = (engine.config().n_layers, pass.n_tokens() as u64);
    let mut layers = Vec::with_capacity(n_layers);
    while layers.len() < n_layers {
        let at = pass.position();
        let parts = 2 * at.layer as u64 + u64::from(at.part == Part::Mlp);
        let (done, total) = (parts * n_tokens + at.done as u64, 2 * n_layers as u64 * n_tokens);
        if progress(&HotnessProgress { layer: at.layer, n_layers, done, total }).is_break() {
            return Ok(None);
        }
        if at.part == Part::Mlp && layers.len() == at.layer {
            layers.push(layer_hotness(engine, &pass, at.layer)?);
        } else {
            pass.step()?;
        }
    }
    Ok(Some(layers))
}

fn layer_hotness(
    engine: &Engine,
    pass: &Layerwise<'_>,
    layer: usize,
) -> Result<Vec<f32>, EngineError> {
    let d_ff = engine.config().d_ff;
    let norms = squared_norms(engine, layer)?;
    let mut sums = vec![0.0; d_ff];
    let mut energy = vec![0.0; d_ff];
    each_batch(engine, pass, layer, &mut |values| {
        for row in values.chunks_exact(d_ff) {
            for ((energy, value), norm) in energy.iter_mut().zip(row).zip(&norms) {
                *energy = f64::from(*value).powi(2) * norm;
            }
            let all: f64 = energy.iter().sum();
            // A token that no neuron adds to says nothing about any.
            if all > 0.0 && all.is_finite() {
                sums.iter_mut().zip(&energy).for_each(|(sum, energy)| *sum += energy / all);
            }
        }
    })?;
    Ok(sums.iter().map(|sum| (sum / pass.n_tokens() as f64) as f32).collect())
}

/// Hands `each` the values of all neurons, `[batch, d_ff]`, of one batch of tokens after the other.
fn each_batch(
    engine: &Engine,
    pass: &Layerwise<'_>,
    layer: usize,
    each: &mut dyn FnMut(&[f32]),
) -> Result<(), EngineError> {
    let (d, d_ff) = (engine.config().d_model, engine.config().d_ff);
    let size = engine.batch().min(pass.n_tokens());
    let (mut x, mut rows) = (vec![0.0; size * d], Activations::new(size, d));
    let mut hidden = Activations::new(size, d_ff);
    let mut values = Vec::new();
    for batch in batches(pass.n_tokens(), size) {
        let n = batch.len();
        let x = &mut x[..n * d];
        pass.normed(batch, x);
        match &engine.weights().layers[layer].mlp {
            Mlp::Rows { gate, up, .. } => {
                engine.check_whole()?;
                rows.fill(engine.cpu(), n, &|t, out| out.copy_from_slice(&x[t * d..][..d]));
                let kind = engine.forward().gate();
                engine.cpu().mlp_neurons(gate.view(), up.view(), kind, &rows, n, &mut hidden);
                each(hidden.rows(n));
            }
            Mlp::Chunks(_) => {
                values.resize(n * d_ff, 0.0);
                engine.mlp_activations(layer, x, &mut values)?;
                each(&values);
            }
        }
    }
    Ok(())
}

/// Squared norms of the down columns.
fn squared_norms(engine: &Engine, layer: usize) -> Result<Vec<f64>, EngineError> {
    let (d, d_ff) = (engine.config().d_model, engine.config().d_ff);
    if let Mlp::Rows { down, .. } = &engine.weights().layers[layer].mlp {
        engine.check_whole()?;
        return Ok(columns_of(down, d_ff));
    }
    let mut norms = vec![0.0; d_ff];
    engine.mlp_weights(layer, &mut |some| {
        for (column, norm) in some.down.chunks_exact(d).zip(&mut norms[some.first..]) {
            *norm = column.iter().map(|w| f64::from(*w).powi(2)).sum();
        }
    })?;
    Ok(norms)
}

/// Squared norms of the columns of a matrix that is stored by rows.
fn columns_of(down: &Weight, d_ff: usize) -> Vec<f64> {
    let (matrix, mut row) = (down.view(), vec![0.0; d_ff]);
    let mut norms = vec![0.0; d_ff];
    for i in 0..matrix.rows() {
        matrix.dequantize_row(i, &mut row);
        norms.iter_mut().zip(&row).for_each(|(norm, w)| *norm += f64::from(*w).powi(2));
    }
    norms
}
