//! Kernels for each instruction set, and the dispatch between them.
//!
//! An [`Isa`] proves that its instructions exist, so the dispatching functions are safe. Each
//! kernel gives the same numbers as its scalar twin.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use crate::isa::{Isa, Kind};
use crate::score::{Params, combine};

/// Inputs that a hash bit reads together or not at all.
pub(crate) const BLOCK: usize = 32;

/// Codes that lie interleaved, word by word.
pub(crate) const LANES: usize = 8;

/// Which blocks of inputs each hash bit reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout<'a> {
    /// Blocks that one bit reads.
    pub per_bit: usize,
    /// `[bit][per_bit]`; `None` if each bit reads all of them.
    pub blocks: Option<&'a [u16]>,
}

impl Layout<'_> {
    /// The block of inputs that belongs to block `i` of all weights, which is one of `bit`.
    #[inline(always)]
    fn block(self, bit: usize, i: usize) -> usize {
        match self.blocks {
            Some(blocks) => usize::from(blocks[i]),
            None => i - bit * self.per_bit,
        }
    }
}

/// Calls the kernel of the instruction set.
macro_rules! dispatch {
    ($isa:expr, $kernel:ident($($arg:expr),*)) => {
        match $isa.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind exists only where the features do.
            Kind::Avx2 => unsafe { avx2::$kernel($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of this kind exists only where the features do.
            Kind::Avx512 => unsafe { avx512::$kernel($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an `Isa` of this kind exists only where the features do.
            Kind::Neon => unsafe { neon::$kernel($($arg),*) },
            _ => scalar::$kernel($($arg),*),
        }
    };
}

/// `out[bit] = Σ weights · x` over the blocks that the bit reads; all values within ±127.
pub(crate) fn project_i8(isa: Isa, layout: Layout<'_>, weights: &[i8], x: &[i8], out: &mut [i32]) {
    dispatch!(isa, project_i8(layout, weights, x, out));
}

/// The same with weights of −1, 0 and 1: `[plus, minus]` for each block, one bit an input.
pub(crate) fn project_ternary(
    isa: Isa,
    layout: Layout<'_>,
    weights: &[[u32; 2]],
    x: &[i8],
    out: &mut [i32],
) {
    dispatch!(isa, project_ternary(layout, weights, x, out));
}

/// `out[plane][lane] = bits · code` with bits as ±1; `codes` is `[plane][word][lane]`.
pub(crate) fn dots(isa: Isa, codes: &[u64], bits: &[u64], out: &mut [i32]) {
    dispatch!(isa, dots(codes, bits, out));
}

/// Defines `$name`, which runs `$body` compiled for the instruction set: the same operations with
/// wider vectors.
macro_rules! widened {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $body:expr) => {
        $(#[$doc])*
        pub(crate) fn $name(isa: Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($arg: $type),*) {
                $body
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
            fn avx512($($arg: $type),*) {
                $body
            }
            match isa.0 {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the features do.
                Kind::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this kind exists only where the features do.
                Kind::Avx512 => unsafe { avx512($($arg),*) },
                _ => $body,
            }
        }
    };
}

widened! {
    /// Scores of whole groups from the products of their codes.
    scores(params: Params<'_>, dots: &[i32], out: &mut [f32]) combine(params, dots, out)
}

widened! {
    /// Features as bytes, rounded and clipped: `out = x · scale · by`.
    quantize(x: &[f32], scale: &[f32], by: f32, out: &mut [i8])
        crate::score::quantize(x, scale, by, out)
}

widened! {
    /// Keys of 16 bits that are ordered as the scores are.
    keys(scores: &[f32], out: &mut [u16]) crate::select::keys(scores, out)
}

widened! {
    /// How many keys are at least `least`.
    count_at_least(keys: &[u16], least: u16, n: &mut usize)
        crate::select::count_at_least(keys, least, n)
}

/// One bit for each key that is at least `least`; bits beyond the last key are 0.
pub(crate) fn at_least(isa: Isa, keys: &[u16], least: u16, out: &mut [u64]) {
    dispatch!(isa, at_least(keys, least, out));
}

// After the macros, which it uses.
pub(crate) mod lookup;

#[cfg(test)]
mod tests;
