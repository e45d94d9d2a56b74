//! What matters of each layer for each token.

use std::cmp::Reverse;

use crate::SchedError;
use crate::bytes::{Reader, Writer};
use crate::error::within;

const MAGIC: [u8; 4] = *b"LSTR";
const VERSION: u32 = 2;

/// Steps of a byte for each doubling.
const STEPS: f32 = 8.0;
/// Byte of the importance 1.
const ONE: f32 = 128.0;

/// The sizes of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceShape {
    /// Tokens.
    pub n_tokens: u32,
    /// Chunks of each layer; or its neurons, of which some make a chunk then
    /// ([`Shape::neurons_per_chunk`](super::Shape::neurons_per_chunk)).
    pub n_chunks: Vec<u32>,
    /// How many of them a token computes, for each layer.
    pub n_keep: Vec<u32>,
    /// At which times chunks were scored: so much of the layer before was computed, in 1/254; 255 with
    /// the layer's own input. Ascending.
    pub levels: Vec<u8>,
}

/// The level of scores from the layer's own input.
pub(crate) const OWN: u8 = 255;

/// Importances of all chunks of some tokens, and scores that predict them.
///
/// A number takes a byte: `8 · log2(x) + 128`, cut to 1 to 255; 0 for zero. As bytes a trace is:
///
/// | part | type | count |
/// |---|---|---|
/// | "LSTR", version 2 | u8, u32 | 4, 1 |
/// | tokens, layers, levels | u32 | 3 |
/// | levels | u8 | levels |
/// | chunks of each layer; how many of them are computed | u32 | layers each |
/// | for each token and layer: importances; then the scores of each level | u8 | chunks each |
/// | xxh3 of all before | u64 | 1 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    shape: TraceShape,
    /// Where the data of each layer begins within a token's, and the length of all.
    starts: Vec<usize>,
    data: Vec<u8>,
}

impl Trace {
    /// A trace of zeros.
    ///
    /// # Errors
    ///
    /// If a size makes no sense.
    pub fn new(shape: TraceShape) -> Result<Self, SchedError> {
        let starts = starts(&shape)?;
        let len = starts[starts.len() - 1] * shape.n_tokens as usize;
        Ok(Self { shape, starts, data: vec![0; len] })
    }

    /// The sizes.
    #[must_use]
    pub fn shape(&self) -> &TraceShape {
        &self.shape
    }

    /// All numbers of a token's layer: a row of importances, then one for each level. `None` if there is
    /// no such token or layer.
    #[must_use]
    pub fn layer(&self, token: u32, layer: u32) -> Option<&[u8]> {
        let range = self.range(token, layer)?;
        self.data.get(range)
    }

    /// As [`Trace::layer`], to be written.
    #[must_use]
    pub fn layer_mut(&mut self, token: u32, layer: u32) -> Option<&mut [u8]> {
        let range = self.range(token, layer)?;
        self.data.get_mut(range)
    }

    /// The chunks of a layer in the order of how often they are among the best `share`, over all
    /// tokens.
    ///
    /// # Errors
    ///
    /// If there is no such layer.
    pub fn hot(&self, layer: u32, share: f64) -> Result<Vec<u16>, SchedError> {
        let n_layers = self.shape.n_chunks.len() as u32;
        let n = *self
            .shape
            .n_chunks
            .get(layer as usize)
            .ok_or(SchedError::Layer { layer, n_layers })?;
        let n_best = (f64::from(n) * share.clamp(0.0, 1.0)) as usize;
        let mut counts = vec![0u32; n as usize];
        // No more than 2^16, as was checked.
        let mut order: Vec<u16> = (0..n).map(|i| i as u16).collect();
        for token in 0..self.shape.n_tokens {
            let truth = self.truth(token, layer);
            order.sort_by_key(|i| Reverse(truth[usize::from(*i)]));
            order[..n_best].iter().for_each(|i| counts[usize::from(*i)] += 1);
        }
        order.sort_by_key(|i| (Reverse(counts[usize::from(*i)]), *i));
        Ok(order)
    }

    fn range(&self, token: u32, layer: u32) -> Option<std::ops::Range<usize>> {
        let (start, end) = (self.starts.get(layer as usize)?, self.starts.get(layer as usize + 1)?);
        let base = self.starts[self.starts.len() - 1].checked_mul(token as usize)?;
        Some(base + start..base + end)
    }

    /// Importances of a token's layer.
    pub(crate) fn truth(&self, token: u32, layer: u32) -> &[u8] {
        let n = self.shape.n_chunks[layer as usize] as usize;
        &self.layer(token, layer).unwrap_or_default()[..n]
    }

    /// Scores of a token's layer, of the last level that is not beyond `level`, else the first.
    pub(crate) fn scores(&self, token: u32, layer: u32, level: u8) -> &[u8] {
        let n = self.shape.n_chunks[layer as usize] as usize;
        let row = self.shape.levels.iter().rposition(|l| *l <= level).unwrap_or(0) + 1;
        &self.layer(token, layer).unwrap_or_default()[row * n..(row + 1) * n]
    }

    /// The byte of a number.
    #[must_use]
    pub fn encode(x: f32) -> u8 {
        if x > 0.0 { (STEPS * libm::log2f(x) + ONE).round().clamp(1.0, 255.0) as u8 } else { 0 }
    }

