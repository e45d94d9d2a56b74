//! The scalar twins: plain Rust that says what every other kernel must compute.

use half::{bf16, f16};

use super::coefficients::{BLOCK, Coefficients, GROUPS};
use crate::Format;
use crate::column::{ColumnFormat, dequantize_column, quantized_groups};
use crate::quant::{GROUP, Q8Ref, Unpacked, unpack_block};
use crate::tile::{TILE_ROWS, Tile};

/// `row · x` of a quantised row.
#[inline(always)]
pub(crate) fn dot_q(format: Format, row: &[u8], x: Q8Ref<'_>) -> f32 {
    let mut unpacked = Unpacked::default();
    let groups = format.block_len() / 32;
    let mut sum = 0.0;
    for (b, block) in row.chunks_exact(format.block_bytes()).enumerate() {
        unpack_block(format, block, &mut unpacked);
        for g in 0..groups {
            let at = b * groups + g;
            for half in 0..2 {
                let q = &unpacked.q[32 * g + 16 * half..][..16];
                let a = &x.q[32 * at + 16 * half..][..16];
                let dot: i32 = q.iter().zip(a).map(|(q, a)| i32::from(*q) * i32::from(*a)).sum();
                let scale = unpacked.scale[2 * g + half] * x.d[at];
                sum += scale * dot as f32 + unpacked.min[2 * g + half] * x.sum16[2 * at + half];
            }
        }
    }
    sum
}

/// `row · x` of a row of floats.
#[inline(always)]
pub(crate) fn dot_f(format: Format, row: &[u8], x: &[f32]) -> f32 {
    // Eight partial sums: the shape that vector units give, and kinder to rounding than one.
    let mut acc = [0f32; 8];
    let mut add = |i: usize, w: f32, x: f32| acc[i % 8] += w * x;
    match format {
        Format::F32 => {
            let row = row.as_chunks::<4>().0;
            row.iter()
                .zip(x)
                .enumerate()
                .for_each(|(i, (w, x))| add(i, f32::from_le_bytes(*w), *x));
        }
        Format::F16 => {
            let row = row.as_chunks::<2>().0;
            let f = |w: &[u8; 2]| f16::from_le_bytes(*w).to_f32();
            row.iter().zip(x).enumerate().for_each(|(i, (w, x))| add(i, f(w), *x));
        }
        Format::BF16 => {
            let row = row.as_chunks::<2>().0;
            let f = |w: &[u8; 2]| bf16::from_le_bytes(*w).to_f32();
            row.iter().zip(x).enumerate().for_each(|(i, (w, x))| add(i, f(w), *x));
        }
        _ => unreachable!("a quantised format"),
    }
    acc.iter().sum()
}

/// `a · b` of a float row and an f16 row (bits), the attention's query · key.
#[inline(always)]
pub(crate) fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
    let mut acc = [0f32; 8];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        acc[i % 8] += a * f16::from_bits(*b).to_f32();
    }
    acc.iter().sum()
}

/// `out += weight · row` for an f16 row (bits), the attention's probability · value.
#[inline(always)]
pub(crate) fn axpy_f16(out: &mut [f32], weight: f32, row: &[u16]) {
    for (o, r) in out.iter_mut().zip(row) {
        *o += weight * f16::from_bits(*r).to_f32();
    }
}

/// `out += Σ_j weights[j] · columns[j]` for columns that lie apart.
pub(crate) fn add_columns(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    out: &mut [f32],
) {
    if format.is_quantized() {
        let blocks = columns.chunks(BLOCK).zip(weights.chunks(BLOCK));
        return blocks.for_each(|(columns, weights)| add_block(format, columns, weights, out));
    }
    let mut values = vec![0.0; out.len()];
    for (column, weight) in columns.iter().zip(weights) {
        read_column(format, column, 0, &mut values);
        out.iter_mut().zip(&values).for_each(|(o, v)| *o += weight * v);
    }
}

/// Adds the columns of a block of neurons: sums of integers, converted once.
fn add_block(format: ColumnFormat, columns: &[&[u8]], weights: &[f32], out: &mut [f32]) {
    for (g, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let (mut products, mut sums) = ([[0.0; GROUPS]; BLOCK], [0i32; GROUP]);
        let mut coefficients = Coefficients::default();
        let group =
            |j: usize| quantized_groups(format, columns[j]).nth(g).expect("a group of the column");
        for (j, weight) in weights.iter().enumerate() {
            products[j][0] = weight * group(j).0;
        }
        coefficients.round(format, &products, weights.len());
        for j in 0..weights.len() {
            let k = coefficients.k[j][0];
            sums.iter_mut().zip(group(j).1).for_each(|(sum, q)| *sum += k * i32::from(q));
        }
        out.iter_mut().zip(sums).for_each(|(o, sum)| *o += coefficients.scale[0] * sum as f32);
    }
}

/// Values `first..` of a column; `first` and the length of `out` are whole groups.
pub(crate) fn read_column(format: ColumnFormat, column: &[u8], first: usize, out: &mut [f32]) {
    if format.is_quantized() {
        let groups = quantized_groups(format, column).skip(first / GROUP);
        for (out, (d, q)) in out.chunks_exact_mut(GROUP).zip(groups) {
            out.iter_mut().zip(q).for_each(|(o, q)| *o = d * f32::from(q));
        }
    } else {
        let bytes = format.group_bytes();
        dequantize_column(format, &column[first * bytes..][..out.len() * bytes], out);
    }
}

/// `out[t][r] = tile row r · x[t]`, quantised tile.
pub(crate) fn gemm_q<const T: usize>(tile: &Tile, x: [Q8Ref<'_>; T], out: &mut [[f32; TILE_ROWS]]) {
    let (lanes, groups, per_group) = (tile.lanes, tile.cols / GROUP, tile.scales_per_group());
    for (x, out) in x.iter().zip(out) {
        for (r, out) in out.iter_mut().enumerate() {
            let (panel, lane) = (r / lanes, r % lanes);
            *out = 0.0;
            for part in 0..groups * per_group {
                let (g, from) = (part / per_group, part % per_group * 16);
                let at = (panel * groups + g) * GROUP * lanes;
                let dot: i32 = (from..from + GROUP / per_group)
                    .map(|k| {
                        let w = tile.q[at + (k / 4 * lanes + lane) * 4 + k % 4];
                        let w = if tile.center > 0 { i32::from(w as i8) } else { i32::from(w) };
                        w * i32::from(x.q[g * GROUP + k])
                    })
                    .sum();
                let s = (panel * groups * per_group + part) * lanes + lane;
                let sum = if per_group == 2 { x.sum16[part] } else { x.sum32[part] };
                *out += tile.scale[s] * x.d[g] * dot as f32 + tile.min[s] * sum;
            }
        }
    }
}

/// `out[t][r] = tile row r · x[t]`, float tile.
pub(crate) fn gemm_f<const T: usize>(tile: &Tile, x: [&[f32]; T], out: &mut [[f32; TILE_ROWS]]) {
    let lanes = tile.lanes;
    for (x, out) in x.iter().zip(out) {
        for (r, out) in out.iter_mut().enumerate() {
            let panel = &tile.float[r / lanes * lanes * tile.cols..];
            *out = x.iter().enumerate().map(|(c, x)| panel[c * lanes + r % lanes] * x).sum();
        }
    }
}
