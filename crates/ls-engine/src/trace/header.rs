//! The start of a trace: what it is a trace of.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::TraceError;
use crate::Pcg32;

pub(super) const MAGIC: [u8; 8] = *b"LSTRACE\0";
pub(super) const VERSION: u32 = 1;
/// Bytes before the sampled tokens.
pub(super) const FIXED_BYTES: usize = 64;
/// Bytes of a checksum.
pub(super) const SUM_BYTES: u64 = 8;

/// What a trace is a trace of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceInfo {
    /// Checksum of the pack.
    pub pack: u64,
    /// Checksum of the windows.
    pub text: u64,
    /// Seed that the tokens were sampled with.
    pub seed: u64,
    /// Tokens of all windows.
    pub n_tokens: u32,
    /// The sampled tokens, ascending, counted over all windows.
    pub sampled: Vec<u32>,
    /// Values of a residual stream.
    pub d_model: u32,
    /// Layers.
    pub n_layers: u32,
}

impl TraceInfo {
    /// Bytes of the header; `None` when they cannot be counted.
    pub(super) fn header_bytes(n_sampled: u64) -> Option<u64> {
        n_sampled.checked_mul(4)?.checked_add(FIXED_BYTES as u64 + SUM_BYTES)
    }

    /// Bytes of a layer, its checksum included; `None` when they cannot be counted.
    pub(super) fn layer_bytes(n_sampled: u64, d_model: u32) -> Option<u64> {
        n_sampled.checked_mul(u64::from(d_model))?.checked_mul(2)?.checked_add(SUM_BYTES)
    }

    /// Bytes of a trace; `None` when they cannot be counted.
    pub(super) fn bytes(n_sampled: u64, d_model: u32, n_layers: u32) -> Option<u64> {
        let layers = Self::layer_bytes(n_sampled, d_model)?.checked_mul(u64::from(n_layers))?;
        Self::header_bytes(n_sampled)?.checked_add(layers)
    }

