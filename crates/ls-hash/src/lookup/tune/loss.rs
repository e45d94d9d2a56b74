//! The energy that a soft selection by expected importance misses, and its slopes.
//!
//! Of a row whose true energies are `e`, with sum 1, an output is selected by
//! `m = sigmoid((ln score − τ) / softness)`, where τ is the logarithm of the k-th score. The loss is
//! `Σ (1 − m) · e`. Also τ moves with the scores: by as much as keeps `Σ m` what it is.

use crate::lookup::expect::NODE;
use crate::score::{bounded, sigmoid};

/// Smallest score that counts.
const FLOOR: f32 = 1e-30;

/// What scores follow from, for all outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knowns<'a> {
    /// Standard deviations of the gates.
    pub deviation: &'a [f32],
    /// Variances of the second factors.
    pub variance: &'a [f32],
    /// Gains.
    pub gains: &'a [f32],
}

/// Logarithms of scores and their slopes, for all outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slopes {
    pub log: Vec<f32>,
    /// By the gates' estimates.
    pub gate: Vec<f32>,
    /// By the second factors' estimates.
    pub up: Vec<f32>,
    /// By the logarithms of the gates' variances.
    pub gate_variance: Vec<f32>,
    /// By the logarithms of the second factors' variances.
    pub up_variance: Vec<f32>,
}

impl Slopes {
    pub(crate) fn new(n: usize) -> Self {
        let zero = || vec![0.0; n];
        Self { log: zero(), gate: zero(), up: zero(), gate_variance: zero(), up_variance: zero() }
    }
}

/// Natural logarithm of a positive normal number to about five digits.
#[inline(always)]
fn ln(x: f32) -> f32 {
    // Mantissa from 2/3 to 4/3.
    let bits = x.to_bits().wrapping_sub(0x3f2a_aaab);
    let exponent = (bits as i32 >> 23) as f32;
    let f = f32::from_bits((bits & 0x007f_ffff) + 0x3f2a_aaab) - 1.0;
    let s = f / (2.0 + f);
    let square = s * s;
    let tail = square * (0.666_666_7 + square * (0.4 + square * 0.285_714_3));
    exponent * std::f32::consts::LN_2 + s * (2.0 + tail)
}

/// `silu(x)²` and half its slope.
#[inline(always)]
fn square_silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    let silu = x * s;
    (silu * silu, silu * s * (1.0 + x * (1.0 - s)))
}

/// Logarithms of the scores of one row's estimates, and their slopes.
#[inline(always)]
pub(crate) fn slopes(knowns: Knowns<'_>, gate: &[f32], up: &[f32], out: &mut Slopes) {
    let n = gate.len();
    let (deviation, variance) = (&knowns.deviation[..n], &knowns.variance[..n]);
    let (gains, up) = (&knowns.gains[..n], &up[..n]);
    let (log, of_gate, of_up) = (&mut out.log[..n], &mut out.gate[..n], &mut out.up[..n]);
    let of_gate_variance = &mut out.gate_variance[..n];
    let of_up_variance = &mut out.up_variance[..n];
    for i in 0..n {
        let far = NODE * deviation[i];
        let (low, low_slope) = square_silu(gate[i] - far);
        let (middle, slope) = square_silu(gate[i]);
        let (high, high_slope) = square_silu(gate[i] + far);
        let silu = middle * (2.0 / 3.0) + (low + high) * (1.0 / 6.0) + FLOOR;
        let square = up[i] * up[i] + variance[i] + FLOOR;
        let score = silu * square * (gains[i] * gains[i]);
        log[i] = ln(score.clamp(FLOOR, 1e30));
        of_gate[i] = (slope * (4.0 / 3.0) + (low_slope + high_slope) * (1.0 / 3.0)) / silu;
        of_gate_variance[i] = (high_slope - low_slope) * (1.0 / 6.0) * far / silu;
        of_up[i] = 2.0 * up[i] / square;
        of_up_variance[i] = variance[i] / square;
    }
}

/// Slopes of the loss by logarithms of scores, in place of the energies; the loss. `least` is τ.
#[inline(always)]
pub(crate) fn soft_loss(
    log: &[f32],
    energy: &mut [f32],
    least: f32,
    softness: f32,
    loss: &mut f32,
) {
    let by = 1.0 / softness;
    let log = &log[..energy.len()];
    // Sums in lanes, so that they become vectors.
    let (mut share, mut share_energy, mut missed) = ([0.0f32; 16], [0.0f32; 16], [0.0f32; 16]);
    for (energy, log) in energy.chunks(16).zip(log.chunks(16)) {
        for (i, (energy, log)) in energy.iter().zip(log).enumerate() {
            let m = sigmoid((log - least) * by);
            let h = m * (1.0 - m);
            share[i] += h;
            share_energy[i] += h * energy;
            missed[i] += (1.0 - m) * energy;
        }
    }
    let total = |of: [f32; 16]| of.into_iter().sum::<f32>();
    *loss = total(missed);
    let mean = total(share_energy) / total(share).max(1e-20);
    for (energy, log) in energy.iter_mut().zip(log) {
        let m = sigmoid((log - least) * by);
        *energy = m * (1.0 - m) * by * (mean - *energy);
    }
}

