//! Weights of a row, as the file formats define them.

use half::{bf16, f16};

use crate::format::RowFormat;

fn half_at(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).into()
}

fn nibble(bytes: &[u8], i: usize) -> i32 {
    // Byte j has value j in its low half and value j + len in its high half.
    let byte = bytes[i % bytes.len()];
    i32::from(if i < bytes.len() { byte & 15 } else { byte >> 4 })
}

fn bit(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i / 8] >> (i % 8) & 1)
}

/// Scale and min, six bits each, of 32 weights of a super-block.
fn scale_k4(s: &[u8], j: usize) -> (f64, f64) {
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    };
    (scale.into(), min.into())
}

/// Weight `i` of a block.
fn weight(format: RowFormat, b: &[u8], i: usize) -> f64 {
    match format {
        RowFormat::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        RowFormat::F16 => half_at(b, 0),
        RowFormat::BF16 => f64::from(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        RowFormat::Q4_0 => half_at(b, 0) * f64::from(nibble(&b[2..18], i) - 8),
        RowFormat::Q4_1 => half_at(b, 0) * f64::from(nibble(&b[4..20], i)) + half_at(b, 2),
        RowFormat::Q5_0 => {
            let q = nibble(&b[6..22], i) | bit(&b[2..6], i) << 4;
            half_at(b, 0) * f64::from(q - 16)
        }
        RowFormat::Q5_1 => {
            let q = nibble(&b[8..24], i) | bit(&b[4..8], i) << 4;
            half_at(b, 0) * f64::from(q) + half_at(b, 2)
        }
        RowFormat::Q8_0 => half_at(b, 0) * f64::from(b[2 + i] as i8),
        RowFormat::Q4_K | RowFormat::Q5_K => {
            let (scale, min) = scale_k4(&b[4..16], i / 32);
            let at = if format == RowFormat::Q4_K { 16 } else { 48 };
            let mut q = nibble(&b[at + 32 * (i / 64)..][..32], i % 64);
            if format == RowFormat::Q5_K {
                q |= i32::from(b[16 + i % 32] >> (i / 32) & 1) << 4;
            }
            half_at(b, 0) * scale * f64::from(q) - half_at(b, 2) * min
        }
        RowFormat::Q6_K => {
            let (half, i) = (i / 128, i % 128);
            let low = b[64 * half + i % 64] >> (4 * (i / 64)) & 15;
            let high = b[128 + 32 * half + i % 32] >> (2 * (i / 32)) & 3;
            let q = i32::from(low | high << 4) - 32;
            let scale = b[192 + 8 * half + i / 16] as i8;
            half_at(b, 208) * f64::from(scale) * f64::from(q)
        }
    }
}

/// The weights of a row.
///
/// # Panics
///
/// If `row` is not whole blocks.
pub fn read_row(format: RowFormat, row: &[u8]) -> Vec<f64> {
    assert!(row.len().is_multiple_of(format.block_bytes()), "whole blocks of {format}");
    row.chunks_exact(format.block_bytes())
        .flat_map(|block| (0..format.block_len()).map(move |i| weight(format, block, i)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_read_as_their_definition_says() {
        let mut block = vec![0u8; 18];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2] = 0x0f;
        block[17] = 0xa0;
        let row = read_row(RowFormat::Q4_0, &block);
        assert_eq!((row[0], row[16], row[15], row[31]), (3.5, -4.0, -4.0, 1.0));

        let mut block = vec![0u8; 210];
        block[208..].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        block[192..208].fill(1);
        block[207] = 0xff; // −1
        let row = read_row(RowFormat::Q6_K, &block);
        assert_eq!((row[0], row[239], row[240]), (-64.0, -64.0, 64.0));
    }
}
