//! Kernels of look-up predictors.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use crate::isa::{Isa, Kind};
use crate::lookup::expect::{Observed, Terms, expected};
use crate::lookup::tables::{Centroids, Spans, fill, round};
use crate::lookup::tune::loss::{self, Knowns, Slopes};

/// Features whose weights lie together.
pub(crate) const INPUTS: usize = 64;

/// Outputs whose codes lie together.
pub(crate) const OUTPUTS: usize = 64;

/// Bytes of a block of weights, of a block of codes, and of a table that is there twice.
pub(crate) const ROW: usize = 32;

/// Entries of a table.
pub(crate) const ENTRIES: usize = 16;

/// `out[row] = Σ w · x` with weights of 4 bits, 0 to 15, `[row][block][32]`, and features of 8.
pub(crate) fn project_u4(isa: Isa, weights: &[u8], x: &[i8], out: &mut [i32]) {
    dispatch!(isa, project_u4(weights, x, out));
}

/// Sums of the table entries that the codes name: `codes` is `[block][group][32]`, `tables`
/// `[group][32]`, each table twice, the groups of the gate first; `out` is
/// `[block][code][output]`. Sums of 16 bits wrap around.
pub(crate) fn look_up(isa: Isa, codes: &[u8], n_gate: usize, tables: &[u8], out: &mut [u16]) {
    dispatch!(isa, look_up(codes, n_gate, tables, out));
}

/// Writes the code of one output and group to `codes`, `[block][group][32]`, where it was 0.
pub(crate) fn put_code(codes: &mut [u8], n_groups: usize, group: usize, output: usize, code: u8) {
    let (block, lane) = (output / OUTPUTS, output % OUTPUTS);
    let byte = 2 * (lane % 16) + lane / 16 % 2;
    codes[(block * n_groups + group) * ROW + byte] |= code << (4 * (lane / 32));
}

/// The code of one output and group.
pub(crate) fn code_at(codes: &[u8], n_groups: usize, group: usize, output: usize) -> u8 {
    let (block, lane) = (output / OUTPUTS, output % OUTPUTS);
    let byte = 2 * (lane % 16) + lane / 16 % 2;
    codes[(block * n_groups + group) * ROW + byte] >> (4 * (lane / 32)) & 15
}

widened! {
    /// Largest magnitude of the features less their means, what is not a number left out.
    centre(x: &[f32], means: &[u16], out: &mut [f32], largest: &mut f32)
        crate::lookup::tables::centre(x, means, out, largest)
}

widened! {
    /// Features as bytes: `out = x · by`, rounded and clipped.
    to_bytes(x: &[f32], by: f32, out: &mut [i8]) crate::lookup::tables::to_bytes(x, by, out)
}

widened! {
    /// A table of products for each group, their least entries and their ranges.
    fill_tables(
        centroids: Centroids<'_>,
        z: &[f32],
        out: &mut [[f32; ENTRIES]],
        offsets: &mut [f32],
        spans: &mut Spans
    ) fill(centroids, z, out, offsets, spans)
}

widened! {
    /// Tables as bytes, each twice, less their offsets.
    round_tables(tables: &[[f32; ENTRIES]], offsets: &[f32], by: f32, out: &mut [u8])
        round(tables, offsets, by, out)
}

widened! {
    /// Expected importances from sums of table entries.
    expect(terms: Terms<'_>, sums: &[u16], out: &mut [f32]) expected(terms, sums, out)
}

widened! {
    /// Errors of what was computed replace those that were seen before.
    observe(
        terms: Terms<'_>,
        sums: &[u16],
        observed: Observed<'_>,
        of_gate: &mut [f32],
        of_up: &mut [f32],
        fresh: &mut [f32]
    ) crate::lookup::expect::observe(terms, sums, observed, of_gate, of_up, fresh)
}

widened! {
    /// Logarithms of scores and their slopes.
    slopes(knowns: Knowns<'_>, gate: &[f32], up: &[f32], out: &mut Slopes)
        loss::slopes(knowns, gate, up, out)
}

widened! {
    /// Slopes of the loss by the logarithms of scores, in place of energies.
    soft_loss(log: &[f32], energy: &mut [f32], least: f32, softness: f32, out: &mut f32)
        loss::soft_loss(log, energy, least, softness, out)
}

widened! {
    /// True energies, in place of the gates.
    energies(gate: &mut [f32], up: &[f32], gains: &[f32]) loss::energies(gate, up, gains)
}

#[cfg(test)]
mod tests;
