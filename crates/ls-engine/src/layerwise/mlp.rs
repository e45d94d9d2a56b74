//! The MLP of a layer for all tokens.

use std::ops::Range;

use ls_cpu::{Activations, Masks};

use super::{Layerwise, Part};
use crate::EngineError;
use crate::chunks::ChunkSource;
use crate::forward::Forward;
use crate::model::batches;
use crate::sparse::{Choosing, MlpInput};
use crate::state::Buffers;
use crate::weights::{ChunkedMlp, Layer, Mlp};

impl Layerwise<'_> {
    /// Finishes the MLP of the layer for all tokens, with every neuron.
    ///
    /// # Errors
    ///
    /// If weights could not be read: then it can be tried again.
    ///
    /// # Panics
    ///
    /// If the attention of the layer was not finished.
    pub fn mlp(&mut self) -> Result<(), EngineError> {
        assert_eq!(self.position.part, Part::Mlp, "attention comes first");
        while self.position.part == Part::Mlp {
            self.step()?;
        }
        Ok(())
    }

    /// Finishes the MLP of the layer for all tokens with the neurons that `choosing` marks, and what it
    /// adds for the others. It is asked for some hundreds of tokens at once, also across windows;
    /// [`MlpInput::position`] is the number of the first one among all. Their importance is not known.
    ///
    /// # Errors
    ///
    /// If the model is no pack, or weights could not be read: then it can be tried again.
    ///
    /// # Panics
    ///
    /// If the attention of the layer was not finished.
    pub fn mlp_chosen(&mut self, choosing: &mut dyn Choosing) -> Result<(), EngineError> {
        assert_eq!(self.position.part, Part::Mlp, "attention comes first");
        if self.engine.chunks().is_none() {
            return Err(EngineError::NoChunks { path: self.engine.model().path().to_owned() });
        }
        self.masks.resize_with(self.normed.len(), || {
            Masks::new(self.batch.min(self.group), self.engine.config().d_ff)
        });
        while self.position.part == Part::Mlp {
            self.step_with(Some(choosing))?;
        }
        Ok(())
    }

    pub(super) fn mlp_group(
        &mut self,
        forward: &Forward<'_>,
        layer: &Layer,
        choosing: Option<&mut dyn Choosing>,
    ) -> Result<(), EngineError> {
        let (d, done) = (self.engine.config().d_model, self.position.done);
        let next = batches(self.n_tokens() - done, self.group).next();
        let group = next.map_or(done..done, |group| done..done + group.len());
        match (&layer.mlp, forward.chunks) {
            (Mlp::Chunks(mlp), Some(chunks)) => {
                let mlp = (mlp, chunks);
                self.chunked_mlp(forward, layer, mlp, choosing, group.clone())?;
            }
            _ => {
                let b = &mut self.state.buffers;
                for batch in batches(group.len(), self.batch) {
                    let n = batch.len();
                    let x = &mut self.x[(group.start + batch.start) * d..][..n * d];
                    b.x[..n * d].copy_from_slice(x);
                    forward.mlp(self.position.layer, layer, None, None, b, 0, n)?;
                    x.copy_from_slice(&b.x[..n * d]);
                }
            }
        }
        self.position.done = group.end;
        Ok(())
    }

    /// Each segment of the layer for all tokens of the group, before the next segment.
    fn chunked_mlp(
        &mut self,
        forward: &Forward<'_>,
        layer: &Layer,
        (mlp, chunks): (&ChunkedMlp, &ChunkSource),
        mut choosing: Option<&mut dyn Choosing>,
        group: Range<usize>,
    ) -> Result<(), EngineError> {
        let (d, i) = (self.engine.config().d_model, self.position.layer);
        let (x, delta) =
            (&mut self.x[group.start * d..group.end * d], &mut self.delta[..group.len() * d]);
        let Buffers { hidden, .. } = &mut self.state.buffers;
        let (batch, neurons, cpu) = (self.batch, hidden.neurons(), forward.cpu);
        delta.fill(0.0);
        for (b, batch) in batches(group.len(), batch).enumerate() {
            let (x, normed) = (&x[batch.start * d..batch.end * d], &mut self.normed[b]);
            forward.norm(&layer.ffn_norm, x, normed, batch.len());
            if let Some(choosing) = &mut choosing {
                let masks = &mut self.masks[b];
                masks.begin(batch.len(), mlp.layout.d_ff);
                choosing.choose(cpu, &input(i, group.start, &batch, normed), masks);
            }
        }
        let pass = chunks.begin_layer(i);
        pass.begin_layer(i);
        for s in 0..mlp.layout.n_segments() {
            let Some(segment) = pass.segment(i, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            let chunks: Vec<_> = mlp.chunks(s, segment.records()).collect();
            let (gate, first) = (forward.gate(), mlp.neurons(s).start);
            for (b, batch) in batches(group.len(), batch).enumerate() {
                let (n, out) = (batch.len(), &mut delta[batch.start * d..batch.end * d]);
                let masks = choosing.is_some().then(|| (&self.masks[b], first));
                let x = &self.normed[b];
                cpu.chunks_batch(&mlp.shape, &chunks, masks, gate, x, n, neurons, out);
            }
        }
        pass.end_layer(i);
        if let Some(choosing) = choosing {
            for (b, batch) in batches(group.len(), batch).enumerate() {
                let at = input(i, group.start, &batch, &self.normed[b]);
                let out = &mut delta[batch.start * d..batch.end * d];
                choosing.compensate(cpu, &at, &self.masks[b], out);
            }
        }
        forward.add_output(&layer.post_ffn_norm, delta, x);
        Ok(())
    }
}

/// What enters the MLP of layer `layer` for a batch of the group that begins at token `group`.
fn input<'x>(layer: usize, group: usize, batch: &Range<usize>, x: &'x Activations) -> MlpInput<'x> {
    let (n, position) = (batch.len(), group + batch.start);
    MlpInput { layer, n, position, x: x.rows(n), importance: None }
}
