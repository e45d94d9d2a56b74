//! How many chunks of each layer a GPU holds.

use ls_model::pack::LayerLayout;

use crate::needs::frame_bytes;

/// Bytes of frames that chunks pass through which are not held.
const RING_BYTES: u64 = 8 << 20;

/// Frames of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Chunks of each layer that are held, from the first on.
    pub held: Vec<u32>,
    /// Frames that the others pass through: room for two segments at least. None if all are held.
    pub ring: u32,
}

impl Share {
    /// Holds so many chunks in all, the same share of each layer.
    pub fn of(layers: &[LayerLayout], chunks: u64) -> Self {
        let all: u64 = n_chunks(layers);
        let held = |n: u32| (u128::from(n) * u128::from(chunks) / u128::from(all.max(1))) as u32;
        match chunks >= all {
            true => Self { held: layers.iter().map(|layer| layer.n_chunks).collect(), ring: 0 },
            false => Self {
                held: layers.iter().map(|layer| held(layer.n_chunks)).collect(),
                ring: ring_frames(layers),
            },
        }
    }

    /// Holds nothing, and nothing passes through.
    pub fn none(layers: &[LayerLayout]) -> Self {
        Self { held: vec![0; layers.len()], ring: 0 }
    }

    /// Chunks that are held.
    pub fn n_held(&self) -> u32 {
        self.held.iter().sum()
    }

    /// All frames.
    pub fn n_frames(&self) -> u32 {
        self.n_held() + self.ring
    }
}

/// Chunks of all layers.
pub(crate) fn n_chunks(layers: &[LayerLayout]) -> u64 {
    layers.iter().map(|layer| u64::from(layer.n_chunks)).sum()
}

/// Frames of the ring.
pub(crate) fn ring_frames(layers: &[LayerLayout]) -> u32 {
    let longest = layers.iter().map(|layer| layer.segment_chunks).max().unwrap_or(0);
    let frames = RING_BYTES / (frame_bytes(layers) as u64).max(1);
    (2 * longest).max(frames.min(u64::from(u32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use ls_model::TensorType;
    use ls_model::pack::ColumnType;

    use super::*;

    fn layers() -> Vec<LayerLayout> {
        let layer = |d_ff| {
            let rows = TensorType::Q4_K;
            LayerLayout::new(1536, d_ff, rows, rows, ColumnType::Q6, 16 << 10).unwrap()
        };
        vec![layer(8960), layer(8960), layer(4480)]
    }

    #[test]
    fn every_layer_has_the_same_share() {
        let layers = layers();
        let all = n_chunks(&layers);
        let half = Share::of(&layers, all / 2);
        let shares = half.held.iter().zip(&layers).map(|(held, layer)| layer.n_chunks - 2 * held);
        assert!(shares.max().unwrap() <= 1, "{half:?}");
        assert!(half.ring >= 2 * layers[0].segment_chunks);
        let whole = Share::of(&layers, all);
        assert_eq!((u64::from(whole.n_frames()), whole.ring), (all, 0));
        assert_eq!(Share::of(&layers, 0).n_held(), 0);
    }
}
