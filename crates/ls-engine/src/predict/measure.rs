//! What a layer's predictor is worth, on rows that it was not trained on.

use ls_cpu::Cpu;
use ls_hash::{FeatureKind, LookupPredictor};
use ndarray::{ArrayView2, Axis};
use parking_lot::Mutex;

use super::{KEEPS, SPREAD};

/// Rows of which the spread is measured: each sorts what is chosen at every fraction.
const SPREAD_ROWS: usize = 128;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub missed: [f32; KEEPS],
    pub spread: [[f32; SPREAD]; KEEPS],
}

#[derive(Clone)]
struct Row {
    missed: [f64; KEEPS],
    spread: Option<Box<[[f32; SPREAD]; KEEPS]>>,
}

/// Measures `predictor` on rows of inputs, `[n, d_model]`, and the true importance of each neuron,
/// `[n, d_ff]`. Rows are averaged in their order, so that the threads do not matter.
pub(super) fn measure(
    cpu: &Cpu,
    predictor: &LookupPredictor,
    x: ArrayView2<'_, f32>,
    importance: ArrayView2<'_, f32>,
) -> Measured {
    let n = x.nrows();
    let rows: Vec<_> = (0..n).map(|_| Mutex::new(None)).collect();
    let threads = cpu.pool().threads();
    cpu.pool().run(threads, &|thread| {
        let mut state = predictor.state();
        for t in (thread..n).step_by(threads) {
            let features = x.index_axis(Axis(0), t);
            let features = features.to_slice().expect("rows in memory");
            predictor.set(&mut state, features, FeatureKind::Exact);
            let importance = importance.index_axis(Axis(0), t);
            let importance = importance.to_slice().expect("rows in memory");
            *rows[t].lock() = Some(row(state.scores(), importance, t < SPREAD_ROWS));
        }
    });
    let rows: Vec<Row> = rows.into_iter().filter_map(Mutex::into_inner).collect();
    mean(&rows)
}

fn row(scores: &[f32], importance: &[f32], with_spread: bool) -> Row {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let energy = |j: usize| f64::from(importance[j]).powi(2);
    let all: f64 = order.iter().map(|j| energy(*j)).sum::<f64>().max(f64::MIN_POSITIVE);
    let mut missed = [0.0; KEEPS];
    let (mut kept, mut done) = (0.0, 0);
    for (i, missed) in missed.iter_mut().enumerate() {
        let k = i * scores.len() / (KEEPS - 1);
        kept += order[done..k].iter().map(|j| energy(*j)).sum::<f64>();
        done = k;
        *missed = (1.0 - kept / all).max(0.0);
    }
    let spread = with_spread.then(|| {
        let mut spread = Box::new([[0.0; SPREAD]; KEEPS]);
        for (i, to) in spread.iter_mut().enumerate().skip(1) {
            let k = (i * scores.len() / (KEEPS - 1)).max(1);
            let least = f64::from(scores[order[k - 1]]).max(f64::MIN_POSITIVE);
            let mut chosen: Vec<f32> =
                order[..k].iter().map(|j| (energy(*j) / least).min(1e30) as f32).collect();
            chosen.sort_by(f32::total_cmp);
            for (j, to) in to.iter_mut().enumerate() {
                *to = chosen[((j + 1) * k / (SPREAD + 1)).min(k - 1)];
            }
        }
        spread
    });
    Row { missed, spread }
}

fn mean(rows: &[Row]) -> Measured {
    let mut missed = [0.0; KEEPS];
    for (i, to) in missed.iter_mut().enumerate() {
        *to = (rows.iter().map(|row| row.missed[i]).sum::<f64>() / rows.len().max(1) as f64) as f32;
    }
    let mut spread = [[0.0; SPREAD]; KEEPS];
    let with: Vec<_> = rows.iter().filter_map(|row| row.spread.as_deref()).collect();
    for (i, j) in (0..KEEPS).flat_map(|i| (0..SPREAD).map(move |j| (i, j))) {
        // The middle row: a few tokens whose importance lies far from what is expected would move a mean.
        let mut values: Vec<f32> = with.iter().map(|spread| spread[i][j]).collect();
        values.sort_by(f32::total_cmp);
        spread[i][j] = values.get(values.len() / 2).copied().unwrap_or(0.0);
    }
    Measured { missed, spread }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_falls_with_what_is_kept() {
        let importance: Vec<f32> = (0..100).map(|j| j as f32).collect();
        let perfect = row(&importance, &importance, true);
        assert_eq!((perfect.missed[0], perfect.missed[KEEPS - 1]), (1.0, 0.0));
        assert!(perfect.missed.is_sorted_by(|a, b| a >= b));
        let constant = row(&[1.0; 100], &importance, true);
        assert!(constant.missed[10] > 3.0 * perfect.missed[10]);
        let spread = perfect.spread.unwrap();
        assert!(spread[10].is_sorted() && spread[10][0] > 0.0);
    }
}