/// True energies `(silu(gate) · up · gain)²`, in place of the gates, with sum 1.
#[inline(always)]
pub(crate) fn energies(gate: &mut [f32], up: &[f32], gains: &[f32]) {
    let mut sums = [0.0f32; 16];
    for ((gate, up), gains) in gate.chunks_mut(16).zip(up.chunks(16)).zip(gains.chunks(16)) {
        for (i, ((gate, up), gain)) in gate.iter_mut().zip(up).zip(gains).enumerate() {
            let act = *gate * sigmoid(*gate) * up * gain;
            *gate = bounded(act * act, 1e30);
            sums[i] += *gate;
        }
    }
    let by = 1.0 / sums.into_iter().sum::<f32>().max(1e-30);
    gate.iter_mut().for_each(|gate| *gate *= by);
}

/// The `k`-th largest of `values`; `scratch` is for sorting.
pub(crate) fn kth(values: &[f32], k: usize, scratch: &mut Vec<f32>) -> f32 {
    scratch.clear();
    scratch.extend_from_slice(values);
    let at = k.clamp(1, values.len()) - 1;
    *scratch.select_nth_unstable_by(at, |a, b| b.total_cmp(a)).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slopes of the logarithm, beside differences.
    #[test]
    fn slopes_of_logarithms_are_right() {
        let log = |g: f32, u: f32, dg: f32, vu: f32| {
            let mut out = Slopes::new(1);
            let knowns = Knowns { deviation: &[dg], variance: &[vu], gains: &[1.5] };
            slopes(knowns, &[g], &[u], &mut out);
            out
        };
        for (g, u, dg, vu) in [
            (0.5, 0.3, 0.4, 0.2),
            (-2.0, -1.0, 1.0, 0.5),
            (3.0, 0.1, 0.1, 1.0),
            (-0.3, 2.0, 0.7, 0.1),
        ] {
            let at = log(g, u, dg, vu);
            let h = 1e-2;
            let near = |found: f32, above: Slopes, below: Slopes, step: f32| {
                let slope = (above.log[0] - below.log[0]) / step;
                assert!((found - slope).abs() < 0.02 * (1.0 + slope.abs()), "{found} {slope}");
            };
            near(at.gate[0], log(g + h, u, dg, vu), log(g - h, u, dg, vu), 2.0 * h);
            near(at.up[0], log(g, u + h, dg, vu), log(g, u - h, dg, vu), 2.0 * h);
            // By the logarithm of a variance: a deviation grows half as fast.
            let (up, down) = ((0.5 * h).exp(), (-0.5 * h).exp());
            near(at.gate_variance[0], log(g, u, dg * up, vu), log(g, u, dg * down, vu), 2.0 * h);
            let (up, down) = (h.exp(), (-h).exp());
            near(at.up_variance[0], log(g, u, dg, vu * up), log(g, u, dg, vu * down), 2.0 * h);
        }
    }

    /// The slope of the loss, τ included: moved so that as much is selected.
    #[test]
    fn slopes_of_the_loss_are_right() {
        let log: Vec<f32> = (0..40).map(|i| ((i * 17) % 23) as f32 * 0.2 - 2.0).collect();
        let energy: Vec<f32> = (0..40).map(|i| ((i * 7) % 11) as f32 / 200.0).collect();
        let (softness, tau) = (0.5f32, 0.3f32);
        let selected = |log: &[f32], tau: f32| -> f32 {
            log.iter().map(|x| sigmoid((x - tau) / softness)).sum()
        };
        let loss = |log: &[f32]| {
            // τ by bisection.
            let (mut low, mut high) = (-9.0, 9.0);
            for _ in 0..60 {
                let middle = (low + high) / 2.0;
                let more = selected(log, middle) > selected(&self::log40(), tau);
                if more { low = middle } else { high = middle }
            }
            let miss = |(x, e): (&f32, &f32)| (1.0 - sigmoid((x - low) / softness)) * e;
            log.iter().zip(&energy).map(miss).sum::<f32>()
        };
        let mut slopes = energy.clone();
        let mut found = 0.0;
        soft_loss(&log, &mut slopes, tau, softness, &mut found);
        assert!((found - loss(&log)).abs() < 1e-4);
        for i in [0, 3, 11, 29] {
            let (mut above, mut below) = (log.clone(), log.clone());
            above[i] += 0.05;
            below[i] -= 0.05;
            let slope = (loss(&above) - loss(&below)) / 0.1;
            assert!((slope - slopes[i]).abs() < 2e-4, "{i}: {slope} {}", slopes[i]);
        }
    }

    fn log40() -> Vec<f32> {
        (0..40).map(|i| ((i * 17) % 23) as f32 * 0.2 - 2.0).collect()
    }

    #[test]
    fn logarithms_are_close() {
        for i in 1..4000 {
            let x = (i as f32 * 0.03 - 60.0).exp();
            assert!((ln(x) - x.ln()).abs() < 2e-5 * (1.0 + x.ln().abs()), "{x}");
        }
    }

    #[test]
    fn kth_counts_from_the_largest() {
        let mut scratch = Vec::new();
        assert_eq!(kth(&[3.0, 1.0, 2.0], 1, &mut scratch), 3.0);
        assert_eq!(kth(&[3.0, 1.0, 2.0], 3, &mut scratch), 1.0);
        assert_eq!(kth(&[3.0, 1.0, 2.0], 9, &mut scratch), 1.0);
    }
}
