//! Layers of hash bits: a product, normalised over the batch, and its signs.

use ndarray::{Array1, Array2, ArrayView2, Axis, Zip, s};

use super::param::{Param, Rate, product, sign};
use crate::project::{WeightType, choose_blocks};
use crate::rng::Rng;
use crate::shape::Shape;
use crate::simd::BLOCK;

/// Beyond it the gradient of a sign is taken to be 0.
pub(super) const WINDOW: f32 = 1.5;
/// Share of the mean magnitude below which a ternary weight is 0.
const TERNARY: f32 = 0.7;
const VARIANCE: f32 = 1e-5;

/// What the weights become before they multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Themselves.
    Real,
    /// −1, 0 or 1.
    Ternary,
    /// −1 or 1.
    Binary,
}

/// What becomes of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// Signs of what is normalised over the batch.
    Sign,
    /// `max(0, x)`, not normalised.
    Relu,
}

/// One layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    /// `[bits, inputs]`.
    pub weights: Param,
    /// `[1, bits]`, added after normalisation.
    pub bias: Param,
    /// 1 where there is a weight; nothing if there is everywhere.
    pub mask: Option<Array2<f32>>,
    /// Which blocks these are.
    pub blocks: Vec<u16>,
    pub weight: Weight,
    pub activation: Activation,
}

/// What the way back needs of the way forth.
#[derive(Debug)]
pub(super) struct Trace {
    /// Normalised, biased products.
    h: Array2<f32>,
    deviation: Array1<f32>,
    pub out: Array2<f32>,
    used: Array2<f32>,
}

impl Layer {
    /// The first stack.
    pub(super) fn first(shape: &Shape, activation: Activation, rng: &mut Rng) -> Self {
        let (bits, d) = (shape.stacks[0], shape.n_inputs);
        let blocks = choose_blocks(shape, rng);
        let n_read = (shape.per_bit() * BLOCK).min(d);
        let mut weights = Param::normal(bits, d, (n_read as f32).sqrt().recip(), rng);
        let mask = (!blocks.is_empty()).then(|| {
            let mut mask = Array2::zeros((bits, d));
            for (mut mask, blocks) in
                mask.rows_mut().into_iter().zip(blocks.chunks(shape.per_bit()))
            {
                for block in blocks {
                    let begin = usize::from(*block) * BLOCK;
                    mask.slice_mut(s![begin..(begin + BLOCK).min(d)]).fill(1.0);
                }
            }
            mask
        });
        if let Some(mask) = &mask {
            weights.value *= mask;
        }
        let weight = match shape.weights {
            WeightType::Int8 => Weight::Real,
            WeightType::Ternary => Weight::Ternary,
        };
        let bias = Param::new(Array2::zeros((1, bits)));
        Self { weights, bias, mask, blocks, weight, activation }
    }

    /// A further stack.
    pub(super) fn stack(below: usize, bits: usize, rng: &mut Rng) -> Self {
        Self {
            weights: Param::normal(bits, below, 0.05, rng),
            bias: Param::new(Array2::zeros((1, bits))),
            mask: None,
            blocks: Vec::new(),
            weight: Weight::Binary,
            activation: Activation::Sign,
        }
    }

    /// The weights as they multiply.
    pub(super) fn used(&self) -> Array2<f32> {
        let weights = &self.weights.value;
        match self.weight {
            Weight::Real => weights.clone(),
            Weight::Binary => weights.mapv(sign),
            Weight::Ternary => {
                let mut used = weights.clone();
                for mut row in used.rows_mut() {
                    let n = row.iter().filter(|w| **w != 0.0).count().max(1);
                    let least = TERNARY * row.iter().map(|w| w.abs()).sum::<f32>() / n as f32;
                    row.mapv_inplace(|w| if w.abs() > least { sign(w) } else { 0.0 });
                }
                used
            }
        }
    }

