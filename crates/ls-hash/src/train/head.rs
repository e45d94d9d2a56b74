//! The codes of some outputs, which are learnt apart from all others.

use ndarray::{Array2, ArrayView2, Axis, Zip, s};

use super::layer::WINDOW;
use super::loss::{Sizes, Targets, factor_loss, log_loss};
use super::param::{Param, Rate, sign};
use crate::rng::Rng;

/// Outputs whose codes are learnt by one task.
pub(super) const OUTPUTS: usize = 128;

/// Codes, scales and offset of one estimate.
#[derive(Clone, Debug)]
pub(super) struct Estimate {
    /// For each code `[outputs, bits]`; the signs are what counts.
    pub codes: Vec<Param>,
    /// `[codes, outputs]`.
    pub scales: Param,
    /// `[1, outputs]`.
    pub offset: Param,
    /// Whether the codes are signs; else they are used as they are and have no scale.
    pub binary: bool,
}

/// Outputs `begin..end` with all their estimates.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub begin: usize,
    pub end: usize,
    pub estimates: Vec<Estimate>,
}

/// What the way back needs of an estimate's way forth.
struct Trace {
    used: Vec<Array2<f32>>,
    dots: Vec<Array2<f32>>,
    out: Array2<f32>,
}

impl Estimate {
    pub(super) fn new(n_outputs: usize, n_bits: usize, n_codes: usize, rng: &mut Rng) -> Self {
        let size = (n_bits as f32).sqrt().recip();
        let codes = (0..n_codes).map(|_| Param::normal(n_outputs, n_bits, 0.05, rng)).collect();
        let scales =
            Array2::from_shape_fn((n_codes, n_outputs), |(code, _)| size / (1 << code) as f32);
        let offset = Param::new(Array2::zeros((1, n_outputs)));
        Self { codes, scales: Param::new(scales), offset, binary: true }
    }

    /// Starts from the correlation of the bits with what is to be estimated: codes are its signs,
    /// scales those that fit best, one code after the other.
    pub(super) fn fit(&mut self, bits: ArrayView2<'_, f32>, target: ArrayView2<'_, f32>) {
        let n = bits.nrows() as f32;
        let mean = target.sum_axis(Axis(0)) / n;
        let mut left = &target - &mean;
        self.offset.value.row_mut(0).assign(&mean);
        for (code, param) in self.codes.iter_mut().enumerate() {
            let mut correlation = left.t().dot(&bits);
            for mut row in correlation.rows_mut() {
                let size = (row.dot(&row) / row.len() as f32).sqrt().max(1e-12);
                row *= 0.05 / size;
            }
            let dots = bits.dot(&correlation.mapv(sign).t());
            let mut scales = self.scales.value.row_mut(code);
            Zip::from(&mut scales)
                .and(dots.columns())
                .and(left.columns())
                .for_each(|scale, dots, left| *scale = dots.dot(&left) / dots.dot(&dots).max(1.0));
            left -= &(dots * &scales);
            param.value = correlation;
        }
    }

    fn forward(&self, bits: ArrayView2<'_, f32>) -> Trace {
        let mut out = Array2::zeros((bits.nrows(), self.offset.value.ncols()));
        out += &self.offset.value;
        let (mut used, mut dots) = (Vec::new(), Vec::new());
        for (code, scales) in self.codes.iter().zip(self.scales.value.rows()) {
            if !self.binary {
                out += &bits.dot(&code.value.t());
                continue;
            }
            let signs = code.value.mapv(sign);
            let dot = bits.dot(&signs.t());
            Zip::from(out.rows_mut()).and(dot.rows()).for_each(|out, dot| {
                Zip::from(out).and(dot).and(scales).for_each(|out, dot, scale| *out += scale * dot);
            });
            used.push(signs);
            dots.push(dot);
        }
        Trace { used, dots, out }
    }

    /// Learns from `gradient` and adds that of the bits to `to_bits`.
    fn backward(
        &mut self,
        bits: ArrayView2<'_, f32>,
        trace: &Trace,
        gradient: &Array2<f32>,
        rate: Rate,
        to_bits: &mut Array2<f32>,
    ) {
        let of_offset = gradient.sum_axis(Axis(0)).insert_axis(Axis(0));
        let mut of_scales = Array2::zeros(self.scales.value.raw_dim());
        for (i, code) in self.codes.iter_mut().enumerate() {
            if !self.binary {
                ndarray::linalg::general_mat_mul(1.0, gradient, &code.value, 1.0, to_bits);
                code.step(&gradient.t().dot(&bits), rate);
                continue;
            }
            let scales = self.scales.value.row(i);
            let mut of_scale = of_scales.row_mut(i);
            for (g, dot) in gradient.rows().into_iter().zip(trace.dots[i].rows()) {
                Zip::from(&mut of_scale).and(g).and(dot).for_each(|out, g, dot| *out += g * dot);
            }
            let scaled = gradient * &scales;
            ndarray::linalg::general_mat_mul(1.0, &scaled, &trace.used[i], 1.0, to_bits);
            let mut of_code = scaled.t().dot(&bits);
            of_code.zip_mut_with(&code.value, |g, c| *g = if c.abs() < WINDOW { *g } else { 0.0 });
            code.step(&of_code, rate);
        }
        self.offset.step(&of_offset, rate);
        if self.binary {
            self.scales.step(&of_scales, rate);
        }
    }
}

impl Head {
    /// One step: the sum of losses, and the gradient of the bits.
    pub(super) fn step(
        &mut self,
        bits: ArrayView2<'_, f32>,
        targets: &Targets,
        gains: &[f32],
        sizes: Sizes,
        rate: Rate,
    ) -> (f64, Array2<f32>) {
        let range = s![.., self.begin..self.end];
        let mut traces: Vec<Trace> = self.estimates.iter().map(|e| e.forward(bits)).collect();
        let loss = match targets {
            Targets::Log { log, weight } => {
                log_loss(traces[0].out.view_mut(), log.slice(range), weight.slice(range))
            }
            Targets::Factors { gate, up } => {
                let gains = &gains[self.begin..self.end];
                pair_loss(&mut traces, [gate.slice(range), up.slice(range)], gains, sizes)
            }
        };
        let mut to_bits = Array2::zeros(bits.raw_dim());
        // So that steps are equally large whatever the batch; Adam does not mind, its ε does.
        let by = 1.0 / bits.nrows() as f32;
        for (estimate, trace) in self.estimates.iter_mut().zip(&traces) {
            let gradient = &trace.out * by;
            estimate.backward(bits, trace, &gradient, rate, &mut to_bits);
        }
        (loss, to_bits)
    }
}

/// Puts gradients in the place of both estimates; the sum of losses.
fn pair_loss(
    traces: &mut [Trace],
    targets: [ArrayView2<'_, f32>; 2],
    gains: &[f32],
    sizes: Sizes,
) -> f64 {
    let [gate, up] = traces else { unreachable!("factors are estimated by pairs") };
    let mut loss = 0.0;
    let rows = gate.out.rows_mut().into_iter().zip(up.out.rows_mut());
    let targets = targets[0].rows().into_iter().zip(targets[1].rows());
    for ((mut gate, mut up), (true_gate, true_up)) in rows.zip(targets) {
        let mut of_row = 0.0;
        for i in 0..gains.len() {
            let target = [true_gate[i], true_up[i]];
            let (l, [to_gate, to_up]) = factor_loss([gate[i], up[i]], target, gains[i], sizes);
            of_row += l;
            (gate[i], up[i]) = (to_gate, to_up);
        }
        loss += f64::from(of_row);
    }
    loss
}
