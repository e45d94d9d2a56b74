//! Making a predictor without gradients: principal components, least squares, vector quantisation.

mod allocate;
mod kmeans;
mod linalg;
mod measure;
mod moments;
mod net;

use std::ops::Range;

use ndarray::{Array1, Array2, ArrayView2, Axis, Zip, s};
use rayon::prelude::*;

pub(crate) use linalg::product;
use linalg::{cholesky, solve};
pub(crate) use measure::{Variances, measure};
use moments::Moments;
pub(crate) use moments::read;
pub(crate) use net::{FactorNet, Net, projection};

use crate::error::HashError;
use crate::lookup::layer::GatedLayer;
use crate::lookup::predictor::length;
use crate::lookup::shape::LookupShape;
use crate::score::to_bf16;

/// Share of the rows that are held back to measure with, and how many at most.
const HELD: usize = 8;
const MAX_HELD: usize = 2048;
/// Outputs whose weights are read at a time.
const OUTPUTS: usize = 1024;

/// Weights of a layer in memory.
#[derive(Debug)]
pub(crate) struct Weights {
    /// Gates and second factors, `[outputs, inputs]`.
    pub factors: [Array2<f32>; 2],
    pub gains: Vec<f32>,
}

impl Weights {
    pub(crate) fn read(layer: &dyn GatedLayer) -> Result<Self, HashError> {
        let mut factors = [0, 1].map(|_| Array2::zeros((layer.n_outputs(), layer.n_inputs())));
        for (i, factor) in factors.iter_mut().enumerate() {
            for begin in (0..layer.n_outputs()).step_by(OUTPUTS) {
                let outputs = begin..(begin + OUTPUTS).min(layer.n_outputs());
                let part = factor.slice_mut(s![outputs.clone(), ..]);
                if i == 0 { layer.gate(outputs, part) } else { layer.up(outputs, part) }
            }
            if let Some(index) = factor.iter().position(|x| !x.is_finite()) {
                return Err(HashError::NotFinite { what: "weight", index });
            }
        }
        let gains = layer.gains();
        length("gains", gains.len(), layer.n_outputs())?;
        Ok(Self { factors, gains })
    }
}

/// Rows to fit to, and rows to measure with, which come after them.
pub(crate) fn divide(n_rows: usize) -> (Range<usize>, Range<usize>) {
    let held = (n_rows / HELD).min(MAX_HELD);
    (0..n_rows - held, n_rows - held..n_rows)
}

/// The layer has what the shape asks for.
fn check(shape: &LookupShape, layer: &dyn GatedLayer) -> Result<(), HashError> {
    shape.check()?;
    length("inputs of the layer", layer.n_inputs(), shape.n_inputs)?;
    length("outputs of the layer", layer.n_outputs(), shape.n_outputs)?;
    if layer.n_kinds() < shape.n_kinds {
        let (what, found) = ("kinds of the layer's features", layer.n_kinds());
        return Err(HashError::Size { what, found, expected: "at least those of the shape" });
    }
    if layer.n_rows() < 2 * HELD {
        let (what, found) = ("number of rows", layer.n_rows());
        return Err(HashError::Size { what, found, expected: "at least 16" });
    }
    Ok(())
}

/// The predictor in floats, with variances of the rounding alone.
pub(crate) fn fit(
    shape: &LookupShape,
    layer: &dyn GatedLayer,
    weights: &Weights,
    seed: u64,
) -> Result<Net, HashError> {
    check(shape, layer)?;
    let (rows, _) = divide(layer.n_rows());
    let moments = Moments::new(layer, rows.len())?;
    let means = net::kinds(shape).iter().map(|kind| {
        let mean = moments::mean(layer, *kind, rows.len())?;
        Ok(mean.iter().map(|x| to_bf16(*x)).collect())
    });
    let means = means.collect::<Result<_, HashError>>()?;
    let directions = moments.directions(shape.n_components, seed)?;
    let (rounded, _) = projection(&directions);
    // Covariances of the components, and of the inputs with them.
    let with = product(rounded.view(), moments.covariance.view());
    let gram = product(with.view(), rounded.t());
    let l = cholesky(&gram.mapv(f64::from))?;
    let spread = gram.diag().mapv(|x| x.max(1e-20).sqrt());
    let groups = [shape.gate_groups, shape.up_groups];
    let factor = |i: usize| {
        let with = product(with.view(), weights.factors[i].t());
        let least = solve(&l, with.view());
        let bias = product(weights.factors[i].view(), moments.mean.view().insert_axis(Axis(1)));
        let bias = bias.column(0).to_owned();
        let total = variances(&weights.factors[i], &moments.covariance);
        Part { least, with, bias, total, gram: &gram, spread: &spread }.factor(groups[i], seed)
    };
    let factors = [factor(0), factor(1)];
    let gains = weights.gains.clone();
    Ok(Net { shape: *shape, means, directions, spread, factors, gains })
}

