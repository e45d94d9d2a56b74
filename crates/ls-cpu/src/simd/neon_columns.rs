//! NEON kernel that adds weighted columns: the down matrix of an MLP, stored by neuron.
//!
//! 32 outputs at a time stay in registers over the columns of a block of neurons, as integers.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use std::arch::aarch64::*;

use super::blocks::{part, u16_at, u32_at};
use super::coefficients::{BLOCK, Coefficients, GROUPS};
use super::neon::{f16_high, f16_low, load, load_f32, load_u16, store_f32};
use crate::column::{ColumnFormat, SCALE};

/// The signed integers of a group.
#[inline]
#[target_feature(enable = "neon")]
fn integers<const BYTES: usize>(group: &[u8; BYTES]) -> [int8x16_t; 2] {
    if BYTES == 32 {
        // Subtracting half of the range changes the highest bit alone.
        let signed = |q| vreinterpretq_s8_u8(veorq_u8(q, vdupq_n_u8(128)));
        return [signed(load(part(group, 0))), signed(load(part(group, 16)))];
    }
    let both = load(part(group, 0));
    let mut q = [vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both)];
    let center = match BYTES {
        24 => {
            let high = vcreate_u8(u64::from_le_bytes(*part(group, 16)));
            let twos = [
                vcombine_u8(high, vshr_n_u8::<2>(high)),
                vcombine_u8(vshr_n_u8::<4>(high), vshr_n_u8::<6>(high)),
            ];
            for i in 0..2 {
                let two = vandq_u8(twos[i], vdupq_n_u8(3));
                q[i] = vorrq_u8(q[i], vshlq_n_u8::<4>(two));
            }
            32
        }
        20 => {
            let bits = u32_at(group, 16);
            let mask = vcreate_u8(0x8040_2010_0804_0201);
            let mask = vcombine_u8(mask, mask);
            for i in 0..2 {
                let (a, b) = ((bits >> (16 * i)) as u8, (bits >> (16 * i + 8)) as u8);
                let bytes = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));
                let set = vtstq_u8(bytes, mask);
                q[i] = vorrq_u8(q[i], vandq_u8(set, vdupq_n_u8(16)));
            }
            16
        }
        _ => 8,
    };
    q.map(|q| vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(center)))
}

/// Weights of `n` neurons for up to eight groups from `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn products(
    columns: &[&[u8]; BLOCK],
    h: &[f32],
    first: usize,
    n_groups: usize,
) -> [[f32; GROUPS]; BLOCK] {
    let mut out = [[0.0; GROUPS]; BLOCK];
    for j in 0..h.len() {
        let mut d = [0; GROUPS];
        for g in 0..n_groups.min(GROUPS) {
            d[g] = u16_at(columns[j], SCALE * (first + g));
        }
        let d = load_u16(&d);
        let [low, high] = out[j].as_chunks_mut::<4>().0 else { unreachable!("eight") };
        store_f32(low, vmulq_n_f32(f16_low(d), h[j]));
        store_f32(high, vmulq_n_f32(f16_high(d), h[j]));
    }
    out
}

/// `out += scale · sum` of eight outputs.
#[inline]
#[target_feature(enable = "neon")]
fn add_sums(out: &mut [[f32; 4]], scale: f32, sums: [int32x4_t; 2]) {
    for i in 0..2 {
        let sum = vcvtq_f32_s32(sums[i]);
        let sum = vfmaq_n_f32(load_f32(&out[i]), sum, scale);
        store_f32(&mut out[i], sum);
    }
}

/// Adds group `g` of the columns, with coefficients of 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn add_wide(
    groups: &[&[[u8; 32]]],
    g: usize,
    (k, i): (&Coefficients, usize),
    out: &mut [[f32; 4]; 8],
) {
    let mut acc = [vdupq_n_s32(0); 8];
    for j in 0..groups.len() {
        let q = integers(&groups[j][g]);
        let k = k.k[j][i] as i16;
        for half in 0..2 {
            let wide = [vmovl_s8(vget_low_s8(q[half])), vmovl_high_s8(q[half])];
            for v in 0..2 {
                let at = 4 * half + 2 * v;
                acc[at] = vmlal_n_s16(acc[at], vget_low_s16(wide[v]), k);
                acc[at + 1] = vmlal_high_n_s16(acc[at + 1], wide[v], k);
            }
        }
    }
    for v in 0..4 {
        add_sums(&mut out[2 * v..2 * v + 2], k.scale[i], [acc[2 * v], acc[2 * v + 1]]);
    }
}

/// Adds group `g` of the columns, with coefficients of 8 bits: sums of 16 bits hold a block.
#[inline]
#[target_feature(enable = "neon")]
fn add_narrow<const BYTES: usize>(
    groups: &[&[[u8; BYTES]]],
    g: usize,
    (k, i): (&Coefficients, usize),
    out: &mut [[f32; 4]; 8],
) {
    let mut acc = [vdupq_n_s16(0); 4];
    for j in 0..groups.len() {
        let q = integers(&groups[j][g]);
        let k = vdupq_n_s8(k.k[j][i] as i8);
        for half in 0..2 {
            let at = 2 * half;
            acc[at] = vmlal_s8(acc[at], vget_low_s8(q[half]), vget_low_s8(k));
            acc[at + 1] = vmlal_high_s8(acc[at + 1], q[half], k);
        }
    }
    for v in 0..4 {
        let sums = [vmovl_s16(vget_low_s16(acc[v])), vmovl_high_s16(acc[v])];
        add_sums(&mut out[2 * v..2 * v + 2], k.scale[i], sums);
    }
}

