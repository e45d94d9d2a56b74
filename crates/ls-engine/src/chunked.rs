//! One layer's MLP from its chunks.

use std::sync::atomic::{AtomicUsize, Ordering};

use ls_cpu::{Activations, Cpu, Gate, Masks, Touched, add};
use parking_lot::Mutex;

use crate::EngineError;
use crate::chunks::ChunkPass;
use crate::sparse::{MlpInput, Sparse};
use crate::weights::ChunkedMlp;

/// A layer's chunks and what enters them.
#[derive(Clone, Copy)]
pub(crate) struct Chunked<'a> {
    pub cpu: &'a Cpu,
    /// The layer.
    pub i: usize,
    pub mlp: &'a ChunkedMlp,
    pub gate: Gate,
    pub pass: &'a ChunkPass<'a>,
    /// Normalised inputs.
    pub x: &'a Activations,
    /// Tokens.
    pub n: usize,
}

impl Chunked<'_> {
    /// Chooses neurons and sets `out`, `[n, d_model]`, to what they give and what stands in for the
    /// others.
    pub fn add_chosen(
        &self,
        sparse: &mut Sparse,
        position: usize,
        partial: &mut [f32],
        neurons: &mut Vec<f32>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let Self { cpu, i, mlp, gate, pass, x, n } = *self;
        if let Some(importance) = &mut sparse.importance {
            importance.compute(cpu, i, mlp, gate, pass, x, n)?;
        }
        let at = MlpInput { layer: i, n, position, x: x.rows(n), importance: None };
        sparse.choose(cpu, at, mlp.layout.d_ff);
        let touched = self.add(Some(&sparse.masks), partial, neurons, out)?;
        sparse.count(&mlp.layout, n, touched);
        sparse.compensate(cpu, at, out);
        Ok(())
    }

    /// Sets `out`, `[n, d_model]`, to what all neurons give, or those of the masks.
    pub fn add(
        &self,
        masks: Option<&Masks>,
        partial: &mut [f32],
        neurons: &mut Vec<f32>,
        out: &mut [f32],
    ) -> Result<Touched, EngineError> {
        if self.n < ls_cpu::BATCH {
            self.few_tokens(masks, partial, out)
        } else {
            self.many_tokens(masks, neurons, out)
        }
    }

    /// Each thread takes segments; what they add is summed in their order.
    fn few_tokens(
        &self,
        masks: Option<&Masks>,
        partial: &mut [f32],
        out: &mut [f32],
    ) -> Result<Touched, EngineError> {
        let (cpu, pass, len) = (self.cpu, self.pass, out.len());
        let partial = &mut partial[..self.mlp.layout.n_segments() as usize * len];
        let failure = Mutex::new(None);
        let [neurons, chunks, columns] = [const { AtomicUsize::new(0) }; 3];
        cpu.pool().for_each_chunk(partial, len, &|s, out| {
            if failure.lock().is_some() {
                return;
            }
            out.fill(0.0);
            match pass.segment(self.i, s as u32, cpu.pool().threads()) {
                // The thread whose segment failed says why.
                Ok(None) => {}
                Ok(Some(segment)) => {
                    let touched = self.segment(s as u32, || segment.records(), masks, out);
                    neurons.fetch_add(touched.neurons, Ordering::Relaxed);
                    chunks.fetch_add(touched.chunks, Ordering::Relaxed);
                    columns.fetch_add(touched.columns, Ordering::Relaxed);
                }
                Err(error) => {
                    failure.lock().get_or_insert(error);
                }
            }
        });
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        let (partial, piece) = (&*partial, (len / cpu.pool().threads()).max(64));
        cpu.pool().for_each_chunk(out, piece, &|p, out| {
            out.fill(0.0);
            for segment in partial.chunks_exact(len) {
                add(cpu.isa(), out, &segment[p * piece..][..out.len()]);
            }
        });
        let [neurons, chunks, columns] = [neurons, chunks, columns].map(AtomicUsize::into_inner);
        Ok(Touched { neurons, chunks, columns })
    }

    /// Adds a segment to `out`, on the calling thread alone; counts what was chosen.
    fn segment<'r, I: Iterator<Item = &'r [u8]>>(
        &self,
        s: u32,
        records: impl Fn() -> I,
        masks: Option<&Masks>,
        out: &mut [f32],
    ) -> Touched {
        let Self { cpu, mlp, gate, x, n, .. } = *self;
        let mut touched = Touched::default();
        match masks {
            None => {
                for chunk in mlp.chunks(s, records()) {
                    cpu.chunk(&mlp.shape, chunk, gate, x, n, out);
                }
            }
            Some(masks) => {
                let first = mlp.neurons(s).start;
                for (t, out) in out.chunks_exact_mut(mlp.layout.d_model).enumerate() {
                    let chunks = mlp.chunks(s, records());
                    let chosen = (masks.row(t), first);
                    touched += cpu.chosen(&mlp.shape, chunks, chosen, gate, x, t, out);
                }
            }
        }
        touched
    }

    /// All threads work on one segment after the other.
    fn many_tokens(
        &self,
        masks: Option<&Masks>,
        neurons: &mut Vec<f32>,
        out: &mut [f32],
    ) -> Result<Touched, EngineError> {
        let Self { cpu, i, mlp, gate, pass, x, n } = *self;
        out.fill(0.0);
        let mut columns = 0;
        for s in 0..mlp.layout.n_segments() {
            let Some(segment) = pass.segment(i, s, 1)? else {
                unreachable!("one thread waits, so no other's segment can have failed");
            };
            let chunks: Vec<_> = mlp.chunks(s, segment.records()).collect();
            let masks = masks.map(|masks| (masks, mlp.neurons(s).start));
            columns += cpu.chunks_batch(&mlp.shape, &chunks, masks, gate, x, n, neurons, out);
        }
        let masked = |masks: &Masks| Touched { columns, ..touched(masks, mlp, n) };
        Ok(masks.map(masked).unwrap_or_default())
    }
}

/// What masks have of a layer.
fn touched(masks: &Masks, mlp: &ChunkedMlp, n: usize) -> Touched {
    let mut touched = Touched::default();
    for mask in (0..n).map(|t| masks.row(t)) {
        for chunk in 0..mlp.layout.n_chunks {
            let neurons = mask.count(mlp.layout.neurons(chunk));
            touched += Touched { neurons, chunks: usize::from(neurons > 0), columns: 0 };
        }
    }
    touched
}