    /// Where a layer begins; its trace, or one with more layers, can be counted.
    pub(super) fn offset(&self, layer: usize) -> u64 {
        let n = self.sampled.len() as u64;
        let (header, bytes) = (Self::header_bytes(n), Self::layer_bytes(n, self.d_model));
        let layers = bytes.unwrap_or(u64::MAX).saturating_mul(layer as u64);
        header.unwrap_or(u64::MAX).saturating_add(layers)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        let numbers =
            [self.pack, self.text, self.seed, u64::from(self.n_tokens), self.sampled.len() as u64];
        bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(self.d_model.to_le_bytes());
        bytes.extend(self.n_layers.to_le_bytes());
        bytes.extend(self.sampled.iter().flat_map(|token| token.to_le_bytes()));
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Reads what `bytes`, the first [`FIXED_BYTES`] of a file of `file_len` bytes, say of the header:
    /// its length, which the file has.
    pub(super) fn decode_len(path: &Path, bytes: &[u8], file_len: u64) -> Result<u64, TraceError> {
        let path = || path.to_owned();
        if !bytes.starts_with(&MAGIC) {
            let found = bytes[..bytes.len().min(MAGIC.len())].to_vec();
            return Err(TraceError::Magic { path: path(), what: "trace", found });
        }
        if bytes.len() < FIXED_BYTES {
            let expected = FIXED_BYTES as u64;
            return Err(TraceError::Length { path: path(), expected, found: file_len });
        }
        for (at, what, expected) in [(8, "version", VERSION), (12, "flags", 0)] {
            let found = u32_at(bytes, at);
            if found != expected {
                return Err(TraceError::Version { path: path(), what, found, expected });
            }
        }
        let expected = Self::header_bytes(u64_at(bytes, 48)).unwrap_or(u64::MAX);
        if expected > file_len {
            return Err(TraceError::Length { path: path(), expected, found: file_len });
        }
        Ok(expected)
    }

    /// Decodes a whole header, as long as [`TraceInfo::decode_len`] said.
    pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Self, TraceError> {
        let (content, sum) = bytes.split_at(bytes.len() - SUM_BYTES as usize);
        let (expected, found) = (u64_at(sum, 0), xxh3_64(content));
        if expected != found {
            let (path, part) = (path.to_owned(), "the header".to_owned());
            return Err(TraceError::Checksum { path, part, expected, found });
        }
        let sampled = content[FIXED_BYTES..].as_chunks::<4>().0;
        let info = Self {
            pack: u64_at(bytes, 16),
            text: u64_at(bytes, 24),
            seed: u64_at(bytes, 32),
            n_tokens: u32::try_from(u64_at(bytes, 40)).unwrap_or(0),
            sampled: sampled.iter().map(|token| u32::from_le_bytes(*token)).collect(),
            d_model: u32_at(bytes, 56),
            n_layers: u32_at(bytes, 60),
        };
        let wrong = |what, found| Err(TraceError::Field { path: path.to_owned(), what, found });
        if info.n_tokens == 0 {
            return wrong("the number of tokens", u64_at(bytes, 40));
        }
        if info.sampled.is_empty() {
            return wrong("the number of sampled tokens", 0);
        }
        if info.d_model == 0 {
            return wrong("the number of values", 0);
        }
        if info.n_layers == 0 {
            return wrong("the number of layers", 0);
        }
        if let Some(pair) = info.sampled.windows(2).find(|pair| pair[0] >= pair[1]) {
            return wrong("a sampled token out of order", pair[1].into());
        }
        match info.sampled.last() {
            Some(&last) if last >= info.n_tokens => wrong("a sampled token", last.into()),
            _ => Ok(info),
        }
    }
}

/// Tokens, ascending, of which as many are sampled as fit: one in each of `n` stretches of the text, which
/// are as long as one another.
pub(super) fn sample(n_tokens: u32, n: u32, seed: u64) -> Vec<u32> {
    let n = n.min(n_tokens);
    let mut rng = Pcg32::new(seed);
    let start = |i: u32| (u64::from(i) * u64::from(n_tokens) / u64::from(n)) as u32;
    let one = |i| {
        let (first, len) = (start(i), start(i + 1) - start(i));
        first + ((u64::from(rng.next_u32()) * u64::from(len)) >> 32) as u32
    };
    (0..n).map(one).collect()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn samples_are_spread_over_the_whole_text(n_tokens in 1u32..5000, n in 1u32..6000, seed: u64) {
            let sampled = sample(n_tokens, n, seed);
            prop_assert_eq!(sampled.len() as u32, n.min(n_tokens));
            prop_assert!(sampled.windows(2).all(|pair| pair[0] < pair[1]));
            let width = n_tokens.div_ceil(n);
            prop_assert!(sampled.windows(2).all(|pair| pair[1] - pair[0] <= 2 * width));
            prop_assert!(sampled[0] < width && n_tokens - sampled[sampled.len() - 1] <= width);
            prop_assert_eq!(&sampled, &sample(n_tokens, n, seed));
        }

        #[test]
        fn headers_come_back(
            pack: u64, text: u64, seed: u64, n_tokens in 1u32.., n in 1u32..100, d_model in 1u32..,
            n_layers in 1u32..,
        ) {
            let sampled = sample(n_tokens, n, seed);
            let info = TraceInfo { pack, text, seed, n_tokens, sampled, d_model, n_layers };
            let (bytes, path) = (info.encode(), Path::new("trace"));
            let len = TraceInfo::decode_len(path, &bytes[..FIXED_BYTES], u64::MAX).unwrap();
            prop_assert_eq!(len, bytes.len() as u64);
            prop_assert_eq!(TraceInfo::decode(path, &bytes).unwrap(), info);
        }
    }

    #[test]
    fn all_tokens_are_sampled_when_all_fit() {
        assert_eq!(sample(5, 5, 9), [0, 1, 2, 3, 4]);
        assert_eq!(sample(3, 100, 9), [0, 1, 2]);
        assert_eq!(sample(u32::MAX, 2, 0).len(), 2);
    }
}
