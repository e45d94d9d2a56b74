//! Records what neurons scored and were worth, for the simulator.

use ls_cpu::{Activations, Chunk as Bytes};
use ls_sched::sim::{Trace, TraceShape};
use ls_sched::{Basis, Chunk};

use super::{Inner, Refiner, key};
use crate::forward::Forward;
use crate::state::Buffers;
use crate::stream::Streamer;
use crate::weights::ChunkedMlp;

/// Levels of a trace: after each quarter of the layer before, and from the layer's own input.
const LEVELS: [u8; 5] = [0, 63, 127, 190, 255];

/// What is recorded of some tokens.
#[derive(Debug)]
pub(super) struct Recorder {
    shape: TraceShape,
    tokens: Vec<Vec<Rows>>,
    /// Of the token that is under way, by layer.
    token: Vec<Rows>,
}

/// Importances, and the scores of each level; empty where there were none.
#[derive(Clone, Debug, Default)]
struct Rows([Vec<u8>; 1 + LEVELS.len()]);

impl Recorder {
    /// For layers of so many neurons, of which so many are computed.
    pub fn new(layers: impl Iterator<Item = (u32, u32)>) -> Self {
        let (n_chunks, n_keep): (Vec<u32>, Vec<u32>) = layers.unzip();
        let token = vec![Rows::default(); n_chunks.len()];
        let shape = TraceShape { n_tokens: 0, n_chunks, n_keep, levels: LEVELS.to_vec() };
        Self { shape, tokens: Vec::new(), token }
    }

    pub fn end_token(&mut self) {
        let next = vec![Rows::default(); self.token.len()];
        self.tokens.push(std::mem::replace(&mut self.token, next));
    }

    /// All that was recorded; `None` if that is nothing.
    pub fn trace(&self) -> Option<Trace> {
        let shape = TraceShape { n_tokens: self.tokens.len() as u32, ..self.shape.clone() };
        let mut trace = Trace::new(shape).ok()?;
        for (token, layers) in (0..).zip(&self.tokens) {
            for (layer, Rows(rows)) in (0..).zip(layers) {
                let n = self.shape.n_chunks[layer as usize] as usize;
                // What was not ranked at a level ranks as it did before; and before the first as then.
                let mut last = rows[1..].iter().find(|row| !row.is_empty())?;
                let mut to = trace.layer_mut(token, layer)?.chunks_exact_mut(n);
                to.next()?.copy_from_slice(if rows[0].is_empty() { last } else { &rows[0] });
                for (to, row) in to.zip(&rows[1..]) {
                    last = if row.is_empty() { last } else { row };
                    to.copy_from_slice(last);
                }
            }
        }
        Some(trace)
    }
}

impl Inner {
    /// Records a ranking of `layer`, if it is to be; from its own input with what its neurons are worth.
    #[allow(clippy::too_many_arguments)] // a ranking's whole context
    pub(super) fn record(
        &mut self,
        by: &Refiner,
        streamer: &Streamer,
        forward: &Forward<'_>,
        mlp: &ChunkedMlp,
        b: &Buffers,
        layer: u32,
        basis: Basis,
    ) {
        let Some(recorder) = &mut self.recorder else { return };
        let scores = &self.neurons[layer as usize];
        let encoded = |scores: &[f32]| scores.iter().map(|x| Trace::encode(*x)).collect();
        let Rows(rows) = &mut recorder.token[layer as usize];
        let stages = self.controller.config().stages;
        let quarters = LEVELS.len() - 1;
        if basis.layer != layer {
            let quarter = (basis.stages as usize * quarters / stages as usize).min(quarters - 1);
            rows[1 + quarter] = encoded(scores);
            return;
        }
        let norms = &by.predictors.layers()[layer as usize].norms;
        let values = importances(streamer, forward, mlp, &b.normed, layer, norms, scores);
        (rows[0], rows[LEVELS.len()]) = (encoded(&values), encoded(scores));
    }
}

/// Value times norm of each neuron of `layer` whose chunk is in memory; of others what they score.
fn importances(
    streamer: &Streamer,
    forward: &Forward<'_>,
    mlp: &ChunkedMlp,
    x: &Activations,
    layer: u32,
    norms: &[f32],
    scores: &[f32],
) -> Vec<f32> {
    let (cache, mut values) = (streamer.cache(), scores.to_vec());
    for index in 0..mlp.layout.n_chunks {
        let Some(pin) = cache.pin(key(Chunk { layer, index })) else { continue };
        let (n_neurons, range) = (mlp.layout.neurons_in(index), mlp.layout.neurons(index));
        let bytes = Bytes { bytes: cache.pinned_bytes(&pin), n_neurons };
        let values = &mut values[range.clone()];
        forward.cpu.chunk_neurons(&mlp.shape, bytes, forward.gate(), x, 1, values);
        values.iter_mut().zip(&norms[range]).for_each(|(value, norm)| *value = value.abs() * norm);
        cache.unpin(pin);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_ranked_is_as_before() {
        let mut recorder = Recorder::new([(2, 1), (1, 1)].into_iter());
        assert!(recorder.trace().is_none());
        let Rows(first) = &mut recorder.token[0];
        (first[0], first[2], first[5]) = (vec![9, 8], vec![7, 6], vec![5, 4]);
        recorder.token[1].0[1] = vec![3];
        recorder.end_token();
        let trace = recorder.trace().unwrap();
        assert_eq!(trace.layer(0, 0).unwrap(), [9, 8, 7, 6, 7, 6, 7, 6, 7, 6, 5, 4]);
        assert_eq!(trace.layer(0, 1).unwrap(), [3; 6]);
    }
}
