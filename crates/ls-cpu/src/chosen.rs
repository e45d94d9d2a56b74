//! The gated MLP over some neurons of its chunks.
//!
//! A prediction says which neurons matter to a token, and the others are left out. Those that are left
//! lie here and there; they are gathered in groups, over the borders of chunks.

use std::ops::Range;

use crate::chunk::{Chunk, ChunkShape};
use crate::elementwise::{Gate, gate_rows};
use crate::group::{AT_ONCE, Columns, Group};
use crate::mask::Mask;
use crate::simd;
use crate::{Activations, Cpu};

/// What of some chunks was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Neurons.
    pub neurons: usize,
    /// Chunks with one of these neurons.
    pub chunks: usize,
    /// Down columns: of all these neurons, but for those that turned out to matter too little.
    pub columns: usize,
}

impl std::ops::AddAssign for Touched {
    fn add_assign(&mut self, other: Self) {
        self.neurons += other.neurons;
        self.chunks += other.chunks;
        self.columns += other.columns;
    }
}

/// The neurons of some chunks, each with its first neuron's position, that a mask has, in order; counts
/// what it comes by.
struct Chosen<'a, 'm, I> {
    chunks: I,
    mask: Mask<'m>,
    /// The chunk, the position of its first neuron, and those of it that are still to come.
    chunk: Option<Chunk<'a>>,
    first: usize,
    rest: Range<usize>,
    touched: Touched,
}

impl<'a, I: Iterator<Item = (Chunk<'a>, usize)>> Iterator for Chosen<'a, '_, I> {
    /// A chunk, the neuron's place in it, and in the mask.
    type Item = (Chunk<'a>, usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(j) = self.mask.ones(self.rest.clone()).next() {
                let chunk = self.chunk?;
                self.touched.neurons += 1;
                self.touched.chunks += usize::from(self.rest.start == self.first);
                // Any but the chunk's first: the chunk is counted once.
                self.rest.start = j + 1;
                return Some((chunk, j - self.first, j));
            }
            let (chunk, first) = self.chunks.next()?;
            self.first = first;
            self.rest = self.first..self.first + chunk.n_neurons;
            self.chunk = Some(chunk);
        }
    }
}

impl Cpu {
    /// Adds the output of the neurons of `chunks` that `mask` has to `out`, `[d_model]`, for row `t`
    /// of `x`, on the calling thread alone. `first` is the position of the first chunk's first
    /// neuron in the mask; the chunks follow one another. Neurons are added in order.
    ///
    /// The sums are those of [`Cpu::chunk`] but for their order: neurons of several chunks are added
    /// at once here.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit, or a chunk's bytes are too short for its neurons.
    #[allow(clippy::too_many_arguments)] // one region's whole context
    pub fn chosen<'a>(
        &self,
        shape: &ChunkShape,
        chunks: impl Iterator<Item = Chunk<'a>>,
        (mask, first): (Mask<'_>, usize),
        kind: Gate,
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) -> Touched {
        let placed = chunks.scan(first, |next, chunk| {
            let first = *next;
            *next += chunk.n_neurons;
            Some((chunk, first))
        });
        self.chosen_apart(shape, placed, mask, kind, x, t, out)
    }

    /// As [`Cpu::chosen`], for chunks that lie anywhere: each comes with its first neuron's position in
    /// the mask.
    ///
    /// # Panics
    ///
    /// As [`Cpu::chosen`].
    #[allow(clippy::too_many_arguments)] // one region's whole context
    pub fn chosen_apart<'a>(
        &self,
        shape: &ChunkShape,
        chunks: impl Iterator<Item = (Chunk<'a>, usize)>,
        mask: Mask<'_>,
        kind: Gate,
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) -> Touched {
        assert_eq!((x.cols(), out.len()), (shape.d_model(), shape.d_model()), "{shape:?}");
        let (first, rest, touched) = (0, 0..0, Touched::default());
        let mut neurons = Chosen { chunks, mask, chunk: None, first, rest, touched };
        let mut group = Group::take(shape, &mut neurons);
        if !mask.adds_all() {
            let columns = self.add_important(shape, kind, &mut neurons, group, x, t, out);
            return Touched { columns, ..neurons.touched };
        }
        group.prefetch_gate();
        group.prefetch_columns();
        while group.len > 0 {
            let next = Group::take(shape, &mut neurons);
            self.add_group(shape, kind, &group, &next, x, t, out);
            group = next;
        }
        Touched { columns: neurons.touched.neurons, ..neurons.touched }
    }

