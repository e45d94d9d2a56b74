//! NEON kernels with the dot-product extension: dot products of one row.
//!
//! `sdot` adds four products of signed bytes to each 32-bit lane. Quantised weights are at most
//! 7 bits, or signed, so they are signed bytes as they are. The sums of four half groups (or
//! groups) are folded into one vector, which is then scaled lane by lane.

use std::arch::aarch64::*;
use std::arch::asm;

use super::blocks::{Act256, Min, SuperBlocks, part, q3_scales, scales_k4, u16_at, u32_at};
use crate::Format;
use crate::quant::Q8Ref;

/// `acc[i] + Σ_j a[4i + j] · b[4i + j]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // The intrinsic is not stable yet.
    // SAFETY: one instruction of a feature that this function requires, on registers only.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// `acc[i] + Σ_j a[4i + j] · b[4 · LANE + j]`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot_lane<const LANE: i32>(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: one instruction of a feature that this function requires, on registers only.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// The f32 of four f16 (as bits).
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn f16_low(x: uint16x8_t) -> float32x4_t {
    let out: float32x4_t;
    // The intrinsic asks for half-precision arithmetic, which this conversion does not need.
    // SAFETY: one instruction of every ARMv8 processor, on registers only.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {x:v}.4h", out = out(vreg) out, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// The f32 of the upper four of eight f16 (as bits).
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn f16_high(x: uint16x8_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: one instruction of every ARMv8 processor, on registers only.
    unsafe {
        asm!(
            "fcvtl2 {out:v}.4s, {x:v}.8h", out = out(vreg) out, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 readable bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_i8(bytes: &[i8; 16]) -> int8x16_t {
    // SAFETY: 16 readable bytes.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_f32(x: &[f32; 4]) -> float32x4_t {
    // SAFETY: four readable floats.
    unsafe { vld1q_f32(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_f32(to: &mut [f32; 4], x: float32x4_t) {
    // SAFETY: four writable floats.
    unsafe { vst1q_f32(to.as_mut_ptr(), x) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_u16(x: &[u16; 8]) -> uint16x8_t {
    // SAFETY: eight readable halves.
    unsafe { vld1q_u16(x.as_ptr()) }
}

/// Both vectors of 32 bytes.
#[inline]
#[target_feature(enable = "neon")]
fn load2(bytes: &[u8; 32]) -> [uint8x16_t; 2] {
    [load(part(bytes, 0)), load(part(bytes, 16))]
}

/// The f16 at `at` of each of four blocks, as f32; zero for blocks that are not there.
#[inline]
#[target_feature(enable = "neon")]
fn halves<const BYTES: usize>(blocks: &[[u8; BYTES]], at: usize) -> float32x4_t {
    let h = |i: usize| blocks.get(i).map_or(0, |b| u64::from(u16_at(b, at)));
    let bits = h(0) | h(1) << 16 | h(2) << 32 | h(3) << 48;
    f16_low(vreinterpretq_u16_u64(vdupq_n_u64(bits)))
}

/// The f16 at `at`, in all lanes.
#[inline]
#[target_feature(enable = "neon")]
fn half_at(block: &[u8], at: usize) -> float32x4_t {
    f16_low(vdupq_n_u16(u16_at(block, at)))
}

/// Up to four floats, zeros after them.
#[inline]
#[target_feature(enable = "neon")]
fn up_to_4(x: &[f32]) -> float32x4_t {
    match x.first_chunk::<4>() {
        Some(x) => load_f32(x),
        None => {
            let mut padded = [0.0; 4];
            padded[..x.len()].copy_from_slice(x);
            load_f32(&padded)
        }
    }
}

/// The sums of four vectors' lanes, as f32.
#[inline]
#[target_feature(enable = "neon")]
fn sums(d: [int32x4_t; 4]) -> float32x4_t {
    vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3])))
}

/// Products of a group of 32, summed to four lanes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn products(q: [uint8x16_t; 2], a: &[i8; 32]) -> int32x4_t {
    let [low, high] = half_products(q, a);
    vaddq_s32(low, high)
}

/// Products of both halves of a group of 32, each summed to four lanes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn half_products(q: [uint8x16_t; 2], a: &[i8; 32]) -> [int32x4_t; 2] {
    let zero = vdupq_n_s32(0);
    let a: &[[i8; 16]] = a.as_chunks().0;
    [
        sdot(zero, vreinterpretq_s8_u8(q[0]), load_i8(&a[0])),
        sdot(zero, vreinterpretq_s8_u8(q[1]), load_i8(&a[1])),
    ]
}

/// Low nibbles of 16 bytes, then high ones.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(b: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(b, vdupq_n_u8(15)), vshrq_n_u8::<4>(b)]
}

/// `q` with 16 added where a bit of `bits` is set.
#[inline]
#[target_feature(enable = "neon")]
fn with_fifth_bits(q: [uint8x16_t; 2], bits: u32) -> [uint8x16_t; 2] {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    const BYTE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
    let bytes = vreinterpretq_u8_u32(vdupq_n_u32(bits));
    let spread = |first: u8| vqtbl1q_u8(bytes, vaddq_u8(load(&BYTE), vdupq_n_u8(first)));
    let (bit, sixteen) = (load(&BIT), vdupq_n_u8(16));
    [
        vorrq_u8(q[0], vandq_u8(vtstq_u8(spread(0), bit), sixteen)),
        vorrq_u8(q[1], vandq_u8(vtstq_u8(spread(2), bit), sixteen)),
    ]
}

/// A kernel for a format of 32-weight blocks; `$q` unpacks one block.
macro_rules! block32 {
    ($dot:ident, $bytes:literal, $min:expr, |$b:ident| $q:expr) => {
        #[inline]
        #[target_feature(enable = "neon,dotprod")]
        fn $dot(row: &[u8], x: Q8Ref<'_>) -> f32 {
            const MIN: Min = $min;
            let (mut acc, mut mins) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
            let blocks = row.as_chunks::<$bytes>().0;
            let parts = blocks.chunks(4).zip(x.q.as_chunks::<32>().0.chunks(4));
            for ((blocks, a), (d, sum)) in parts.zip(x.d.chunks(4).zip(x.sum32.chunks(4))) {
                let scale = halves(blocks, 0);
                match MIN {
                    Min::At(at) => mins = vfmaq_f32(mins, halves(blocks, at), up_to_4(sum)),
                    Min::Times(0.0) => {}
                    Min::Times(_) => mins = vfmaq_f32(mins, scale, up_to_4(sum)),
                }
                let one = |$b: &[u8; $bytes], a: &[i8; 32]| products($q, a);
                let mut dots = [vdupq_n_s32(0); 4];
                if let (Some(blocks), Some(a)) = (blocks.first_chunk::<4>(), a.first_chunk::<4>()) {
                    dots = [
                        one(&blocks[0], &a[0]),
                        one(&blocks[1], &a[1]),
                        one(&blocks[2], &a[2]),
                        one(&blocks[3], &a[3]),
                    ];
                } else {
                    for ((dot, b), a) in dots.iter_mut().zip(blocks).zip(a) {
                        *dot = one(b, a);
                    }
                }
                acc = vfmaq_f32(acc, sums(dots), vmulq_f32(scale, up_to_4(d)));
            }
            let times = if let Min::Times(times) = MIN { times } else { 1.0 };
            vaddvq_f32(acc) + times * vaddvq_f32(mins)
        }
    };
}

block32!(dot_q4_0, 18, Min::Times(-8.0), |b| nibbles(load(part(b, 2))));
block32!(dot_q4_1, 20, Min::At(2), |b| nibbles(load(part(b, 4))));
block32!(dot_q5_0, 22, Min::Times(-16.0), |b| with_fifth_bits(
    nibbles(load(part(b, 6))),
    u32_at(b, 2)
));
block32!(dot_q5_1, 24, Min::At(2), |b| with_fifth_bits(nibbles(load(part(b, 8))), u32_at(b, 4)));
block32!(dot_q8_0, 34, Min::Times(0.0), |b| load2(part(b, 2)));

/// Eight u8 as floats.
#[inline]
#[target_feature(enable = "neon")]
fn u8_to_f32(bytes: u64) -> [float32x4_t; 2] {
    let wide = vmovl_u8(vcreate_u8(bytes));
    [vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))]
}

