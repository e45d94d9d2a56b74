//! Checksums of records and tensors.
//!
//! XXH3-64 finds what goes wrong by accident: a flipped bit, a torn or misplaced read. It is no
//! defence against someone who means harm; whoever reads a pack must not come to harm by any bytes.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of the checksum at the end of a record.
pub(super) const SUM_BYTES: usize = 8;

/// A chunk record whose bytes are not those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "chunk {chunk} of layer {layer} is damaged: its checksum is {found:016x}, expected {expected:016x}"
)]
#[non_exhaustive]
pub struct ChunkDamage {
    /// The layer.
    pub layer: u32,
    /// The chunk in that layer.
    pub chunk: u32,
    /// The checksum in the record.
    pub expected: u64,
    /// The checksum that the bytes have.
    pub found: u64,
}

/// A record of embedding rows whose bytes are not those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {record} of the token embedding is damaged: its checksum is {found:016x}, expected \
     {expected:016x}"
)]
#[non_exhaustive]
pub struct RowDamage {
    /// The record.
    pub record: u64,
    /// The checksum in the record.
    pub expected: u64,
    /// The checksum that the bytes have.
    pub found: u64,
}

/// A tensor whose bytes are not those that were written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tensor {tensor:?} is damaged: its checksum is {found:016x}, expected {}",
    expected.map_or("none: there is no such tensor".to_owned(), |sum| format!("{sum:016x}"))
)]
#[non_exhaustive]
pub struct TensorDamage {
    /// The tensor's name.
    pub tensor: String,
    /// The checksum in the directory; `None` when it has no such tensor.
    pub expected: Option<u64>,
    /// The checksum that the bytes have.
    pub found: u64,
}

/// Checks that `record` is the whole record of this chunk.
///
/// # Errors
/// It is not: damaged, of another place, or too short to be a record.
pub fn verify_chunk(record: &[u8], layer: u32, chunk: u32) -> Result<(), ChunkDamage> {
    verify(record, chunk_seed(layer, chunk)).map_err(|(expected, found)| ChunkDamage {
        layer,
        chunk,
        expected,
        found,
    })
}

/// Checks that `bytes` is the whole record number `record` of the token embedding.
///
/// # Errors
/// It is not: damaged, of another place, or too short to be a record.
pub fn verify_rows(bytes: &[u8], record: u64) -> Result<(), RowDamage> {
    verify(bytes, record).map_err(|(expected, found)| RowDamage { record, expected, found })
}

/// The seed of a chunk's checksum: its place, so that the right bytes at a wrong place are noticed.
pub(super) fn chunk_seed(layer: u32, chunk: u32) -> u64 {
    u64::from(layer) << 32 | u64::from(chunk)
}

/// Writes the checksum of a record into its last bytes.
pub(super) fn seal(record: &mut [u8], seed: u64) {
    if let Some((rest, sum)) = record.split_last_chunk_mut::<SUM_BYTES>() {
        *sum = xxh3_64_with_seed(rest, seed).to_le_bytes();
    }
}

pub(super) fn sum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

fn verify(record: &[u8], seed: u64) -> Result<(), (u64, u64)> {
    let Some((rest, sum)) = record.split_last_chunk::<SUM_BYTES>() else {
        return Err((0, xxh3_64_with_seed(record, seed)));
    };
    let (expected, found) = (u64::from_le_bytes(*sum), xxh3_64_with_seed(rest, seed));
    if expected == found { Ok(()) } else { Err((expected, found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_bytes_and_its_place() {
        let mut record = vec![7; 100];
        seal(&mut record, chunk_seed(3, 9));
        verify_chunk(&record, 3, 9).unwrap();
        let wrong = verify_chunk(&record, 9, 3).unwrap_err();
        assert_eq!((wrong.layer, wrong.chunk), (9, 3));
        record[40] ^= 1;
        let damage = verify_chunk(&record, 3, 9).unwrap_err();
        assert!(damage.to_string().starts_with("chunk 9 of layer 3 is damaged"), "{damage}");
    }

    #[test]
    fn what_is_too_short_is_damaged() {
        verify_chunk(&[], 0, 0).unwrap_err();
        verify_rows(&[0; 7], 0).unwrap_err();
        verify_rows(&[0; 8], 0).unwrap_err();
    }

    #[test]
    fn the_function_is_xxh3() {
        // The value that the reference implementation gives for no bytes and no seed.
        assert_eq!(sum(&[]), 0x2d06_8005_38d3_94c2);
    }
}
