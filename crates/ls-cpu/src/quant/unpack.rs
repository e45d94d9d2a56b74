//! Blocks of every format in one common form: `w = scale · q + min`.
//!
//! Scales and mins come out exact (an f16 times a few bits fits an f32), so dequantising through
//! this form rounds as the formats' definition does.

use half::bf16;

use crate::Format;

/// Up to 256 weights of one row: `q` and, for each 16 of them, scale and min.
#[repr(align(32))]
#[derive(Clone, Debug)]
pub(crate) struct Unpacked {
    pub q: [u8; 256],
    pub scale: [f32; 16],
    pub min: [f32; 16],
}

impl Default for Unpacked {
    fn default() -> Self {
        Self { q: [0; 256], scale: [0.0; 16], min: [0.0; 16] }
    }
}

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Converts without asking the processor for its features, which would be a call for every block.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const TWO_TO_MINUS_24: f32 = f32::from_bits((127 - 24) << 23);
    let magnitude = u32::from(bits & 0x7fff);
    // Exponents have 5 bits, biased by 15, there and 8 bits, biased by 127, here.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let subnormal = (magnitude as f32 * TWO_TO_MINUS_24).to_bits();
    let infinite = normal | 0x7f80_0000;
    let out = match magnitude {
        0..0x400 => subnormal,
        0x400..0x7c00 => normal,
        _ => infinite,
    };
    f32::from_bits(out | u32::from(bits & 0x8000) << 16)
}

/// Unpacks one block of a quantised `format` (`format.block_bytes()` bytes) into `out`.
///
/// Formats with blocks of 32 fill the first group only.
#[inline(always)]
pub(crate) fn unpack_block(format: Format, block: &[u8], out: &mut Unpacked) {
    match format {
        Format::Q4_0 => {
            let block: &[u8; 18] = block.try_into().expect("a Q4_0 block");
            let d = half_at(block, 0);
            nibbles::<16>(&block[2..18], &mut out.q);
            fill(out, d, -8.0 * d);
        }
        Format::Q4_1 => {
            let block: &[u8; 20] = block.try_into().expect("a Q4_1 block");
            nibbles::<16>(&block[4..20], &mut out.q);
            fill(out, half_at(block, 0), half_at(block, 2));
        }
        Format::Q5_0 => {
            let block: &[u8; 22] = block.try_into().expect("a Q5_0 block");
            let d = half_at(block, 0);
            nibbles::<16>(&block[6..22], &mut out.q);
            fifth_bits(u32::from_le_bytes([block[2], block[3], block[4], block[5]]), &mut out.q);
            fill(out, d, -16.0 * d);
        }
        Format::Q5_1 => {
            let block: &[u8; 24] = block.try_into().expect("a Q5_1 block");
            nibbles::<16>(&block[8..24], &mut out.q);
            fifth_bits(u32::from_le_bytes([block[4], block[5], block[6], block[7]]), &mut out.q);
            fill(out, half_at(block, 0), half_at(block, 2));
        }
        Format::Q8_0 => {
            let block: &[u8; 34] = block.try_into().expect("a Q8_0 block");
            let d = half_at(block, 0);
            out.q[..32].copy_from_slice(&map::<32>(&block[2..34], |b| b ^ 0x80));
            fill(out, d, -128.0 * d);
        }
        Format::Q2_K => unpack_q2_k(block.try_into().expect("a Q2_K block"), out),
        Format::Q3_K => unpack_q3_k(block.try_into().expect("a Q3_K block"), out),
        Format::Q4_K => unpack_q4_k(block.try_into().expect("a Q4_K block"), out),
        Format::Q5_K => unpack_q5_k(block.try_into().expect("a Q5_K block"), out),
        Format::Q6_K => unpack_q6_k(block.try_into().expect("a Q6_K block"), out),
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("not a quantised format"),
    }
}

#[inline(always)]
fn fill(out: &mut Unpacked, scale: f32, min: f32) {
    out.scale[..2].fill(scale);
    out.min[..2].fill(min);
}

/// `f` of each byte. Works on values, not on references: only then are the loops vectorised.
#[inline(always)]
fn map<const N: usize>(bytes: &[u8], f: impl Fn(u8) -> u8) -> [u8; N] {
    let from: [u8; N] = *bytes.first_chunk().expect("enough bytes");
    let mut to = [0; N];
    for i in 0..N {
        to[i] = f(from[i]);
    }
    to
}

/// `f` of each pair of bytes.
#[inline(always)]
fn zip<const N: usize>(a: &[u8], b: &[u8], f: impl Fn(u8, u8) -> u8) -> [u8; N] {
    let a: [u8; N] = *a.first_chunk().expect("enough bytes");
    let b: [u8; N] = *b.first_chunk().expect("enough bytes");
    let mut to = [0; N];
    for i in 0..N {
        to[i] = f(a[i], b[i]);
    }
    to
}

/// Low nibbles of `from` (n bytes) are the first n values, high nibbles the next n.
#[inline(always)]
fn nibbles<const N: usize>(from: &[u8], to: &mut [u8]) {
    to[..N].copy_from_slice(&map::<N>(from, |b| b & 15));
    to[N..2 * N].copy_from_slice(&map::<N>(from, |b| b >> 4));
}

#[inline(always)]
fn fifth_bits(bits: u32, q: &mut [u8; 256]) {
    let mut high = [0u8; 32];
    for (i, h) in high.iter_mut().enumerate() {
        *h = ((bits >> i & 1) << 4) as u8;
    }
    let with_high = zip::<32>(&q[..32], &high, |q, h| q | h);
    q[..32].copy_from_slice(&with_high);
}