/// Sixteen i8 as floats.
#[inline]
#[target_feature(enable = "neon")]
fn i8_to_f32(bytes: int8x16_t) -> [float32x4_t; 4] {
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_high_s16(low)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)),
    ]
}

/// Q4_K (`HIGH` false) and Q5_K (`HIGH` true).
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_k4<const BYTES: usize, const HIGH: bool>(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
    let bit = vdupq_n_u8(16);
    let blocks = SuperBlocks::<BYTES>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let (scale, min) = scales_k4(block);
        let (scale, min) = (u8_to_f32(scale), u8_to_f32(min));
        let (d8, sums8) = (a.d.as_chunks::<4>().0, a.sum32.as_chunks::<4>().0);
        let mut high = load2(part(block, 16));
        let base = if HIGH { 48 } else { 16 };
        for half in 0..2 {
            let mut dots = [vdupq_n_s32(0); 4];
            for pair in 0..2 {
                let j = 2 * half + pair;
                let b = load2(part(block, base + 32 * j));
                let (q, q_b) = (nibbles(b[0]), nibbles(b[1]));
                let (mut low_q, mut high_q) = ([q[0], q_b[0]], [q[1], q_b[1]]);
                if HIGH {
                    // The next two groups' fifth bits are bits 0 and 1 of `high`'s bytes.
                    for i in 0..2 {
                        low_q[i] = vbslq_u8(bit, vshlq_n_u8::<4>(high[i]), low_q[i]);
                        high_q[i] = vbslq_u8(bit, vshlq_n_u8::<3>(high[i]), high_q[i]);
                        high[i] = vshrq_n_u8::<2>(high[i]);
                    }
                }
                dots[2 * pair] = products(low_q, &a.q[2 * j]);
                dots[2 * pair + 1] = products(high_q, &a.q[2 * j + 1]);
            }
            let factor = vmulq_f32(vmulq_f32(scale[half], d), load_f32(&d8[half]));
            acc = vfmaq_f32(acc, sums(dots), factor);
            mins = vfmaq_f32(mins, vmulq_f32(min[half], dmin), load_f32(&sums8[half]));
        }
    }
    vaddvq_f32(acc) - vaddvq_f32(mins)
}

