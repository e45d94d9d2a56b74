//! Plain Rust, the reference of the look-up kernels.

use super::{INPUTS, OUTPUTS, ROW};

/// `out[row] = Σ w · x` with `w` of 4 bits, from 0 to 15: in each block of 32 bytes the low halves
/// belong to the first 32 features of [`INPUTS`], the high ones to the others.
pub(crate) fn project_u4(weights: &[u8], x: &[i8], out: &mut [i32]) {
    for (row, out) in weights.chunks_exact(x.len() / 2).zip(out) {
        *out = 0;
        for (w, x) in row.chunks_exact(ROW).zip(x.chunks_exact(INPUTS)) {
            let (low, high) = x.split_at(ROW);
            for ((w, low), high) in w.iter().zip(low).zip(high) {
                *out += i32::from(w & 15) * i32::from(*low);
                *out += i32::from(w >> 4) * i32::from(*high);
            }
        }
    }
}

/// Sums of table entries of one block of [`OUTPUTS`] for each row of `codes`.
///
/// `codes` is `[group][32]`, `tables` `[group][32]`, each table twice. Byte `2i` of a group holds
/// the codes of outputs `i` and `32 + i`, low half first, byte `2i + 1` those of `16 + i` and
/// `48 + i`: so the sums of even and odd bytes are runs of outputs.
fn sum_block(codes: &[u8], tables: &[u8], out: &mut [u16; OUTPUTS]) {
    out.fill(0);
    for (codes, table) in codes.chunks_exact(ROW).zip(tables.chunks_exact(ROW)) {
        for (i, code) in codes.iter().enumerate() {
            let at = i / 2 + 16 * (i % 2);
            out[at] = out[at].wrapping_add(u16::from(table[usize::from(code & 15)]));
            let high = u16::from(table[usize::from(code >> 4)]);
            out[at + 32] = out[at + 32].wrapping_add(high);
        }
    }
}

/// Sums of both codes of each block: `codes` is `[block][group][32]`, the groups of the gate first,
/// `out` `[block][code][OUTPUTS]`.
pub(crate) fn look_up(codes: &[u8], n_gate: usize, tables: &[u8], out: &mut [u16]) {
    let (out, _) = out.as_chunks_mut::<OUTPUTS>();
    for (codes, out) in codes.chunks_exact(tables.len()).zip(out.as_chunks_mut::<2>().0) {
        let (gate, up) = codes.split_at(n_gate * ROW);
        let (of_gate, of_up) = tables.split_at(n_gate * ROW);
        sum_block(gate, of_gate, &mut out[0]);
        sum_block(up, of_up, &mut out[1]);
    }
}
