//! How many neurons make a chunk, and how many chunks a segment.

use super::checksum::SUM_BYTES;
use super::{ALIGN, MAX_CHUNK_KIB, MIN_CHUNK_KIB};

/// Costs are compared in steps of so many thousandths; where they are alike the nearest to the target
/// is taken.
const ALIKE: u64 = 5;
/// What it costs, in thousandths, when the neurons of a chunk are not whole fours: kernels sum that
/// many columns at a time (measured; as much as so many more bytes).
const ODD: u64 = 60;
/// Bytes of records that one segment has, about: some tens of microseconds of work, so that the
/// last segments of a layer keep no thread waiting for long.
const SEGMENT_BYTES: usize = 128 << 10;
/// Fewest segments of a layer, if it has as many chunks: each is the work of one thread.
const MIN_SEGMENTS: u32 = 8;
/// Most segments of a layer: the sum of each is kept apart.
pub(super) const MAX_SEGMENTS: u32 = 64;

/// Neurons of a chunk, and bytes of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkSize {
    pub neurons: usize,
    pub record_bytes: usize,
}

/// Whether a target is one that chunks can be made for.
pub(super) fn is_target(kib: usize) -> bool {
    (MIN_CHUNK_KIB..=MAX_CHUNK_KIB).contains(&kib)
}

/// The size of chunks of neurons of `neuron_bytes` each, of which a layer has `d_ff`; `None` when
/// it cannot be addressed.
///
/// Records are up to half longer than `target` bytes. What counts is the share of padding, and
/// whether neurons come in fours. A neuron that is longer than all records makes a chunk of its own.
pub(super) fn chunk_size(neuron_bytes: usize, d_ff: usize, target: usize) -> Option<ChunkSize> {
    let target = target.min(MAX_CHUNK_KIB << 10);
    let one = chunk_of(1, neuron_bytes)?;
    let most = target.saturating_add(target / 2);
    let mut best: Option<ChunkSize> = None;
    let mut record = one.record_bytes;
    while record <= most {
        // The most neurons that fit, or nearly so: with fewer there would only be more padding.
        let fit = ((record - SUM_BYTES) / neuron_bytes.max(1)).clamp(1, d_ff.max(1));
        for neurons in [fit, fit - fit % 4] {
            let size = chunk_of(neurons.max(1), neuron_bytes)?;
            if best.is_none_or(|best| is_better(size, best, neuron_bytes, d_ff, target)) {
                best = Some(size);
            }
        }
        if fit == d_ff {
            break;
        }
        record += ALIGN;
    }
    Some(best.unwrap_or(one))
}

fn chunk_of(neurons: usize, neuron_bytes: usize) -> Option<ChunkSize> {
    let used = neurons.checked_mul(neuron_bytes)?.checked_add(SUM_BYTES)?;
    Some(ChunkSize { neurons, record_bytes: used.checked_next_multiple_of(ALIGN)? })
}

fn is_better(
    new: ChunkSize,
    old: ChunkSize,
    neuron_bytes: usize,
    d_ff: usize,
    target: usize,
) -> bool {
    let rank = |size: ChunkSize| {
        let waste = (size.record_bytes - size.neurons * neuron_bytes) as u128 * 1000;
        let is_odd = size.neurons > 4 && !size.neurons.is_multiple_of(4) && size.neurons < d_ff;
        let cost = (waste / size.record_bytes as u128) as u64 + if is_odd { ODD } else { 0 };
        (cost / ALIKE, size.record_bytes.abs_diff(target))
    };
    rank(new) < rank(old)
}

