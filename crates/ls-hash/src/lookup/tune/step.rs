//! One step: forward through codes and expectations, back to all that is learnt.

use ndarray::{Array1, Array2, ArrayView2, Axis, s};
use rayon::prelude::*;

use super::adam::{Moments, Rate};
use super::loss::{Knowns, Slopes, kth};
use crate::isa::Isa;
use crate::lookup::fit::{FactorNet, Net, product, projection};
use crate::simd::lookup::{self as kernels, ENTRIES};

/// Rows whose gradients are summed in one task. Fixed, so that sums do not depend on threads.
const ROWS: usize = 64;

/// Moments of all that is learnt.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    directions: Moments,
    factors: [FactorMoments; 2],
}

#[derive(Clone, Debug)]
struct FactorMoments {
    codes: Moments,
    entries: Moments,
    scale: Moments,
    bias: Moments,
    log_variance: Moments,
}

/// What of a selection the loss counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// Outputs that are selected.
    pub k: usize,
    pub softness: f32,
}

/// One factor on the way forward.
struct Pass {
    assigned: Array2<u8>,
    /// Entries by output, `[output, column]`.
    looked_up: Array2<f32>,
    /// With scales.
    weights: Array2<f32>,
    /// Components, `[row, column]`.
    columns: Array2<f32>,
    /// `[row, output]`; on the way back the loss's slopes by them.
    estimates: Array2<f32>,
}

impl Pass {
    fn forward(factor: &FactorNet, z: ArrayView2<'_, f32>, spread: &Array1<f32>) -> Self {
        let assigned = factor.assign();
        let looked_up = factor.look_up(&assigned);
        let mut weights = looked_up.clone();
        scale_rows(&mut weights, &factor.scale);
        let columns = factor.columns(z, spread);
        let mut estimates = product(columns.view(), weights.t());
        let rows: Vec<_> = estimates.rows_mut().into_iter().collect();
        rows.into_par_iter().for_each(|mut row| row += &factor.bias);
        Self { assigned, looked_up, weights, columns, estimates }
    }

    /// One step of the factor, and the slopes by the components, `[row, column]`.
    fn backward(
        self,
        factor: &mut FactorNet,
        moments: &mut FactorMoments,
        of_variance: &[f32],
        rate: Rate,
    ) -> Array2<f32> {
        let by_columns = product(self.estimates.view(), self.weights.view());
        let by_weights = product(self.estimates.t(), self.columns.view());
        let by_scale = dots_of_rows(&by_weights, &self.looked_up);
        let by_bias = sum_of_rows(&self.estimates);
        let mut by_codes = by_weights;
        scale_rows(&mut by_codes, &factor.scale);
        let by_entries = sums_by_entry(factor, &self.assigned, &by_codes);
        let all = |of: &mut Moments, values: &mut [f32], gradient: &[f32]| {
            of.step(values, gradient, rate);
        };
        const FLAT: &str = "made in standard layout";
        all(
            &mut moments.codes,
            factor.codes.as_slice_mut().expect(FLAT),
            by_codes.as_slice().expect(FLAT),
        );
        all(&mut moments.entries, factor.entries.as_slice_mut().expect(FLAT), &by_entries);
        all(
            &mut moments.scale,
            factor.scale.as_slice_mut().expect(FLAT),
            by_scale.as_slice().expect(FLAT),
        );
        all(
            &mut moments.bias,
            factor.bias.as_slice_mut().expect(FLAT),
            by_bias.as_slice().expect(FLAT),
        );
        all(
            &mut moments.log_variance,
            factor.log_variance.as_slice_mut().expect(FLAT),
            of_variance,
        );
        by_columns
    }
}

/// Multiplies each row by its number.
fn scale_rows(of: &mut Array2<f32>, by: &Array1<f32>) {
    let rows: Vec<_> = of.rows_mut().into_iter().zip(by).collect();
    rows.into_par_iter().with_min_len(ROWS).for_each(|(mut row, by)| row *= *by);
}

/// The product of each row of `a` with that of `b`.
fn dots_of_rows(a: &Array2<f32>, b: &Array2<f32>) -> Array1<f32> {
    let rows: Vec<_> = a.rows().into_iter().zip(b.rows()).collect();
    let dots: Vec<f32> = rows.into_par_iter().with_min_len(ROWS).map(|(a, b)| a.dot(&b)).collect();
    Array1::from_vec(dots)
}

fn sum_of_rows(of: &Array2<f32>) -> Array1<f32> {
    let parts: Vec<_> = of.axis_chunks_iter(Axis(0), ROWS).collect();
    let parts = parts.into_par_iter().map(|part| part.sum_axis(Axis(0)).to_vec());
    let parts: Vec<Vec<f32>> = parts.collect();
    Array1::from_vec(total(&parts, of.ncols()))
}

/// Slopes by each entry, `[column, entry]`: those by the codes that it stands for.
fn sums_by_entry(factor: &FactorNet, assigned: &Array2<u8>, by_codes: &Array2<f32>) -> Vec<f32> {
    let rows: Vec<usize> = (0..by_codes.nrows()).step_by(4 * ROWS).collect();
    let parts = rows.into_par_iter().map(|begin| {
        let end = (begin + 4 * ROWS).min(by_codes.nrows());
        let mut sums = vec![0.0; factor.components.len() * ENTRIES];
        let codes = by_codes.slice(s![begin..end, ..]);
        let assigned = assigned.slice(s![begin..end, ..]);
        for (slopes, assigned) in codes.rows().into_iter().zip(assigned.rows()) {
            let mut column = 0;
            for (code, group) in assigned.iter().zip(&factor.groups) {
                for _ in group {
                    sums[column * ENTRIES + usize::from(*code)] += slopes[column];
                    column += 1;
                }
            }
        }
        sums
    });
    let parts: Vec<Vec<f32>> = parts.collect();
    total(&parts, factor.components.len() * ENTRIES)
}

