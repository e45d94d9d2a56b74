//! How much each neuron adds to an MLP's output: its value times the norm of its down column.

use std::sync::Arc;

use ls_cpu::{Activations, BATCH, Cpu, Gate};
use parking_lot::Mutex;

use crate::EngineError;
use crate::chunks::{ChunkPass, ChunkSource};
use crate::weights::{ChunkedMlp, Mlp, Weights};

/// Norms of down columns, and memory for a batch's importance.
#[derive(Debug)]
pub(crate) struct Importance {
    /// By layer and neuron.
    norms: Arc<Vec<Vec<f32>>>,
    /// `[tokens, d_ff]`
    values: Vec<f32>,
    /// Neurons' values of few tokens, chunk by chunk.
    neurons: Vec<f32>,
    /// Of many, one segment's.
    segment: Vec<f32>,
}

impl Importance {
    /// Room for `rows` tokens and layers of `d_ff` neurons.
    pub fn new(norms: Arc<Vec<Vec<f32>>>, rows: usize, d_ff: usize) -> Self {
        let neurons = vec![0.0; rows.min(BATCH - 1) * d_ff];
        Self { norms, values: vec![0.0; rows * d_ff], neurons, segment: Vec::new() }
    }

    /// Of each neuron for each of `n` tokens, `[n, d_ff]`.
    pub fn of(&self, n: usize, d_ff: usize) -> &[f32] {
        &self.values[..n * d_ff]
    }

    /// Computes every neuron of layer `i` for the first `n` rows of `x`.
    #[allow(clippy::too_many_arguments)] // one region's whole context
    pub fn compute(
        &mut self,
        cpu: &Cpu,
        i: usize,
        mlp: &ChunkedMlp,
        gate: Gate,
        pass: &ChunkPass<'_>,
        x: &Activations,
        n: usize,
    ) -> Result<(), EngineError> {
        if n < BATCH {
            self.few_tokens(cpu, i, mlp, gate, pass, x, n)
        } else {
            self.many_tokens(cpu, i, mlp, gate, pass, x, n)
        }
    }

    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn few_tokens(
        &mut self,
        cpu: &Cpu,
        i: usize,
        mlp: &ChunkedMlp,
        gate: Gate,
        pass: &ChunkPass<'_>,
        x: &Activations,
        n: usize,
    ) -> Result<(), EngineError> {
        let layout = mlp.layout;
        let values = &mut self.neurons[..n * layout.d_ff];
        let segment = layout.segment_chunks as usize * layout.neurons_per_chunk * n;
        each_segment(cpu, pass, i, segment, values, &|s, records, mut values| {
            for chunk in mlp.chunks(s, records) {
                let (here, rest) = values.split_at_mut(n * chunk.n_neurons);
                cpu.chunk_neurons(&mlp.shape, chunk, gate, x, n, here);
                values = rest;
            }
        })?;
        let mut from = &*values;
        for neurons in (0..layout.n_chunks).map(|chunk| layout.neurons(chunk)) {
            for t in 0..n {
                let (here, rest) = from.split_at(neurons.len());
                let to = &mut self.values[t * layout.d_ff..][neurons.clone()];
                weigh(here, &self.norms[i][neurons.clone()], to);
                from = rest;
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn many_tokens(
        &mut self,
        cpu: &Cpu,
        i: usize,
        mlp: &ChunkedMlp,
        gate: Gate,
        pass: &ChunkPass<'_>,
        x: &Activations,
        n: usize,
    ) -> Result<(), EngineError> {
        let layout = mlp.layout;
        for s in 0..layout.n_segments() {
            let Some(segment) = pass.segment(i, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            let chunks: Vec<_> = mlp.chunks(s, segment.records()).collect();
            cpu.chunks_neurons(&mlp.shape, &chunks, gate, x, n, &mut self.segment);
            let neurons = mlp.neurons(s);
            let rows = self.segment.chunks_exact(neurons.len());
            for (values, to) in rows.zip(self.values.chunks_exact_mut(layout.d_ff)) {
                weigh(values, &self.norms[i][neurons.clone()], &mut to[neurons.clone()]);
            }
        }
        Ok(())
    }
}

fn weigh(values: &[f32], norms: &[f32], out: &mut [f32]) {
    for ((out, value), norm) in out.iter_mut().zip(values).zip(norms) {
        *out = value.abs() * norm;
    }
}

/// Works on a segment: its number, the records of its chunks, and its part of the output.
type SegmentTask<'a> = &'a (dyn Fn(u32, &mut dyn Iterator<Item = &[u8]>, &mut [f32]) + Sync);

/// Calls `task(segment, records, part)` for each segment of layer `i` with its part of `out`, `len`
/// values but for the last, on all threads.
fn each_segment(
    cpu: &Cpu,
    pass: &ChunkPass<'_>,
    i: usize,
    len: usize,
    out: &mut [f32],
    task: SegmentTask<'_>,
) -> Result<(), EngineError> {
    let failure = Mutex::new(None);
    cpu.pool().for_each_chunk(out, len, &|s, out| {
        if failure.lock().is_some() {
            return;
        }
        match pass.segment(i, s as u32, cpu.pool().threads()) {
            // The thread whose segment failed says why.
            Ok(None) => {}
            Ok(Some(segment)) => task(s as u32, &mut segment.records(), out),
            Err(error) => {
                failure.lock().get_or_insert(error);
            }
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// Norms of the down columns of all layers, by neuron; empty for a layer that is not chunks. It is a
/// pass through all chunks.
pub(crate) fn column_norms(
    cpu: &Cpu,
    chunks: &ChunkSource,
    weights: &Weights,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let pass = chunks.begin_pass();
    let mut norms = Vec::with_capacity(weights.layers.len());
    for (i, layer) in weights.layers.iter().enumerate() {
        let Mlp::Chunks(mlp) = &layer.mlp else {
            norms.push(Vec::new());
            continue;
        };
        pass.begin_layer(i);
        let segment = mlp.neurons(0).len();
        let mut of_layer = vec![0.0; mlp.layout.d_ff];
        each_segment(cpu, &pass, i, segment, &mut of_layer, &|s, records, mut norms| {
            let mut column = Vec::new();
            for chunk in mlp.chunks(s, records) {
                let (here, rest) = norms.split_at_mut(chunk.n_neurons);
                cpu.column_norms(&mlp.shape, chunk, &mut column, here);
                norms = rest;
            }
        })?;
        pass.end_layer(i);
        norms.push(of_layer);
    }
    pass.complete();
    Ok(norms)
}
