//! Where the neurons of a layer lie.

use std::ops::Range;

use super::checksum::SUM_BYTES;
use super::size::{MAX_SEGMENTS, chunk_size, segment_chunks};
use super::{ALIGN, ColumnType};
use crate::TensorType;

/// The chunks of one layer's MLP.
///
/// A chunk is a record of `record_bytes` with the weights of a few neurons: their gate rows, then
/// their up rows, then their down columns, each part one neuron after the other. The parts begin
/// at the same places in every chunk of the layer; the last chunk may hold fewer neurons. The
/// record ends with a checksum, see [`verify_chunk`](super::verify_chunk).
///
/// ```
/// use ls_model::TensorType;
/// use ls_model::pack::{ColumnType, LayerLayout};
///
/// let (gate, up) = (TensorType::Q4_K, TensorType::Q4_K);
/// let layer = LayerLayout::new(1536, 8960, gate, up, ColumnType::Q6, 16 << 10).unwrap();
/// assert_eq!((layer.neurons_per_chunk, layer.n_chunks, layer.record_bytes), (4, 2240, 12288));
/// assert_eq!((layer.gate(0), layer.up(0)), (0..3456, 3456..6912));
/// assert_eq!(layer.segment(1), 35..70);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerLayout {
    /// Neurons of the layer.
    pub d_ff: usize,
    /// Elements of each gate row, up row and down column.
    pub d_model: usize,
    /// Neurons of each chunk but the last.
    pub neurons_per_chunk: usize,
    /// Chunks of the layer.
    pub n_chunks: u32,
    /// Type of gate rows: the source's.
    pub gate: TensorType,
    /// Type of up rows: the source's.
    pub up: TensorType,
    /// Type of down columns.
    pub down: ColumnType,
    /// Where up rows begin in a record. Gate rows begin at 0.
    pub up_at: usize,
    /// Where down columns begin in a record.
    pub down_at: usize,
    /// Bytes of one record: a multiple of 4096.
    pub record_bytes: usize,
    /// Where chunk 0 begins in the file: a multiple of 4096.
    pub offset: u64,
    /// Chunks of each segment but the last. Within a segment the neurons are summed in order, and
    /// segments are added in order, so that a result does not depend on when chunks arrive.
    pub segment_chunks: u32,
}

impl LayerLayout {
    /// The layout that a pack with chunks of about `target_bytes` has, at offset 0; `None` when
    /// rows or columns are not whole blocks, or sizes cannot be addressed.
    pub fn new(
        d_model: usize,
        d_ff: usize,
        gate: TensorType,
        up: TensorType,
        down: ColumnType,
        target_bytes: usize,
    ) -> Option<Self> {
        let (gate_row, up_row) = (gate.row_bytes(d_model)?, up.row_bytes(d_model)?);
        let neuron_bytes =
            gate_row.checked_add(up_row)?.checked_add(down.column_bytes(d_model)?)?;
        if neuron_bytes == 0 || d_ff == 0 {
            return None;
        }
        let size = chunk_size(neuron_bytes, d_ff, target_bytes)?;
        let n_chunks = u32::try_from(d_ff.div_ceil(size.neurons)).ok()?;
        let up_at = size.neurons * gate_row;
        Some(Self {
            d_ff,
            d_model,
            neurons_per_chunk: size.neurons,
            n_chunks,
            gate,
            up,
            down,
            up_at,
            down_at: up_at + size.neurons * up_row,
            record_bytes: size.record_bytes,
            offset: 0,
            segment_chunks: segment_chunks(n_chunks, size.record_bytes),
        })
    }

    /// Bytes of one gate row.
    pub fn gate_row_bytes(&self) -> usize {
        self.gate.row_bytes(self.d_model).unwrap_or_default()
    }

    /// Bytes of one up row.
    pub fn up_row_bytes(&self) -> usize {
        self.up.row_bytes(self.d_model).unwrap_or_default()
    }

    /// Bytes of one down column.
    pub fn column_bytes(&self) -> usize {
        self.down.column_bytes(self.d_model).unwrap_or_default()
    }

    /// Bytes of one neuron: its rows and its column.
    pub fn neuron_bytes(&self) -> usize {
        self.gate_row_bytes() + self.up_row_bytes() + self.column_bytes()
    }

    /// Where the record of a chunk begins in the file.
    pub fn chunk_offset(&self, chunk: u32) -> u64 {
        self.offset + u64::from(chunk) * self.record_bytes as u64
    }

    /// Positions of the neurons in a chunk, from 0 to `d_ff`; empty beyond the last chunk.
    pub fn neurons(&self, chunk: u32) -> Range<usize> {
        let begin = (chunk as usize).saturating_mul(self.neurons_per_chunk).min(self.d_ff);
        begin..begin.saturating_add(self.neurons_per_chunk).min(self.d_ff)
    }

    /// Number of neurons in a chunk.
    pub fn neurons_in(&self, chunk: u32) -> usize {
        self.neurons(chunk).len()
    }

    /// The chunk of the neuron at `position`, and which of that chunk's neurons it is.
    pub fn chunk_of(&self, position: usize) -> (u32, usize) {
        ((position / self.neurons_per_chunk) as u32, position % self.neurons_per_chunk)
    }

    /// Where the gate rows of a chunk lie in its record.
    pub fn gate(&self, chunk: u32) -> Range<usize> {
        0..self.neurons_in(chunk) * self.gate_row_bytes()
    }