/// `w · C · w` of each row of weights.
fn variances(weights: &Array2<f32>, covariance: &Array2<f32>) -> Array1<f32> {
    let mut out = Array1::zeros(weights.nrows());
    for (mut out, weights) in
        out.axis_chunks_iter_mut(Axis(0), OUTPUTS).zip(weights.axis_chunks_iter(Axis(0), OUTPUTS))
    {
        let with = product(weights, covariance.view());
        out.assign(&(&with * &weights).sum_axis(Axis(1)));
    }
    out
}

/// What the codes of one factor are made from; components are rows, outputs columns.
struct Part<'a> {
    /// Weights on the components by least squares.
    least: Array2<f32>,
    /// Covariances of components and outputs.
    with: Array2<f32>,
    bias: Array1<f32>,
    /// Variances of the outputs.
    total: Array1<f32>,
    gram: &'a Array2<f32>,
    spread: &'a Array1<f32>,
}

impl Part<'_> {
    fn factor(self, n_groups: usize, seed: u64) -> FactorNet {
        let n = self.least.ncols() as f32;
        let squares = self.least.map_axis(Axis(1), |row| row.dot(&row) / n);
        let counts = &squares * self.spread * self.spread;
        let counts: Vec<f64> = counts.iter().map(|x| f64::from(*x)).collect();
        let groups = allocate::groups(&counts, n_groups);
        let components: Vec<usize> = groups.concat().iter().map(|c| usize::from(*c)).collect();
        // How large an output's weights are beside the others'.
        let inverse = squares.mapv(|x| x.max(1e-30).recip());
        let sizes = self.least.map_axis(Axis(0), |column| {
            let sum: f32 = column.iter().zip(&inverse).map(|(x, by)| x * x * by).sum();
            (sum / column.len() as f32).sqrt().max(1e-20)
        });
        let mut codes = self.least.select(Axis(0), &components).reversed_axes();
        codes = codes.as_standard_layout().into_owned();
        for (mut column, component) in codes.columns_mut().into_iter().zip(&components) {
            column *= self.spread[*component];
            column /= &sizes;
        }
        let mut made = FactorNet {
            entries: entries(&groups, codes.view(), seed),
            groups,
            components,
            codes,
            scale: sizes,
            bias: self.bias.clone(),
            log_variance: Array1::zeros(self.total.len()),
        };
        self.scale(&mut made);
        made
    }

    /// Scales by least squares, and the variances that are left.
    fn scale(&self, factor: &mut FactorNet) {
        let weights = factor.look_up(&factor.assign());
        let spread = self.spread.select(Axis(0), &factor.components);
        let weights = weights / &spread;
        let gram = self.gram.select(Axis(0), &factor.components);
        let gram = gram.select(Axis(1), &factor.components);
        let squares = (&product(weights.view(), gram.view()) * &weights).sum_axis(Axis(1));
        let with = self.with.select(Axis(0), &factor.components).reversed_axes();
        let dots = (&with * &weights).sum_axis(Axis(1));
        Zip::from(&mut factor.scale).and(&dots).and(&squares).for_each(|scale, dot, square| {
            *scale = if *square > 0.0 { dot / square } else { 0.0 };
        });
        let explained = &factor.scale * &dots;
        Zip::from(&mut factor.log_variance).and(&self.total).and(&explained).for_each(
            |out, total, explained| {
                *out = (total - explained).max(1e-4 * total).max(1e-20).ln();
            },
        );
    }
}

/// Centroids of all groups, `[column, entry]`.
fn entries(groups: &[Vec<u16>], codes: ArrayView2<'_, f32>, seed: u64) -> Array2<f32> {
    let mut begin = 0;
    let ranges = groups.iter().map(|group| {
        begin += group.len();
        begin - group.len()..begin
    });
    let ranges: Vec<Range<usize>> = ranges.collect();
    let found = ranges.into_par_iter().enumerate().map(|(i, range)| {
        kmeans::centroids(codes.slice(s![.., range]), seed.wrapping_add(i as u64))
    });
    let found: Vec<[f32; crate::simd::lookup::ENTRIES]> = found.flatten_iter().collect();
    Array2::from_shape_fn((found.len(), crate::simd::lookup::ENTRIES), |(i, j)| found[i][j])
}
