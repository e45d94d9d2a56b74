//! The statistics of a recorded trace.

use super::rng::quantile;
use super::synthetic::{Parts, Synthetic};
use super::trace::{OWN, Trace};
use crate::SchedError;
use crate::error::within;

/// Correlation from token to token of the part that stays long: too near 1 to be told from a short trace.
const LONG: f64 = 0.985;
/// Share of the best scores by which their spread is measured: there lies what is worth its reads.
const BEST: f64 = 0.1;
/// Tokens between which importances are compared.
const LAGS: [u32; 4] = [1, 4, 16, 64];

impl Synthetic {
    /// What a made-up trace must be like to have the statistics of `trace`, of which it takes at least 65 tokens.
    ///
    /// Numbers are compared as normal ones of the same rank within their layer and token. The correlations of
    /// importances, and of scores, 1, 4, 16 and 64 tokens apart give the parts; the shares of all that the best chunks
    /// hold the spreads (for scores the best tenth); what the best by score hold of the importance, and how scores are right and wrong together,
    /// the errors. Layers are taken to differ in nothing but the share that is computed.
    ///
    /// # Errors
    ///
    /// If the trace is too short.
    pub fn like(trace: &Trace) -> Result<Self, SchedError> {
        let shape = trace.shape();
        let least = f64::from(LAGS[3]) + 1.0;
        within("tokens of the trace", shape.n_tokens.into(), least..=f64::MAX, "65 or more")?;
        let layers = || 0..shape.n_chunks.len() as u32;
        let pairs = |lag: u32| {
            let pair = move |layer| {
                // Some of them say enough.
                (0..shape.n_tokens - lag).step_by(3).map(move |t| (layer, t, t + lag))
            };
            layers().flat_map(pair)
        };
        let correlations = |level: Option<u8>| {
            LAGS.map(|lag| {
                mean(pairs(lag).map(|(layer, a, b)| {
                    let of = |token| row(trace, token, layer, level);
                    correlation(of(a), of(b))
                }))
            })
        };
        let (of_truth, of_scores) = (correlations(None), correlations(Some(OWN)));

        let keep = |layer: u32| {
            let i = layer as usize;
            f64::from(shape.n_keep[i]) / f64::from(shape.n_chunks[i])
        };
        let share = mean(layers().map(keep)).clamp(0.001, 0.999);
        let rows = || pairs(1).map(|(layer, token, _)| (layer, token));
        // What of one level the best by another hold.
        let cover = |level: Option<u8>, by: Option<u8>, share: f64| {
            mean(rows().map(|(layer, token)| {
                let of = |level| row(trace, token, layer, level);
                covered(of(level), of(by), share)
            }))
        };
        let coverage = [Some(0), Some(OWN - 1), Some(OWN)].map(|by| cover(None, by, share));
        let spread = |level, share: f64| {
            let held = cover(level, level, share).clamp(share + 1e-4, 0.9999);
            quantile(held) + quantile(1.0 - share)
        };
        let right = |level: u8| {
            mean(rows().map(|(layer, token)| {
                correlation(trace.truth(token, layer), trace.scores(token, layer, level))
            }))
        };
        let (first, own_input) = (right(0), right(OWN));
        let both = mean(rows().map(|(layer, token)| {
            correlation(trace.scores(token, layer, 0), trace.scores(token, layer, OWN))
        }));
        let wrong = libm::sqrt((1.0 - first * first) * (1.0 - own_input * own_input));
        let squared = own_input * own_input;
        let of_errors = std::array::from_fn(|i| {
            (of_scores[i] - squared * of_truth[i]) / (1.0 - squared).max(1e-9)
        });
        let own_of_scores = parts(of_scores).own;
        let n_layers = shape.n_chunks.len() as f64;
        let off = mean(layers().map(|layer| (keep(layer) - share) * (keep(layer) - share)));
        let falls = mean(rows().map(|(layer, token)| falls(trace.scores(token, layer, OWN))));
        Ok(Self {
            n_layers: n_layers as u32,
            n_chunks: shape.n_chunks[0],
            keep: share,
            // Of numbers that are spread evenly.
            keep_range: libm::sqrt(12.0 * off),
            spread: spread(None, share),
            parts: parts(of_truth),
            errors: parts(of_errors),
            score_spread: Some([Some(0), Some(OWN)].map(|level| spread(level, BEST))),
            coverage,
            common_error: ((both - first * own_input) / wrong.max(1e-9)).clamp(0.0, 1.0),
            // The halves of a sorted normal number differ by 1.596 standard deviations.
            order: (falls / (1.596 * libm::sqrt(own_of_scores).max(1e-3))).clamp(0.0, 1.0),
            ..Self::default()
        })
    }
}