    /// Where the up rows of a chunk lie in its record.
    pub fn up(&self, chunk: u32) -> Range<usize> {
        self.up_at..self.up_at + self.neurons_in(chunk) * self.up_row_bytes()
    }

    /// Where the down columns of a chunk lie in its record.
    pub fn down(&self, chunk: u32) -> Range<usize> {
        self.down_at..self.down_at + self.neurons_in(chunk) * self.column_bytes()
    }

    /// Number of segments: 1 to 64.
    pub fn n_segments(&self) -> u32 {
        self.n_chunks.div_ceil(self.segment_chunks)
    }

    /// The chunks of a segment.
    pub fn segment(&self, segment: u32) -> Range<u32> {
        let begin = segment.saturating_mul(self.segment_chunks).min(self.n_chunks);
        begin..begin.saturating_add(self.segment_chunks).min(self.n_chunks)
    }

    /// The chunks of each segment, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Range<u32>> + use<> {
        let layout = *self;
        (0..self.n_segments()).map(move |segment| layout.segment(segment))
    }

    /// Bytes of the layer's weights, without padding and checksums.
    pub fn useful_bytes(&self) -> u64 {
        self.d_ff as u64 * self.neuron_bytes() as u64
    }

    /// Bytes of the layer's records.
    pub fn stored_bytes(&self) -> u64 {
        u64::from(self.n_chunks) * self.record_bytes as u64
    }

    /// Whether the parts fit together and nothing overflows; what a file says is not known to.
    pub(super) fn is_sound(&self) -> bool {
        self.checked_parts().is_some()
    }

    fn checked_parts(&self) -> Option<()> {
        let n = self.neurons_per_chunk;
        let part = |row_bytes: Option<usize>| row_bytes?.checked_mul(n);
        let gate_end = part(self.gate.row_bytes(self.d_model))?;
        let up_end = part(self.up.row_bytes(self.d_model))?.checked_add(self.up_at)?;
        let down_end = part(self.down.column_bytes(self.d_model))?.checked_add(self.down_at)?;
        let holds = [
            (1..=self.d_ff).contains(&n),
            self.d_model > 0,
            self.n_chunks as usize == self.d_ff.div_ceil(n.max(1)),
            gate_end <= self.up_at,
            up_end <= self.down_at,
            down_end <= self.record_bytes.checked_sub(SUM_BYTES)?,
            self.record_bytes.is_multiple_of(ALIGN),
            self.offset.is_multiple_of(ALIGN as u64),
            (1..=self.n_chunks).contains(&self.segment_chunks),
            self.n_chunks.div_ceil(self.segment_chunks.max(1)) <= MAX_SEGMENTS,
        ];
        let bytes = u64::from(self.n_chunks).checked_mul(self.record_bytes as u64)?;
        self.offset.checked_add(bytes)?;
        holds.into_iter().all(|holds| holds).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> LayerLayout {
        let f32s = TensorType::F32;
        // 3 × 400 bytes a neuron: 10 in 12 KiB.
        LayerLayout::new(100, 37, f32s, f32s, ColumnType::F32, 12 << 10).unwrap()
    }

    #[test]
    fn every_neuron_lies_in_one_chunk() {
        let layout = layout();
        assert_eq!(
            (layout.neurons_per_chunk, layout.n_chunks, layout.record_bytes),
            (10, 4, 12288)
        );
        assert!(layout.is_sound());
        let all: Vec<usize> = (0..layout.n_chunks).flat_map(|c| layout.neurons(c)).collect();
        assert_eq!(all, (0..37).collect::<Vec<_>>());
        for position in 0..37 {
            let (chunk, slot) = layout.chunk_of(position);
            assert_eq!(layout.neurons(chunk).start + slot, position);
        }
    }

    #[test]
    fn the_last_chunk_is_shorter_with_parts_at_the_same_places() {
        let layout = layout();
        assert_eq!(layout.neurons_in(3), 7);
        assert_eq!((layout.gate(0), layout.gate(3)), (0..4000, 0..2800));
        assert_eq!((layout.up(0), layout.up(3)), (4000..8000, 4000..6800));
        assert_eq!((layout.down(0), layout.down(3)), (8000..12000, 8000..10800));
        assert_eq!(layout.neurons_in(4), 0);
        assert_eq!(layout.neurons_in(u32::MAX), 0);
    }

    #[test]
    fn segments_cover_all_chunks_in_order() {
        for segment_chunks in 1..=4 {
            let layout = LayerLayout { segment_chunks, ..layout() };
            let chunks: Vec<u32> = layout.segments().flatten().collect();
            assert_eq!(chunks, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn parts_that_overlap_or_overflow_are_not_sound() {
        let good = layout();
        let bad = [
            LayerLayout { up_at: 3999, ..good },
            LayerLayout { down_at: 7999, ..good },
            LayerLayout { down_at: 9000, ..good },
            LayerLayout { down_at: usize::MAX, ..good },
            LayerLayout { record_bytes: 12000, ..good },
            LayerLayout { record_bytes: 0, ..good },
            LayerLayout { n_chunks: 5, ..good },
            LayerLayout { neurons_per_chunk: 0, ..good },
            LayerLayout { neurons_per_chunk: usize::MAX, ..good },
            LayerLayout { segment_chunks: 0, ..good },
            LayerLayout { segment_chunks: 5, ..good },
            LayerLayout { offset: u64::MAX - 4095, ..good },
            LayerLayout { offset: 1, ..good },
            LayerLayout { down: ColumnType::Q8, ..good },
        ];
        for layout in bad {
            assert!(!layout.is_sound(), "{layout:?}");
        }
    }
}