/// Chunks of a segment, so that it has about 128 KiB of records and a layer 8 to 64 segments.
pub(super) fn segment_chunks(n_chunks: u32, record_bytes: usize) -> u32 {
    let bytes = u64::from(n_chunks).saturating_mul(record_bytes as u64);
    let wanted = (bytes + SEGMENT_BYTES as u64 / 2) / SEGMENT_BYTES as u64;
    let n_segments = wanted.clamp(MIN_SEGMENTS.into(), MAX_SEGMENTS.into()) as u32;
    n_chunks.div_ceil(n_segments).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(neuron_bytes: usize, d_ff: usize, target_kib: usize) -> (usize, usize) {
        let size = chunk_size(neuron_bytes, d_ff, target_kib << 10).unwrap();
        (size.neurons, size.record_bytes)
    }

    #[test]
    fn sizes_of_real_models() {
        // 1536 wide, Q4_K rows, Q6 columns: 3.1 % at 12 and at 24 KiB, more elsewhere.
        assert_eq!(size(2976, 8960, 16), (4, 12 << 10));
        // With Q8 columns: no whole fours, but 1.4 % of padding and not 18.
        assert_eq!(size(864 + 864 + 1632, 8960, 16), (6, 20 << 10));
        // 576 wide, Q4_1 rows, Q6 columns: twenty rather than seventeen in 20 KiB.
        assert_eq!(size(360 + 360 + 468, 1536, 16), (20, 24 << 10));
        // 4096 wide, Q4_K rows, Q6 columns.
        assert_eq!(size(2304 + 2304 + 3328, 14336, 16), (2, 16 << 10));
        assert_eq!(size(2304 + 2304 + 3328, 14336, 64), (8, 64 << 10));
    }

    #[test]
    fn a_neuron_longer_than_the_target_is_a_chunk_of_its_own() {
        assert_eq!(size(100_000, 10, 4), (1, 102_400));
        assert_eq!(size(4096, 10, 4), (1, 8192));
        assert_eq!(size(4088, 10, 4), (1, 4096));
    }

    #[test]
    fn a_layer_with_few_neurons_is_one_small_chunk() {
        assert_eq!(size(100, 3, 1024), (3, 4096));
        assert_eq!(size(100, 1, 4), (1, 4096));
    }

    #[test]
    fn what_cannot_be_addressed_is_refused() {
        assert_eq!(chunk_size(usize::MAX, 4, 16 << 10), None);
        assert_eq!(chunk_size(usize::MAX - 8, 4, usize::MAX), None);
    }

    proptest! {
        #[test]
        fn neurons_fit_and_no_better_size_is_passed_over(
            neuron_bytes in 1_usize..20_000, d_ff in 1_usize..20_000, kib in 4_usize..=128,
        ) {
            let target = kib << 10;
            let found = chunk_size(neuron_bytes, d_ff, target).unwrap();
            prop_assert!((1..=d_ff).contains(&found.neurons));
            prop_assert!(found.record_bytes.is_multiple_of(ALIGN));
            prop_assert!(found.neurons * neuron_bytes + SUM_BYTES <= found.record_bytes);
            prop_assert!(found.record_bytes <= target * 3 / 2 || found.neurons == 1);
            let rank = |n: usize| {
                let record = (n * neuron_bytes + SUM_BYTES).next_multiple_of(ALIGN);
                let waste = 1000 * (record - n * neuron_bytes) / record;
                let odd = if n > 4 && n % 4 != 0 && n < d_ff { 60 } else { 0 };
                ((waste + odd) / 5, record.abs_diff(target))
            };
            let fits = |n: &usize| {
                (n * neuron_bytes + SUM_BYTES).next_multiple_of(ALIGN) <= target * 3 / 2
            };
            for n in (1..=d_ff).take_while(fits) {
                prop_assert!(rank(found.neurons) <= rank(n), "{} is better", n);
            }
        }

        #[test]
        fn segments_are_few_and_of_middling_size(
            n_chunks in 1_u32..100_000, pages in 1_usize..100,
        ) {
            let chunks = segment_chunks(n_chunks, pages * ALIGN);
            let n_segments = n_chunks.div_ceil(chunks);
            prop_assert!((1..=MAX_SEGMENTS).contains(&n_segments));
            let total = n_chunks as usize * pages * ALIGN;
            prop_assert!(n_segments >= MIN_SEGMENTS.min(n_chunks.div_ceil(2)));
            if n_segments < 50 && n_segments > 10 {
                let bytes = total / n_segments as usize;
                prop_assert!((SEGMENT_BYTES / 2..SEGMENT_BYTES * 2).contains(&bytes), "{}", bytes);
            }
        }
    }
}
