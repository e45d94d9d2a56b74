//! The floor of a decode step: the time to read the weights from memory once.

use std::time::{Duration, Instant};

use ls_engine::Engine;

/// Passes over the weights, of which the fastest counts; the first also brings them into memory.
const PASSES: usize = 5;

/// Bytes that a thread reads at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// How fast weights can be read, and how many bytes of them a token needs.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    read_bytes: u64,
    read_time: Duration,
    token_bytes: u64,
}

impl Floor {
    /// Reads all tensors of the model, with as many threads as it computes with.
    pub fn measure(engine: &Engine) -> anyhow::Result<Self> {
        let model = engine.model();
        let mut slices = Vec::new();
        let mut token_bytes = 0;
        for info in model.tensors() {
            let Some(tensor) = model.tensor(&info.name)? else { continue };
            let data = tensor.data;
            slices.push(data);
            // Of an embedding that is not the output head too, a token reads one row.
            if info.name != "token_embd.weight" || engine.config().tied_output {
                token_bytes += data.len() as u64;
            }
        }
        let read_time = fastest_read(&slices, engine.threads());
        let read_bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        Ok(Self { read_bytes, read_time, token_bytes })
    }

    fn bytes_per_s(&self) -> f64 {
        self.read_bytes as f64 / self.read_time.as_secs_f64()
    }

    /// The speed of the read in 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes_per_s() / 1e9
    }

    /// How many times longer than the floor a token took, at `tok_per_s`.
    pub fn ratio(&self, tok_per_s: f64) -> f64 {
        let floor_s = self.token_bytes as f64 / self.bytes_per_s();
        (1.0 / tok_per_s) / floor_s
    }
}

fn fastest_read(slices: &[&[u8]], n_threads: usize) -> Duration {
    let blocks: Vec<&[u8]> = slices.iter().flat_map(|slice| slice.chunks(BLOCK_BYTES)).collect();
    let share = blocks.len().div_ceil(n_threads.max(1)).max(1);
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for blocks in blocks.chunks(share) {
                scope.spawn(move || std::hint::black_box(sum(blocks)));
            }
        });
        start.elapsed()
    };
    (0..PASSES).map(|_| pass()).min().unwrap_or_default()
}

/// Adds up all bytes as words: the least that can be done with memory that must be read.
fn sum(blocks: &[&[u8]]) -> u64 {
    let mut total = 0u64;
    for block in blocks {
        let (words, rest) = block.as_chunks::<8>();
        let words =
            words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        total = total.wrapping_add(words);
        total = rest.iter().fold(total, |sum, &byte| sum.wrapping_add(u64::from(byte)));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        let expected = words.fold(0u64, u64::wrapping_add);
        assert_eq!(sum(&[&bytes]), expected);
        assert_eq!(sum(&[&bytes[..3], &bytes[3..5]]), 1 + 2 + 3 + 4);
    }

    #[test]
    fn the_ratio_is_one_at_the_floor() {
        let floor = Floor {
            read_bytes: 2_000_000_000,
            read_time: Duration::from_millis(200),
            token_bytes: 1_000_000_000,
        };
        assert_eq!(floor.gb_per_s(), 10.0);
        assert!((floor.ratio(10.0) - 1.0).abs() < 1e-12);
        assert!((floor.ratio(5.0) - 2.0).abs() < 1e-12);
    }
}
