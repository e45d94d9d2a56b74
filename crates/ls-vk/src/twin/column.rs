//! Values of a down column.

use half::{bf16, f16};

use crate::format::{ColumnFormat, GROUP};

const SCALE: usize = 2;

fn center(format: ColumnFormat) -> i32 {
    match format {
        ColumnFormat::Q4 => 8,
        ColumnFormat::Q5 => 16,
        ColumnFormat::Q6 => 32,
        _ => 128,
    }
}

/// Integer `i` of a group, as it is stored.
fn integer(format: ColumnFormat, group: &[u8], i: usize) -> i32 {
    let low = || i32::from(group[i % 16] >> (i / 16 * 4) & 15);
    match format {
        ColumnFormat::Q8 => i32::from(group[i]),
        ColumnFormat::Q6 => low() | i32::from(group[16 + i % 8] >> (i / 8 * 2) & 3) << 4,
        ColumnFormat::Q5 => low() | i32::from(group[16 + i / 8] >> (i % 8) & 1) << 4,
        _ => low(),
    }
}

/// The values of a column.
///
/// # Panics
///
/// If `column` is not whole groups.
pub fn read_column(format: ColumnFormat, column: &[u8]) -> Vec<f64> {
    assert!(column.len().is_multiple_of(format.group_bytes()), "whole groups of {format}");
    match format {
        ColumnFormat::F32 => {
            column.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect()
        }
        ColumnFormat::F16 => {
            column.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).into()).collect()
        }
        ColumnFormat::BF16 => {
            column.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).into()).collect()
        }
        _ => {
            let n = column.len() / format.group_bytes();
            let (scales, integers) = column.split_at(SCALE * n);
            let groups = integers.chunks_exact(format.group_bytes() - SCALE);
            let scales = scales.as_chunks().0.iter().map(|b| f64::from(f16::from_le_bytes(*b)));
            let value = |(d, group): (f64, &[u8])| -> [f64; GROUP] {
                std::array::from_fn(|i| d * f64::from(integer(format, group, i) - center(format)))
            };
            scales.zip(groups).flat_map(value).collect()
        }
    }
}

/// Stores values, each group with the scale of its largest: plainer than what packs do, and enough
/// for tests and measurements.
///
/// # Panics
///
/// If they are not whole groups.
pub fn write_column(format: ColumnFormat, values: &[f32]) -> Vec<u8> {
    assert!(values.len().is_multiple_of(GROUP), "whole groups of {format}");
    match format {
        ColumnFormat::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ColumnFormat::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        ColumnFormat::BF16 => {
            values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
        }
        _ => {
            let (mut scales, mut integers) = (vec![], vec![]);
            for group in values.as_chunks::<GROUP>().0 {
                let largest = group.iter().fold(0f32, |m, x| m.max(x.abs()));
                let d = f16::from_f32(largest / (center(format) - 1) as f32);
                scales.extend(d.to_le_bytes());
                let inverse = if d.to_f32() > 0.0 { 1.0 / d.to_f32() } else { 0.0 };
                let mut to = vec![0u8; format.group_bytes() - SCALE];
                for (i, x) in group.iter().enumerate() {
                    let q = (x * inverse).round() as i32 + center(format);
                    put(format, &mut to, i, q.clamp(0, 2 * center(format) - 1) as u8);
                }
                integers.extend(to);
            }
            scales.extend(integers);
            scales
        }
    }
}

fn put(format: ColumnFormat, group: &mut [u8], i: usize, q: u8) {
    if format == ColumnFormat::Q8 {
        group[i] = q;
        return;
    }
    group[i % 16] |= (q & 15) << (i / 16 * 4);
    match format {
        ColumnFormat::Q6 => group[16 + i % 8] |= q >> 4 << (i / 8 * 2),
        ColumnFormat::Q5 => group[16 + i / 8] |= q >> 4 << (i % 8),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_reads_back() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.0) * 0.37).collect();
        for (format, steps) in [
            (ColumnFormat::F32, 1e9),
            (ColumnFormat::F16, 1500.0),
            (ColumnFormat::BF16, 200.0),
            (ColumnFormat::Q8, 250.0),
            (ColumnFormat::Q6, 60.0),
            (ColumnFormat::Q5, 29.0),
            (ColumnFormat::Q4, 13.5),
        ] {
            let bytes = write_column(format, &values);
            assert_eq!(Some(bytes.len()), format.column_bytes(64));
            for (x, y) in values.iter().zip(read_column(format, &bytes)) {
                assert!((f64::from(*x) - y).abs() <= 11.9 / steps, "{format}: {x} {y}");
            }
        }
    }
}
