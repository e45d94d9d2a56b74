//! What the vector kernels share: fields of quantised blocks, read without vectors.

use crate::quant::Q8Ref;

/// The mins of a 32-weight format.
pub(super) enum Min {
    /// An f16 at this byte of the block.
    At(usize),
    /// This times the scale.
    Times(f32),
}

/// `N` bytes of a block.
#[inline]
pub(super) fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("within the block")
}

/// Two bytes of a block, little-endian.
#[inline]
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*part(block, at))
}

/// Four bytes of a block, little-endian.
#[inline]
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*part(block, at))
}

/// Scales and mins of a Q4_K or Q5_K block: eight bytes each.
#[inline]
pub(super) fn scales_k4(block: &[u8]) -> (u64, u64) {
    let (a, b, c) = (u32_at(block, 4), u32_at(block, 8), u32_at(block, 12));
    let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (
        wide(a & 0x3f3f3f3f, c & 0x0f0f0f0f | (a >> 6 & 0x03030303) << 4),
        wide(b & 0x3f3f3f3f, c >> 4 & 0x0f0f0f0f | (b >> 6 & 0x03030303) << 4),
    )
}

/// The activations of one super-block of 256.
pub(super) struct Act256<'a> {
    pub q: &'a [[i8; 32]; 8],
    pub d: &'a [f32; 8],
    pub sum16: &'a [[f32; 8]; 2],
    pub sum32: &'a [f32; 8],
}

/// The super-blocks of a row beside their activations.
///
/// Kernels index it: iterator adaptors from the standard library are compiled without these
/// instruction sets, and are called instead of inlined where the build has no link-time
/// optimisation.
pub(super) struct SuperBlocks<'a, const BYTES: usize> {
    pub blocks: &'a [[u8; BYTES]],
    q: &'a [[[i8; 32]; 8]],
    d: &'a [[f32; 8]],
    sum16: &'a [[[f32; 8]; 2]],
    sum32: &'a [[f32; 8]],
}

impl<'a, const BYTES: usize> SuperBlocks<'a, BYTES> {
    #[inline(always)]
    pub fn new(row: &'a [u8], x: Q8Ref<'a>) -> Self {
        let blocks = row.as_chunks::<BYTES>().0;
        let n = blocks.len();
        Self {
            blocks,
            q: &x.q.as_chunks::<32>().0.as_chunks::<8>().0[..n],
            d: &x.d.as_chunks::<8>().0[..n],
            sum16: &x.sum16.as_chunks::<8>().0.as_chunks::<2>().0[..n],
            sum32: &x.sum32.as_chunks::<8>().0[..n],
        }
    }

    /// Block `i` and its activations.
    #[inline(always)]
    pub fn get(&self, i: usize) -> (&'a [u8; BYTES], Act256<'a>) {
        let (q, d) = (&self.q[i], &self.d[i]);
        (&self.blocks[i], Act256 { q, d, sum16: &self.sum16[i], sum32: &self.sum32[i] })
    }
}

/// The sixteen signed scales of a Q3_K block from its 12 bytes.
#[inline]
pub(super) fn q3_scales(s: &[u8; 12]) -> [u8; 16] {
    let (a, b, c) = (u32_at(s, 0), u32_at(s, 4), u32_at(s, 8));
    let (low, two) = (0x0f0f0f0f, 0x03030303);
    let words = [
        a & low | (c & two) << 4,
        b & low | (c >> 2 & two) << 4,
        a >> 4 & low | (c >> 4 & two) << 4,
        b >> 4 & low | (c >> 6 & two) << 4,
    ];
    let mut out = [0; 16];
    for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *out = word.to_le_bytes().map(|b| b.wrapping_sub(32));
    }
    out
}
