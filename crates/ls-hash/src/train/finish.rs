//! From what was learnt to bits, bytes and thresholds.

use ndarray::{Array2, ArrayView2};

use super::Net;
use super::layer::{Activation, Layer};
use super::prepare::normalised;
use crate::error::HashError;
use crate::isa::Isa;
use crate::predictor::{CLIP, Predictor, Stack};
use crate::project::{Projection, WeightType, Weights};
use crate::samples::{Pick, Samples};
use crate::score::to_bf16;
use crate::shape::{Form, Shape};
use crate::simd::{self, BLOCK, LANES};

pub(super) fn predictor(
    shape: &Shape,
    net: &Net,
    samples: &dyn Samples,
    picks: &[Pick],
) -> Result<Predictor, HashError> {
    debug_assert!(net.layers[0].activation == Activation::Sign);
    let isa = Isa::detect();
    let scale: Vec<f32> = net.scale.iter().map(|scale| scale * 127.0 / CLIP).collect();
    let mut projection = Projection {
        per_bit: shape.per_bit(),
        blocks: net.layers[0].blocks.clone(),
        weights: weights(shape, &net.layers[0]),
        thresholds: Vec::new(),
    };
    // Sums over the same bytes as there will be.
    let features = normalised(shape, samples, picks);
    let mut x = vec![0; shape.n_blocks() * BLOCK];
    let mut sums = Sums::new(picks.len(), shape.stacks[0]);
    for (row, sums) in features.rows().into_iter().zip(sums.rows_mut()) {
        let row = row.as_slice().expect("rows are contiguous");
        simd::quantize(isa, row, &scale, 1.0, &mut x);
        projection.project(isa, &x, sums);
    }
    projection.thresholds = sums.thresholds(&net.layers[0]);
    let mut bits = sums.bits(&projection.thresholds);
    let mut stacks = Vec::new();
    for (layer, width) in net.layers[1..].iter().zip(&shape.stacks[1..]) {
        let codes = interleave(&[layer.weights.value.view()]);
        let mut sums = Sums::new(picks.len(), *width);
        for (bits, sums) in bits.iter().zip(sums.rows_mut()) {
            simd::dots(isa, &codes, bits, sums);
        }
        let thresholds = sums.thresholds(layer);
        bits = sums.bits(&thresholds);
        stacks.push(Stack { codes, thresholds });
    }
    let (codes, terms) = heads(shape, net);
    let made = Predictor { shape: shape.clone(), scale, projection, stacks, codes, terms, isa };
    made.check()?;
    Ok(made)
}

/// Weights of the first layer, of each bit relative to its largest.
fn weights(shape: &Shape, layer: &Layer) -> Weights {
    let used = layer.used();
    let mut bytes = Vec::new();
    for (bit, row) in used.rows().into_iter().enumerate() {
        let largest = row.iter().fold(1e-12f32, |most, w| most.max(w.abs()));
        let by = if shape.weights == WeightType::Ternary { 1.0 } else { 127.0 / largest };
        for i in 0..shape.per_bit() {
            let block = match layer.blocks.is_empty() {
                true => i,
                false => usize::from(layer.blocks[bit * shape.per_bit() + i]),
            };
            let at = |j| row.get(block * BLOCK + j).map_or(0, |w| (w * by).round() as i8);
            bytes.extend((0..BLOCK).map(at));
        }
    }
    if shape.weights == WeightType::Int8 {
        return Weights::Int8(bytes);
    }
    let plane = |block: &[i8], of: i8| {
        let set = block.iter().enumerate().filter(|(_, w)| **w == of);
        set.map(|(i, _)| 1u32 << i).sum::<u32>()
    };
    let planes = bytes.chunks_exact(BLOCK).map(|block| [plane(block, 1), plane(block, -1)]);
    Weights::Ternary(planes.collect())
}

/// Sums of a layer over rows.
struct Sums {
    n_bits: usize,
    values: Vec<i32>,
}