#[inline(always)]
fn unpack_q2_k(block: &[u8; 84], out: &mut Unpacked) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, both) in block[..16].iter().enumerate() {
        out.scale[i] = d * f32::from(both & 15);
        out.min[i] = -dmin * f32::from(both >> 4);
    }
    for half in 0..2 {
        let from = &block[16 + 32 * half..][..32];
        for j in 0..4 {
            let q = map::<32>(from, |b| b >> (2 * j) & 3);
            out.q[128 * half + 32 * j..][..32].copy_from_slice(&q);
        }
    }
}

#[inline(always)]
fn unpack_q3_k(block: &[u8; 110], out: &mut Unpacked) {
    let d = half_at(block, 108);
    let scales = &block[96..108];
    for i in 0..16 {
        let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
        let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        out.scale[i] = scale;
        out.min[i] = -4.0 * scale;
    }
    let high = &block[..32];
    for half in 0..2 {
        let from = &block[32 + 32 * half..][..32];
        for j in 0..4 {
            let bit = 4 * half + j;
            let q = zip::<32>(from, high, |b, h| b >> (2 * j) & 3 | (h >> bit & 1) << 2);
            out.q[128 * half + 32 * j..][..32].copy_from_slice(&q);
        }
    }
}

/// The eight 6-bit scales and mins of a Q4_K or Q5_K block, from its 12 bytes.
#[inline(always)]
pub(crate) fn scales_k4(s: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scale, mut min) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scale[j] = s[j] & 63;
        min[j] = s[j + 4] & 63;
        scale[j + 4] = s[j + 8] & 15 | s[j] >> 6 << 4;
        min[j + 4] = s[j + 8] >> 4 | s[j + 4] >> 6 << 4;
    }
    (scale, min)
}

#[inline(always)]
fn fill_k4(block: &[u8], out: &mut Unpacked) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scale, min) = scales_k4(&block[4..16]);
    for j in 0..8 {
        out.scale[2 * j..2 * j + 2].fill(d * f32::from(scale[j]));
        out.min[2 * j..2 * j + 2].fill(-dmin * f32::from(min[j]));
    }
}

#[inline(always)]
fn unpack_q4_k(block: &[u8; 144], out: &mut Unpacked) {
    fill_k4(block, out);
    for j in 0..4 {
        nibbles::<32>(&block[16 + 32 * j..], &mut out.q[64 * j..]);
    }
}

#[inline(always)]
fn unpack_q5_k(block: &[u8; 176], out: &mut Unpacked) {
    fill_k4(block, out);
    let high = &block[16..48];
    for j in 0..4 {
        let from = &block[48 + 32 * j..];
        let low = zip::<32>(from, high, |b, h| b & 15 | (h >> (2 * j) & 1) << 4);
        let upper = zip::<32>(from, high, |b, h| b >> 4 | (h >> (2 * j + 1) & 1) << 4);
        out.q[64 * j..][..32].copy_from_slice(&low);
        out.q[64 * j + 32..][..32].copy_from_slice(&upper);
    }
}

#[inline(always)]
fn unpack_q6_k(block: &[u8; 210], out: &mut Unpacked) {
    let d = half_at(block, 208);
    for i in 0..16 {
        let scale = d * f32::from(block[192 + i] as i8);
        out.scale[i] = scale;
        out.min[i] = -32.0 * scale;
    }
    for half in 0..2 {
        let low = &block[64 * half..][..64];
        let high = &block[128 + 32 * half..][..32];
        let quarters = [
            zip::<32>(low, high, |l, h| l & 15 | (h & 3) << 4),
            zip::<32>(&low[32..], high, |l, h| l & 15 | (h >> 2 & 3) << 4),
            zip::<32>(low, high, |l, h| l >> 4 | (h >> 4 & 3) << 4),
            zip::<32>(&low[32..], high, |l, h| l >> 4 | h >> 6 << 4),
        ];
        for (to, q) in out.q[128 * half..].chunks_exact_mut(32).zip(&quarters) {
            to.copy_from_slice(q);
        }
    }
}

/// Writes the weights of one row, `out.len()` of them, as f32.
///
/// # Panics
///
/// If `row` is not exactly a row of `out.len()` weights in `format`.
pub fn dequantize_row(format: Format, row: &[u8], out: &mut [f32]) {
    assert_eq!(Some(row.len()), format.row_bytes(out.len()), "row length of {format}");
    match format {
        Format::F32 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Format::F16 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *o = f16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Format::BF16 => {
            for (o, b) in out.iter_mut().zip(row.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*b).to_f32();
            }
        }
        _ => {
            let mut unpacked = Unpacked::default();
            let len = format.block_len();
            for (o, block) in out.chunks_mut(len).zip(row.chunks(format.block_bytes())) {
                unpack_block(format, block, &mut unpacked);
                for (i, o) in o.iter_mut().enumerate() {
                    let half = i / 16;
                    *o = unpacked.scale[half] * f32::from(unpacked.q[i]) + unpacked.min[half];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_f16_converts_as_its_type_does() {
        for bits in 0..=u16::MAX {
            let (want, got) = (f16::from_bits(bits).to_f32(), f16_to_f32(bits));
            let equal = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
            assert!(equal, "{bits:#06x}: {got} for {want}");
        }
    }
}
