//! A predictor in floats, from which the coded one is made.

use ndarray::{Array1, Array2, ArrayView2, Axis, s};
use rayon::prelude::*;

use super::kmeans::nearest;
use crate::error::HashError;
use crate::isa::Isa;
use crate::lookup::expect::Byte;
use crate::lookup::predictor::{Code, Kind, LookupPredictor, ZERO, finite};
use crate::lookup::shape::{FeatureKind, LookupShape};
use crate::score::{from_bf16, to_bf16};
use crate::simd::lookup::{ENTRIES, INPUTS, ROW, put_code};

/// Largest magnitude of a weight of 4 bits.
const MOST: f32 = 7.0;
/// What stays of a seen error from token to token.
const DECAY: f32 = 0.7;

/// What one of the two factors is estimated by.
#[derive(Clone, Debug)]
pub(crate) struct FactorNet {
    /// Components of each group.
    pub groups: Vec<Vec<u16>>,
    /// `groups` one after the other: the columns of `codes`.
    pub components: Vec<usize>,
    /// What codes are the nearest to, `[output, column]`.
    pub codes: Array2<f32>,
    /// `[column, entry]`.
    pub entries: Array2<f32>,
    /// Of each output.
    pub scale: Array1<f32>,
    /// Of each output.
    pub bias: Array1<f32>,
    /// Logarithms of what the estimates' square errors are expected to be.
    pub log_variance: Array1<f32>,
}

/// All that a predictor is made of.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    pub shape: LookupShape,
    /// Of the features of each kind, as they are kept.
    pub means: Vec<Vec<u16>>,
    /// `[component, input]`.
    pub directions: Array2<f32>,
    /// What components are divided by, so that they vary alike.
    pub spread: Array1<f32>,
    pub factors: [FactorNet; 2],
    pub gains: Vec<f32>,
}

/// A row's step and weights within ±7 whose square error is about the least.
fn quantised(row: ndarray::ArrayView1<'_, f32>) -> f32 {
    let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let error =
        |step: f32| -> f32 { row.iter().map(|x| (x - step * level(*x, step)).powi(2)).sum() };
    let steps = (0..12).map(|i| largest * (1.0 - 0.05 * i as f32) / MOST);
    steps.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0.0)
}

fn level(x: f32, step: f32) -> f32 {
    if step > 0.0 { (x / step).round().clamp(-MOST, MOST) } else { 0.0 }
}

/// Rows as a projection of 4 bits has them, and their steps.
pub(crate) fn projection(directions: &Array2<f32>) -> (Array2<f32>, Vec<f32>) {
    let mut out = directions.clone();
    let rows: Vec<_> = out.rows_mut().into_iter().collect();
    let quantise = |mut row: ndarray::ArrayViewMut1<'_, f32>| {
        let step = quantised(row.view());
        row.mapv_inplace(|x| step * level(x, step));
        step
    };
    let steps = rows.into_par_iter().map(quantise).collect();
    (out, steps)
}

impl FactorNet {
    /// The nearest entries, `[output, group]`.
    pub(crate) fn assign(&self) -> Array2<u8> {
        let mut out = Array2::zeros((self.codes.nrows(), self.groups.len()));
        let entries = self.entry_rows();
        let rows: Vec<_> = out.rows_mut().into_iter().zip(self.codes.rows()).collect();
        rows.into_par_iter().with_min_len(64).for_each(|(mut out, codes)| {
            let mut begin = 0;
            for (out, group) in out.iter_mut().zip(&self.groups) {
                let end = begin + group.len();
                *out = nearest(&entries[begin..end], codes.slice(s![begin..end]).iter().copied());
                begin = end;
            }
        });
        out
    }

    pub(crate) fn entry_rows(&self) -> Vec<[f32; ENTRIES]> {
        let rows = self.entries.rows().into_iter();
        rows.map(|row| std::array::from_fn(|i| row[i])).collect()
    }

    /// The entries that `assigned` names, `[output, column]`.
    pub(crate) fn look_up(&self, assigned: &Array2<u8>) -> Array2<f32> {
        let mut out = Array2::zeros(self.codes.raw_dim());
        let entries = self.entry_rows();
        let rows: Vec<_> = out.rows_mut().into_iter().zip(assigned.rows()).collect();
        rows.into_par_iter().with_min_len(64).for_each(|(mut out, assigned)| {
            let mut column = 0;
            for (code, group) in assigned.iter().zip(&self.groups) {
                for _ in group {
                    out[column] = entries[column][usize::from(*code)];
                    column += 1;
                }
            }
        });
        out
    }

    /// Columns of `z`, divided by their spread.
    pub(crate) fn columns(&self, z: ArrayView2<'_, f32>, spread: &Array1<f32>) -> Array2<f32> {
        let mut out = Array2::zeros((z.nrows(), self.components.len()));
        for (mut out, component) in out.columns_mut().into_iter().zip(&self.components) {
            out.assign(&z.column(*component));
            out /= spread[*component];
        }
        out
    }

