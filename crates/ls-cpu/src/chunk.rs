//! The gated MLP over chunks: some neurons' gate rows, up rows and down columns side by side.
//!
//! `out = Σ_j act(gate_j · x) · (up_j · x) · down_j` is a sum over neurons. Chunks can be computed
//! wherever and whenever their bytes are there; only the order of a sum changes its last bits, so
//! whoever wants the same bits each time adds chunks in the same order.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::column::{ColumnFormat, dequantize_column};
use crate::elementwise::{Gate, gate_rows};
use crate::group::AT_ONCE;
use crate::mask::Masks;
use crate::matmul::{BATCH, SCRATCH, Scratch};
use crate::pool::Split;
use crate::quant::GROUP;
use crate::simd;
use crate::tile::TILE_ROWS;
use crate::{Activations, Cpu, Format, Matrix, ShapeError};

/// What a chunk holds and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkShape {
    d_model: usize,
    pub(crate) gate: Format,
    pub(crate) up: Format,
    pub(crate) down: ColumnFormat,
    pub(crate) up_at: usize,
    pub(crate) down_at: usize,
    /// Bytes of a gate row, an up row and a down column.
    pub(crate) gate_bytes: usize,
    pub(crate) up_bytes: usize,
    pub(crate) column_bytes: usize,
}

/// A chunk's bytes and its number of neurons.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Gate rows from the first byte on, up rows and down columns where the shape says.
    pub bytes: &'a [u8],
    /// Neurons in it.
    pub n_neurons: usize,
}

impl ChunkShape {
    /// Gate rows lie at the chunk's start, up rows at byte `up_at`, down columns at `down_at`;
    /// each row and column has `d_model` values.
    ///
    /// # Errors
    ///
    /// If rows or columns of `d_model` values are not whole blocks.
    pub fn new(
        d_model: usize,
        (gate, up, down): (Format, Format, ColumnFormat),
        (up_at, down_at): (usize, usize),
    ) -> Result<Self, ShapeError> {
        let row = |format: Format| {
            format.row_bytes(d_model).ok_or(ShapeError::PartialBlock { format, cols: d_model })
        };
        let (gate_bytes, up_bytes) = (row(gate)?, row(up)?);
        let column_bytes = down
            .column_bytes(d_model)
            .ok_or(ShapeError::PartialGroup { format: down, len: d_model })?;
        Ok(Self { d_model, gate, up, down, up_at, down_at, gate_bytes, up_bytes, column_bytes })
    }

    /// Values in a row or a column.
    pub fn d_model(&self) -> usize {
        self.d_model
    }

    /// The gate row, up row and down column of neuron `j` of `chunk` as floats, `[d_model]` each:
    /// what the kernels multiply with, before anything is rounded.
    ///
    /// # Panics
    ///
    /// If the chunk has no such neuron, a slice is not `d_model` long, or `bytes` is too short.
    pub fn dequantize(
        &self,
        chunk: Chunk<'_>,
        j: usize,
        gate: &mut [f32],
        up: &mut [f32],
        down: &mut [f32],
    ) {
        self.gate(chunk).dequantize_row(j, gate);
        self.up(chunk).dequantize_row(j, up);
        let column = self.column_bytes;
        dequantize_column(self.down, &self.down(chunk)[j * column..][..column], down);
    }

    pub(crate) fn gate<'a>(&self, chunk: Chunk<'a>) -> Matrix<'a> {
        self.rows(self.gate, 0..self.gate_bytes, chunk)
    }

    pub(crate) fn up<'a>(&self, chunk: Chunk<'a>) -> Matrix<'a> {
        self.rows(self.up, self.up_at..self.up_at + self.up_bytes, chunk)
    }

    /// Rows of a chunk, of which `first` is where the first one lies.
    fn rows<'a>(&self, format: Format, first: Range<usize>, chunk: Chunk<'a>) -> Matrix<'a> {
        let bytes = &chunk.bytes[first.start..first.start + chunk.n_neurons * first.len()];
        Matrix::new(format, chunk.n_neurons, self.d_model, bytes).expect("sized to fit")
    }

    pub(crate) fn down<'a>(&self, chunk: Chunk<'a>) -> &'a [u8] {
        &chunk.bytes[self.down_at..self.down_at + chunk.n_neurons * self.column_bytes]
    }
}

/// What the kernels for rows do not fetch themselves: they ask for bytes this far ahead.
fn first_bytes(rows: &[u8]) -> &[u8] {
    &rows[..rows.len().min(1024)]
}

