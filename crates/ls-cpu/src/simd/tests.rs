//! Every kernel against its scalar twin, on random blocks of every format.

use proptest::prelude::*;

use super::*;
use crate::quant::dequantize_row;

/// Random rows whose f16 fields are ordinary numbers.
pub(crate) fn rows(format: Format, n: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let len = n * format.row_bytes(cols).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    if !format.is_quantized() {
        for (i, b) in bytes.chunks_mut(format.block_bytes()).enumerate() {
            let v = rng.float() * if i % 7 == 0 { 0.0 } else { 1.0 };
            match format {
                Format::F32 => b.copy_from_slice(&v.to_le_bytes()),
                Format::F16 => b.copy_from_slice(&half::f16::from_f32(v).to_le_bytes()),
                _ => b.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes()),
            }
        }
    }
    for block in bytes.chunks_mut(format.block_bytes()) {
        for at in halves_of(format) {
            let d = half::f16::from_f32(rng.float() * 0.01);
            block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    bytes
}

/// Where a block has f16 fields.
fn halves_of(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::BF16 | Format::F16 => &[],
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        z ^ z >> 29
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..n).map(|i| if i / 32 % 5 == 4 { 0.0 } else { rng.float() * 3.0 }).collect()
}

fn quantized(isa: Isa, x: &[f32], rows: usize) -> Q8Rows {
    let cols = x.len() / rows;
    let mut q = Q8Rows::new(rows, cols);
    for (i, x) in x.chunks(cols).enumerate() {
        q.quantize(isa, i, x);
    }
    q
}

/// Σ |w·x|: the scale of a dot product's rounding error.
fn magnitude(format: Format, row: &[u8], x: &[f32]) -> f32 {
    let mut w = vec![0.0; x.len()];
    dequantize_row(format, row, &mut w);
    // Formats with a min subtract two large sums, whose own size counts.
    8.0 * w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum::<f32>()
        + x.iter().map(|x| x.abs()).sum::<f32>() * w.iter().fold(0f32, |m, w| m.max(w.abs()))
}

fn formats() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::ALL.to_vec())
}

/// Dot products of `n` rows on every instruction set.
fn check_dot(format: Format, n: usize, cols: usize, seed: u64) {
    let data = rows(format, n, cols, seed);
    let row_bytes = format.row_bytes(cols).unwrap();
    let x = floats(cols, seed ^ 1);
    for isa in Isa::available() {
        let (mut want, mut got) = (vec![0.0; n], vec![f32::NAN; n]);
        if format.is_quantized() {
            let x = quantized(isa, &x, 1);
            dot_rows_q(Isa::SCALAR, format, &data, row_bytes, x.row(0), &mut want);
            dot_rows_q(isa, format, &data, row_bytes, x.row(0), &mut got);
        } else {
            dot_rows_f(Isa::SCALAR, format, &data, row_bytes, &x, &mut want);
            dot_rows_f(isa, format, &data, row_bytes, &x, &mut got);
        }
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            let bound = 1e-6 * magnitude(format, &data[i * row_bytes..][..row_bytes], &x);
            let near = (want - got).abs() <= bound;
            assert!(near, "{isa} {format} {cols}: {got} for {want} ± {bound}");
        }
    }
}

/// A tile of `n` rows and `tokens` activations on every instruction set.
fn check_tile(format: Format, n: usize, cols: usize, tokens: usize, seed: u64) {
    let data = rows(format, n, cols, seed);
    let row_bytes = format.row_bytes(cols).unwrap();
    let x = floats(cols * tokens, seed ^ 1);
    for isa in Isa::available() {
        let mut tile = Tile::default();
        tile.load(isa, format, &data, cols);
        let mut got = vec![[f32::NAN; TILE_ROWS]; tokens];
        let mut want = vec![0.0; n];
        let q = format.is_quantized().then(|| quantized(isa, &x, tokens));
        match &q {
            Some(q) => gemm_q(isa, &tile, q, &mut got),
            None => gemm_f(isa, &tile, &x, &mut got),
        }
        for (t, got) in got.iter().enumerate() {
            let x = &x[t * cols..][..cols];
            match &q {
                Some(q) => dot_rows_q(Isa::SCALAR, format, &data, row_bytes, q.row(t), &mut want),
                None => dot_rows_f(Isa::SCALAR, format, &data, row_bytes, x, &mut want),
            }
            for (i, (want, got)) in want.iter().zip(got).enumerate() {
                let bound = 1e-6 * magnitude(format, &data[i * row_bytes..][..row_bytes], x);
                let near = (want - got).abs() <= bound;
                assert!(near, "{isa} {format} {cols} × {tokens}: {got} for {want} ± {bound}");
            }
            assert!(got[n..].iter().all(|x| *x == 0.0), "{isa} {format}: rows that are not there");
        }
    }
}