    fn coded(&self, shape: &LookupShape, spread: &Array1<f32>) -> Code {
        let n = shape.padded_outputs();
        let padded = |of: &Array1<f32>| {
            let mut out: Vec<u16> = of.iter().map(|x| to_bf16(*x)).collect();
            out.resize(n, 0);
            out
        };
        let mut scales = Vec::new();
        let mut entries = Vec::new();
        for (row, component) in self.entries.rows().into_iter().zip(&self.components) {
            let step = row.iter().fold(1e-20f32, |most, x| most.max(x.abs())) / 127.0;
            scales.push(step / spread[*component]);
            entries.push(std::array::from_fn(|i| (row[i] / step).round() as i8));
        }
        Code {
            widths: self.groups.iter().map(|group| group.len() as u8).collect(),
            components: self.components.iter().map(|c| *c as u16).collect(),
            scales,
            entries,
            scale: padded(&self.scale),
            bias: padded(&self.bias),
        }
    }
}

impl Net {
    /// Exact features less their mean.
    pub(crate) fn centred(&self, x: &Array2<f32>) -> Array2<f32> {
        let mean: Array1<f32> = self.means[0].iter().map(|x| from_bf16(*x)).collect();
        x - &mean
    }

    /// The coded predictor, with the same variances for all kinds of features.
    ///
    /// # Errors
    ///
    /// [`HashError::NotFinite`] if a number is not finite.
    pub(crate) fn predictor(&self) -> Result<LookupPredictor, HashError> {
        let shape = self.shape;
        for factor in &self.factors {
            let flat = |of: &Array1<f32>| of.to_vec();
            finite("scale", &flat(&factor.scale))?;
            finite("bias", &flat(&factor.bias))?;
            finite("variance", &flat(&factor.log_variance))?;
            finite("centroid", factor.entries.as_standard_layout().as_slice().unwrap_or(&[]))?;
        }
        finite("gain", &self.gains)?;
        let (weights, rows) = self.packed_projection();
        let mut codes = vec![0; shape.padded_outputs() / 2 * shape.n_groups()];
        let mut first = 0;
        for factor in &self.factors {
            for ((output, group), code) in factor.assign().indexed_iter() {
                put_code(&mut codes, shape.n_groups(), first + group, output, *code);
            }
            first += factor.groups.len();
        }
        let gain_byte = Byte::up_to(self.gains.iter().fold(0.0, |most, x| most.max(*x)));
        let mut gains: Vec<u8> = self.gains.iter().map(|gain| gain_byte.put(*gain)).collect();
        gains.resize(shape.padded_outputs(), 0);
        let deviation = [0, 1].map(|i| self.factors[i].log_variance.mapv(|x| (0.5 * x).exp()));
        let kinds = self.means.iter().map(|means| {
            let mut kind = Kind {
                means: means.clone(),
                deviation: [Vec::new(), Vec::new()],
                bytes: [Byte::up_to(1.0); 2],
                by: [1.0; 2],
                rho: [0.0; 2],
                explained: [0.0; 2],
            };
            (0..2).for_each(|i| kind.set_deviation(i, &deviation[i], shape.padded_outputs()));
            kind
        });
        let made = LookupPredictor {
            shape,
            rows,
            weights,
            factors: [0, 1].map(|i| self.factors[i].coded(&shape, &self.spread)),
            codes,
            gains,
            gain_byte,
            kinds: kinds.collect(),
            decay: DECAY,
            isa: Isa::detect(),
        };
        made.check()?;
        Ok(made)
    }

    /// Weights of 4 bits as kernels read them, and steps of rows.
    fn packed_projection(&self) -> (Vec<u8>, Vec<f32>) {
        let row_bytes = self.shape.row();
        let (rounded, steps) = projection(&self.directions);
        let mut out = vec![ZERO | ZERO << 4; self.shape.n_components * row_bytes];
        let rows = out.chunks_exact_mut(row_bytes).zip(rounded.axis_iter(Axis(0))).zip(&steps);
        for ((out, row), step) in rows {
            for (i, x) in row.iter().enumerate() {
                let nibble = (level(*x, *step) + f32::from(ZERO)) as u8;
                let (block, lane) = (i / INPUTS, i % INPUTS);
                let byte = &mut out[block * ROW + lane % ROW];
                let shift = 4 * (lane / ROW);
                *byte = *byte & !(15 << shift) | nibble << shift;
            }
        }
        (out, steps)
    }
}

impl Kind {
    pub(crate) fn set_deviation(&mut self, i: usize, deviation: &Array1<f32>, padded: usize) {
        let byte = Byte::up_to(deviation.iter().fold(0.0, |most, x| most.max(*x)));
        self.bytes[i] = byte;
        self.deviation[i] = deviation.iter().map(|x| byte.put(*x)).collect();
        self.deviation[i].resize(padded, 0);
    }
}

/// Which kinds of features a predictor of this shape knows.
pub(crate) fn kinds(shape: &LookupShape) -> &'static [FeatureKind] {
    &FeatureKind::ALL[..shape.n_kinds]
}
