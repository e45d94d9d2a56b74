//! How much each layer computes.

use super::{KEEPS, LayerPredictor, Predictors, SPREAD};

/// Of what is chosen, the down columns that are added when half of the model or less is computed. The
/// others' true importance is so small that the bytes are worth more in further gates and ups.
const COLUMNS: f64 = 0.65;
/// Steps in which fractions are handed out.
const STEP: f64 = 0.01;
/// Each layer computes at least so much: a predictor's measure of less is unsure.
const LEAST: f64 = 0.1;

/// What a layer computes for a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepPlan {
    /// Fraction of the neurons whose gates and ups are computed.
    pub rows: f64,
    /// A down column is added if the neuron's importance, squared, is at least this multiple of the
    /// least expected importance among the chosen. With 0 all are.
    pub least: f32,
}

impl Predictors {
    /// How much each layer should compute so that of the bytes of all MLPs a `fraction` is computed,
    /// at the least loss, as far as the measurements tell. `row_share`: the share of gates and ups in
    /// the bytes of a neuron.
    pub fn plan(&self, fraction: f64, row_share: f64) -> Vec<KeepPlan> {
        let columns = columns(fraction);
        let rows = fraction / (row_share + columns * (1.0 - row_share));
        let keeps = self.allocate(rows.min(1.0));
        let plan = |(layer, rows): (&LayerPredictor, f64)| {
            let least = if columns < 1.0 { layer.least(rows, 1.0 - columns) } else { 0.0 };
            KeepPlan { rows, least }
        };
        self.layers.iter().zip(keeps).map(plan).collect()
    }

    /// Fractions of the layers' neurons whose mean is `mean`: each step goes to the layer in which it
    /// spares the model's output most.
    fn allocate(&self, mean: f64) -> Vec<f64> {
        let sizes: Vec<f64> = self.layers.iter().map(|l| l.norms.len() as f64).collect();
        let all: f64 = sizes.iter().sum();
        let mut keeps = vec![LEAST.min(mean); self.layers.len()];
        let mut left = mean * all - keeps.iter().zip(&sizes).map(|(k, n)| k * n).sum::<f64>();
        let gain = |i: usize, keep: f64| {
            let layer = &self.layers[i];
            let spared = layer.missed(keep) - layer.missed(keep + STEP);
            f64::from(layer.weight) * spared / sizes[i]
        };
        while left > 0.0 {
            let open = (0..keeps.len()).filter(|i| keeps[*i] < 1.0);
            let best = open.max_by(|a, b| gain(*a, keeps[*a]).total_cmp(&gain(*b, keeps[*b])));
            let Some(best) = best else { break };
            let step = STEP.min(1.0 - keeps[best]).min(left / sizes[best]);
            keeps[best] += step;
            left -= step * sizes[best];
            if step <= 1e-9 {
                break;
            }
        }
        keeps
    }
}

/// Of the chosen neurons, the share whose down columns are added.
fn columns(fraction: f64) -> f64 {
    // Where nearly everything is computed nothing is left to gain, and all of it must be exact.
    COLUMNS + (1.0 - COLUMNS) * ((fraction - 0.5) / 0.5).clamp(0.0, 1.0).powi(2)
}

impl LayerPredictor {
    /// Share of the importance missed when `keep` of the neurons are kept.
    pub fn missed(&self, keep: f64) -> f64 {
        let at = (keep.clamp(0.0, 1.0) * (KEEPS - 1) as f64).min((KEEPS - 1) as f64);
        let i = (at as usize).min(KEEPS - 2);
        between(self.missed[i], self.missed[i + 1], at - i as f64)
    }

    /// What a `share` of the neurons chosen do not exceed when `keep` are chosen.
    fn least(&self, keep: f64, share: f64) -> f32 {
        let row = (keep.clamp(0.0, 1.0) * (KEEPS - 1) as f64).round() as usize;
        let spread = &self.spread[row.max(1)];
        let at = share * (SPREAD + 1) as f64 - 1.0;
        if at < 0.0 {
            return (f64::from(spread[0]) * (at + 1.0)) as f32;
        }
        let j = (at as usize).min(SPREAD - 2);
        between(spread[j], spread[j + 1], (at - j as f64).min(1.0)) as f32
    }
}

fn between(a: f32, b: f32, at: f64) -> f64 {
    f64::from(a) + (f64::from(b) - f64::from(a)) * at
}