/// Adds the columns of a block of neurons.
#[inline]
#[target_feature(enable = "neon")]
fn add_block<const BYTES: usize>(
    format: ColumnFormat,
    columns: &[&[u8]; BLOCK],
    h: &[f32],
    out: &mut [[[f32; 4]; 8]],
) {
    let n_groups = out.len();
    let mut coefficients = Coefficients::default();
    let mut groups: [&[[u8; BYTES]]; BLOCK] = [&[]; BLOCK];
    for j in 0..h.len() {
        groups[j] = &columns[j][SCALE * n_groups..].as_chunks().0[..n_groups];
    }
    let mut first = 0;
    while first < n_groups {
        let n = (n_groups - first).min(GROUPS);
        coefficients.round(format, &products(columns, h, first, n), h.len());
        for i in 0..n {
            let (g, k) = (first + i, (&coefficients, i));
            if BYTES == 32 {
                let mut wide: [&[[u8; 32]]; BLOCK] = [&[]; BLOCK];
                for j in 0..h.len() {
                    wide[j] = groups[j].as_flattened().as_chunks().0;
                }
                add_wide(&wide[..h.len()], g, k, &mut out[g]);
            } else {
                add_narrow(&groups[..h.len()], g, k, &mut out[g]);
            }
        }
        first += GROUPS;
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn add_quantized<const BYTES: usize>(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    out: &mut [f32],
) {
    let out = out.as_chunks_mut::<4>().0.as_chunks_mut::<8>().0;
    let mut first = 0;
    while first < weights.len() {
        let n = (weights.len() - first).min(BLOCK);
        let mut block: [&[u8]; BLOCK] = [&[]; BLOCK];
        for j in 0..n {
            block[j] = columns[first + j];
        }
        add_block::<BYTES>(format, &block, &weights[first..first + n], out);
        first += n;
    }
}

/// `out = d · q` of groups `first..` of a quantised column.
#[inline]
#[target_feature(enable = "neon")]
fn read_groups<const BYTES: usize>(column: &[u8], first: usize, out: &mut [[[f32; 4]; 8]]) {
    let n_groups = column.len() / (SCALE + BYTES);
    let groups = column[SCALE * n_groups..].as_chunks::<BYTES>().0;
    for i in 0..out.len() {
        let d = f16_low(vdupq_n_u16(u16_at(column, SCALE * (first + i))));
        let q = integers(&groups[first + i]);
        for half in 0..2 {
            let wide = [vmovl_s8(vget_low_s8(q[half])), vmovl_high_s8(q[half])];
            for v in 0..2 {
                let at = 4 * half + 2 * v;
                let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide[v])));
                let high = vcvtq_f32_s32(vmovl_high_s16(wide[v]));
                store_f32(&mut out[i][at], vmulq_f32(d, low));
                store_f32(&mut out[i][at + 1], vmulq_f32(d, high));
            }
        }
    }
}

/// Eight values of a float column.
#[inline]
#[target_feature(enable = "neon")]
fn floats(format: ColumnFormat, column: &[u8], at: usize) -> [float32x4_t; 2] {
    let words = |at: usize| -> [u16; 8] {
        let bytes: &[u8; 16] = part(column, at);
        std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
    };
    match format {
        ColumnFormat::F32 => [
            vreinterpretq_f32_u8(load(part(column, at))),
            vreinterpretq_f32_u8(load(part(column, at + 16))),
        ],
        ColumnFormat::F16 => {
            let half = load_u16(&words(at));
            [f16_low(half), f16_high(half)]
        }
        _ => {
            let half = load_u16(&words(at));
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(half)))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vget_high_u16(half)))),
            ]
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn add_floats(format: ColumnFormat, columns: &[&[u8]], weights: &[f32], out: &mut [f32]) {
    let bytes = format.group_bytes();
    for (g, out) in out.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let mut acc = [load_f32(&out[0]), load_f32(&out[1])];
        for (j, weight) in weights.iter().enumerate() {
            let [a, b] = floats(format, columns[j], g * 8 * bytes);
            acc[0] = vfmaq_n_f32(acc[0], a, *weight);
            acc[1] = vfmaq_n_f32(acc[1], b, *weight);
        }
        store_f32(&mut out[0], acc[0]);
        store_f32(&mut out[1], acc[1]);
    }
}

/// `out += Σ_j weights[j] · columns[j]`; `out` is whole groups of 32.
#[target_feature(enable = "neon")]
pub(crate) fn add_columns(
    format: ColumnFormat,
    columns: &[&[u8]],
    weights: &[f32],
    out: &mut [f32],
) {
    match format {
        ColumnFormat::Q8 => add_quantized::<32>(format, columns, weights, out),
        ColumnFormat::Q6 => add_quantized::<24>(format, columns, weights, out),
        ColumnFormat::Q5 => add_quantized::<20>(format, columns, weights, out),
        ColumnFormat::Q4 => add_quantized::<16>(format, columns, weights, out),
        _ => add_floats(format, columns, weights, out),
    }
}

/// Values of a quantised column, from group `first` on; `out` is whole groups.
#[target_feature(enable = "neon")]
pub(crate) fn read_column(format: ColumnFormat, column: &[u8], first: usize, out: &mut [f32]) {
    let out = out.as_chunks_mut::<4>().0.as_chunks_mut::<8>().0;
    match format {
        ColumnFormat::Q8 => read_groups::<32>(column, first, out),
        ColumnFormat::Q6 => read_groups::<24>(column, first, out),
        ColumnFormat::Q5 => read_groups::<20>(column, first, out),
        _ => read_groups::<16>(column, first, out),
    }
}
