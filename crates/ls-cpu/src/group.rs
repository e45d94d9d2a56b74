//! A few neurons of an MLP, gathered from wherever they lie.
//!
//! A neuron's gate row, up row and down column lie at three places of its chunk, and the next neuron
//! that is wanted maybe some chunks on, which no prefetcher of the hardware can know. So while the rows
//! of one group are multiplied, those of the next group are asked for, and its columns while columns
//! are added. They are brought to the second cache, which keeps many more loads in flight than the
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

    /// Asks for its rows.
    pub fn prefetch_rows(&self) {
        [&self.gate, &self.up].into_iter().flatten().for_each(|bytes| simd::prefetch_far(bytes));
    }

    /// Asks for everything, when nothing was computed meanwhile.
    pub fn prefetch(&self) {
        let parts = [&self.gate, &self.up, &self.down];
        parts.into_iter().flatten().for_each(|bytes| simd::prefetch_far(bytes));
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
        let (n, g) = (group.len, self.group_values(shape, kind, group, next, x, t));
        let (columns, ahead) = (&group.down[..n], &next.down[..next.len]);
        simd::add_columns(self.isa, shape.down, columns, &g[..n], ahead, out);
    }

    /// Values of the neurons of `group` for row `t` of `x`; those behind the last mean nothing.
    pub(crate) fn group_values(
        &self,
        shape: &ChunkShape,
        kind: Gate,
        group: &Group<'_>,
        next: &Group<'_>,
        x: &Activations,
        t: usize,
    ) -> [f32; AT_ONCE] {
        let n = group.len;
        let (mut g, mut u) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
        self.dot_gathered(shape.gate, &group.gate[..n], &next.gate, x, t, &mut g[..n]);
        self.dot_gathered(shape.up, &group.up[..n], &next.up, x, t, &mut u[..n]);
        // A whole vector: what lies behind the last neuron is computed and not used.
        gate_rows(self.isa, kind, &mut g, &u);
        g
    }

    /// `out[i] = rows[i] · x[t]`; meanwhile `ahead[i]` is asked for.
    fn dot_gathered(
        &self,
        format: Format,
        rows: &[&[u8]],
        ahead: &[&[u8]; AT_ONCE],
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

/// Columns that wait to be added, with their neurons' values: as many as two groups have.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub len: usize,
    /// All that ever were here.
    pub pushed: usize,
    pub bytes: [&'a [u8]; 2 * AT_ONCE],
    pub values: [f32; 2 * AT_ONCE],
}

impl<'a> Columns<'a> {
    /// Appends a column, which is asked for.
    pub fn push(&mut self, bytes: &'a [u8], value: f32) {
        simd::prefetch_far(bytes);
        (self.bytes[self.len], self.values[self.len]) = (bytes, value);
        self.len += 1;
        self.pushed += 1;
    }

    /// Takes the first `n` away.
    pub fn drop_front(&mut self, n: usize) {
        self.bytes.copy_within(n..self.len, 0);
        self.values.copy_within(n..self.len, 0);
        self.len -= n;
    }
}