impl Sums {
    fn new(n_rows: usize, n_bits: usize) -> Self {
        Self { n_bits, values: vec![0; n_rows * n_bits] }
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut [i32]> {
        self.values.chunks_exact_mut(self.n_bits)
    }

    /// Where the normalised, biased sum is 0.
    fn thresholds(&self, layer: &Layer) -> Vec<i32> {
        let n = (self.values.len() / self.n_bits) as f64;
        let threshold = |bit: usize| {
            let column = self.values.iter().skip(bit).step_by(self.n_bits);
            let mean = column.clone().map(|x| f64::from(*x)).sum::<f64>() / n;
            let variance = column.map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
            let bias = f64::from(layer.bias.value[[0, bit]]);
            (mean - bias * variance.sqrt()).ceil() as i32
        };
        (0..self.n_bits).map(threshold).collect()
    }

    fn bits(&self, thresholds: &[i32]) -> Vec<Vec<u64>> {
        let word = |(sums, least): (&[i32], &[i32])| {
            let set = sums.iter().zip(least).enumerate();
            set.map(|(i, (sum, least))| u64::from(sum >= least) << i).sum::<u64>()
        };
        let row = |sums: &[i32]| sums.chunks(64).zip(thresholds.chunks(64)).map(word).collect();
        self.values.chunks_exact(self.n_bits).map(row).collect()
    }
}

/// Signs of `[row, bit]` matrices as codes, `[group][matrix][word][lane]`.
fn interleave(matrices: &[ArrayView2<'_, f32>]) -> Vec<u64> {
    let (n_rows, n_bits) = matrices[0].dim();
    let mut codes = Vec::with_capacity(n_rows.div_ceil(LANES) * matrices.len() * n_bits / 8);
    for group in 0..n_rows.div_ceil(LANES) {
        for matrix in matrices {
            for word in 0..n_bits / 64 {
                codes.extend((0..LANES).map(|lane| {
                    let row = group * LANES + lane;
                    let bit = |i: usize| match row < n_rows {
                        true => u64::from(matrix[[row, word * 64 + i]] >= 0.0) << i,
                        false => 0,
                    };
                    (0..64).map(bit).sum::<u64>()
                }));
            }
        }
    }
    codes
}

/// Codes and terms of all outputs. A head's outputs are whole groups, but in the last.
fn heads(shape: &Shape, net: &Net) -> (Vec<u64>, Vec<u16>) {
    let (mut codes, mut terms) = (Vec::new(), Vec::new());
    for head in &net.heads {
        let of_estimates = head.estimates.iter().flat_map(|estimate| &estimate.codes);
        let matrices: Vec<_> = of_estimates.map(|code| code.value.view()).collect();
        codes.extend(interleave(&matrices));
        let columns = term_columns(shape, net, head);
        for first in (0..head.end - head.begin).step_by(LANES) {
            for column in &columns {
                let lane = |lane| column.get(first + lane).map_or(0, |x| to_bf16(*x));
                terms.extend((0..LANES).map(lane));
            }
        }
    }
    (codes, terms)
}

/// Each term for the outputs of a head.
fn term_columns(shape: &Shape, net: &Net, head: &super::head::Head) -> Vec<Vec<f32>> {
    let units = match shape.form {
        Form::Direct => [1.0; 2],
        Form::Bilinear => [net.sizes.gate, net.sizes.up],
    };
    let mut columns = Vec::new();
    for (estimate, unit) in head.estimates.iter().zip(units) {
        let mut rows = |of: &Array2<f32>| {
            columns.extend(of.rows().into_iter().map(|row| row.iter().map(|x| x * unit).collect()));
        };
        rows(&estimate.scales.value);
        rows(&estimate.offset.value);
    }
    if shape.form == Form::Bilinear {
        columns.push(net.gains[head.begin..head.end].to_vec());
    }
    columns
}