/// A block whose half groups have scales of their own.
struct HalfScales {
    /// Sixteen scales, times the block's.
    scale: [float32x4_t; 4],
}

impl HalfScales {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(scales: int8x16_t, d: float32x4_t) -> Self {
        Self { scale: i8_to_f32(scales).map(|scale| vmulq_f32(scale, d)) }
    }

    /// `acc` and the scaled products of groups 2 · `pair` and 2 · `pair` + 1.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn add(
        &self,
        acc: float32x4_t,
        pair: usize,
        q: [[uint8x16_t; 2]; 2],
        a: &Act256<'_>,
    ) -> float32x4_t {
        let [d0, d1] = half_products(q[0], &a.q[2 * pair]);
        let [d2, d3] = half_products(q[1], &a.q[2 * pair + 1]);
        let (low, high) = (vdupq_n_f32(a.d[2 * pair]), vdupq_n_f32(a.d[2 * pair + 1]));
        let d = vcombine_f32(vget_low_f32(low), vget_low_f32(high));
        vfmaq_f32(acc, sums([d0, d1, d2, d3]), vmulq_f32(self.scale[pair], d))
    }
}

/// Σ values[i] · sum16[i], four partial sums; `values` are 16 signed bytes.
#[inline]
#[target_feature(enable = "neon")]
fn half_mins(values: int8x16_t, a: &Act256<'_>) -> float32x4_t {
    let mut out = vdupq_n_f32(0.0);
    let sums = a.sum16.as_flattened().as_chunks::<4>().0;
    for (values, sum) in i8_to_f32(values).into_iter().zip(sums) {
        out = vfmaq_f32(out, values, load_f32(sum));
    }
    out
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_q6_k(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
    let two = vdupq_n_u8(0x30);
    let blocks = SuperBlocks::<210>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        let d = half_at(block, 208);
        let scales = vreinterpretq_s8_u8(load(part(block, 192)));
        mins = vfmaq_f32(mins, half_mins(scales, &a), d);
        let scales = HalfScales::new(scales, d);
        for half in 0..2 {
            let (l, l_b) = (load2(part(block, 64 * half)), load2(part(block, 64 * half + 32)));
            let h = load2(part(block, 128 + 32 * half));
            let (mut low, mut high) = ([l; 2], [l; 2]);
            for i in 0..2 {
                let (q, q_b) = (nibbles(l[i]), nibbles(l_b[i]));
                low[0][i] = vbslq_u8(two, vshlq_n_u8::<4>(h[i]), q[0]);
                low[1][i] = vbslq_u8(two, vshlq_n_u8::<2>(h[i]), q_b[0]);
                high[0][i] = vbslq_u8(two, h[i], q[1]);
                high[1][i] = vbslq_u8(two, vshrq_n_u8::<2>(h[i]), q_b[1]);
            }
            acc = scales.add(acc, 2 * half, low, &a);
            acc = scales.add(acc, 2 * half + 1, high, &a);
        }
    }
    vaddvq_f32(acc) - 32.0 * vaddvq_f32(mins)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_q2_k(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
    let two = vdupq_n_u8(3);
    let blocks = SuperBlocks::<84>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        let [scale, min] = nibbles(load(part(block, 0)));
        mins = vfmaq_f32(mins, half_mins(vreinterpretq_s8_u8(min), &a), dmin);
        let scales = HalfScales::new(vreinterpretq_s8_u8(scale), d);
        for half in 0..2 {
            let b = load2(part(block, 16 + 32 * half));
            let low = [b.map(|b| vandq_u8(b, two)), b.map(|b| vandq_u8(vshrq_n_u8::<2>(b), two))];
            let high =
                [b.map(|b| vandq_u8(vshrq_n_u8::<4>(b), two)), b.map(|b| vshrq_n_u8::<6>(b))];
            acc = scales.add(acc, 2 * half, low, &a);
            acc = scales.add(acc, 2 * half + 1, high, &a);
        }
    }
    vaddvq_f32(acc) - vaddvq_f32(mins)
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_q3_k(row: &[u8], x: Q8Ref<'_>) -> f32 {
    let (mut acc, mut mins) = (vdupq_n_f32(0.0), vdupq_n_f32(0.0));
    let (two, four) = (vdupq_n_u8(3), vdupq_n_u8(4));
    let blocks = SuperBlocks::<110>::new(row, x);
    for i in 0..blocks.blocks.len() {
        let (block, a) = blocks.get(i);
        let d = half_at(block, 108);
        let scales = vreinterpretq_s8_u8(load(&q3_scales(part(block, 96))));
        mins = vfmaq_f32(mins, half_mins(scales, &a), d);
        let scales = HalfScales::new(scales, d);
        let mut high = load2(part(block, 0));
        for half in 0..2 {
            let mut b = load2(part(block, 32 + 32 * half));
            for pair in 0..2 {
                let mut q = [b; 2];
                for q in &mut q {
                    for i in 0..2 {
                        // This group's high bit is bit 0 of `high`'s bytes by now.
                        let bit = vandq_u8(vshlq_n_u8::<2>(high[i]), four);
                        q[i] = vorrq_u8(vandq_u8(b[i], two), bit);
                        b[i] = vshrq_n_u8::<2>(b[i]);
                        high[i] = vshrq_n_u8::<1>(high[i]);
                    }
                }
                acc = scales.add(acc, 2 * half + pair, q, &a);
            }
        }
    }
    vaddvq_f32(acc) - 4.0 * vaddvq_f32(mins)
}

/// Calls `$each!` with the kernel of a format.
macro_rules! of_format {
    ($format:expr, $each:ident) => {
        match $format {
            Format::Q4_0 => $each!(dot_q4_0),
            Format::Q4_1 => $each!(dot_q4_1),
            Format::Q5_0 => $each!(dot_q5_0),
            Format::Q5_1 => $each!(dot_q5_1),
            Format::Q8_0 => $each!(dot_q8_0),
            Format::Q2_K => $each!(dot_q2_k),
            Format::Q3_K => $each!(dot_q3_k),
            Format::Q4_K => $each!(dot_k4::<144, false>),
            Format::Q5_K => $each!(dot_k4::<176, true>),
            Format::Q6_K => $each!(dot_q6_k),
            Format::F32 | Format::F16 | Format::BF16 => unreachable!("a float format"),
        }
    };
}

/// `out[i] = rows[i] · x` for consecutive quantised rows of `row_bytes` bytes.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_rows_q(
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: Q8Ref<'_>,
    out: &mut [f32],
) {
    macro_rules! each {
        ($dot:expr) => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
                *out = $dot(row, x);
            }
        };
    }
    of_format!(format, each)
}

