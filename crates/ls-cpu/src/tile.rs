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
    /// What was subtracted from each byte: they are signed, and mins are zero, unless it is 0.
    pub center: u8,
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
        // NEON multiplies signed bytes. AVX2 does for 8 bits alone, whose unsigned products would
        // not fit its 16-bit sums; AVX-512 multiplies unsigned weights.
        self.center = match isa.0 {
            Kind::Neon => format.center(),
            Kind::Avx2 if format.q_bits() == 8 => format.center(),
            _ => 0,
        };
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
                Kind::Avx2 => unsafe { load_avx2(self, format, rows) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the features do.
                #[allow(unsafe_code)]
                Kind::Avx512 => unsafe { load_avx512(self, format, rows) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: an `Isa` of this kind exists only where the features do.
                #[allow(unsafe_code)]
                Kind::Neon => unsafe { load_neon(self, format, rows) },
                _ => load_quantized(self, format, rows, interleave),
            }
        } else {
            self.load_floats(format, rows);
        }
    }

    /// Makes this a tile of floats whose columns are set one by one.
    pub fn begin_floats(&mut self, isa: Isa, cols: usize) {
        self.lanes = if isa.0 == Kind::Avx512 { 16 } else { 8 };
        self.cols = cols;
        self.format = None;
        self.float.resize(TILE_ROWS * cols, 0.0);
    }

    /// Column `c` of all [`TILE_ROWS`] rows.
    pub fn set_column(&mut self, c: usize, values: &[f32]) {
        for (panel, values) in values.chunks_exact(self.lanes).enumerate() {
            let at = (panel * self.cols + c) * self.lanes;
            self.float[at..at + self.lanes].copy_from_slice(values);
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

/// Defines a loader for one instruction set, with a copy for each format, so that the unpacking
/// loops are specialised and vectorised.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! loader {
    ($name:ident, $features:literal, $interleave:path) => {
        loader!($name, $features, $interleave, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K);
    };
    ($name:ident, $features:literal, $interleave:path, $($format:ident)*) => {
        #[target_feature(enable = $features)]
        fn $name(tile: &mut Tile, format: Format, rows: &[u8]) {
            match format {
                $(Format::$format => load_quantized(tile, Format::$format, rows, |to, center, blocks, g| {
                    $interleave(to, center, blocks, g)
                }),)*
                Format::F32 | Format::F16 | Format::BF16 => unreachable!("a float format"),
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
loader!(load_avx2, "avx2,fma,f16c", crate::simd::avx2_gemm::interleave8);
#[cfg(target_arch = "x86_64")]
loader!(
    load_avx512,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl",
    crate::simd::avx512_gemm::interleave16
);
#[cfg(target_arch = "aarch64")]
loader!(load_neon, "neon", crate::simd::neon_gemm::interleave8);

/// `to[chunk][lane][4]` from `blocks[lane].q[32 · g..]`, each byte less `center`.
fn interleave(to: &mut [u8], center: u8, blocks: &[Unpacked], g: usize) {
    let lanes = blocks.len();
    for (r, block) in blocks.iter().enumerate() {
        for (c, four) in block.q[GROUP * g..][..GROUP].as_chunks::<4>().0.iter().enumerate() {
            let to: &mut [u8] = &mut to[(c * lanes + r) * 4..][..4];
            to.copy_from_slice(&four.map(|q| q.wrapping_sub(center)));
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
    let center = tile.center;
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
                interleave(to, center, &tile.blocks, g);
                for h in 0..per_group {
                    let at = (group * per_group + h) * lanes;
                    let half = 2 * g + h;
                    let lift = f32::from(center);
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
