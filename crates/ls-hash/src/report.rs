//! How well scorers choose, and what they cost.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use ndarray::Array2;

use crate::baseline::{Row, Scorer};
use crate::samples::{Pick, Samples};
use crate::select::{Mask, Selector};

/// Share of a row's squared importance that makes an output needed: the fewest outputs that hold
/// this much.
const NEEDED: f64 = 0.99;

/// One scorer at one fraction of outputs kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The scorer's name.
    pub name: String,
    /// Fraction of outputs that are chosen.
    pub keep: f32,
    /// Share of the truly highest that are chosen, as many as are chosen.
    pub recall: f64,
    /// Share of the sum of squared importances that the chosen hold.
    pub coverage: f64,
    /// Share of the chosen that are not among the fewest that hold 99 % of that sum.
    pub wasted: f64,
    /// Memory of the scorer.
    pub n_bytes: usize,
    /// Median time of a call, without the selection.
    pub time: Duration,
}

/// Scorers beside each other; displays as a Markdown table.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Report {
    /// By scorer, then by fraction.
    pub lines: Vec<Line>,
}

impl Report {
    /// Asks each scorer about each of `rows`, with features of `stage`.
    pub fn measure(
        scorers: &mut [&mut dyn Scorer],
        samples: &dyn Samples,
        rows: Range<usize>,
        stage: usize,
        keeps: &[f32],
    ) -> Self {
        let mut sums: Vec<Sums> = scorers.iter().map(|_| Sums::new(keeps.len())).collect();
        let mut data = Data::new(samples);
        for (i, row) in rows.clone().enumerate() {
            data.read(samples, Pick { row, stage });
            for (scorer, sums) in scorers.iter_mut().zip(&mut sums) {
                sums.add(&mut **scorer, &mut data, i > 0, keeps);
            }
        }
        let n = rows.len().max(1);
        let lines = scorers.iter().zip(&sums).flat_map(|(scorer, sums)| {
            let line = |(keep, [recall, coverage, wasted]): (&f32, &[f64; 3])| Line {
                name: scorer.name(),
                keep: *keep,
                recall: recall / n as f64,
                coverage: coverage / n as f64,
                wasted: wasted / n as f64,
                n_bytes: scorer.n_bytes(),
                time: sums.median(),
            };
            keeps.iter().zip(&sums.shares).map(line).collect::<Vec<_>>()
        });
        Self { lines: lines.collect() }
    }

    /// The line of a scorer at a fraction.
    pub fn line(&self, name: &str, keep: f32) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name && line.keep == keep)
    }
}

/// One row and what is chosen of it.
struct Data {
    features: Array2<f32>,
    truth: Array2<f32>,
    last: Array2<f32>,
    scores: Vec<f32>,
    needed: Mask,
    best: Mask,
    chosen: Mask,
    selector: Selector,
}

impl Data {
    fn new(samples: &dyn Samples) -> Self {
        let importance = Array2::zeros((1, samples.n_outputs()));
        Self {
            features: Array2::zeros((1, samples.n_inputs())),
            truth: importance.clone(),
            last: importance,
            scores: vec![0.0; samples.n_outputs()],
            needed: Mask::new(),
            best: Mask::new(),
            chosen: Mask::new(),
            selector: Selector::default(),
        }
    }

    fn read(&mut self, samples: &dyn Samples, pick: Pick) {
        std::mem::swap(&mut self.truth, &mut self.last);
        samples.features(&[pick], self.features.view_mut());
        samples.importance(&[pick.row], self.truth.view_mut());
        let mut order: Vec<usize> = (0..self.truth.len()).collect();
        let truth = self.truth.row(0);
        order.sort_by(|a, b| truth[*b].total_cmp(&truth[*a]));
        let least = NEEDED * total(&self.truth);
        self.needed.clear();
        self.needed.resize(order.len(), false);
        let mut held = 0.0;
        for i in order {
            if held >= least {
                break;
            }
            held += f64::from(truth[i]).powi(2);
            self.needed.set(i, true);
        }
    }
}

fn total(importance: &Array2<f32>) -> f64 {
    importance.iter().map(|x| f64::from(*x).powi(2)).sum()
}

/// Recall, coverage and waste at each fraction, and the time of each call.
struct Sums {
    shares: Vec<[f64; 3]>,
    times: Vec<Duration>,
}

impl Sums {
    fn new(n: usize) -> Self {
        Self { shares: vec![[0.0; 3]; n], times: Vec::new() }
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    fn add(&mut self, scorer: &mut dyn Scorer, data: &mut Data, has_last: bool, keeps: &[f32]) {
        let slice = |of: &Array2<f32>| of.as_slice().expect("rows are contiguous").to_vec();
        let (features, truth, last) =
            (slice(&data.features), slice(&data.truth), slice(&data.last));
        let last = has_last.then_some(&*last);
        let row = Row { features: &features, last, truth: &truth };
        let begin = Instant::now();
        scorer.score(row, &mut data.scores);
        self.times.push(begin.elapsed());
        let all = total(&data.truth).max(f64::MIN_POSITIVE);
        for (keep, [recall, coverage, wasted]) in keeps.iter().zip(&mut self.shares) {
            let k = ((keep * truth.len() as f32).round() as usize).clamp(1, truth.len());
            data.selector.top_k(&data.scores, k, &mut data.chosen);
            data.selector.top_k(&truth, k, &mut data.best);
            let chosen = || data.chosen.iter_ones();
            let n = k as f64;
            *recall += chosen().filter(|i| data.best[*i]).count() as f64 / n;
            *wasted += chosen().filter(|i| !data.needed[*i]).count() as f64 / n;
            *coverage += chosen().map(|i| f64::from(truth[i]).powi(2)).sum::<f64>() / all;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| chooser | kept | recall | coverage | wasted | MB | µs |")?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for line in &self.lines {
            let Line { name, keep, recall, coverage, wasted, .. } = line;
            let (mb, us) = (line.n_bytes as f64 / 1e6, line.time.as_secs_f64() * 1e6);
            writeln!(
                f,
                "| {name} | {keep} | {recall:.3} | {coverage:.3} | {wasted:.3} | {mb:.3} | {us:.1} |"
            )?;
        }
        Ok(())
    }
}