/// `out[i] = rows[i] · x` for quantised rows that lie apart.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_gathered_q(format: Format, rows: &[&[u8]], x: Q8Ref<'_>, out: &mut [f32]) {
    macro_rules! each {
        ($dot:expr) => {
            for (row, out) in rows.iter().zip(out) {
                *out = $dot(row, x);
            }
        };
    }
    of_format!(format, each)
}

/// Eight weights of a float row as f32.
#[inline]
#[target_feature(enable = "neon")]
fn floats(format: Format, eight: &[u8]) -> [float32x4_t; 2] {
    match format {
        Format::F32 => load2(part(eight, 0)).map(|b| vreinterpretq_f32_u8(b)),
        Format::F16 => {
            let h = vreinterpretq_u16_u8(load(part(eight, 0)));
            [f16_low(h), f16_high(h)]
        }
        _ => {
            let h = vreinterpretq_u16_u8(load(part(eight, 0)));
            [vshll_n_u16::<16>(vget_low_u16(h)), vshll_high_n_u16::<16>(h)]
                .map(|w| vreinterpretq_f32_u32(w))
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn dot_f<const BYTES: usize>(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [vdupq_n_f32(0.0); 4];
    let weights = row.chunks_exact(16 * BYTES);
    let (x, x_rest) = x.as_chunks::<16>();
    for (w, x) in weights.clone().zip(x) {
        let ([w0, w1], [w2, w3]) = (floats(format, w), floats(format, &w[8 * BYTES..]));
        let x = x.as_chunks::<4>().0;
        acc[0] = vfmaq_f32(acc[0], w0, load_f32(&x[0]));
        acc[1] = vfmaq_f32(acc[1], w1, load_f32(&x[1]));
        acc[2] = vfmaq_f32(acc[2], w2, load_f32(&x[2]));
        acc[3] = vfmaq_f32(acc[3], w3, load_f32(&x[3]));
    }
    let sum = vaddq_f32(vaddq_f32(acc[0], acc[1]), vaddq_f32(acc[2], acc[3]));
    vaddvq_f32(sum) + super::scalar::dot_f(format, weights.remainder(), x_rest)
}

/// `out[i] = rows[i] · x` for consecutive float rows of `row_bytes` bytes.
#[target_feature(enable = "neon")]
pub(super) fn dot_rows_f(
    format: Format,
    rows: &[u8],
    row_bytes: usize,
    x: &[f32],
    out: &mut [f32],
) {
    macro_rules! each {
        ($dot:expr) => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out) {
                *out = $dot(row, x);
            }
        };
    }
    match format {
        Format::F32 => each!(|row, x| dot_f::<4>(Format::F32, row, x)),
        Format::F16 => each!(|row, x| dot_f::<2>(Format::F16, row, x)),
        Format::BF16 => each!(|row, x| dot_f::<2>(Format::BF16, row, x)),
        _ => unreachable!("a quantised format"),
    }
}
