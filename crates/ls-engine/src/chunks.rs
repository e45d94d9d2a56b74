//! Where a pack's chunks come from: the mapped file, or the cache that streaming fills.

use std::sync::atomic::{AtomicU64, Ordering};

use ls_model::pack::{self, LayerLayout};
use ls_model::{ModelFile, SharedBytes};

use crate::EngineError;
use crate::stream::{Pass, StreamedSegment, Streamer};

/// The chunks of all layers.
#[derive(Debug)]
pub(crate) enum ChunkSource {
    /// In the mapped file.
    Mapped(Vec<MappedLayer>),
    /// Under a budget.
    Streamed(Box<Streamer>),
}

/// The chunks of one layer in the mapped file.
#[derive(Debug)]
pub(crate) struct MappedLayer {
    layout: LayerLayout,
    records: SharedBytes,
    /// A bit for each chunk whose checksum was seen to be right.
    verified: Vec<AtomicU64>,
}

impl MappedLayer {
    fn load(model: &ModelFile, layout: LayerLayout) -> Result<Self, EngineError> {
        let bytes = usize::try_from(layout.stored_bytes()).unwrap_or(usize::MAX);
        let records = model.share_range(layout.offset, bytes)?;
        let words = (layout.n_chunks as usize).div_ceil(64);
        let verified = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { layout, records, verified })
    }

    /// The records of a segment. Each is verified when it is used for the first time.
    fn segment(&self, layer: u32, segment: u32) -> Result<&[u8], EngineError> {
        let (chunks, bytes) = (self.layout.segment(segment), self.layout.record_bytes);
        let records = &self.records[chunks.start as usize * bytes..chunks.end as usize * bytes];
        for (chunk, record) in chunks.zip(records.chunks_exact(bytes)) {
            let (word, bit) = (&self.verified[chunk as usize / 64], 1 << (chunk % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                pack::verify_chunk(record, layer, chunk)?;
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        Ok(records)
    }
}

impl ChunkSource {
    /// The chunks of `model` in the mapped file.
    pub fn map(model: &ModelFile, layers: &[LayerLayout]) -> Result<Self, EngineError> {
        let load = |layout: &LayerLayout| MappedLayer::load(model, *layout);
        Ok(Self::Mapped(layers.iter().map(load).collect::<Result<_, _>>()?))
    }

    /// Begins a pass through all layers.
    pub fn begin_pass(&self) -> ChunkPass<'_> {
        match self {
            Self::Mapped(layers) => ChunkPass::Mapped(layers),
            Self::Streamed(streamer) => ChunkPass::Streamed(streamer.begin_pass()),
        }
    }

    /// Begins a pass through one layer alone.
    pub fn begin_layer(&self, layer: usize) -> ChunkPass<'_> {
        match self {
            Self::Mapped(layers) => ChunkPass::Mapped(layers),
            Self::Streamed(streamer) => ChunkPass::Streamed(streamer.begin_layer(layer)),
        }
    }

    /// The streaming, if there is any.
    pub fn streamer(&self) -> Option<&Streamer> {
        match self {
            Self::Mapped(_) => None,
            Self::Streamed(streamer) => Some(streamer),
        }
    }
}

/// A pass through all layers, each of which is entered and left once, in order; or through one.
#[derive(Debug)]
pub(crate) enum ChunkPass<'a> {
    Mapped(&'a [MappedLayer]),
    Streamed(Pass<'a>),
}

impl<'a> ChunkPass<'a> {
    /// The computation enters a layer's MLP.
    pub fn begin_layer(&self, layer: usize) {
        if let Self::Streamed(pass) = self {
            pass.begin_layer(layer);
        }
    }

    /// The chunks of a segment; waits for them. `None` when another thread's segment failed: then
    /// the pass is over. So many threads take segments at once.
    pub fn segment(
        &self,
        layer: usize,
        segment: u32,
        threads: usize,
    ) -> Result<Option<Segment<'a>>, EngineError> {
        match self {
            Self::Mapped(layers) => {
                let layer_chunks = &layers[layer];
                let records = layer_chunks.segment(layer as u32, segment)?;
                Ok(Some(Segment::Mapped(records, layer_chunks.layout.record_bytes)))
            }
            Self::Streamed(pass) => {
                Ok(pass.segment(layer, segment, threads)?.map(Segment::Streamed))
            }
        }
    }

    /// Whether a segment can be had without waiting.
    pub fn is_settled(&self, layer: usize, segment: u32) -> bool {
        match self {
            Self::Mapped(_) => true,
            Self::Streamed(pass) => pass.is_settled(layer, segment),
        }
    }

    /// Chunks of segments that may be held at once, with the one that is waited for.
    pub fn room(&self) -> usize {
        match self {
            Self::Mapped(_) => usize::MAX,
            Self::Streamed(pass) => pass.room(),
        }
    }

    /// The computation leaves a layer's MLP, having taken all of its segments.
    pub fn end_layer(&self, layer: usize) {
        if let Self::Streamed(pass) = self {
            pass.end_layer(layer);
        }
    }

    /// All layers are done.
    pub fn complete(self) {
        if let Self::Streamed(pass) = self {
            pass.complete();
        }
    }
}

/// The chunks of a segment, which stay where they are for as long as this lives.
#[derive(Debug)]
pub(crate) enum Segment<'a> {
    Mapped(&'a [u8], usize),
    Streamed(StreamedSegment<'a>),
}

impl Segment<'_> {
    /// The record of each chunk, in order; under a budget without those that a GPU holds.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        let (mapped, streamed) = match self {
            Self::Mapped(records, bytes) => (Some(records.chunks_exact(*bytes)), None),
            Self::Streamed(segment) => (None, Some(segment.records())),
        };
        mapped.into_iter().flatten().chain(streamed.into_iter().flatten())
    }

    /// The frame of the cache in which each of them lies; none for those of the mapped file.
    pub fn frames(&self) -> impl Iterator<Item = u32> {
        let streamed = match self {
            Self::Mapped(..) => None,
            Self::Streamed(segment) => Some(segment.frames()),
        };
        streamed.into_iter().flatten()
    }
}
