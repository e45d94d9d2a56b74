//! Made-up traces with the statistics of real models.

use super::rng::{Rng, quantile};
use super::trace::{OWN, Trace, TraceShape};
use crate::SchedError;
use crate::error::within;

/// How a made-up trace behaves.
///
/// The logarithm of an importance is normal, and a sum of parts: one that is a chunk's own, one that
/// stays for some tens of tokens, one for a few, and one that is new each time. A score is what
/// correlates with it so that the chosen share of chunks holds a given share of the summed
/// importance (*coverage*). What scores err by lasts as long as what they are right about, since a
/// predictor's errors follow from slowly moving features too.
///
/// The defaults are those measured of SwiGLU models of up to 1.5 billion parameters, in units of
/// neurons: of the best 0.3 of a token 0.46 are also those of the last one, 0.37 four back,
/// 0.35 sixteen back; the best half in the long run holds 0.60 of them; the true best half holds
/// 0.986 of the importance, and what a predictor chooses 0.85 to 0.88.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Where everything follows from.
    pub seed: u64,
    /// Tokens.
    pub n_tokens: u32,
    /// Layers.
    pub n_layers: u32,
    /// Chunks of each, or neurons.
    pub n_chunks: u32,
    /// Standard deviation of the natural logarithm of importances.
    pub spread: f64,
    /// Parts of importances.
    pub parts: Parts,
    /// Parts of what scores err by.
    pub errors: Parts,
    /// Standard deviations of the logarithms of scores, of the first and of the last; `None`: they are what one has to
    /// expect of the importance.
    pub score_spread: Option<[f64; 2]>,
    /// Share of chunks that is computed, at which coverage is given.
    pub keep: f64,
    /// How far apart the shares of different layers are.
    pub keep_range: f64,
    /// How well chunks lie in the order of what is their own in scores, the best first: from 0, not at all, to 1.
    pub order: f64,
    /// Coverage of scores when the layer before is entered, when it is computed, and with the layer's own
    /// input.
    pub coverage: [f64; 3],
    /// Correlation of what first and last scores err by.
    pub common_error: f64,
    /// Stages of the layer before after which scores are had.
    pub stages: u8,
}

/// Parts of a number, of variance 1 in all; the rest is new for each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// Variance of the part that is a chunk's own.
    pub own: f64,
    /// Variance of the part that stays long, and its correlation from token to token.
    pub long: (f64, f64),
    /// The same of the part that stays shortly.
    pub short: (f64, f64),
}

impl Parts {
    const SWIGLU: Self = Self { own: 0.05, long: (0.085, 0.985), short: (0.407, 0.592) };
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            seed: 1,
            n_tokens: 32,
            n_layers: 8,
            n_chunks: 512,
            spread: 2.2,
            parts: Parts::SWIGLU,
            errors: Parts::SWIGLU,
            score_spread: None,
            keep: 0.4,
            keep_range: 0.0,
            order: 0.0,
            coverage: [0.85, 0.88, 0.89],
            common_error: 0.8,
            stages: 8,
        }
    }
}

/// A field of numbers that move from token to token.
struct Field {
    own: Vec<f32>,
    long: Vec<f32>,
    short: Vec<f32>,
}

/// How parts are mixed.
#[derive(Clone, Copy)]
struct Mix {
    long: [f32; 2],
    short: [f32; 2],
    /// Standard deviations of all four parts.
    parts: [f32; 4],
}

impl Mix {
    fn new(of: &Parts) -> Self {
        let step = |rho: f64| [rho as f32, libm::sqrt(1.0 - rho * rho) as f32];
        let fresh = 1.0 - of.own - of.long.0 - of.short.0;
        let sd = |variance: f64| libm::sqrt(variance.max(0.0)) as f32;
        let parts = [sd(of.own), sd(of.long.0), sd(of.short.0), sd(fresh)];
        Self { long: step(of.long.1), short: step(of.short.1), parts }
    }
}

impl Field {
    fn new(n: usize, rng: &mut Rng) -> Self {
        let mut field = Self { own: vec![0.0; n], long: vec![0.0; n], short: vec![0.0; n] };
        for i in 0..n {
            [field.own[i], field.long[i], field.short[i]] = rng.normals();
        }
        field
    }

    /// On to the next token; the number of chunk `i`.
    fn step(&mut self, i: usize, mix: &Mix, rng: &mut Rng) -> f32 {
        let [long, short, fresh] = rng.normals();
        self.long[i] = mix.long[0] * self.long[i] + mix.long[1] * long;
        self.short[i] = mix.short[0] * self.short[i] + mix.short[1] * short;
        let [a, b, c, d] = mix.parts;
        a * self.own[i] + b * self.long[i] + c * self.short[i] + d * fresh
    }
}

