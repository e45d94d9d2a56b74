//! A few weight rows unpacked and interleaved, so that a whole prompt can use them.
//!
//! Unpacking costs about as much as one dot product. A decode step reads each row once and does
//! not unpack; a batch of prompt tokens pays once for all of them.

use crate::Format;
use crate::isa::{Isa, Kind};
use crate::quant::{GROUP, Unpacked, dequantize_row, unpack_block};

/// Rows of one tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Up to [`TILE_ROWS`] rows; missing ones are zero.
///
/// Rows stand in panels of `lanes` (8, or 16 for AVX-512). Within a panel, group by group of 32
/// columns, chunk by chunk of 4 columns, each row has its 4 bytes: lane r of a vector holds row r.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    pub lanes: usize,
    pub cols: usize,
    /// Bytes that are signed (8-bit formats on instruction sets that multiply signed bytes).
    pub signed: bool,
    pub format: Option<Format>,
    /// `[panel][group][8 chunks][lane][4]`
    pub q: Vec<u8>,
    /// `[panel][group or half group][lane]`
    pub scale: Vec<f32>,
    pub min: Vec<f32>,
    /// `[panel][column][lane]`, float formats only.
    pub float: Vec<f32>,
    row: Vec<f32>,
    blocks: Vec<Unpacked>,
}

impl Tile {
    /// Panels in the tile.
    pub fn panels(&self) -> usize {
        TILE_ROWS / self.lanes
    }

    /// Scales that one row has for one group of 32.
    pub fn scales_per_group(&self) -> usize {
        1 + usize::from(self.format.is_some_and(Format::has_half_scales))
    }

    /// Loads consecutive `rows` (at most [`TILE_ROWS`], of `cols` columns each).
    pub fn load(&mut self, isa: Isa, format: Format, rows: &[u8], cols: usize) {
        self.lanes = if isa.0 == Kind::Avx512 { 16 } else { 8 };
        self.cols = cols;
        self.format = Some(format);
        // AVX2 and NEON multiply 8-bit weights as signed bytes, AVX-512 only as unsigned ones.
        self.signed = format.q_bits() == 8 && matches!(isa.0, Kind::Avx2 | Kind::Neon);
        if format.is_quantized() {
            let groups = cols / GROUP * self.panels();
            self.q.resize(groups * GROUP * self.lanes, 0);
            self.scale.resize(groups * self.scales_per_group() * self.lanes, 0.0);
            self.min.resize(groups * self.scales_per_group() * self.lanes, 0.0);
            self.blocks.resize(self.lanes, Unpacked::default());
            match isa.0 {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the features do.
                #[allow(unsafe_code)]
                Kind::Avx2 | Kind::Avx512 => unsafe { load_quantized_avx2(self, format, rows) },
                _ => load_quantized(self, format, rows, interleave),
            }
        } else {
            self.load_floats(format, rows);
        }
    }

    fn load_floats(&mut self, format: Format, rows: &[u8]) {
        let (lanes, cols) = (self.lanes, self.cols);
        self.float.clear();
        self.float.resize(TILE_ROWS * cols, 0.0);
        self.row.resize(cols, 0.0);
        let row_bytes = format.row_bytes(cols).expect("a float row");
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            dequantize_row(format, row, &mut self.row);
            let panel = &mut self.float[r / lanes * lanes * cols..];
            for (c, w) in self.row.iter().enumerate() {
                panel[c * lanes + r % lanes] = *w;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_quantized_avx2(tile: &mut Tile, format: Format, rows: &[u8]) {
    // One copy for each format, so that the unpacking loops are specialised and vectorised.
    macro_rules! each {
        ($($format:ident)*) => {
            match format {
                $(Format::$format => load_quantized(tile, Format::$format, rows, |a, b, c, d| {
                    if c.len() == 8 { crate::simd::avx2_gemm::interleave8(a, b, c, d) } else { interleave(a, b, c, d) }
                }),)*
                _ => unreachable!("a float format"),
            }
        };
    }
    each!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K);
}

/// `to[chunk][lane][4]` from `blocks[lane].q[32 · g..]`, each byte xor `flip`.
fn interleave(to: &mut [u8], flip: u8, blocks: &[Unpacked], g: usize) {
    let lanes = blocks.len();
    for (r, block) in blocks.iter().enumerate() {
        for (c, four) in block.q[GROUP * g..][..GROUP].as_chunks::<4>().0.iter().enumerate() {
            let to: &mut [u8] = &mut to[(c * lanes + r) * 4..][..4];
            to.copy_from_slice(&four.map(|q| q ^ flip));
        }
    }
}

#[inline(always)]
fn load_quantized(
    tile: &mut Tile,
    format: Format,
    rows: &[u8],
    interleave: impl Fn(&mut [u8], u8, &[Unpacked], usize),
) {
    let (lanes, per_group) = (tile.lanes, tile.scales_per_group());
    let groups = format.block_len() / GROUP;
    let row_bytes = format.row_bytes(tile.cols).expect("whole blocks");
    let n_rows = rows.len() / row_bytes;
    let n_blocks = tile.cols / format.block_len();
    let flip = if tile.signed { 0x80 } else { 0 };
    for panel in 0..tile.panels() {
        for b in 0..n_blocks {
            for (r, to) in tile.blocks.iter_mut().enumerate() {
                let row = panel * lanes + r;
                if row < n_rows {
                    let at = row * row_bytes + b * format.block_bytes();
                    unpack_block(format, &rows[at..][..format.block_bytes()], to);
                } else {
                    *to = Unpacked::default();
                }
            }
            for g in 0..groups {
                let group = (panel * n_blocks + b) * groups + g;
                let to = &mut tile.q[group * GROUP * lanes..][..GROUP * lanes];
                interleave(to, flip, &tile.blocks, g);
                for h in 0..per_group {
                    let at = (group * per_group + h) * lanes;
                    let half = 2 * g + h;
                    // Signed bytes are 128 less than unsigned ones.
                    let lift = if tile.signed { 128.0 } else { 0.0 };
                    let to = tile.scale[at..][..lanes].iter_mut().zip(&mut tile.min[at..]);
                    for ((scale, min), block) in to.zip(&tile.blocks) {
                        *scale = block.scale[half];
                        *min = block.min[half] + lift * block.scale[half];
                    }
                }
            }
        }
    }
}