/// The importances of a token's layer, or the scores of a level.
fn row(trace: &Trace, token: u32, layer: u32, level: Option<u8>) -> &[u8] {
    level.map_or_else(|| trace.truth(token, layer), |level| trace.scores(token, layer, level))
}

/// The parts that make correlations at [`LAGS`].
fn parts([c1, c4, c16, c64]: [f64; 4]) -> Parts {
    let long = |lag: i32| LONG.powi(lag);
    let stays = ((c16 - c64) / (long(16) - long(64))).max(0.0);
    let own = (c64 - stays * long(64)).max(0.0);
    let s1 = (c1 - own - stays * long(1)).max(1e-6);
    let s4 = (c4 - own - stays * long(4)).clamp(1e-9, s1);
    let fades = libm::cbrt(s4 / s1).clamp(0.05, 0.99);
    let short = (s1 / fades).min(1.0 - own - stays);
    Parts { own, long: (stays, LONG), short: (short, fades) }
}

fn mean(all: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = all.fold((0.0, 0usize), |(sum, n), x| (sum + x, n + 1));
    sum / n.max(1) as f64
}

/// For each byte the normal number of the same rank in `row`; equals have the mean rank.
fn normals(row: &[u8]) -> [f64; 256] {
    let mut counts = [0u32; 256];
    row.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let (mut below, n) = (0.0, row.len() as f64);
    counts.map(|count| {
        let middle = below + 0.5 * f64::from(count);
        below += f64::from(count);
        if count == 0 { 0.0 } else { quantile(middle / n) }
    })
}

/// Correlation of two rows by rank.
fn correlation(a: &[u8], b: &[u8]) -> f64 {
    let (of_a, of_b) = (normals(a), normals(b));
    let product = |i: &[f64; 256], a: &[u8], j: &[f64; 256], b: &[u8]| -> f64 {
        a.iter().zip(b).map(|(a, b)| i[usize::from(*a)] * j[usize::from(*b)]).sum()
    };
    let squares = product(&of_a, a, &of_a, a) * product(&of_b, b, &of_b, b);
    product(&of_a, a, &of_b, b) / libm::sqrt(squares).max(1e-9)
}

/// Share of all importance that the best `share` by `scores` hold.
fn covered(truth: &[u8], scores: &[u8], share: f64) -> f64 {
    let mut sums = [(0.0, 0u32); 256];
    for (x, score) in truth.iter().zip(scores) {
        let (sum, n) = &mut sums[usize::from(*score)];
        *sum += f64::from(Trace::decode(*x));
        *n += 1;
    }
    let (mut held, mut left) = (0.0, share * truth.len() as f64);
    for (sum, n) in sums.iter().rev().filter(|(_, n)| *n > 0) {
        let part = (left / f64::from(*n)).min(1.0);
        held += part * sum;
        left -= part * f64::from(*n);
    }
    held / sums.iter().map(|(sum, _)| sum).sum::<f64>().max(1e-30)
}

/// By how much the first half of a row ranks above the second, in standard deviations.
fn falls(row: &[u8]) -> f64 {
    let of = normals(row);
    let half = |row: &[u8]| mean(row.iter().map(|byte| of[usize::from(*byte)]));
    let (first, last) = row.split_at(row.len() / 2);
    half(first) - half(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_made_up_trace_is_like_is_what_it_was_made_of() {
        let parts = Parts { own: 0.15, ..Synthetic::default().parts };
        let of = Synthetic {
            n_tokens: 90,
            n_layers: 4,
            n_chunks: 2000,
            parts,
            errors: Parts { own: 0.3, short: (0.2, 0.6), ..parts },
            score_spread: Some([1.2, 1.5]),
            order: 0.8,
            ..Synthetic::default()
        };
        let found = Synthetic::like(&of.trace().unwrap()).unwrap();
        let near = |a: f64, b: f64, by: f64| assert!((a - b).abs() < by, "{a} for {b}: {found:?}");
        near(found.spread, of.spread, 0.1);
        for (found, of) in [(found.parts, of.parts), (found.errors, of.errors)] {
            near(found.own, of.own, 0.05);
            near(found.long.0, of.long.0, 0.05);
            near(found.short.0, of.short.0, 0.05);
            near(found.short.1, of.short.1, 0.05);
        }
        let spread = found.score_spread.unwrap();
        near(spread[0], 1.2, 0.05);
        near(spread[1], 1.5, 0.05);
        for (found, expected) in found.coverage.iter().zip(of.coverage) {
            near(*found, expected, 0.02);
        }
        near(found.common_error, of.common_error, 0.05);
        near(found.order, of.order, 0.15);
        near(found.keep_range, 0.0, 1e-9);
        assert!(Synthetic::like(&Synthetic::default().trace().unwrap()).is_err());
    }
}