/// A score is `truth · right + first · a + second · b`.
#[derive(Clone, Copy)]
struct Score {
    right: f32,
    first: f32,
    second: f32,
    /// Standard deviation of the logarithm, for the importance's 1.
    spread: f32,
}

impl Synthetic {
    /// [Like](Self::like) a trace of Qwen2.5-Coder 1.5B and its trained predictors, its neurons in the order of what they
    /// add in another text.
    pub const QWEN_1_5B: Self = Self {
        seed: 1,
        n_tokens: 64,
        n_layers: 28,
        n_chunks: 8960,
        spread: 1.19,
        parts: Parts { own: 0.090, long: (0.041, 0.985), short: (0.199, 0.670) },
        errors: Parts { own: 0.269, long: (0.058, 0.985), short: (0.247, 0.731) },
        score_spread: Some([1.60, 1.97]),
        keep: 0.586,
        keep_range: 0.71,
        order: 0.72,
        coverage: [0.769, 0.777, 0.782],
        common_error: 0.767,
        stages: 8,
    };

    /// Correlation of scores with the logarithm of importances for a coverage.
    ///
    /// Of log-normal importances those above a bound in a correlated score hold a share of
    /// Φ(spread · r − z), where z is the bound in standard deviations.
    fn correlation(&self, coverage: f64) -> f64 {
        let bound = quantile(1.0 - self.keep);
        ((quantile(coverage) + bound) / self.spread).clamp(0.0, 1.0)
    }

    fn levels(&self) -> Vec<(u8, Score)> {
        let [first, last, own] = self.coverage.map(|coverage| self.correlation(coverage));
        let score = |known: f64, r: f64, turn: f64| {
            let error = libm::sqrt(1.0 - r * r);
            let (a, b) = (error * libm::cos(turn), error * libm::sin(turn));
            let spread = match self.score_spread {
                Some([first, last]) => (first + (last - first) * known) / self.spread,
                // As important as the score makes one expect.
                None => r,
            };
            Score { right: r as f32, first: a as f32, second: b as f32, spread: spread as f32 }
        };
        let most = libm::acos(self.common_error);
        let mut levels = Vec::new();
        for stage in 0..=self.stages {
            let share = f64::from(stage) / f64::from(self.stages);
            // The best is computed first, so most is known early.
            let known = 1.0 - (1.0 - share) * (1.0 - share);
            let level = (share * 254.0) as u8;
            levels.push((level, score(0.0, first + (last - first) * known, most * known)));
        }
        levels.push((OWN, score(1.0, own, most)));
        levels
    }

    /// How many chunks of a layer are computed. Shares are spread evenly, in no order.
    fn n_keep(&self, layer: u32) -> u32 {
        let place = (f64::from(layer) * 0.618_034 + 0.5).fract() - 0.5;
        let n = libm::round(f64::from(self.n_chunks) * (self.keep + self.keep_range * place));
        (n.max(0.0) as u32).clamp(1, self.n_chunks.max(1))
    }

    /// Sorts what is the chunks' own by what of it is in scores.
    fn sort(&self, own: [&mut Vec<f32>; 2], last: Score, rng: &mut Rng) {
        let sd = |parts: &Parts| libm::sqrt(parts.own) as f32;
        let (truth, error) = (last.right * sd(&self.parts), last.first * sd(&self.errors));
        let all = libm::sqrtf(truth * truth + error * error).max(1e-6);
        let noise = libm::sqrt(1.0 - self.order * self.order) as f32;
        let [a, b] = own;
        let mut keyed: Vec<_> = std::iter::zip(&*a, &*b)
            .map(|(a, b)| {
                let is = (truth * a + error * b) / all;
                (self.order as f32 * is + noise * rng.normals()[0], *a, *b)
            })
            .collect();
        keyed.sort_unstable_by(|x, y| y.0.total_cmp(&x.0));
        for (i, (_, x, y)) in keyed.into_iter().enumerate() {
            (a[i], b[i]) = (x, y);
        }
    }

    fn check(&self) -> Result<(), SchedError> {
        within("stages", self.stages.into(), 1.0..=64.0, "1 to 64")?;
        within("keep", self.keep, 0.001..=0.999, "0.001 to 0.999")?;
        within("spread", self.spread, 0.01..=4.0, "0.01 to 4")?;
        within("order", self.order, 0.0..=1.0, "0 to 1")?;
        within("common error", self.common_error, 0.0..=1.0, "0 to 1")?;
        for Parts { own, long, short } in [self.parts, self.errors] {
            within("variances in all", own + long.0 + short.0, 0.0..=1.0, "0 to 1")?;
            for rho in [long.1, short.1] {
                within("correlation", rho, 0.0..=1.0, "0 to 1")?;
            }
        }
        for coverage in self.coverage {
            within("coverage", coverage, 0.001..=0.999, "0.001 to 0.999")?;
        }
        Ok(())
    }