    /// The number of a byte.
    #[must_use]
    pub fn decode(byte: u8) -> f32 {
        if byte == 0 { 0.0 } else { libm::exp2f((f32::from(byte) - ONE) / STEPS) }
    }

    /// The trace as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(MAGIC, VERSION);
        to.u32(self.shape.n_tokens);
        to.u32(self.shape.n_chunks.len() as u32);
        to.u32(self.shape.levels.len() as u32);
        to.raw(&self.shape.levels);
        self.shape.n_chunks.iter().chain(&self.shape.n_keep).for_each(|n| to.u32(*n));
        to.raw(&self.data);
        to.finish()
    }

    /// A trace from bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are no trace of this version, or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SchedError> {
        let mut from = Reader::new(bytes, "trace", MAGIC, VERSION)?;
        let n_tokens = from.u32("the sizes")?;
        let (n_layers, n_levels) = (from.u32("the sizes")?, from.u32("the sizes")?);
        let levels = from.raw("the levels", n_levels.into())?.to_vec();
        // Checked before anything is allocated for it.
        let sizes = from.raw("chunks of layers", 8 * u64::from(n_layers))?.chunks_exact(4);
        let mut n_chunks: Vec<u32> =
            sizes.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let n_keep = n_chunks.split_off(n_layers as usize);
        let shape = TraceShape { n_tokens, n_chunks, n_keep, levels };
        let starts = starts(&shape)?;
        let len = starts[starts.len() - 1] as u64 * u64::from(n_tokens);
        let data = from.raw("the numbers", len)?.to_vec();
        from.finish()?;
        Ok(Self { shape, starts, data })
    }
}

/// Most bytes of a trace.
const MAX_BYTES: f64 = (1u64 << 40) as f64;

fn starts(shape: &TraceShape) -> Result<Vec<usize>, SchedError> {
    within("levels", shape.levels.len() as f64, 1.0..=256.0, "1 to 256, ascending")?;
    let is_ascending = shape.levels.is_sorted_by(|a, b| a < b);
    within("levels in order", f64::from(u8::from(is_ascending)), 1.0..=1.0, "ascending levels")?;
    let n_layers = shape.n_chunks.len() as f64;
    within("layers", n_layers, 1.0..=65535.0, "1 to 65535")?;
    let n_keep = shape.n_keep.len() as f64;
    within("layers with what is computed", n_keep, n_layers..=n_layers, "one for each layer")?;
    let mut starts = vec![0];
    let mut end = 0;
    for n in &shape.n_chunks {
        within("chunks of a layer", f64::from(*n), 1.0..=65536.0, "1 to 65536")?;
        end += *n as usize * (1 + shape.levels.len());
        starts.push(end);
    }
    let bytes = end as f64 * f64::from(shape.n_tokens);
    within("bytes of a trace", bytes, 1.0..=MAX_BYTES, "1 to 2^40")?;
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace() -> Trace {
        let (n_chunks, n_keep) = (vec![3, 5], vec![1, 2]);
        let shape = TraceShape { n_tokens: 2, n_chunks, n_keep, levels: vec![0, 127, OWN] };
        let mut trace = Trace::new(shape).unwrap();
        for (i, byte) in trace.data.iter_mut().enumerate() {
            *byte = i as u8;
        }
        trace
    }

    #[test]
    fn numbers_survive_to_a_step() {
        for x in [1e-4f32, 0.3, 1.0, 77.0, 60_000.0] {
            let ratio = Trace::decode(Trace::encode(x)) / x;
            assert!((0.95..1.06).contains(&ratio), "{x}: {ratio}");
        }
        assert_eq!(Trace::encode(f32::NAN), 0);
        assert_eq!(
            (0..=255).map(|b| Trace::encode(Trace::decode(b))).collect::<Vec<_>>(),
            (0..=255).collect::<Vec<u8>>()
        );
    }

    #[test]
    fn rows_are_found() {
        let trace = trace();
        assert_eq!(trace.truth(0, 1), [12, 13, 14, 15, 16]);
        assert_eq!(trace.scores(0, 0, 0), [3, 4, 5]);
        assert_eq!(trace.scores(0, 0, 200), [6, 7, 8]);
        assert_eq!(trace.scores(1, 0, OWN), [32 + 9, 32 + 10, 32 + 11]);
        // The last one is the best for both tokens.
        assert_eq!(trace.hot(1, 0.2).unwrap(), [4, 0, 1, 2, 3]);
        assert!(trace.hot(2, 0.2).is_err());
        assert_eq!((trace.layer(2, 0), trace.layer(0, 2)), (None, None));
    }

    #[test]
    fn bytes_give_the_trace_back() {
        let trace = trace();
        assert_eq!(Trace::from_bytes(&trace.to_bytes()).unwrap(), trace);
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_an_error(place: prop::sample::Index, bit in 0u32..8, cut: bool) {
            let mut bytes = trace().to_bytes();
            let place = place.index(bytes.len());
            if cut { bytes.truncate(place) } else { bytes[place] ^= 1 << bit }
            prop_assert!(Trace::from_bytes(&bytes).is_err());
        }

        #[test]
        fn any_content_is_an_error_or_sound(content in prop::collection::vec(0u8..4, 0..80)) {
            let mut to = Writer::new(MAGIC, VERSION);
            to.raw(&content);
            if let Ok(trace) = Trace::from_bytes(&to.finish()) {
                prop_assert!(trace.layer(0, 0).is_some());
            }
        }
    }
}
