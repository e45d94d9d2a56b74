//! What there is to stream.

use crate::SchedError;
use crate::error::within;

/// Most chunks of a layer. Lists of a layer's chunks take two bytes for each.
pub const MAX_CHUNKS: u32 = 1 << 16;

/// The smallest unit that is read, kept and computed: a few neurons of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Which layer, from 0.
    pub layer: u32,
    /// Which of its chunks, from 0, in the order of the file.
    pub index: u32,
}

/// The chunks of one layer, which lie one after the other in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// How many there are.
    pub n_chunks: u32,
    /// How many of them a token computes in sparse mode.
    pub n_keep: u32,
    /// Chunks that are computed together in exact mode, which sums them in order; the last segment
    /// may be shorter.
    pub segment_chunks: u32,
    /// Bytes of each in the file; at most those of a frame.
    pub chunk_bytes: u32,
    /// What a share of this layer's scores counts, beside the same share of other layers'; 1 on average.
    /// Only if chunks are chosen [by worth](crate::Count::ByWorth).
    pub weight: f32,
}

/// All layers, in the order in which a token needs them.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Bytes of a place in memory.
    pub frame_bytes: u32,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl Layout {
    /// Layers that are all alike, `keep` of whose chunks are computed, in segments of eight.
    #[must_use]
    pub fn even(n_layers: u32, n_chunks: u32, chunk_bytes: u32, keep: f64) -> Self {
        let n_keep = libm::round(f64::from(n_chunks) * keep) as u32;
        let n_keep = n_keep.clamp(1, n_chunks.max(1));
        let segment_chunks = n_chunks.clamp(1, 8);
        let layer = Layer { n_chunks, n_keep, segment_chunks, chunk_bytes, weight: 1.0 };
        Self { frame_bytes: chunk_bytes, layers: vec![layer; n_layers as usize] }
    }

    /// How many layers there are.
    #[must_use]
    pub fn n_layers(&self) -> u32 {
        self.layers.len() as u32
    }

    /// Bytes of all frames that all chunks would take.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.n_chunks() * u64::from(self.frame_bytes)
    }

    pub(crate) fn n_chunks(&self) -> u64 {
        self.layers.iter().map(|layer| u64::from(layer.n_chunks)).sum()
    }

    /// Whether everything is there and within bounds.
    pub(crate) fn check(&self) -> Result<(), SchedError> {
        let n_layers = self.layers.len() as f64;
        within("number of layers", n_layers, 1.0..=65535.0, "1 to 65535")?;
        within("chunks in all", self.n_chunks() as f64, 1.0..=f64::from(u32::MAX), "below 2^32")?;
        let frame = f64::from(self.frame_bytes);
        within("bytes of a frame", frame, 1.0..=f64::from(u32::MAX), "at least 1")?;
        for layer in &self.layers {
            let n = f64::from(layer.n_chunks);
            let most = f64::from(MAX_CHUNKS);
            within("chunks of a layer", n, 1.0..=most, "1 to 65536")?;
            within("chunks to compute", f64::from(layer.n_keep), 1.0..=n, "1 to all")?;
            within("chunks of a segment", f64::from(layer.segment_chunks), 1.0..=n, "1 to all")?;
            let bytes = f64::from(layer.chunk_bytes);
            within("bytes of a chunk", bytes, 1.0..=frame, "at least 1, at most a frame")?;
            within("weight of a layer", layer.weight.into(), 1e-6..=1e6, "more than 0")?;
        }
        Ok(())
    }
}