impl Cpu {
    /// Adds the output of a chunk's neurons to `out`, `[n, d_model]`, for the first `n` rows of
    /// `x`, `[n, d_model]`: on the calling thread alone, so that each thread has chunks of its
    /// own. Neurons are added in order.
    ///
    /// Meant for the few rows of a decode step; [`Cpu::chunks_batch`] is for prompts.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit, or `bytes` is too short for its neurons.
    pub fn chunk(
        &self,
        shape: &ChunkShape,
        chunk: Chunk<'_>,
        kind: Gate,
        x: &Activations,
        n: usize,
        out: &mut [f32],
    ) {
        let d = shape.d_model;
        assert_eq!((x.cols(), out.len()), (d, n * d), "inputs and outputs of {shape:?}");
        let (gate, up) = (shape.gate(chunk), shape.up(chunk));
        let (down, column) = (shape.down(chunk), shape.column_bytes);
        for first in (0..chunk.n_neurons).step_by(AT_ONCE) {
            let neurons = first..(first + AT_ONCE).min(chunk.n_neurons);
            let columns = &down[neurons.start * column..neurons.end * column];
            let (mut g, mut u) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
            // Whole vectors: what lies behind the last neuron is computed and not used.
            let padded = neurons.len().next_multiple_of(8);
            let mut apart: [&[u8]; AT_ONCE] = [&[]; _];
            for (to, column) in apart.iter_mut().zip(columns.chunks_exact(column)) {
                *to = column;
            }
            for (t, out) in out.chunks_exact_mut(d).enumerate() {
                if t == 0 {
                    simd::prefetch(first_bytes(gate.row_range(neurons.clone())));
                }
                self.dot_rows(&gate, neurons.clone(), x, t, &mut g[..neurons.len()]);
                self.dot_rows(&up, neurons.clone(), x, t, &mut u[..neurons.len()]);
                // All at once: columns are read side by side, which the hardware's prefetcher does
                // not see through. Their loads pass while the values below are computed; asked
                // for earlier they compete with those of the rows (measured).
                if t == 0 {
                    simd::prefetch(columns);
                }
                gate_rows(self.isa, kind, &mut g[..padded], &u[..padded]);
                let (apart, values) = (&apart[..neurons.len()], &g[..neurons.len()]);
                simd::add_columns(self.isa, shape.down, apart, values, &[], out);
            }
        }
    }