/// `Q` queries of heads of `dim` over `keys` positions on every instruction set.
fn check_attention<const Q: usize>(dim: usize, keys: usize, seed: u64) {
    let mut rng = Rng(seed);
    let queries: Vec<Vec<f32>> = (0..Q).map(|_| (0..dim).map(|_| rng.float()).collect()).collect();
    let queries: [&[f32]; Q] = std::array::from_fn(|i| &queries[i][..]);
    let cached: Vec<f32> = (0..keys * dim).map(|_| rng.float() * 4.0).collect();
    let cached: Vec<half::f16> = cached.into_iter().map(half::f16::from_f32).collect();
    let bits: Vec<u16> = cached.iter().map(|x| x.to_bits()).collect();
    let weights: Vec<f32> = (0..Q * keys).map(|_| rng.float()).collect();
    let cached: Vec<f32> = cached.iter().map(|x| x.to_f32()).collect();

    let all = |isa: Isa| {
        let (mut products, mut sums) = (vec![f32::NAN; Q * keys], vec![f32::NAN; Q * dim]);
        scores(isa, queries, &bits, 0.25, &mut products);
        let mut outs = sums.chunks_mut(dim);
        weighted_sums(
            isa,
            &weights,
            &bits,
            std::array::from_fn::<_, Q, _>(|_| outs.next().unwrap()),
        );
        (products, sums)
    };
    let (want, want_sums) = all(Isa::SCALAR);
    for isa in Isa::available() {
        let (got, got_sums) = all(isa);
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            let key = &cached[i % keys * dim..][..dim];
            let size: f32 = queries[i / keys].iter().zip(key).map(|(q, k)| (q * k).abs()).sum();
            let near = (want - got).abs() <= 1e-6 * size;
            assert!(near, "{isa} {Q} heads of {dim}, score {i}: {got} for {want}");
        }
        for (i, (want, got)) in want_sums.iter().zip(&got_sums).enumerate() {
            let weights = &weights[i / dim * keys..][..keys];
            let values = cached[i % dim..].iter().step_by(dim);
            let size: f32 = weights.iter().zip(values).map(|(w, v)| (w * v).abs()).sum();
            let near = (want - got).abs() <= 1e-6 * size;
            assert!(near, "{isa} {Q} heads of {dim}, sum {i}: {got} for {want}");
        }
    }
}

/// Columns of `blocks` blocks; float rows get a length that is no multiple of a vector's.
fn columns(format: Format, blocks: usize) -> usize {
    if format.is_quantized() { blocks * format.block_len() } else { blocks * 13 }
}

#[test]
fn short_rows_match_in_every_format() {
    for format in Format::ALL {
        for blocks in (1..=9).chain([15, 16, 17, 24, 25]) {
            check_dot(format, 2, columns(format, blocks), blocks as u64);
        }
    }
}

#[test]
fn every_number_of_tokens_matches() {
    for format in Format::ALL {
        for tokens in 1..=13 {
            check_tile(format, TILE_ROWS - tokens, columns(format, 3), tokens, tokens as u64);
            check_tile(format, TILE_ROWS, columns(format, 1), tokens, tokens as u64);
        }
    }
}

