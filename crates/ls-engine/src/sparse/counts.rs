//! How much of the MLPs was computed.

use ls_cpu::Touched;
use ls_model::pack::LayerLayout;
use serde::Serialize;

/// What the sparse passes of a sequence computed, over layers and tokens. Dense prompts do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SparseCounts {
    /// Neurons that were chosen.
    pub neurons: u64,
    /// Neurons in all.
    pub neurons_all: u64,
    /// Chunks with a neuron that was chosen for the token.
    pub chunks: u64,
    /// Chunks in all.
    pub chunks_all: u64,
    /// Down columns that were added: of the chosen neurons, but for those that turned out to matter too
    /// little.
    pub columns: u64,
    /// Bytes of the weights that were computed with.
    pub bytes: u64,
    /// Bytes of all neurons' weights.
    pub bytes_all: u64,
}

impl SparseCounts {
    /// Counts a layer of `n` tokens.
    pub(crate) fn add_all(&mut self, layout: &LayerLayout, n: usize) {
        self.neurons_all += (n * layout.d_ff) as u64;
        self.chunks_all += n as u64 * u64::from(layout.n_chunks);
        self.bytes_all += (n * layout.d_ff * layout.neuron_bytes()) as u64;
    }

    /// Counts what was computed of it.
    pub(crate) fn add(&mut self, layout: &LayerLayout, touched: Touched) {
        let (neuron, column) = (layout.neuron_bytes() as u64, layout.column_bytes() as u64);
        self.neurons += touched.neurons as u64;
        self.chunks += touched.chunks as u64;
        self.columns += touched.columns as u64;
        self.bytes += touched.neurons as u64 * (neuron - column) + touched.columns as u64 * column;
    }

    /// The fraction of the MLPs' bytes that was computed with; of nothing, 1. Without columns left out it
    /// is the fraction of neurons.
    pub fn computed_fraction(&self) -> f64 {
        fraction(self.bytes, self.bytes_all)
    }

    /// The fraction of neurons that was chosen, and whose gates and ups were computed; of nothing, 1.
    pub fn chosen_fraction(&self) -> f64 {
        fraction(self.neurons, self.neurons_all)
    }

    /// The fraction of chunks that had a chosen neuron; of nothing, 1.
    pub fn touched_fraction(&self) -> f64 {
        fraction(self.chunks, self.chunks_all)
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            neurons: self.neurons - earlier.neurons,
            neurons_all: self.neurons_all - earlier.neurons_all,
            chunks: self.chunks - earlier.chunks,
            chunks_all: self.chunks_all - earlier.chunks_all,
            columns: self.columns - earlier.columns,
            bytes: self.bytes - earlier.bytes,
            bytes_all: self.bytes_all - earlier.bytes_all,
        }
    }
}

fn fraction(part: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { part as f64 / all as f64 }
}