    pub(super) fn forward(&self, x: ArrayView2<'_, f32>) -> Trace {
        let used = self.used();
        let mut h = product(x, used.t());
        let bias = self.bias.value.row(0);
        if self.activation == Activation::Relu {
            h += &bias;
            let out = h.mapv(|h| h.max(0.0));
            return Trace { h, deviation: Array1::ones(bias.len()), out, used };
        }
        let n = h.nrows() as f32;
        h -= &(h.sum_axis(Axis(0)) / n);
        let variance = Zip::from(h.columns()).map_collect(|column| column.dot(&column) / n);
        let deviation = variance.mapv(|v| (v + VARIANCE).sqrt());
        h /= &deviation;
        h += &bias;
        let out = h.mapv(sign);
        Trace { h, deviation, out, used }
    }

    /// Learns from the gradient of the output and returns that of the input, if asked for.
    pub(super) fn backward(
        &mut self,
        x: ArrayView2<'_, f32>,
        trace: &Trace,
        mut gradient: Array2<f32>,
        rate: Rate,
        wants_input: bool,
    ) -> Option<Array2<f32>> {
        let is_sign = self.activation == Activation::Sign;
        Zip::from(&mut gradient).and(&trace.h).for_each(|g, h| {
            let passes = if is_sign { h.abs() < WINDOW } else { *h > 0.0 };
            *g = if passes { *g } else { 0.0 };
        });
        let of_bias = gradient.sum_axis(Axis(0)).insert_axis(Axis(0));
        if is_sign {
            self.through_norm(trace, &mut gradient);
        }
        let back = wants_input.then(|| product(gradient.view(), trace.used.view()));
        let mut of_weights = product(gradient.t(), x);
        if let Some(mask) = &self.mask {
            of_weights *= mask;
        }
        if self.weight == Weight::Binary {
            of_weights.zip_mut_with(&self.weights.value, |g, w| {
                *g = if w.abs() < WINDOW { *g } else { 0.0 };
            });
        }
        self.weights.step(&of_weights, rate);
        self.bias.step(&of_bias, rate);
        back
    }

    /// The gradient of the products from that of the normalised ones.
    fn through_norm(&self, trace: &Trace, gradient: &mut Array2<f32>) {
        let n = gradient.nrows() as f32;
        for (i, mut g) in gradient.columns_mut().into_iter().enumerate() {
            let bias = self.bias.value[[0, i]];
            let normal = trace.h.column(i);
            let mean = g.sum() / n;
            let along = g.iter().zip(&normal).map(|(g, h)| g * (h - bias)).sum::<f32>() / n;
            Zip::from(&mut g).and(&normal).for_each(|g, h| {
                *g = (*g - mean - (h - bias) * along) / trace.deviation[i];
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradient through the normalisation, against differences.
    #[test]
    fn gradient_through_the_norm_is_right() {
        let mut rng = Rng::new(3, 0);
        let mut layer = Layer::stack(5, 4, &mut rng);
        layer.weight = Weight::Real;
        layer.bias = Param::normal(1, 4, 0.3, &mut rng);
        let x = Array2::from_shape_simple_fn((7, 5), || rng.normal());
        let by = Array2::from_shape_simple_fn((7, 4), || rng.normal());
        let value = |x: &Array2<f32>| (&layer.forward(x.view()).h * &by).sum();
        let trace = layer.forward(x.view());
        let mut gradient = by.clone();
        layer.through_norm(&trace, &mut gradient);
        let gradient = gradient.dot(&trace.used);
        for i in 0..7 {
            for j in 0..5 {
                let mut moved = [x.clone(), x.clone()];
                moved[0][[i, j]] += 5e-3;
                moved[1][[i, j]] -= 5e-3;
                let slope = (value(&moved[0]) - value(&moved[1])) / 1e-2;
                assert!((slope - gradient[[i, j]]).abs() < 0.02 * (1.0 + slope.abs()), "{slope}");
            }
        }
    }
}
