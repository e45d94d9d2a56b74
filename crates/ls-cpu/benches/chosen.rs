//! Speed of an MLP of which only some neurons are computed, on one thread, for one token: a layer of
//! 8960 neurons of a 1.5-billion-parameter model, Q4_K gate and up rows, Q6 down columns, four neurons
//! a chunk.
//!
//! All are as bytes of chosen neurons' weights per second, so that `dense` is what the others should
//! come near to. `near`: chunks that stay in the second cache, which shows the work without waiting
//! for memory.

use divan::Bencher;
use divan::counter::BytesCount;
use ls_cpu::{Activations, Chunk, ChunkShape, ColumnFormat, Cpu, Format, Gate, Isa, Masks};

const D_MODEL: usize = 1536;
const NEURONS: usize = 8960;
const PER_CHUNK: usize = 4;
/// Neurons of chunks that stay near.
const NEAR: usize = 128;
/// Neurons that one thread computes at once.
const SEGMENT: usize = 140;
/// Copies of the layer that are computed in turn, so that none is still in a cache.
const COPIES: usize = 6;

struct Layer {
    shape: ChunkShape,
    bytes: Vec<u8>,
    chunk_bytes: usize,
}

impl Layer {
    fn new(neurons: usize) -> Self {
        let (rows, down) = (Format::Q4_K, ColumnFormat::Q6);
        let row = rows.row_bytes(D_MODEL).expect("whole blocks");
        let column = down.column_bytes(D_MODEL).expect("whole groups");
        let at = (PER_CHUNK * row, 2 * PER_CHUNK * row);
        let shape = ChunkShape::new(D_MODEL, (rows, rows, down), at).expect("the shape fits");
        let chunk_bytes = (at.1 + PER_CHUNK * column).next_multiple_of(4096);
        // Weight bytes whose f16 fields are ordinary numbers.
        Self { shape, bytes: vec![0x2c; neurons / PER_CHUNK * chunk_bytes], chunk_bytes }
    }

    fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        let chunks = self.bytes.chunks_exact(self.chunk_bytes);
        chunks.map(|bytes| Chunk { bytes, n_neurons: PER_CHUNK })
    }

    /// Bytes of the weights of so many neurons.
    fn neuron_bytes(&self, n: usize) -> usize {
        let row = Format::Q4_K.row_bytes(D_MODEL).expect("whole blocks");
        n * (2 * row + ColumnFormat::Q6.column_bytes(D_MODEL).expect("whole groups"))
    }
}

#[derive(Clone, Copy, Debug)]
enum Grain {
    Neuron,
    Chunk,
}

fn masks(percent: u64, grain: Grain, neurons: usize) -> Masks {
    let (mut masks, mut seed) = (Masks::new(1, neurons), 1u64);
    let unit = match grain {
        Grain::Neuron => 1,
        Grain::Chunk => PER_CHUNK,
    };
    for first in (0..neurons).step_by(unit) {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if (seed >> 33) % 100 < percent {
            masks.set_range(0, first..first + unit);
        }
    }
    masks
}

fn activations(cpu: &Cpu) -> Activations {
    let mut x = Activations::new(1, D_MODEL);
    x.fill(cpu, 1, &|_, row| {
        row.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 19) as f32 / 9.0 - 1.0);
    });
    x
}

/// The best instruction set and the plainest vectors.
fn isas() -> Vec<Isa> {
    let mut isas: Vec<_> = Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR).collect();
    isas.reverse();
    isas
}

fn choices() -> Vec<(Isa, u64, Grain)> {
    let of = |isa| {
        let keeps = [30, 50, 70, 100].into_iter();
        keeps.flat_map(move |keep| [Grain::Neuron, Grain::Chunk].map(|grain| (isa, keep, grain)))
    };
    isas().into_iter().flat_map(of).collect()
}

fn run_dense(bencher: Bencher<'_, '_>, isa: Isa, neurons: usize, copies: usize) {
    let layers: Vec<_> = (0..copies).map(|_| Layer::new(neurons)).collect();
    let cpu = Cpu::new(1, isa).expect("one thread");
    let (x, mut out) = (activations(&cpu), vec![0.0; D_MODEL]);
    let mut next = layers.iter().cycle();
    bencher.counter(BytesCount::new(layers[0].neuron_bytes(neurons))).bench_local(|| {
        let layer = next.next().expect("a cycle");
        for chunk in layer.chunks() {
            cpu.chunk(&layer.shape, chunk, Gate::Silu, &x, 1, divan::black_box(&mut out));
        }
    });
}

fn run_chosen(
    bencher: Bencher<'_, '_>,
    (isa, keep, grain): (Isa, u64, Grain),
    neurons: usize,
    copies: usize,
) {
    let layers: Vec<_> = (0..copies).map(|_| Layer::new(neurons)).collect();
    let cpu = Cpu::new(1, isa).expect("one thread");
    let (x, mut out) = (activations(&cpu), vec![0.0; D_MODEL]);
    let masks = masks(keep, grain, neurons);
    let mask = masks.row(0);
    let bytes = layers[0].neuron_bytes(mask.count(0..neurons));
    let mut next = layers.iter().cycle();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let layer = next.next().expect("a cycle");
        for first in (0..neurons).step_by(SEGMENT) {
            let chunks = layer.chunks().skip(first / PER_CHUNK).take(SEGMENT / PER_CHUNK);
            let out = divan::black_box(&mut out);
            cpu.chosen(&layer.shape, chunks, (mask, first), Gate::Silu, &x, 0, out);
        }
    });
}

#[divan::bench(args = isas())]
fn dense(bencher: Bencher<'_, '_>, isa: Isa) {
    run_dense(bencher, isa, NEURONS, COPIES);
}

#[divan::bench(args = choices())]
fn chosen(bencher: Bencher<'_, '_>, choice: (Isa, u64, Grain)) {
    run_chosen(bencher, choice, NEURONS, COPIES);
}

#[divan::bench(args = isas())]
fn near_dense(bencher: Bencher<'_, '_>, isa: Isa) {
    run_dense(bencher, isa, NEAR, 1);
}

#[divan::bench(args = choices())]
fn near_chosen(bencher: Bencher<'_, '_>, choice: (Isa, u64, Grain)) {
    run_chosen(bencher, choice, NEAR, 1);
}

fn main() {
    divan::main();
}
