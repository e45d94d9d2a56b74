//! Speed of the chunked MLP on one thread, by column format: a layer of 8960 neurons of a
//! 1.5-billion-parameter model, Q4_K gate and up rows, six neurons a chunk.
//!
//! `decode`: one row of activations, as bytes of chunks per second. `prompt`: 64 rows of
//! activations, as multiply-adds per second.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use ls_cpu::{Activations, Chunk, ChunkShape, ColumnFormat, Cpu, Format, Gate, Isa, Matrix};

const D_MODEL: usize = 1536;
const NEURONS: usize = 8960;
const PER_CHUNK: usize = 6;
const TOKENS: usize = 64;
/// Copies of the layer that are computed in turn, so that none is still in a cache.
const COPIES: usize = 6;

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

/// Instruction sets worth measuring: all but the plain one.
fn isas() -> Vec<Isa> {
    Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR).collect()
}

fn isas_and_columns() -> Vec<(Isa, ColumnFormat)> {
    isas().into_iter().flat_map(|isa| ColumnFormat::ALL.map(|down| (isa, down))).collect()
}

#[divan::bench(args = isas_and_columns())]
fn decode(bencher: Bencher<'_, '_>, (isa, down): (Isa, ColumnFormat)) {
    let layers: [_; COPIES] = std::array::from_fn(|_| Layer::new(down));
    let cpu = Cpu::new(1, isa).expect("one thread");
    let x = activations(&cpu, 1);
    let mut out = vec![0.0; D_MODEL];
    let chunks = layers.each_ref().map(Layer::chunks);
    let mut next = chunks.iter().cycle();
    bencher.counter(BytesCount::new(layers[0].bytes.len())).bench_local(|| {
        for chunk in next.next().expect("a cycle") {
            let out = divan::black_box(&mut out);
            cpu.chunk(&layers[0].shape, *chunk, Gate::Silu, &x, 1, out);
        }
    });
}

/// The same layer by matrices, the down matrix by row: what `decode` is to be measured against.
#[divan::bench(args = isas())]
fn decode_by_rows(bencher: Bencher<'_, '_>, isa: Isa) {
    let bytes = |format: Format, rows: usize, cols: usize| -> Vec<u8> {
        vec![0x2c; COPIES * rows * format.row_bytes(cols).expect("whole blocks")]
    };
    let rows = [Format::Q4_K, Format::Q4_K, Format::Q6_K];
    let shapes = [(NEURONS, D_MODEL), (NEURONS, D_MODEL), (D_MODEL, NEURONS)];
    let data: [_; 3] = std::array::from_fn(|i| bytes(rows[i], shapes[i].0, shapes[i].1));
    let mut layers = (0..COPIES).cycle().map(|layer| -> [Matrix<'_>; 3] {
        std::array::from_fn(|i| {
            let (len, (rows_n, cols)) = (data[i].len() / COPIES, shapes[i]);
            let bytes = &data[i][layer * len..][..len];
            Matrix::new(rows[i], rows_n, cols, bytes).expect("the bytes fit")
        })
    });
    let cpu = Cpu::new(1, isa).expect("one thread");
    let x = activations(&cpu, 1);
    let (mut hidden, mut out) = (Activations::new(1, NEURONS), vec![0.0; D_MODEL]);
    let n_bytes = data.iter().map(|bytes| bytes.len() / COPIES).sum::<usize>();
    bencher.counter(BytesCount::new(n_bytes)).bench_local(|| {
        let [gate, up, down] = layers.next().expect("a cycle");
        cpu.mlp_neurons(gate, up, Gate::Silu, &x, 1, &mut hidden);
        cpu.matmul(down, &hidden, 1, divan::black_box(&mut out));
    });
}

#[divan::bench(args = isas_and_columns())]
fn prompt(bencher: Bencher<'_, '_>, (isa, down): (Isa, ColumnFormat)) {
    let layer = Layer::new(down);
    let cpu = Cpu::new(1, isa).expect("one thread");
    let x = activations(&cpu, TOKENS);
    let (mut out, mut hidden) = (vec![0.0; TOKENS * D_MODEL], Vec::new());
    let chunks = layer.chunks();
    bencher.counter(ItemsCount::new(TOKENS * 3 * NEURONS * D_MODEL)).bench_local(|| {
        for chunks in chunks.chunks(47) {
            let (shape, gate) = (&layer.shape, Gate::Silu);
            cpu.chunks_batch(shape, chunks, None, gate, &x, TOKENS, &mut hidden, &mut out);
        }
    });
}

fn main() {
    divan::main();
}
