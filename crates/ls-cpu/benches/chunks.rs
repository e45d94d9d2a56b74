//! Speed of the chunked MLP on one thread, by column format: a layer of 8960 neurons of a
//! 1.5-billion-parameter model, Q4_K gate and up rows, six neurons a chunk.
//!
//! `decode`: one row of activations, as bytes of chunks per second. `prompt`: 64 rows of
//! activations, as multiply-adds per second.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use ls_cpu::{Activations, Chunk, ChunkShape, ColumnFormat, Cpu, Format, Gate, Isa};

const D_MODEL: usize = 1536;
const NEURONS: usize = 8960;
const PER_CHUNK: usize = 6;
const TOKENS: usize = 64;

struct Layer {
    shape: ChunkShape,
    bytes: Vec<u8>,
    chunk_bytes: usize,
}

impl Layer {
    fn new(down: ColumnFormat) -> Self {
        let row = Format::Q4_K.row_bytes(D_MODEL).expect("whole blocks");
        let column = down.column_bytes(D_MODEL).expect("whole groups");
        let at = (PER_CHUNK * row, 2 * PER_CHUNK * row);
        let shape = ChunkShape::new(D_MODEL, (Format::Q4_K, Format::Q4_K, down), at)
            .expect("the shape fits");
        let chunk_bytes = (at.1 + PER_CHUNK * column).next_multiple_of(4096);
        // Weight bytes whose f16 and f32 fields are ordinary numbers.
        let bytes = vec![0x2c; NEURONS.div_ceil(PER_CHUNK) * chunk_bytes];
        Self { shape, bytes, chunk_bytes }
    }

    fn chunks(&self) -> Vec<Chunk<'_>> {
        let chunks = self.bytes.chunks_exact(self.chunk_bytes);
        chunks.map(|bytes| Chunk { bytes, n_neurons: PER_CHUNK }).collect()
    }
}

fn activations(cpu: &Cpu, tokens: usize) -> Activations {
    let mut x = Activations::new(tokens, D_MODEL);
    x.fill(cpu, tokens, &|t, row| {
        for (i, x) in row.iter_mut().enumerate() {
            *x = ((t + i) % 19) as f32 / 9.0 - 1.0;
        }
    });
    x
}

#[divan::bench(args = ColumnFormat::ALL)]
fn decode(bencher: Bencher<'_, '_>, down: ColumnFormat) {
    let layer = Layer::new(down);
    let cpu = Cpu::new(1, Isa::detect()).expect("one thread");
    let x = activations(&cpu, 1);
    let mut out = vec![0.0; D_MODEL];
    let chunks = layer.chunks();
    bencher.counter(BytesCount::new(layer.bytes.len())).bench_local(|| {
        for chunk in &chunks {
            cpu.chunk(&layer.shape, *chunk, Gate::Silu, &x, 1, divan::black_box(&mut out));
        }
    });
}

#[divan::bench(args = ColumnFormat::ALL)]
fn prompt(bencher: Bencher<'_, '_>, down: ColumnFormat) {
    let layer = Layer::new(down);
    let cpu = Cpu::new(1, Isa::detect()).expect("one thread");
    let x = activations(&cpu, TOKENS);
    let (mut out, mut hidden) = (vec![0.0; TOKENS * D_MODEL], Vec::new());
    let chunks = layer.chunks();
    bencher.counter(ItemsCount::new(TOKENS * 3 * NEURONS * D_MODEL)).bench_local(|| {
        for chunks in chunks.chunks(47) {
            let (shape, gate) = (&layer.shape, Gate::Silu);
            cpu.chunks_batch(shape, chunks, gate, &x, TOKENS, &mut hidden, &mut out);
        }
    });
}

fn main() {
    divan::main();
}
