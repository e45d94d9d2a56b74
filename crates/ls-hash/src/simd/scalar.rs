//! Plain Rust, the reference of all kernels.

use super::{BLOCK, LANES, Layout};

/// `out[bit] = Σ weights · x` over the blocks that the bit reads.
pub(crate) fn project_i8(layout: Layout<'_>, weights: &[i8], x: &[i8], out: &mut [i32]) {
    for (bit, out) in out.iter_mut().enumerate() {
        *out = 0;
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let w = &weights[i * BLOCK..][..BLOCK];
            let x = &x[layout.block(bit, i) * BLOCK..][..BLOCK];
            *out += w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum::<i32>();
        }
    }
}

/// The same with weights of −1, 0 and 1: `[plus, minus]` for each block, one bit an input.
pub(crate) fn project_ternary(layout: Layout<'_>, weights: &[[u32; 2]], x: &[i8], out: &mut [i32]) {
    for (bit, out) in out.iter_mut().enumerate() {
        *out = 0;
        for i in bit * layout.per_bit..(bit + 1) * layout.per_bit {
            let [plus, minus] = weights[i];
            let x = &x[layout.block(bit, i) * BLOCK..][..BLOCK];
            for (j, x) in x.iter().enumerate() {
                let w = (plus >> j & 1) as i32 - (minus >> j & 1) as i32;
                *out += w * i32::from(*x);
            }
        }
    }
}

/// `out[plane][lane] = bits · code` with bits as ±1; `codes` is `[plane][word][lane]`.
pub(crate) fn dots(codes: &[u64], bits: &[u64], out: &mut [i32]) {
    let n_bits = bits.len() as i32 * 64;
    for (plane, out) in codes.chunks_exact(bits.len() * LANES).zip(out.chunks_exact_mut(LANES)) {
        out.fill(n_bits);
        for (codes, bits) in plane.chunks_exact(LANES).zip(bits) {
            for (code, out) in codes.iter().zip(&mut *out) {
                *out -= 2 * (code ^ bits).count_ones() as i32;
            }
        }
    }
}

/// One bit for each key that is at least `least`; bits beyond the last key are 0.
pub(crate) fn at_least(keys: &[u16], least: u16, out: &mut [u64]) {
    for (out, keys) in out.iter_mut().zip(keys.chunks(64)) {
        let mut word = 0;
        for (i, key) in keys.iter().enumerate() {
            word |= u64::from(*key >= least) << i;
        }
        *out = word;
    }
}