    /// Makes the trace.
    ///
    /// # Errors
    ///
    /// If a setting makes no sense.
    pub fn trace(&self) -> Result<Trace, SchedError> {
        self.check()?;
        let levels = self.levels();
        let shape = TraceShape {
            n_tokens: self.n_tokens,
            n_chunks: vec![self.n_chunks; self.n_layers as usize],
            n_keep: (0..self.n_layers).map(|layer| self.n_keep(layer)).collect(),
            levels: levels.iter().map(|(level, _)| *level).collect(),
        };
        let mut trace = Trace::new(shape)?;
        let mixes = [&self.parts, &self.errors, &self.errors].map(Mix::new);
        let n = self.n_chunks as usize;
        for layer in 0..self.n_layers {
            let mut rng = Rng::new(self.seed ^ (u64::from(layer) + 1) << 32);
            let mut fields: [Field; 3] = std::array::from_fn(|_| Field::new(n, &mut rng));
            if let (true, Some((_, last)), [truth, error, _]) =
                (self.order > 0.0, levels.last(), &mut fields)
            {
                self.sort([&mut truth.own, &mut error.own], *last, &mut rng);
            }
            for token in 0..self.n_tokens {
                let Some(rows) = trace.layer_mut(token, layer) else { continue };
                for i in 0..n {
                    let mut number = 0;
                    let [truth, a, b] = fields.each_mut().map(|field| {
                        number += 1;
                        field.step(i, &mixes[number - 1], &mut rng)
                    });
                    rows[i] = self.byte(truth);
                    for (row, (_, score)) in levels.iter().enumerate() {
                        let x = truth * score.right + a * score.first + b * score.second;
                        rows[(row + 1) * n + i] = self.byte(x * score.spread);
                    }
                }
            }
        }
        Ok(trace)
    }

    /// The byte of an importance, from its logarithm in standard deviations.
    fn byte(&self, deviations: f32) -> u8 {
        let doublings = deviations * (self.spread / core::f64::consts::LN_2) as f32;
        (8.0 * doublings + 128.0).round().clamp(1.0, 255.0) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(row: &[u8], share: f64) -> Vec<bool> {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(row[*i]));
        let mut set = vec![false; row.len()];
        order[..(row.len() as f64 * share) as usize].iter().for_each(|i| set[*i] = true);
        set
    }

    fn overlap(a: &[bool], b: &[bool]) -> f64 {
        let both = a.iter().zip(b).filter(|(a, b)| **a && **b).count();
        both as f64 / a.iter().filter(|a| **a).count() as f64
    }

    fn coverage(truth: &[u8], set: &[bool]) -> f64 {
        let sum = |set: &dyn Fn(usize) -> bool| -> f64 {
            let all = (0..truth.len()).filter(|i| set(*i));
            all.map(|i| f64::from(Trace::decode(truth[i]))).sum()
        };
        sum(&|i| set[i]) / sum(&|_| true)
    }

    #[test]
    fn the_statistics_are_those_that_were_measured() {
        let of = Synthetic { n_tokens: 40, n_layers: 2, n_chunks: 3000, ..Synthetic::default() };
        let trace = of.trace().unwrap();
        let mean = |f: &dyn Fn(u32) -> f64| (20..40).map(f).sum::<f64>() / 20.0;
        let set = |token: u32| best(trace.truth(token, 1), 0.3);
        let near = |found: f64, expected: f64, by: f64| {
            assert!((found - expected).abs() < by, "{found} for {expected}");
        };
        near(mean(&|t| overlap(&set(t), &set(t - 1))), 0.46, 0.02);
        near(mean(&|t| overlap(&set(t), &set(t - 4))), 0.37, 0.02);
        near(mean(&|t| overlap(&set(t), &set(t - 16))), 0.35, 0.02);
        let of_level = |level: u8, keep: f64| {
            mean(&|t| coverage(trace.truth(t, 1), &best(trace.scores(t, 1, level), keep)))
        };
        near(of_level(0, 0.4), 0.85, 0.015);
        near(of_level(254, 0.4), 0.88, 0.015);
        near(of_level(OWN, 0.4), 0.89, 0.015);
        near(mean(&|t| coverage(trace.truth(t, 1), &best(trace.truth(t, 1), 0.5))), 0.986, 0.005);
        // Half of the layer before says most of what all of it does.
        near(of_level(127, 0.4), 0.875, 0.012);
    }

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let of = Synthetic { n_tokens: 2, n_layers: 2, n_chunks: 50, ..Synthetic::default() };
        assert_eq!(of.trace().unwrap(), of.trace().unwrap());
        let other = Synthetic { seed: 2, ..of.clone() };
        assert_ne!(of.trace().unwrap(), other.trace().unwrap());
        assert!(Synthetic { stages: 0, ..of }.trace().is_err());
    }
}