#[test]
fn extreme_weights_and_activations_do_not_overflow() {
    for format in Format::ALL.into_iter().filter(|format| format.is_quantized()) {
        let cols = columns(format, 2);
        for (byte, sign) in [(0x00, 1.0), (0xff, 1.0), (0x80, 1.0), (0x7f, -1.0), (0xff, -1.0)] {
            let mut data = vec![byte; format.row_bytes(cols).unwrap()];
            let plain = rows(format, 1, cols, 1);
            for (i, (to, from)) in data.iter_mut().zip(&plain).enumerate() {
                let field = i % format.block_bytes();
                if halves_of(format).iter().any(|at| field == *at || field == at + 1) {
                    *to = *from;
                }
            }
            let x = vec![sign; cols];
            let q = quantized(Isa::SCALAR, &x, 1);
            let mut want = [0.0];
            dot_rows_q(Isa::SCALAR, format, &data, data.len(), q.row(0), &mut want);
            let bound = 1e-6 * magnitude(format, &data, &x);
            for isa in Isa::available() {
                let (mut got, mut tile) = ([f32::NAN], Tile::default());
                let mut tiled = [[f32::NAN; TILE_ROWS]; 1];
                dot_rows_q(isa, format, &data, data.len(), q.row(0), &mut got);
                tile.load(isa, format, &data, cols);
                gemm_q(isa, &tile, &q, &mut tiled);
                for got in [got[0], tiled[0][0]] {
                    let near = (want[0] - got).abs() <= bound;
                    assert!(near, "{isa} {format} {byte:#x}: {got} for {} ± {bound}", want[0]);
                }
            }
        }
    }
}