    /// Adds the output of the neurons of `chunks` to `out`, `[n, d_model]`, on all threads, for
    /// many rows of `x`. `hidden` is scratch memory and grows to `n` times the neurons.
    ///
    /// With masks, row `t` gets what its mask has of these neurons, the first of which is the one at
    /// the position beside the masks. So many rows want nearly every neuron between them, so all are
    /// computed; what was not chosen adds nothing.
    ///
    /// The same chunks in the same order give the same bits, whatever the number of threads.
    ///
    /// Returns how many columns were added, over all rows.
    ///
    /// # Panics
    ///
    /// As [`Cpu::chunk`].
    #[allow(clippy::too_many_arguments)] // one region's whole context
    pub fn chunks_batch(
        &self,
        shape: &ChunkShape,
        chunks: &[Chunk<'_>],
        masks: Option<(&Masks, usize)>,
        kind: Gate,
        x: &Activations,
        n: usize,
        hidden: &mut Vec<f32>,
        out: &mut [f32],
    ) -> usize {
        let d = shape.d_model;
        assert_eq!((x.cols(), out.len()), (d, n * d), "inputs and outputs of {shape:?}");
        let all = n * chunks.iter().map(|chunk| chunk.n_neurons).sum::<usize>();
        match masks {
            None if n < BATCH => {
                chunks.iter().for_each(|chunk| self.chunk(shape, *chunk, kind, x, n, out));
                return all;
            }
            Some((masks, first)) if n < BATCH => {
                let each = |(t, out): (usize, &mut [f32])| {
                    let chosen = (masks.row(t), first);
                    self.chosen(shape, chunks.iter().copied(), chosen, kind, x, t, out).columns
                };
                return out.chunks_exact_mut(d).enumerate().map(each).sum();
            }
            _ => {}
        }
        let columns = self.batch_values(shape, chunks, masks, kind, x, n, hidden);
        self.add_batch(shape, chunks, hidden.len() / n, hidden, n, out);
        if masks.is_some() { columns } else { all }
    }

    /// Values of the neurons of `chunks` for the first `n` rows of `x`, on all threads: `hidden[t][j]
    /// = act(gate_j · x[t]) · (up_j · x[t])`, `[n, neurons]`; it takes that length.
    ///
    /// Meant for many rows; [`Cpu::chunk_neurons`] is for those of a decode step.
    ///
    /// # Panics
    ///
    /// As [`Cpu::chunk`].
    pub fn chunks_neurons(
        &self,
        shape: &ChunkShape,
        chunks: &[Chunk<'_>],
        kind: Gate,
        x: &Activations,
        n: usize,
        hidden: &mut Vec<f32>,
    ) {
        assert_eq!(x.cols(), shape.d_model, "inputs of {shape:?}");
        self.batch_values(shape, chunks, None, kind, x, n, hidden);
    }

    /// Values of all neurons; zero for those that a row's mask does not have or finds unimportant.
    /// Returns how many of them masks leave.
    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn batch_values(
        &self,
        shape: &ChunkShape,
        chunks: &[Chunk<'_>],
        masks: Option<(&Masks, usize)>,
        kind: Gate,
        x: &Activations,
        n: usize,
        hidden: &mut Vec<f32>,
    ) -> usize {
        let left = AtomicUsize::new(0);
        let n_neurons: usize = chunks.iter().map(|chunk| chunk.n_neurons).sum();
        hidden.resize(n * n_neurons, 0.0);
        let values = Split::new(hidden);
        self.pool.run(n_neurons.div_ceil(TILE_ROWS), &|task| {
            let rows = task * TILE_ROWS..((task + 1) * TILE_ROWS).min(n_neurons);
            SCRATCH.with_borrow_mut(|scratch| {
                self.gathered_tiles(shape, chunks, rows.clone(), x, n, scratch);
                let products = scratch.out.iter_mut().zip(&scratch.out_b);
                for (t, (gate, up)) in products.enumerate() {
                    gate_rows(self.isa, kind, gate, up);
                    // SAFETY: each task has its own neurons of every row.
                    #[allow(unsafe_code)]
                    let to = unsafe { values.slice(t * n_neurons + rows.start, rows.len()) };
                    match masks {
                        None => to.copy_from_slice(&gate[..rows.len()]),
                        Some((masks, first)) => {
                            let (mask, first) = (masks.row(t), first + rows.start);
                            to.fill(0.0);
                            let chosen = mask.ones(first..first + rows.len());
                            let chosen = chosen.filter(|j| mask.adds(*j, gate[*j - first]));
                            let n = chosen.map(|j| to[j - first] = gate[j - first]).count();
                            left.fetch_add(n, Ordering::Relaxed);
                        }
                    }
                }
            });
        });
        left.into_inner()
    }

    /// Products of neurons `rows`, counted over all chunks, with every row of `x`: of the gate
    /// rows in `scratch.out` and of the up rows in `scratch.out_b`.
    fn gathered_tiles(
        &self,
        shape: &ChunkShape,
        chunks: &[Chunk<'_>],
        rows: Range<usize>,
        x: &Activations,
        n: usize,
        scratch: &mut Scratch,
    ) {
        let Scratch { tile, out, out_b, rows: gathered, .. } = scratch;
        for (is_up, products) in [(false, out), (true, out_b)] {
            gathered.clear();
            let mut first = 0;
            for chunk in chunks {
                let here = rows.start.max(first)..rows.end.min(first + chunk.n_neurons);
                if !here.is_empty() {
                    let matrix = if is_up { shape.up(*chunk) } else { shape.gate(*chunk) };
                    let local = here.start - first..here.end - first;
                    gathered.extend_from_slice(matrix.row_range(local));
                }
                first += chunk.n_neurons;
            }
            let format = if is_up { shape.up } else { shape.gate };
            let matrix = Matrix::new(format, rows.len(), shape.d_model, gathered)
                .expect("whole rows were gathered");
            self.tile(&matrix, 0..rows.len(), x, n, tile, products);
        }
    }

    /// `out[t] += Σ_j hidden[t][j] · down_j`, a few outputs a task.
    fn add_batch(
        &self,
        shape: &ChunkShape,
        chunks: &[Chunk<'_>],
        n_neurons: usize,
        hidden: &[f32],
        n: usize,
        out: &mut [f32],
    ) {
        let (d, column) = (shape.d_model, shape.column_bytes);
        let out = Split::new(out);
        self.pool.run(d.div_ceil(GROUP), &|task| {
            let outputs = task * GROUP..((task + 1) * GROUP).min(d);
            SCRATCH.with_borrow_mut(|scratch| {
                let Scratch { tile, tile_b, out: products, .. } = scratch;
                tile.begin_floats(self.isa, n_neurons);
                tile_b.begin_floats(self.isa, n_neurons);
                let columns =
                    chunks.iter().flat_map(|chunk| shape.down(*chunk).chunks_exact(column));
                for (j, column) in columns.enumerate() {
                    let mut values = [0.0; GROUP];
                    let to = &mut values[..outputs.len()];
                    simd::read_column(self.isa, shape.down, column, outputs.start, to);
                    tile.set_column(j, &values[..TILE_ROWS]);
                    tile_b.set_column(j, &values[TILE_ROWS..]);
                }
                let tiles = [tile, tile_b].into_iter().zip(outputs.clone().step_by(TILE_ROWS));
                for (tile, first) in tiles {
                    products.resize(n, [0.0; TILE_ROWS]);
                    simd::gemm_f(self.isa, tile, hidden, products);
                    let len = TILE_ROWS.min(outputs.end - first);
                    for (t, products) in products.iter().enumerate() {
                        // SAFETY: each task has its own outputs of every row.
                        #[allow(unsafe_code)]
                        let to = unsafe { out.slice(t * d + first, len) };
                        to.iter_mut().zip(products).for_each(|(to, p)| *to += p);
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::quantize_column;
    use crate::{Isa, dequantize_row};

    /// Chunks of random weights with room between their parts.
    struct Layer {
        shape: ChunkShape,
        chunks: Vec<(Vec<u8>, usize)>,
        gate: Vec<Vec<f32>>,
        up: Vec<Vec<f32>>,
        down: Vec<Vec<f32>>,
    }

    fn random(seed: &mut u64) -> f32 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    impl Layer {
        fn new(d: usize, format: Format, down: ColumnFormat, sizes: &[usize]) -> Self {
            let mut seed = d as u64 + sizes.len() as u64;
            let (row, column) = (format.row_bytes(d).unwrap(), down.column_bytes(d).unwrap());
            let room = sizes.iter().max().unwrap() * row + 64;
            let shape = ChunkShape::new(d, (format, format, down), (room, 2 * room)).unwrap();
            let (mut gate, mut up, mut downs, mut chunks) = (vec![], vec![], vec![], vec![]);
            for &n in sizes {
                let mut bytes = vec![0xa5; 2 * room + n * column];
                for j in 0..n {
                    for (rows, at) in [(&mut gate, 0), (&mut up, room)] {
                        let to = &mut bytes[at + j * row..][..row];
                        match format {
                            Format::F32 => to.as_chunks_mut::<4>().0.iter_mut().for_each(|b| {
                                *b = random(&mut seed).to_le_bytes();
                            }),
                            _ => to.chunks_mut(34).for_each(|b| {
                                b.fill_with(|| (random(&mut seed) * 127.0) as i8 as u8);
                                b[..2].copy_from_slice(&half::f16::from_f32(0.003).to_le_bytes());
                            }),
                        }
                        let mut values = vec![0.0; d];
                        dequantize_row(format, to, &mut values);
                        rows.push(values);
                    }
                    let mut values: Vec<f32> = (0..d).map(|_| random(&mut seed)).collect();
                    let to = &mut bytes[2 * room + j * column..][..column];
                    quantize_column(down, &values, to);
                    dequantize_column(down, to, &mut values);
                    downs.push(values);
                }
                chunks.push((bytes, n));
            }
            Self { shape, chunks, gate, up, down: downs }
        }

        fn chunks(&self) -> Vec<Chunk<'_>> {
            self.chunks.iter().map(|(bytes, n)| Chunk { bytes, n_neurons: *n }).collect()
        }

        /// In f64, by the definition; and the sum of magnitudes, for bounds.
        fn reference(&self, x: &[f32]) -> (Vec<f64>, f64) {
            let dot = |w: &[f32]| -> f64 {
                w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            };
            let (mut out, mut magnitude) = (vec![0.0; x.len()], 0f64);
            for j in 0..self.gate.len() {
                let (g, u) = (dot(&self.gate[j]), dot(&self.up[j]));
                let h = g / (1.0 + (-g).exp()) * u;
                magnitude += h.abs().max(u.abs());
                out.iter_mut().zip(&self.down[j]).for_each(|(o, d)| *o += h * f64::from(*d));
            }
            (out, magnitude)
        }
    }

    fn activations(cpu: &Cpu, n: usize, d: usize) -> Activations {
        let mut x = Activations::new(n, d);
        x.fill(cpu, n, &|t, row| {
            let mut seed = t as u64;
            row.iter_mut().for_each(|x| *x = random(&mut seed));
        });
        x
    }

    #[test]
    fn chunks_compute_the_mlp() {
        for (format, down, d) in [
            (Format::Q8_0, ColumnFormat::Q8, 96),
            (Format::Q8_0, ColumnFormat::Q6, 64),
            (Format::Q8_0, ColumnFormat::Q5, 64),
            (Format::Q8_0, ColumnFormat::Q4, 32),
            (Format::F32, ColumnFormat::F16, 40),
            (Format::F32, ColumnFormat::BF16, 64),
            (Format::F32, ColumnFormat::F32, 33),
        ] {
            let layer = Layer::new(d, format, down, &[6, 6, 70, 1, 3]);
            for isa in Isa::available() {
                let cpu = Cpu::new(2, isa).unwrap();
                for n in [1, 3, 8, 20] {
                    let x = activations(&cpu, n, d);
                    let mut out = vec![1.0; n * d];
                    let (mut hidden, chunks) = (Vec::new(), layer.chunks());
                    let (shape, kind) = (&layer.shape, Gate::Silu);
                    cpu.chunks_batch(shape, &chunks, None, kind, &x, n, &mut hidden, &mut out);
                    for (t, out) in out.chunks(d).enumerate() {
                        let (want, magnitude) = layer.reference(&x.rows(n)[t * d..][..d]);
                        for (out, want) in out.iter().zip(want) {
                            // Eight bits of the inputs, where weights are quantised.
                            let bound = if format.is_quantized() { 0.02 } else { 1e-5 };
                            let error = (f64::from(*out) - 1.0 - want).abs();
                            assert!(
                                error <= bound * (magnitude + 1.0),
                                "{format} {down} {isa} n={n}: {out} for {want}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn neurons_and_their_weights_are_those_of_the_definition() {
        let formats = [
            (Format::Q8_0, ColumnFormat::Q6, 64),
            (Format::F32, ColumnFormat::Q4, 32),
            (Format::F32, ColumnFormat::F16, 33),
        ];
        for (format, down, d) in formats {
            let layer = Layer::new(d, format, down, &[6, 70, 1]);
            let (mut g, mut u, mut c) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
            let mut j = 0;
            for chunk in layer.chunks() {
                for i in 0..chunk.n_neurons {
                    layer.shape.dequantize(chunk, i, &mut g, &mut u, &mut c);
                    assert_eq!((&g, &u), (&layer.gate[j], &layer.up[j]));
                    assert_eq!(c, layer.down[j]);
                    j += 1;
                }
            }
            for isa in Isa::available() {
                let cpu = Cpu::new(2, isa).unwrap();
                for n in [1, 3, 11] {
                    let (x, n_neurons) = (activations(&cpu, n, d), layer.gate.len());
                    let mut hidden = Vec::new();
                    let chunks = layer.chunks();
                    cpu.chunks_neurons(&layer.shape, &chunks, Gate::Silu, &x, n, &mut hidden);
                    assert_eq!(hidden.len(), n * n_neurons);
                    for (i, h) in hidden.iter().enumerate() {
                        let x = &x.rows(n)[i / n_neurons * d..][..d];
                        let dot = |w: &[f32]| -> f64 {
                            w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                        };
                        let (g, u) =
                            (dot(&layer.gate[i % n_neurons]), dot(&layer.up[i % n_neurons]));
                        let want = g / (1.0 + (-g).exp()) * u;
                        let bound = if format.is_quantized() { 0.05 } else { 1e-5 };
                        let error = (f64::from(*h) - want).abs();
                        assert!(error <= bound * (g.abs() * u.abs() + 0.5), "{isa} {h} for {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let layer = Layer::new(64, Format::Q8_0, ColumnFormat::Q6, &[7, 7, 7, 2]);
        for n in [1, 12] {
            let run = |threads| {
                let cpu = Cpu::new(threads, Isa::detect()).unwrap();
                let x = activations(&cpu, n, 64);
                let (mut out, mut hidden, chunks) = (vec![0.5; n * 64], vec![], layer.chunks());
                cpu.chunks_batch(
                    &layer.shape,
                    &chunks,
                    None,
                    Gate::GeluTanh,
                    &x,
                    n,
                    &mut hidden,
                    &mut out,
                );
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(run(1), run(3));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let formats = (Format::Q4_K, Format::Q4_K, ColumnFormat::Q6);
        assert!(matches!(
            ChunkShape::new(64, formats, (0, 0)),
            Err(ShapeError::PartialBlock { .. })
        ));
        let formats = (Format::F32, Format::F32, ColumnFormat::Q6);
        assert!(matches!(
            ChunkShape::new(40, formats, (0, 0)),
            Err(ShapeError::PartialGroup { .. })
        ));
    }
}