    /// Adds those of `group` and of the `neurons` behind it that the mask finds important enough;
    /// returns how many these are.
    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn add_important<'a, I: Iterator<Item = (Chunk<'a>, usize)>>(
        &self,
        shape: &ChunkShape,
        kind: Gate,
        neurons: &mut Chosen<'a, '_, I>,
        mut group: Group<'a>,
        x: &Activations,
        t: usize,
        out: &mut [f32],
    ) -> usize {
        let (mask, mut columns) = (neurons.mask, Columns::default());
        group.prefetch_gate();
        while group.len > 0 {
            let next = Group::take(shape, &mut *neurons);
            let values = self.group_values(shape, kind, &group, &next, columns.ask(), x, t);
            // What was asked for before these rows were multiplied is there by now.
            self.add_columns_until(shape, AT_ONCE - 1, &mut columns, out);
            for (value, (column, j)) in values.into_iter().zip(group.columns()) {
                if mask.adds(j, value) {
                    columns.push(column, value);
                }
            }
            group = next;
        }
        columns.ask().iter().for_each(|bytes| simd::prefetch_far(bytes));
        self.add_columns_until(shape, 0, &mut columns, out);
        columns.pushed
    }

    /// Adds columns in blocks, until no more than `rest` are left.
    fn add_columns_until(
        &self,
        shape: &ChunkShape,
        rest: usize,
        columns: &mut Columns<'_>,
        out: &mut [f32],
    ) {
        while columns.len > rest {
            let n = columns.len.min(AT_ONCE);
            let (bytes, values) = (&columns.bytes[..n], &columns.values[..n]);
            simd::add_columns(self.isa, shape.down, bytes, values, &[], out);
            columns.drop_front(n);
        }
    }

    /// Values of a chunk's neurons for the first `n` rows of `x`: `out[t][j] = act(gate_j · x[t]) ·
    /// (up_j · x[t])`, `[n, neurons]`, on the calling thread alone.
    ///
    /// # Panics
    ///
    /// As [`Cpu::chosen`].
    pub fn chunk_neurons(
        &self,
        shape: &ChunkShape,
        chunk: Chunk<'_>,
        kind: Gate,
        x: &Activations,
        n: usize,
        out: &mut [f32],
    ) {
        assert_eq!((x.cols(), out.len()), (shape.d_model(), n * chunk.n_neurons), "{shape:?}");
        let (gate, up) = (shape.gate(chunk), shape.up(chunk));
        for (t, out) in out.chunks_exact_mut(chunk.n_neurons.max(1)).enumerate() {
            for (i, out) in out.chunks_mut(AT_ONCE).enumerate() {
                let neurons = i * AT_ONCE..i * AT_ONCE + out.len();
                let (mut g, mut u) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
                self.dot_rows(&gate, neurons.clone(), x, t, &mut g[..out.len()]);
                self.dot_rows(&up, neurons, x, t, &mut u[..out.len()]);
                gate_rows(self.isa, kind, &mut g, &u);
                out.copy_from_slice(&g[..out.len()]);
            }
        }
    }

    /// Euclidean norms of a chunk's down columns, `[neurons]`, on the calling thread alone.
    /// `column` is scratch memory.
    ///
    /// # Panics
    ///
    /// If `out` has another length, or the chunk's bytes are too short for its neurons.
    pub fn column_norms(
        &self,
        shape: &ChunkShape,
        chunk: Chunk<'_>,
        column: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        assert_eq!(out.len(), chunk.n_neurons, "norms of {shape:?}");
        column.resize(shape.d_model(), 0.0);
        for (bytes, norm) in shape.down(chunk).chunks_exact(shape.column_bytes).zip(out) {
            simd::read_column(self.isa, shape.down, bytes, 0, column);
            let sum: f64 = column.iter().map(|w| f64::from(*w).powi(2)).sum();
            *norm = sum.sqrt() as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::column::{ColumnFormat, dequantize_column, quantize_column};
    use crate::simd::tests::{floats, rows};
    use crate::{Format, Isa, Masks};

    /// Random chunks with room between their parts.
    struct Layer {
        shape: ChunkShape,
        chunks: Vec<(Vec<u8>, usize)>,
    }

    impl Layer {
        fn new(d: usize, formats: (Format, Format, ColumnFormat), sizes: &[usize]) -> Self {
            let (gate, up, down) = formats;
            let most = *sizes.iter().max().unwrap();
            let up_at = most * gate.row_bytes(d).unwrap() + 5;
            let down_at = up_at + most * up.row_bytes(d).unwrap() + 3;
            let shape = ChunkShape::new(d, formats, (up_at, down_at)).unwrap();
            let chunk = |(i, n): (usize, &usize)| {
                let (n, seed) = (*n, 10 * i as u64);
                let mut bytes = vec![0xa5; down_at + n * shape.column_bytes];
                let (gate, up) = (rows(gate, n, d, seed), rows(up, n, d, seed + 1));
                bytes[..gate.len()].copy_from_slice(&gate);
                bytes[up_at..up_at + up.len()].copy_from_slice(&up);
                let columns = bytes[down_at..].chunks_exact_mut(shape.column_bytes);
                for (j, column) in columns.enumerate() {
                    quantize_column(down, &floats(d, seed + 100 + j as u64), column);
                }
                (bytes, n)
            };
            Self { shape, chunks: sizes.iter().enumerate().map(chunk).collect() }
        }

        fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> + Clone {
            self.chunks.iter().map(|(bytes, n)| Chunk { bytes, n_neurons: *n })
        }

        fn n_neurons(&self) -> usize {
            self.chunks.iter().map(|(_, n)| n).sum()
        }

        /// One chunk with nothing but the neurons of a mask.
        fn compacted(&self, mask: Mask<'_>) -> Self {
            let ChunkShape { gate: g, up: u, down: w, up_at, down_at, .. } = self.shape;
            let ChunkShape { gate_bytes, up_bytes, column_bytes, .. } = self.shape;
            let all = self.chunks().flat_map(|chunk| (0..chunk.n_neurons).map(move |j| (chunk, j)));
            let all: Vec<_> = all.collect();
            let chosen: Vec<_> = mask.ones(0..all.len()).map(|j| all[j]).collect();
            let part = |at: usize, bytes: usize| -> Vec<u8> {
                let of = |(chunk, j): &(Chunk<'_>, usize)| {
                    chunk.bytes[at + j * bytes..][..bytes].to_vec()
                };
                chosen.iter().flat_map(of).collect()
            };
            let (gate, up) = (part(0, gate_bytes), part(up_at, up_bytes));
            let down = part(down_at, column_bytes);
            let at = (gate.len(), gate.len() + up.len());
            let shape = ChunkShape::new(self.shape.d_model(), (g, u, w), at).unwrap();
            Self { shape, chunks: vec![([gate, up, down].concat(), chosen.len())] }
        }
    }

    fn activations(cpu: &Cpu, n: usize, d: usize) -> Activations {
        let mut x = Activations::new(n, d);
        x.fill(cpu, n, &|t, row| row.copy_from_slice(&floats(d, 7 + t as u64)));
        x
    }

    fn random_masks(n: usize, len: usize, keep: f64, seed: u64) -> Masks {
        let mut masks = Masks::new(n, len);
        for t in 0..n {
            for (j, x) in floats(len, seed ^ t as u64).into_iter().enumerate() {
                if f64::from(x) < 2.0 * keep - 1.0 {
                    masks.set(t, j);
                }
            }
        }
        masks
    }

    fn formats() -> impl Strategy<Value = (Format, Format, ColumnFormat)> {
        use prop::sample::select;
        let rows = || select(Format::ALL.to_vec());
        (rows(), rows(), select(ColumnFormat::ALL.to_vec()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn chosen_neurons_are_computed_as_a_chunk_of_them_would_be(
            formats in formats(),
            sizes in prop::collection::vec(1usize..12, 1..12),
            keep in 0f64..1.1,
            seed: u64,
        ) {
            let d = if formats.0.block_len().max(formats.1.block_len()) > 32 { 256 } else { 96 };
            let layer = Layer::new(d, formats, &sizes);
            let masks = random_masks(2, layer.n_neurons(), keep, seed);
            for isa in Isa::available() {
                let cpu = Cpu::new(1, isa).unwrap();
                let x = activations(&cpu, 2, d);
                let mut one = Activations::new(1, d);
                for t in 0..2 {
                    let (mask, mut got) = (masks.row(t), vec![0.5; d]);
                    let chosen = (mask, 0);
                    let touched =
                        cpu.chosen(&layer.shape, layer.chunks(), chosen, Gate::Silu, &x, t, &mut got);
                    let compacted = layer.compacted(mask);
                    one.fill(&cpu, 1, &|_, row| row.copy_from_slice(&x.rows(2)[t * d..][..d]));
                    let mut want = vec![0.5; d];
                    for chunk in compacted.chunks() {
                        cpu.chunk(&compacted.shape, chunk, Gate::Silu, &one, 1, &mut want);
                    }
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    prop_assert_eq!(bits(&got), bits(&want), "{:?} {}", formats, isa);
                    let firsts = sizes.iter().scan(0, |at, n| {
                        *at += n;
                        Some(*at - n..*at)
                    });
                    let chunks = firsts.filter(|range| mask.count(range.clone()) > 0).count();
                    let neurons = mask.count(0..layer.n_neurons());
                    prop_assert_eq!(touched, Touched { neurons, chunks, columns: neurons });
                }
            }
        }

        #[test]
        fn chunks_that_lie_apart_are_computed_like_neighbours(
            sizes in prop::collection::vec(1usize..12, 1..12),
            keep in 0f64..1.1,
            seed: u64,
        ) {
            // Values are rounded by groups where columns are quantised, and groups are others here.
            let layer = Layer::new(96, (Format::Q4_0, Format::Q8_0, ColumnFormat::F32), &sizes);
            let masks = random_masks(1, layer.n_neurons(), keep, seed);
            let cpu = Cpu::new(1, Isa::detect()).unwrap();
            let x = activations(&cpu, 1, 96);
            let (mut want, mut got) = (vec![0.5; 96], vec![0.5; 96]);
            let (mask, shape) = (masks.row(0), &layer.shape);
            cpu.chosen(shape, layer.chunks(), (mask, 0), Gate::Silu, &x, 0, &mut want);
            let firsts = sizes.iter().scan(0, |at, n| {
                *at += n;
                Some(*at - n)
            });
            // The last first.
            let mut placed: Vec<_> = layer.chunks().zip(firsts).collect();
            placed.reverse();
            let of = placed.into_iter();
            let touched = cpu.chosen_apart(shape, of, mask, Gate::Silu, &x, 0, &mut got);
            prop_assert_eq!(touched.neurons, mask.count(0..layer.n_neurons()));
            for (got, want) in got.iter().zip(&want) {
                prop_assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{got} for {want}");
            }
        }

        #[test]
        fn what_matters_too_little_is_not_added(
            sizes in prop::collection::vec(1usize..12, 1..12),
            keep in 0.2f64..1.1,
            least in 0f32..3.0,
            n in 1usize..12,
            seed: u64,
        ) {
            let d = 64;
            let layer = Layer::new(d, (Format::Q8_0, Format::Q8_0, ColumnFormat::F32), &sizes);
            let len = layer.n_neurons();
            let norms: Vec<f32> = (0..len).map(|j| 0.01 * (1 + j % 5) as f32).collect();
            let (least, chunks) = (least * 1e-3, layer.chunks().collect::<Vec<_>>());
            for isa in Isa::available() {
                let cpu = Cpu::new(2, isa).unwrap();
                let x = activations(&cpu, n, d);
                let mut values = Vec::new();
                cpu.chunks_neurons(&layer.shape, &chunks, Gate::Silu, &x, n, &mut values);
                let mut masks = random_masks(n, len, keep, seed);
                let mut fewer = Masks::new(n, len);
                for t in 0..n {
                    for j in masks.row(t).ones(0..len) {
                        let importance = values[t * len + j].abs() * norms[j];
                        // Rounded otherwise, a value near the bound may fall on its other side.
                        prop_assume!((importance - least).abs() > 1e-4 * least || least == 0.0);
                        if importance >= least {
                            fewer.set(t, j);
                        }
                    }
                }
                let run = |masks: &Masks| {
                    let (mut hidden, mut out) = (Vec::new(), vec![0.5; n * d]);
                    let of = Some((masks, 0));
                    let columns =
                        cpu.chunks_batch(&layer.shape, &chunks, of, Gate::Silu, &x, n, &mut hidden, &mut out);
                    (columns, out)
                };
                masks.set_norms(norms.clone().into());
                (0..n).for_each(|t| masks.set_least(t, least));
                let ((columns, got), (_, want)) = (run(&masks), run(&fewer));
                prop_assert_eq!(columns, (0..n).map(|t| fewer.row(t).count(0..len)).sum::<usize>());
                for (got, want) in got.iter().zip(&want) {
                    prop_assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{isa}: {got} for {want}");
                }
            }
        }

        #[test]
        fn what_is_not_chosen_adds_nothing(
            down in prop::sample::select(ColumnFormat::ALL.to_vec()),
            sizes in prop::collection::vec(1usize..30, 1..6),
            n in 1usize..20,
            keep in 0f64..1.1,
            seed: u64,
        ) {
            let (d, format) = (64, Format::Q8_0);
            let layer = Layer::new(d, (format, format, down), &sizes);
            let len = layer.n_neurons();
            // Masks of a layer, of which these chunks are not the first.
            let mut masks = Masks::new(n, len + 10);
            let chosen = random_masks(n, len, keep, seed);
            for t in 0..n {
                chosen.row(t).ones(0..len).for_each(|j| masks.set(t, 10 + j));
                masks.set_range(t, 0..10);
            }
            for isa in Isa::available() {
                let cpu = Cpu::new(2, isa).unwrap();
                let x = activations(&cpu, n, d);
                let chunks: Vec<_> = layer.chunks().collect();
                let (mut hidden, mut got) = (Vec::new(), vec![1.0; n * d]);
                let of = Some((&masks, 10));
                cpu.chunks_batch(&layer.shape, &chunks, of, Gate::GeluTanh, &x, n, &mut hidden, &mut got);
                let mut values = Vec::new();
                cpu.chunks_neurons(&layer.shape, &chunks, Gate::GeluTanh, &x, n, &mut values);
                let mut column = vec![0.0; d];
                for t in 0..n {
                    let (mut want, mut size) = (vec![1f64; d], 1f64);
                    let down = chunks.iter().flat_map(|c| {
                        layer.shape.down(*c).chunks_exact(layer.shape.column_bytes)
                    });
                    for (j, bytes) in down.enumerate().filter(|(j, _)| chosen.row(t).get(*j)) {
                        let h = f64::from(values[t * len + j]);
                        dequantize_column(layer.shape.down, bytes, &mut column);
                        want.iter_mut().zip(&column).for_each(|(o, w)| *o += h * f64::from(*w));
                        size = size.max(h.abs());
                    }
                    // Coefficients of few rows are rounded to eight bits of the largest.
                    let bound = size * (1e-4 + len as f64 * 0.006);
                    for (got, want) in got[t * d..][..d].iter().zip(want) {
                        let error = (f64::from(*got) - want).abs();
                        prop_assert!(error <= bound, "{} {}: {} for {}", isa, n, got, want);
                    }
                }
            }
        }
    }

    #[test]
    fn a_chunks_values_are_those_of_a_batch() {
        let (d, sizes) = (96, [5, 9, 1, 20]);
        let layer = Layer::new(d, (Format::Q4_0, Format::Q8_0, ColumnFormat::Q6), &sizes);
        for isa in Isa::available() {
            let cpu = Cpu::new(2, isa).unwrap();
            let (n, x) = (3, activations(&cpu, 3, d));
            let (chunks, mut all) = (layer.chunks().collect::<Vec<_>>(), Vec::new());
            cpu.chunks_neurons(&layer.shape, &chunks, Gate::Silu, &x, n, &mut all);
            let (mut first, len) = (0, layer.n_neurons());
            for chunk in chunks {
                let mut got = vec![0.0; n * chunk.n_neurons];
                cpu.chunk_neurons(&layer.shape, chunk, Gate::Silu, &x, n, &mut got);
                for (t, got) in got.chunks(chunk.n_neurons).enumerate() {
                    for (got, want) in got.iter().zip(&all[t * len + first..]) {
                        assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "{isa}");
                    }
                }
                first += chunk.n_neurons;
            }
        }
    }

    #[test]
    fn norms_are_those_of_the_columns() {
        for down in ColumnFormat::ALL {
            let layer = Layer::new(64, (Format::F32, Format::F32, down), &[3, 4]);
            for isa in Isa::available() {
                let cpu = Cpu::new(1, isa).unwrap();
                let mut scratch = Vec::new();
                for chunk in layer.chunks() {
                    let mut norms = vec![0.0; chunk.n_neurons];
                    cpu.column_norms(&layer.shape, chunk, &mut scratch, &mut norms);
                    let columns = layer.shape.down(chunk).chunks_exact(layer.shape.column_bytes);
                    for (norm, bytes) in norms.iter().zip(columns) {
                        let mut column = vec![0.0; 64];
                        dequantize_column(down, bytes, &mut column);
                        let want = column.iter().map(|w| w * w).sum::<f32>().sqrt();
                        assert!((norm - want).abs() <= 1e-5 * want, "{down} {isa}");
                    }
                }
            }
        }
    }

    #[test]
    fn neurons_that_were_not_chosen_are_not_looked_at() {
        let layer = Layer::new(64, (Format::F32, Format::F32, ColumnFormat::F32), &[2, 20]);
        let mut poisoned = layer.chunks.clone();
        for (bytes, _) in &mut poisoned {
            bytes[..256].copy_from_slice(&f32::NAN.to_le_bytes().repeat(64));
        }
        let poisoned = Layer { shape: layer.shape, chunks: poisoned };
        for n in [1, 12] {
            let mut masks = Masks::new(n, 22);
            (0..n).for_each(|t| [1, 7, 21].into_iter().for_each(|j| masks.set(t, j)));
            let cpu = Cpu::new(2, Isa::detect()).unwrap();
            let x = activations(&cpu, n, 64);
            let run = |layer: &Layer| {
                let (mut hidden, mut out) = (Vec::new(), vec![0.0; n * 64]);
                let (chunks, of) = (layer.chunks().collect::<Vec<_>>(), Some((&masks, 0)));
                cpu.chunks_batch(
                    &layer.shape,
                    &chunks,
                    of,
                    Gate::Silu,
                    &x,
                    n,
                    &mut hidden,
                    &mut out,
                );
                out
            };
            assert_eq!(run(&poisoned), run(&layer));
        }
    }
}
