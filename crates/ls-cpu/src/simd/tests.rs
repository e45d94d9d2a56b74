//! Every kernel against its scalar twin, on random blocks of every format.

use proptest::prelude::*;

use super::*;
use crate::quant::dequantize_row;

/// Random rows whose f16 fields are ordinary numbers.
fn rows(format: Format, n: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let len = n * format.row_bytes(cols).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    let halves: &[usize] = match format {
        Format::F32 | Format::BF16 | Format::F16 => {
            for (i, b) in bytes.chunks_mut(format.block_bytes()).enumerate() {
                let v = rng.float() * if i % 7 == 0 { 0.0 } else { 1.0 };
                match format {
                    Format::F32 => b.copy_from_slice(&v.to_le_bytes()),
                    Format::F16 => b.copy_from_slice(&half::f16::from_f32(v).to_le_bytes()),
                    _ => b.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes()),
                }
            }
            return bytes;
        }
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
    };
    for block in bytes.chunks_mut(format.block_bytes()) {
        for at in halves {
            let d = half::f16::from_f32(rng.float() * 0.01);
            block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    bytes
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

fn floats(n: usize, seed: u64) -> Vec<f32> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn dot_matches_its_scalar_twin(
        format in formats(), blocks in 1usize..21, n in 1usize..4, seed: u64
    ) {
        let cols = if format.is_quantized() { blocks * format.block_len() } else { blocks * 13 };
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
                prop_assert!((want - got).abs() <= bound, "{isa} {format}: {got} for {want} ± {bound}");
            }
        }
    }

    #[test]
    fn a_tile_matches_its_rows_dot_products(
        format in formats(), blocks in 1usize..6, n in 1usize..=TILE_ROWS, tokens in 1usize..9,
        seed: u64
    ) {
        let cols = if format.is_quantized() { blocks * format.block_len() } else { blocks * 13 };
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
                for (i, want) in want.iter().enumerate() {
                    let bound = 1e-6 * magnitude(format, &data[i * row_bytes..][..row_bytes], x);
                    let got = got[i];
                    prop_assert!((want - got).abs() <= bound, "{isa} {format}: {got} for {want} ± {bound}");
                }
                prop_assert!(got[n..].iter().all(|x| *x == 0.0));
            }
        }
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
