//! Every format against the values that an independent implementation reads from the same bytes.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use ls_cpu::{Activations, Cpu, Format, Isa, Matrix, dequantize_row};

fn fixture(name: &str) -> Vec<u8> {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    // Tests that run on another machine are told where their fixtures are.
    let folder = std::env::var_os("LEANSTREAM_FIXTURES").map_or_else(here, PathBuf::from);
    let path = folder.join("dequant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The blocks of a format, and their values.
fn golden(format: Format) -> (Vec<u8>, Vec<f32>) {
    let values = fixture(&format!("{format}.f32"));
    let values = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (fixture(&format!("{format}.blocks")), values)
}

#[test]
fn blocks_dequantise_to_the_golden_values() {
    for format in Format::ALL {
        let (blocks, want) = golden(format);
        let mut got = vec![f32::NAN; want.len()];
        dequantize_row(format, &blocks, &mut got);
        assert!(want.len() >= 64, "{format} has values");
        assert_eq!(got, want, "{format}");
    }
}

#[test]
fn products_are_those_of_the_golden_values() {
    for isa in Isa::available() {
        for format in Format::ALL {
            let (blocks, want) = golden(format);
            let cpu = Cpu::new(1, isa).unwrap();
            let matrix = Matrix::new(format, 1, want.len(), &blocks).unwrap();
            for tokens in [1, 9] {
                let mut x = Activations::new(tokens, want.len());
                // Small whole numbers with a 127 in each group are exact in 8 bits.
                x.fill(&cpu, tokens, &|t, row| {
                    for (i, x) in row.iter_mut().enumerate() {
                        *x = if i % 32 == t { 127.0 } else { ((i * 7 + t) % 23) as f32 - 11.0 };
                    }
                });
                let mut out = vec![f32::NAN; tokens];
                cpu.matmul(matrix, &x, tokens, &mut out);
                for (t, got) in out.iter().enumerate() {
                    let row = &x.rows(tokens)[t * want.len()..][..want.len()];
                    let terms = row.iter().zip(&want).map(|(x, w)| f64::from(x * w));
                    let exact: f64 = terms.clone().sum();
                    let bound = 1e-5 * terms.map(f64::abs).sum::<f64>();
                    let error = (f64::from(*got) - exact).abs();
                    assert!(error <= bound, "{isa} {format}: {got}, exactly {exact}");
                }
            }
        }
    }
}
