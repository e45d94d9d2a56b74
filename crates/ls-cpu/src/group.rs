//! A few neurons of an MLP, gathered from wherever they lie.
//!
//! A neuron's gate row, up row and down column lie at three places of its chunk, and the next neuron
//! that is wanted maybe some chunks on, which no prefetcher of the hardware can know. So while the gate
//! rows of a group are multiplied, its up rows are asked for, the next group's gate rows while these are
//! multiplied, and its columns while columns are added. They are brought to the second cache, which keeps many more loads in flight than the
//! nearest one does (measured: a quarter faster).

use crate::chunk::{Chunk, ChunkShape};
use crate::elementwise::{Gate, gate_rows};
use crate::simd;
use crate::{Activations, Cpu, Format};

/// Neurons whose columns are added at once: a block of the kernels.
pub(crate) const AT_ONCE: usize = simd::BLOCK;

/// Up to [`AT_ONCE`] neurons.
#[derive(Clone, Copy, Default)]
pub(crate) struct Group<'a> {
    pub len: usize,
    gate: [&'a [u8]; AT_ONCE],
    up: [&'a [u8]; AT_ONCE],
    down: [&'a [u8]; AT_ONCE],
    /// Their places in the layer.
    places: [usize; AT_ONCE],
}

impl<'a> Group<'a> {
    /// The next of `neurons`: chunks, which of their neurons, and its place in the layer.
    #[inline]
    pub fn take(
        shape: &ChunkShape,
        neurons: impl Iterator<Item = (Chunk<'a>, usize, usize)>,
    ) -> Self {
        let mut group = Self::default();
        for (chunk, j, place) in neurons.take(AT_ONCE) {
            let part = |at: usize, bytes: usize| &chunk.bytes[at + j * bytes..][..bytes];
            group.gate[group.len] = part(0, shape.gate_bytes);
            group.up[group.len] = part(shape.up_at, shape.up_bytes);
            group.down[group.len] = part(shape.down_at, shape.column_bytes);
            group.places[group.len] = place;
            group.len += 1;
        }
        group
    }

    /// Its columns and their places in the layer.
    pub fn columns(&self) -> impl Iterator<Item = (&'a [u8], usize)> {
        let columns = self.down.into_iter().zip(self.places);
        columns.take(self.len)
    }

    /// Asks for its gate rows, which are needed first.
    pub fn prefetch_gate(&self) {
        self.gate.iter().for_each(|bytes| simd::prefetch_far(bytes));
    }

    /// Asks for its columns.
    pub fn prefetch_columns(&self) {
        self.down.iter().for_each(|bytes| simd::prefetch_far(bytes));
    }
}

impl Cpu {
    /// Adds the neurons of `group` to `out`, `[d_model]`, for row `t` of `x`. Meanwhile `next` is
    /// asked for.
    #[allow(clippy::too_many_arguments)] // one group's whole context
    pub(crate) fn add_group(
        &self,
        shape: &ChunkShape,
        kind: Gate,
        group: &Group<'_>,
        next: &Group<'_>,
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) {
        let (n, g) = (group.len, self.group_values(shape, kind, group, next, &[], x, t));
        let (columns, ahead) = (&group.down[..n], &next.down[..next.len]);
        simd::add_columns(self.isa, shape.down, columns, &g[..n], ahead, out);
    }

    /// Values of the neurons of `group` for row `t` of `x`; those behind the last mean nothing.
    /// Meanwhile the gate rows of `next` and at most [`AT_ONCE`] `columns` are asked for; those of `group`
    /// should have been.
    #[allow(clippy::too_many_arguments)] // one group's whole context
    pub(crate) fn group_values(
        &self,
        shape: &ChunkShape,
        kind: Gate,
        group: &Group<'_>,
        next: &Group<'_>,
        columns: &[&[u8]],
        x: &Activations,
        t: usize,
    ) -> [f32; AT_ONCE] {
        let n = group.len;
        let (mut g, mut u) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
        let (first, last) = columns.split_at(columns.len().min(AT_ONCE / 2));
        // No further ahead than it takes for them to come: little then waits for a first group's rows.
        let (gate_ahead, up_ahead) = (ahead(&group.up, first), ahead(&next.gate, last));
        self.dot_gathered(shape.gate, &group.gate[..n], &gate_ahead, x, t, &mut g[..n]);
        self.dot_gathered(shape.up, &group.up[..n], &up_ahead, x, t, &mut u[..n]);
        // A whole vector: what lies behind the last neuron is computed and not used.
        gate_rows(self.isa, kind, &mut g, &u);
        g
    }

    /// `out[i] = rows[i] · x[t]`; meanwhile both of `ahead[i]` are asked for.
    fn dot_gathered(
        &self,
        format: Format,
        rows: &[&[u8]],
        ahead: &[[&[u8]; 2]; AT_ONCE],
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) {
        if format.is_quantized() {
            simd::dot_gathered_q(self.isa, format, rows, ahead, x.q8.row(t), out);
        } else {
            let x = &x.float[t * x.cols()..][..x.cols()];
            simd::dot_gathered_f(self.isa, format, rows, ahead, x, out);
        }
    }
}

/// What is asked for while each of a group's rows is multiplied: a row that is multiplied later, and
/// beside every other one a column, since many at once would wait for each other.
#[inline]
fn ahead<'a>(rows: &[&'a [u8]; AT_ONCE], columns: &[&'a [u8]]) -> [[&'a [u8]; 2]; AT_ONCE] {
    let mut ahead = rows.map(|row| [row, &[]]);
    for ([_, beside], column) in ahead.iter_mut().step_by(2).zip(columns) {
        *beside = *column;
    }
    ahead
}

/// Columns that wait to be added, with their neurons' values: as many as two groups have.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub len: usize,
    /// Of these, the first ones, which were asked for.
    asked: usize,
    /// All that ever were here.
    pub pushed: usize,
    pub bytes: [&'a [u8]; 2 * AT_ONCE],
    pub values: [f32; 2 * AT_ONCE],
}

impl<'a> Columns<'a> {
    /// Appends a column.
    pub fn push(&mut self, bytes: &'a [u8], value: f32) {
        (self.bytes[self.len], self.values[self.len]) = (bytes, value);
        self.len += 1;
        self.pushed += 1;
    }

    /// Those that were not asked for, which the caller does.
    pub fn ask(&mut self) -> &[&'a [u8]] {
        let unasked = self.asked..self.len;
        self.asked = self.len;
        &self.bytes[unasked]
    }

    /// Takes the first `n` away.
    pub fn drop_front(&mut self, n: usize) {
        self.bytes.copy_within(n..self.len, 0);
        self.values.copy_within(n..self.len, 0);
        self.len -= n;
        self.asked -= n;
    }
}
