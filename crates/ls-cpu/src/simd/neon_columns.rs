//! NEON kernel that adds weighted columns: the down matrix of an MLP, stored by neuron.
//!
//! 32 outputs at a time stay in registers over all columns of a chunk.

use std::arch::aarch64::*;

use super::blocks::{part, u16_at, u32_at};
use super::neon::{f16_high, f16_low, load, load_f32, load_u16, store_f32};
use crate::column::ColumnFormat;

/// The signed integers of a group.
#[inline]
#[target_feature(enable = "neon")]
fn integers<const BYTES: usize>(group: &[u8; BYTES]) -> [int8x16_t; 2] {
    if BYTES == 34 {
        return [load(part(group, 2)), load(part(group, 18))].map(|q| vreinterpretq_s8_u8(q));
    }
    let both = load(part(group, 2));
    let mut q = [vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both)];
    let center = match BYTES {
        26 => {
            let high = vcreate_u8(u64::from_le_bytes(*part(group, 18)));
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
        22 => {
            let bits = u32_at(group, 18);
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

#[inline]
#[target_feature(enable = "neon")]
fn half_at(group: &[u8]) -> f32 {
    vgetq_lane_f32::<0>(f16_low(vdupq_n_u16(u16_at(group, 0))))
}

/// Eight outputs more: `acc + scale · q`.
#[inline]
#[target_feature(enable = "neon")]
fn add_eight(acc: &mut [float32x4_t], scale: f32, q: int8x8_t) {
    let wide = vmovl_s8(q);
    let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    let high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)));
    acc[0] = vfmaq_n_f32(acc[0], low, scale);
    acc[1] = vfmaq_n_f32(acc[1], high, scale);
}

#[inline]
#[target_feature(enable = "neon")]
fn add_quantized<const BYTES: usize>(columns: &[u8], weights: &[f32], out: &mut [f32]) {
    let out = out.as_chunks_mut::<4>().0.as_chunks_mut::<8>().0;
    let column_bytes = out.len() * BYTES;
    for (g, out) in out.iter_mut().enumerate() {
        let mut acc = [vdupq_n_f32(0.0); 8];
        for i in 0..8 {
            acc[i] = load_f32(&out[i]);
        }
        for (j, weight) in weights.iter().enumerate() {
            let group: &[u8; BYTES] = part(columns, j * column_bytes + g * BYTES);
            let scale = weight * half_at(group);
            let [a, b] = integers(group);
            add_eight(&mut acc[0..2], scale, vget_low_s8(a));
            add_eight(&mut acc[2..4], scale, vget_high_s8(a));
            add_eight(&mut acc[4..6], scale, vget_low_s8(b));
            add_eight(&mut acc[6..8], scale, vget_high_s8(b));
        }
        for i in 0..8 {
            store_f32(&mut out[i], acc[i]);
        }
    }
}

/// Eight values of a float column.
#[inline]
#[target_feature(enable = "neon")]
fn floats(format: ColumnFormat, columns: &[u8], at: usize) -> [float32x4_t; 2] {
    let words = |at: usize| -> [u16; 8] {
        let bytes: &[u8; 16] = part(columns, at);
        std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
    };
    match format {
        ColumnFormat::F32 => [
            vreinterpretq_f32_u8(load(part(columns, at))),
            vreinterpretq_f32_u8(load(part(columns, at + 16))),
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
fn add_floats(format: ColumnFormat, columns: &[u8], weights: &[f32], out: &mut [f32]) {
    let bytes = format.group_bytes();
    let column_bytes = out.len() * bytes;
    for (g, out) in out.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let mut acc = [load_f32(&out[0]), load_f32(&out[1])];
        for (j, weight) in weights.iter().enumerate() {
            let [a, b] = floats(format, columns, j * column_bytes + g * 8 * bytes);
            acc[0] = vfmaq_n_f32(acc[0], a, *weight);
            acc[1] = vfmaq_n_f32(acc[1], b, *weight);
        }
        store_f32(&mut out[0], acc[0]);
        store_f32(&mut out[1], acc[1]);
    }
}

/// `out += Σ_j weights[j] · column j`; `out` is whole groups of 32.
#[target_feature(enable = "neon")]
pub(crate) fn add_columns(format: ColumnFormat, columns: &[u8], weights: &[f32], out: &mut [f32]) {
    match format {
        ColumnFormat::Q8 => add_quantized::<34>(columns, weights, out),
        ColumnFormat::Q6 => add_quantized::<26>(columns, weights, out),
        ColumnFormat::Q5 => add_quantized::<22>(columns, weights, out),
        ColumnFormat::Q4 => add_quantized::<18>(columns, weights, out),
        _ => add_floats(format, columns, weights, out),
    }
}
