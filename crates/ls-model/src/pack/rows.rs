//! Where the rows of the token embedding lie.

use std::ops::Range;

use super::ALIGN;
use super::checksum::SUM_BYTES;
use crate::TensorType;

/// Records that are tried for rows, in bytes. A row is read for each token, so a record should not
/// be much longer than a row, nor shorter than what a disk reads at once.
const RECORDS: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];

/// The records of the token embedding, where it is not the output head.
///
/// Each record holds `rows_per_record` whole rows, one after the other from its start, and ends
/// with a checksum, see [`verify_rows`](super::verify_rows). The last record may hold fewer rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLayout {
    /// Type of the rows: the source's.
    pub dtype: TensorType,
    /// Rows: one for each token of the vocabulary.
    pub n_rows: usize,
    /// Elements of one row: the width of the model.
    pub d_model: usize,
    /// Rows of each record but the last.
    pub rows_per_record: usize,
    /// Bytes of one record: a multiple of 4096.
    pub record_bytes: usize,
    /// Where record 0 begins in the file: a multiple of 4096.
    pub offset: u64,
}

impl RowLayout {
    /// The layout that a pack has, at offset 0; `None` when rows are not whole blocks, or sizes
    /// cannot be addressed.
    pub fn new(dtype: TensorType, n_rows: usize, d_model: usize) -> Option<Self> {
        let row_bytes = dtype.row_bytes(d_model).filter(|bytes| *bytes > 0 && n_rows > 0)?;
        let with = |record_bytes: usize| (record_bytes, (record_bytes - SUM_BYTES) / row_bytes);
        let fitting = RECORDS.into_iter().map(with).filter(|(_, rows)| *rows > 0);
        // The share of used bytes in parts of the longest record, which all records divide.
        let used = |(record, rows): &(usize, usize)| rows * row_bytes * (RECORDS[2] / record);
        let best = fitting.rev().max_by_key(used);
        let (record_bytes, rows_per_record) = match best {
            Some(best) => best,
            None => (row_bytes.checked_add(SUM_BYTES)?.checked_next_multiple_of(ALIGN)?, 1),
        };
        let layout = Self { dtype, n_rows, d_model, rows_per_record, record_bytes, offset: 0 };
        layout.is_sound().then_some(layout)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.d_model).unwrap_or_default()
    }

    /// Number of records.
    pub fn n_records(&self) -> u64 {
        self.n_rows.div_ceil(self.rows_per_record) as u64
    }

    /// The record that holds a row.
    pub fn record_of(&self, row: usize) -> u64 {
        (row / self.rows_per_record) as u64
    }

    /// Where a row lies in its record.
    pub fn row_in_record(&self, row: usize) -> Range<usize> {
        let row_bytes = self.row_bytes();
        let begin = row % self.rows_per_record * row_bytes;
        begin..begin + row_bytes
    }

    /// Rows of a record.
    pub fn rows(&self, record: u64) -> Range<usize> {
        let record = usize::try_from(record).unwrap_or(usize::MAX);
        let begin = record.saturating_mul(self.rows_per_record).min(self.n_rows);
        begin..begin.saturating_add(self.rows_per_record).min(self.n_rows)
    }

    /// Where a record begins in the file.
    pub fn record_offset(&self, record: u64) -> u64 {
        self.offset + record * self.record_bytes as u64
    }

    /// Bytes of all rows, without padding and checksums.
    pub fn useful_bytes(&self) -> u64 {
        self.n_rows as u64 * self.row_bytes() as u64
    }

    /// Bytes of all records.
    pub fn stored_bytes(&self) -> u64 {
        self.n_records() * self.record_bytes as u64
    }

    /// Whether the parts fit together and nothing overflows; what a file says is not known to.
    pub(super) fn is_sound(&self) -> bool {
        self.checked_parts().is_some()
    }

    fn checked_parts(&self) -> Option<()> {
        let row_bytes = self.dtype.row_bytes(self.d_model).filter(|bytes| *bytes > 0)?;
        let used = row_bytes.checked_mul(self.rows_per_record)?;
        let holds = [
            self.n_rows > 0,
            self.rows_per_record > 0,
            used <= self.record_bytes.checked_sub(SUM_BYTES)?,
            self.record_bytes.is_multiple_of(ALIGN),
            self.offset.is_multiple_of(ALIGN as u64),
        ];
        if !holds.into_iter().all(|holds| holds) {
            return None;
        }
        (self.n_rows as u64).checked_mul(row_bytes as u64)?;
        let bytes = self.n_records().checked_mul(self.record_bytes as u64)?;
        self.offset.checked_add(bytes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(dtype: TensorType, d_model: usize) -> (usize, usize) {
        let layout = RowLayout::new(dtype, 1000, d_model).unwrap();
        (layout.record_bytes, layout.rows_per_record)
    }

    #[test]
    fn the_record_with_the_least_padding_is_taken() {
        // 864 bytes: 4 in 4 KiB (84 %), 9 in 8 KiB (94.9 %), 18 in 16 KiB (94.9 %): the shorter.
        assert_eq!(record(TensorType::Q4_K, 1536), (8 << 10, 9));
        // 4096 bytes do not fit beside a checksum: 1 in 8 KiB, 3 in 16 KiB.
        assert_eq!(record(TensorType::F16, 2048), (16 << 10, 3));
        assert_eq!(record(TensorType::F32, 1022), (4 << 10, 1));
    }

    #[test]
    fn a_long_row_has_a_record_of_its_own() {
        assert_eq!(record(TensorType::F32, 4096), (20 << 10, 1));
        assert_eq!(record(TensorType::F32, 4094), (16 << 10, 1));
    }

    #[test]
    fn rows_are_found_in_their_records() {
        let layout = RowLayout::new(TensorType::Q4_K, 1000, 1536).unwrap();
        assert_eq!(layout.n_records(), 112);
        assert_eq!((layout.record_of(0), layout.row_in_record(0)), (0, 0..864));
        assert_eq!((layout.record_of(10), layout.row_in_record(10)), (1, 864..1728));
        assert_eq!(layout.rows(111), 999..1000);
        assert_eq!(layout.rows(u64::MAX), 1000..1000);
        assert_eq!(RowLayout::new(TensorType::Q4_K, 1000, 100), None);
        assert_eq!(RowLayout::new(TensorType::F32, usize::MAX, 1 << 20), None);
    }
}
