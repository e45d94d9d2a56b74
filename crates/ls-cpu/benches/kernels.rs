//! Speed of the matrix kernels on one thread, by format and instruction set.
//!
//! `decode`: one row of activations, as bytes of weights per second. `prompt`: 64 rows of
//! activations, as multiply-adds per second.

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use ls_cpu::{Activations, Cpu, Format, Isa, Matrix};

/// Columns of every matrix: the width of a 1.5-billion-parameter model.
const COLS: usize = 1536;

/// Rows of activations of a prompt.
const TOKENS: usize = 64;

#[derive(Clone, Copy)]
struct Case {
    format: Format,
    rows: usize,
    isa: Isa,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (format, rows) = (self.format.to_string(), self.rows);
        write!(f, "{format:<5} {rows:>6} × {COLS} {}", self.isa)
    }
}

/// Each format with each instruction set but the plainest, which takes minutes and is no rival.
fn cases(rows: &'static [usize]) -> impl Iterator<Item = Case> {
    Format::ALL.into_iter().flat_map(move |format| {
        rows.iter().flat_map(move |&rows| {
            let vectors = Isa::available().into_iter().filter(|isa| *isa != Isa::SCALAR);
            vectors.map(move |isa| Case { format, rows, isa })
        })
    })
}

impl Case {
    /// Weight bytes whose f16 and f32 fields are ordinary numbers.
    fn weights(self) -> Vec<u8> {
        vec![0x2c; self.rows * self.format.row_bytes(COLS).expect("whole blocks")]
    }

    fn run(self, bencher: Bencher<'_, '_>, tokens: usize) {
        let weights = self.weights();
        let matrix = Matrix::new(self.format, self.rows, COLS, &weights).expect("the shape fits");
        let cpu = Cpu::new(1, self.isa).expect("one thread");
        let mut x = Activations::new(tokens, COLS);
        x.fill(&cpu, tokens, &|t, row| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = ((t + i) % 19) as f32 - 9.0;
            }
        });
        let mut out = vec![0.0; tokens * self.rows];
        bencher.bench_local(|| cpu.matmul(matrix, &x, tokens, divan::black_box(&mut out)));
    }
}

// A projection in the second-level cache, an MLP matrix, and an output head that no cache holds.
#[divan::bench(args = cases(&[1536, 8960, 151_936]))]
fn decode(bencher: Bencher<'_, '_>, case: Case) {
    let bytes = case.rows * case.format.row_bytes(COLS).expect("whole blocks");
    case.run(bencher.counter(BytesCount::new(bytes)), 1);
}

#[divan::bench(args = cases(&[1536]))]
fn prompt(bencher: Bencher<'_, '_>, case: Case) {
    case.run(bencher.counter(ItemsCount::new(case.rows * COLS * TOKENS)), TOKENS);
}

fn main() {
    divan::main();
}