#[test]
fn attention_matches_for_usual_heads() {
    for dim in [8, 16, 24, 40, 48, 64, 80, 96, 112, 128, 256] {
        for keys in [1, 2, 5, 33] {
            check_attention::<1>(dim, keys, 1);
            check_attention::<2>(dim, keys, 2);
            check_attention::<3>(dim, keys, 3);
            check_attention::<4>(dim, keys, 4);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn dot_matches_its_scalar_twin(
        format in formats(), blocks in 1usize..21, n in 1usize..4, seed: u64
    ) {
        check_dot(format, n, columns(format, blocks), seed);
    }

    #[test]
    fn a_tile_matches_its_rows_dot_products(
        format in formats(), blocks in 1usize..6, n in 1usize..=TILE_ROWS, tokens in 1usize..=17,
        seed: u64
    ) {
        check_tile(format, n, columns(format, blocks), tokens, seed);
    }

    #[test]
    fn attention_matches_its_scalar_twin(dim in 1usize..=140, keys in 1usize..40, seed: u64) {
        check_attention::<1>(dim, keys, seed);
        check_attention::<2>(dim, keys, seed);
        check_attention::<3>(dim, keys, seed);
        check_attention::<4>(dim, keys, seed);
    }

    #[test]
    fn quantising_is_the_same_everywhere_and_near(groups in 1usize..5, seed: u64) {
        let x = floats(groups * 32, seed);
        let want = quantized(Isa::SCALAR, &x, 1);
        for isa in Isa::available() {
            let got = quantized(isa, &x, 1);
            prop_assert_eq!(&got.q, &want.q);
            prop_assert_eq!(&got.d, &want.d);
            prop_assert_eq!(&got.sum16, &want.sum16);
            prop_assert_eq!(&got.sum32, &want.sum32);
        }
        for (i, x) in x.iter().enumerate() {
            let back = f32::from(want.q[i]) * want.d[i / 32];
            prop_assert!((back - x).abs() <= want.d[i / 32] * 0.5001);
        }
    }
}

#[test]
fn halves_round_the_same_everywhere() {
    let x: Vec<f32> = floats(70, 3).into_iter().chain([0.0, -0.0, 1e-8, 7e4, -1e9]).collect();
    for isa in Isa::available() {
        let mut got = vec![0; x.len()];
        to_f16(isa, &x, &mut got);
        for (x, got) in x.iter().zip(got) {
            assert_eq!(got, half::f16::from_f32(*x).to_bits(), "{isa}: {x}");
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for isa in Isa::available() {
            let mut x = floats(64, 5);
            x[37] = bad;
            let q = quantized(isa, &x, 1);
            let row = rows(Format::Q4_0, 1, 64, 9);
            let mut out = [0.0];
            dot_rows_q(isa, Format::Q4_0, &row, row.len(), q.row(0), &mut out);
            assert!(out[0].is_nan(), "{isa}: {bad} gives {}", out[0]);
        }
    }
}

#[test]
fn tiny_activations_are_zero() {
    let q = quantized(Isa::SCALAR, &[1e-37; 32], 1);
    assert!(q.q.iter().all(|q| *q == 0) && q.d[0] == 0.0);
}

/// Columns of `len` values that are one after the other.
fn split(format: ColumnFormat, len: usize, columns: &[u8]) -> Vec<&[u8]> {
    columns.chunks_exact(format.column_bytes(len).unwrap()).collect()
}

proptest! {
    #[test]
    fn columns_are_added_alike(seed: u64, groups in 1usize..20, n in 1usize..19) {
        let len = 32 * groups;
        for format in ColumnFormat::ALL {
            let mut columns = Vec::new();
            for j in 0..n {
                let at = columns.len();
                columns.resize(at + format.column_bytes(len).unwrap(), 0);
                let values = floats(len, seed ^ j as u64);
                crate::column::quantize_column(format, &values, &mut columns[at..]);
            }
            let weights = floats(n, !seed);
            let mut want = floats(len, seed >> 1);
            let start = want.clone();
            let columns = split(format, len, &columns);
            scalar::add_columns(format, &columns, &weights, &mut want);
            for isa in Isa::available() {
                let mut out = start.clone();
                add_columns(isa, format, &columns, &weights, &[], &mut out);
                for (out, want) in out.iter().zip(&want) {
                    prop_assert!((out - want).abs() <= 1e-5 * n as f32 * 10.0, "{format} {isa}: {out} for {want}");
                }
            }
        }
    }
}

/// Values with a few much larger ones among them, as neurons have.
fn spread(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..n).map(|_| (rng.float() * 4.0).exp2() * rng.float().signum()).collect()
}

/// Root of the mean squared error of one output, of columns added and of what rows do: hidden
/// values of 8 bits, exact otherwise.
fn column_errors(isa: Isa, format: ColumnFormat, per_chunk: usize) -> (f64, f64) {
    const NEURONS: usize = 960;
    const OUTPUTS: usize = 320;
    let hidden = spread(NEURONS, 11);
    let (mut columns, mut values) = (Vec::new(), vec![0.0; OUTPUTS]);
    let q = quantized(isa, &hidden, 1);
    let (mut want, mut by_rows) = (vec![0f64; OUTPUTS], vec![0f64; OUTPUTS]);
    for (j, h) in hidden.iter().enumerate() {
        let at = columns.len();
        columns.resize(at + format.column_bytes(OUTPUTS).unwrap(), 0);
        let weights = spread(OUTPUTS, 100 + j as u64);
        crate::column::quantize_column(format, &weights, &mut columns[at..]);
        crate::column::dequantize_column(format, &columns[at..], &mut values);
        let rounded = f64::from(q.q[j]) * f64::from(q.d[j / 32]);
        for (i, w) in values.iter().enumerate() {
            want[i] += f64::from(*h) * f64::from(*w);
            by_rows[i] += rounded * f64::from(*w);
        }
    }
    let mut got = vec![0.0; OUTPUTS];
    let columns = split(format, OUTPUTS, &columns);
    for (columns, hidden) in columns.chunks(per_chunk).zip(hidden.chunks(per_chunk)) {
        add_columns(isa, format, columns, hidden, &[], &mut got);
    }
    let rms = |errors: &mut dyn Iterator<Item = f64>| {
        (errors.map(|e| e * e).sum::<f64>() / OUTPUTS as f64).sqrt()
    };
    (
        rms(&mut got.iter().zip(&want).map(|(got, want)| f64::from(*got) - want)),
        rms(&mut by_rows.iter().zip(&want).map(|(got, want)| got - want)),
    )
}

#[test]
fn columns_err_less_than_rows_do() {
    for isa in Isa::available() {
        for format in ColumnFormat::ALL {
            for per_chunk in [4, 6, 960] {
                let (columns, rows) = column_errors(isa, format, per_chunk);
                assert!(columns <= rows, "{isa} {format} {per_chunk}: {columns} over {rows}");
            }
        }
    }
}

#[test]
fn neurons_that_are_no_number_show_in_every_output() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for format in ColumnFormat::ALL {
            let mut columns = Vec::new();
            for j in 0..3 {
                let at = columns.len();
                columns.resize(at + format.column_bytes(320).unwrap(), 0);
                let values: Vec<f32> = floats(320, j).iter().map(|x| x + 10.0).collect();
                crate::column::quantize_column(format, &values, &mut columns[at..]);
            }
            for (isa, at) in Isa::available().into_iter().flat_map(|isa| [(isa, 0), (isa, 2)]) {
                let (mut weights, mut out) = ([1.0; 3], vec![0.0; 320]);
                let columns = split(format, 320, &columns);
                weights[at] = bad;
                add_columns(isa, format, &columns, &weights, &[], &mut out);
                assert!(out.iter().all(|x| !x.is_finite()), "{isa} {format}: {bad}");
            }
        }
    }
}
