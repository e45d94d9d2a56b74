//! The MLP's neurons one by one: their weights as floats, and their values.
//!
//! For whoever trains or measures. A layer's weights as floats may be larger than memory, so they come
//! a few neurons at a time.

use std::ops::Range;

use ls_cpu::Activations;

use crate::EngineError;
use crate::chunks::Segment;
use crate::model::{Engine, batches};
use crate::weights::{ChunkedMlp, Mlp};

/// Some neurons of an MLP, in the order of the pack.
#[derive(Clone, Copy, Debug)]
pub struct MlpRows<'a> {
    /// Position in the layer of the first one.
    pub first: usize,
    /// How many.
    pub n: usize,
    /// Gate rows, `[n, d_model]`.
    pub gate: &'a [f32],
    /// Up rows, `[n, d_model]`.
    pub up: &'a [f32],
    /// Down columns, `[n, d_model]`: each is what a neuron adds to the output when its value is 1.
    pub down: &'a [f32],
}

impl Engine {
    /// Hands `each` the weights of the MLP of `layer` as floats, all neurons in order, some of them at
    /// a time: exactly what the bytes of the pack mean.
    ///
    /// # Errors
    ///
    /// If the model is no pack, or weights could not be read.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn mlp_weights(
        &self,
        layer: usize,
        each: &mut dyn FnMut(MlpRows<'_>),
    ) -> Result<(), EngineError> {
        let d = self.config().d_model;
        let (mut gate, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
        self.each_segment(layer, &mut |mlp, s, segment| {
            let chunks = mlp.layout.segment(s);
            for (chunk, bytes) in chunks.zip(mlp.chunks(s, segment.records())) {
                let n = bytes.n_neurons;
                for values in [&mut gate, &mut up, &mut down] {
                    values.resize(n * d, 0.0);
                }
                for j in 0..n {
                    let at = j * d..(j + 1) * d;
                    let (gate, up) = (&mut gate[at.clone()], &mut up[at.clone()]);
                    mlp.shape.dequantize(bytes, j, gate, up, &mut down[at]);
                }
                let first = mlp.layout.neurons(chunk).start;
                each(MlpRows { first, n, gate: &gate, up: &up, down: &down });
            }
        })
    }

    /// The values of all neurons of the MLP of `layer`, `act(gate_j · x) · (up_j · x)`, for rows of
    /// `x`, `[n, d_model]`, which are what enters the MLP after its norm
    /// ([`Layerwise::normed`](crate::Layerwise::normed)); into `out`, `[n, d_ff]`, in the order of the
    /// pack.
    ///
    /// For batches of [`ls_cpu::BATCH`] rows or more these are the bits that the MLP computes with.
    /// Each call reads the layer, unless it is in memory, so that `x` should have some thousands of
    /// rows.
    ///
    /// # Errors
    ///
    /// If the model is no pack, or weights could not be read.
    ///
    /// # Panics
    ///
    /// If there is no such layer, or the lengths do not fit.
    pub fn mlp_activations(
        &self,
        layer: usize,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (d, d_ff) = (self.config().d_model, self.config().d_ff);
        let n = x.len() / d;
        assert_eq!((x.len(), out.len()), (n * d, n * d_ff), "rows of inputs and values");
        let size = self.batch().min(n);
        let (mut rows, mut hidden) = (Activations::new(size, d), Vec::new());
        let fill = |rows: &mut Activations, batch: Range<usize>| {
            rows.fill(self.cpu(), batch.len(), &|t, out| {
                out.copy_from_slice(&x[(batch.start + t) * d..][..d]);
            });
        };
        let gate = self.forward().gate();
        self.each_segment(layer, &mut |mlp, s, segment| {
            let chunks: Vec<_> = mlp.chunks(s, segment.records()).collect();
            let n_neurons: usize = chunks.iter().map(|chunk| chunk.n_neurons).sum();
            let first = mlp.layout.neurons(mlp.layout.segment(s).start).start;
            for batch in batches(n, size.max(1)) {
                fill(&mut rows, batch.clone());
                self.cpu().chunks_neurons(
                    &mlp.shape,
                    &chunks,
                    gate,
                    &rows,
                    batch.len(),
                    &mut hidden,
                );
                for (t, values) in batch.zip(hidden.chunks_exact(n_neurons)) {
                    out[t * d_ff + first..][..n_neurons].copy_from_slice(values);
                }
            }
        })
    }

    /// Calls `each` with every segment of a layer's MLP, in order.
    fn each_segment(
        &self,
        layer: usize,
        each: &mut dyn FnMut(&ChunkedMlp, u32, &Segment<'_>),
    ) -> Result<(), EngineError> {
        self.check_whole()?;
        self.check_on_cpu("a neuron by itself")?;
        let (Mlp::Chunks(mlp), Some(chunks)) = (&self.weights().layers[layer].mlp, self.chunks())
        else {
            return Err(EngineError::NoChunks { path: self.model().path().to_owned() });
        };
        let pass = chunks.begin_layer(layer);
        pass.begin_layer(layer);
        for s in 0..mlp.layout.n_segments() {
            let Some(segment) = pass.segment(layer, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            each(mlp, s, &segment);
        }
        pass.end_layer(layer);
        Ok(())
    }
}