fn total(parts: &[Vec<f32>], n: usize) -> Vec<f32> {
    let mut sum = vec![0.0; n];
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
    }
    sum
}

impl Learner {
    pub(crate) fn new(net: &Net) -> Self {
        let mean = |of: &mut dyn Iterator<Item = f32>, n: usize| {
            of.map(f32::abs).sum::<f32>() / n.max(1) as f32
        };
        let d = &net.directions;
        let size = mean(&mut d.iter().copied(), d.len());
        let factor = |factor: &FactorNet| {
            let n = factor.scale.len();
            FactorMoments {
                codes: Moments::new(factor.codes.len(), 0.01),
                entries: Moments::new(factor.entries.len(), 0.003),
                scale: Moments::new(n, 0.003 * mean(&mut factor.scale.iter().copied(), n)),
                bias: Moments::new(n, 0.003 * factor.bias.std(0.0)),
                log_variance: Moments::new(n, 0.01),
            }
        };
        Self {
            directions: Moments::new(d.len(), 0.02 * size),
            factors: [factor(&net.factors[0]), factor(&net.factors[1])],
        }
    }

    /// Learns from centred features `x` and the outputs' true energies, `[rows, outputs]`, which it
    /// overwrites; the mean loss.
    pub(crate) fn step(
        &mut self,
        net: &mut Net,
        x: ArrayView2<'_, f32>,
        energies: &mut Array2<f32>,
        selection: Selection,
        rate: Rate,
    ) -> f64 {
        let (rounded, _) = projection(&net.directions);
        let z = product(x, rounded.t());
        let [gate, up] = &net.factors;
        let mut gate = Pass::forward(gate, z.view(), &net.spread);
        let mut up = Pass::forward(up, z.view(), &net.spread);
        let (loss, of_gate, of_up) = to_slopes(net, &mut gate, &mut up, energies, selection);
        let mut by_z = Array2::zeros(z.raw_dim());
        for (i, (pass, of_variance)) in [(gate, of_gate), (up, of_up)].into_iter().enumerate() {
            let factor = &mut net.factors[i];
            let by_columns = pass.backward(factor, &mut self.factors[i], &of_variance, rate);
            for (column, component) in by_columns.columns().into_iter().zip(&factor.components) {
                by_z.column_mut(*component).scaled_add(net.spread[*component].recip(), &column);
            }
        }
        let by_directions = product(by_z.t(), x);
        let by_directions = by_directions.as_standard_layout();
        const FLAT: &str = "made in standard layout";
        self.directions.step(
            net.directions.as_slice_mut().expect(FLAT),
            by_directions.as_slice().expect(FLAT),
            rate,
        );
        loss
    }
}

/// Makes of estimates the mean loss's slopes by them; the loss, and the slopes by the logarithms of
/// the variances.
fn to_slopes(
    net: &Net,
    gate: &mut Pass,
    up: &mut Pass,
    energies: &mut Array2<f32>,
    selection: Selection,
) -> (f64, Vec<f32>, Vec<f32>) {
    let isa = Isa::detect();
    let n = net.shape.n_outputs;
    let deviation = net.factors[0].log_variance.mapv(|x| (0.5 * x).exp()).to_vec();
    let variance = net.factors[1].log_variance.mapv(f32::exp).to_vec();
    let knowns = Knowns { deviation: &deviation, variance: &variance, gains: &net.gains };
    let mean = 1.0 / energies.nrows() as f32;
    let parts = energies.axis_chunks_iter_mut(Axis(0), ROWS);
    let parts = parts.zip(gate.estimates.axis_chunks_iter_mut(Axis(0), ROWS));
    let parts = parts.zip(up.estimates.axis_chunks_iter_mut(Axis(0), ROWS));
    let parts: Vec<_> = parts.collect();
    let parts = parts.into_par_iter().map(|((mut energies, mut gate), mut up)| {
        let mut slopes = Slopes::new(n);
        let mut scratch = Vec::with_capacity(n);
        let (mut of_gate, mut of_up) = (vec![0.0; n], vec![0.0; n]);
        let mut sum = 0.0;
        let rows = energies.rows_mut().into_iter().zip(gate.rows_mut()).zip(up.rows_mut());
        for ((mut energies, mut gate), mut up) in rows {
            const FLAT: &str = "rows are contiguous";
            let energies = energies.as_slice_mut().expect(FLAT);
            let gate = gate.as_slice_mut().expect(FLAT);
            let up = up.as_slice_mut().expect(FLAT);
            kernels::slopes(isa, knowns, gate, up, &mut slopes);
            let least = kth(&slopes.log, selection.k, &mut scratch);
            let mut loss = 0.0;
            kernels::soft_loss(isa, &slopes.log, energies, least, selection.softness, &mut loss);
            sum += f64::from(loss);
            for (i, by_log) in energies.iter().enumerate() {
                let by_log = mean * by_log;
                gate[i] = by_log * slopes.gate[i];
                up[i] = by_log * slopes.up[i];
                of_gate[i] += by_log * slopes.gate_variance[i];
                of_up[i] += by_log * slopes.up_variance[i];
            }
        }
        (sum, of_gate, of_up)
    });
    let parts: Vec<(f64, Vec<f32>, Vec<f32>)> = parts.collect();
    let loss = parts.iter().map(|part| part.0).sum::<f64>() * f64::from(mean);
    let (of_gate, of_up): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|(_, of_gate, of_up)| (of_gate, of_up)).unzip();
    (loss, total(&of_gate, n), total(&of_up, n))
}
