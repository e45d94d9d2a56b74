//! True energies of rows, kept from epoch to epoch as far as memory allows: computing them takes
//! longer than all the rest of a step.

use std::collections::HashMap;

use ndarray::{Array2, ArrayViewMut1, Axis};
use rayon::prelude::*;

use crate::isa::Isa;
use crate::lookup::fit::{Weights, product};
use crate::score::{from_bf16, to_bf16};
use crate::simd::lookup as kernels;

/// Bytes that are kept at most.
const MAX_BYTES: usize = 512 << 20;

/// Energies by row, upper halves of f32.
#[derive(Debug, Default)]
pub(crate) struct Energies {
    known: HashMap<usize, Box<[u16]>>,
}

impl Energies {
    /// Energies of `rows`, whose features are `x`, `[rows, outputs]`, each row with sum 1.
    pub(crate) fn of(&mut self, rows: &[usize], x: &Array2<f32>, weights: &Weights) -> Array2<f32> {
        let n = weights.gains.len();
        let missing = (0..rows.len()).filter(|i| !self.known.contains_key(&rows[*i]));
        let missing: Vec<usize> = missing.collect();
        let fresh = compute(&x.select(Axis(0), &missing), weights);
        let mut fresh_rows = fresh.rows().into_iter();
        let mut out = Array2::zeros((rows.len(), n));
        let places = rows.iter().zip(out.rows_mut()).map(|(row, out)| {
            let known = self.known.get(row);
            let fresh = if known.is_none() { fresh_rows.next() } else { None };
            (*row, out, known, fresh)
        });
        let places: Vec<_> = places.collect();
        let found = places.into_par_iter().filter_map(|(row, mut out, known, fresh)| {
            let read = |out: &mut ArrayViewMut1<'_, f32>, halves: &[u16]| {
                out.iter_mut().zip(halves).for_each(|(out, x)| *out = from_bf16(*x));
            };
            if let Some(known) = known {
                read(&mut out, known);
                return None;
            }
            // As they will be read the next time, so that nothing depends on what is kept.
            let halves: Box<[u16]> = fresh?.iter().map(|x| to_bf16(*x)).collect();
            read(&mut out, &halves);
            Some((row, halves))
        });
        for (row, halves) in found.collect::<Vec<_>>() {
            if (self.known.len() + 1) * n * 2 <= MAX_BYTES {
                self.known.insert(row, halves);
            }
        }
        out
    }
}

fn compute(x: &Array2<f32>, weights: &Weights) -> Array2<f32> {
    let isa = Isa::detect();
    let mut gate = product(x.view(), weights.factors[0].t());
    let up = product(x.view(), weights.factors[1].t());
    let rows: Vec<_> = gate.rows_mut().into_iter().zip(up.rows()).collect();
    rows.into_par_iter().for_each(|(mut gate, up)| {
        const FLAT: &str = "rows are contiguous";
        let (gate, up) = (gate.as_slice_mut().expect(FLAT), up.to_slice().expect(FLAT));
        kernels::energies(isa, gate, up, &weights.gains);
    });
    gate
}
