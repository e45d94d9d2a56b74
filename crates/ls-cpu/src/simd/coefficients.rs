//! What a quantised column is multiplied with, as integers.
//!
//! A weight is `h_j · d_jg`: a neuron's value times the scale of one group of its column. The
//! weights of a block of neurons become integers with a shared scale, group by group, so that
//! the columns are summed in integers and converted once for the block. Each instruction set
//! computes the same integers.

#![allow(clippy::needless_range_loop)] // indexed on purpose, see `SuperBlocks`

use crate::column::ColumnFormat;

/// Neurons whose columns are summed in integers.
pub(crate) const BLOCK: usize = 8;

/// Groups whose coefficients are computed at once.
pub(super) const GROUPS: usize = 8;

/// Coefficients of a block of neurons for some groups.
#[derive(Default)]
pub(super) struct Coefficients {
    /// By neuron and group.
    pub k: [[i32; GROUPS]; BLOCK],
    /// What the integers are multiples of, by group.
    pub scale: [f32; GROUPS],
    /// What stored integers, which have `center` added, sum up to too much: to be added.
    pub start: [i32; GROUPS],
}

/// The largest coefficient: sums of 32 bits hold a block of `Q8`, sums of 16 bits one of the others.
pub(super) const fn largest(format: ColumnFormat) -> f32 {
    match format {
        ColumnFormat::Q8 => 32767.0,
        _ => 127.0,
    }
}

/// Added to a small number, it leaves the nearest integer in the low bits (ties to even).
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

impl Coefficients {
    /// Rounds the weights of the first `n` neurons to integers.
    ///
    /// A group with an infinity or a NaN gets a scale that makes every output NaN: what is wrong
    /// must not turn into plausible numbers.
    #[inline(always)]
    pub fn round(&mut self, format: ColumnFormat, weights: &[[f32; GROUPS]; BLOCK], n: usize) {
        // Magnitudes as integers: they sort as the floats do, and NaN above all of them.
        let mut max = [0u32; GROUPS];
        for j in 0..n {
            for g in 0..GROUPS {
                max[g] = max[g].max(weights[j][g].to_bits() & 0x7fff_ffff);
            }
        }
        let (mut inverse, mut keep, mut sum) = ([0f32; GROUPS], [0i32; GROUPS], [0i32; GROUPS]);
        for g in 0..GROUPS {
            let max = f32::from_bits(max[g]);
            // Below that the inverse would overflow, and there is nothing worth keeping.
            let is_ordinary = max > 1e-30 && max < f32::INFINITY;
            let scale = if max <= 1e-30 { 0.0 } else { max / largest(format) };
            self.scale[g] = if max < f32::INFINITY { scale } else { f32::NAN };
            inverse[g] = if is_ordinary { largest(format) / max } else { 0.0 };
            keep[g] = -i32::from(is_ordinary);
        }
        for j in 0..n {
            for g in 0..GROUPS {
                let k = (weights[j][g] * inverse[g] + ROUND).to_bits();
                // An infinity times zero rounds to no integer.
                self.k[j][g] = k.wrapping_sub(ROUND.to_bits()) as i32 & keep[g];
                sum[g] += self.k[j][g];
            }
        }
        for g in 0..GROUPS {
            self.start[g] = -format.center() * sum[g];
        }
    }
}
