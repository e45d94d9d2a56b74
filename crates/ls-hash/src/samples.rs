//! Where training and reports take their data from.

use ndarray::{ArrayView1, ArrayView2, ArrayView3, ArrayViewMut2, Axis, Zip};

use crate::error::HashError;
use crate::score::sigmoid;

/// One row as it was known at one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The row.
    pub row: usize,
    /// The stage of refinement of its features.
    pub stage: usize,
}

/// Rows of features, at one or several stages of refinement, and of importances.
///
/// Implement it to read them from a file or to compute them when they are asked for;
/// [`Matrices`] has them in memory.
pub trait Samples: Sync {
    /// Rows.
    fn n_rows(&self) -> usize;
    /// Stages at which the features of a row are known; at least 1.
    fn n_stages(&self) -> usize;
    /// Features.
    fn n_inputs(&self) -> usize;
    /// Outputs.
    fn n_outputs(&self) -> usize;
    /// Writes the features of `picks` to `out`, `[picks, inputs]`.
    fn features(&self, picks: &[Pick], out: ArrayViewMut2<'_, f32>);
    /// Writes the importances of `rows` to `out`, `[rows, outputs]`; none is negative.
    fn importance(&self, rows: &[usize], out: ArrayViewMut2<'_, f32>);
    /// Whether [`Samples::factors`] gives anything.
    fn has_factors(&self) -> bool {
        false
    }
    /// Writes the two factors of which the importance is `gain · |silu(gate) · up|`, each
    /// `[rows, outputs]`.
    fn factors(&self, rows: &[usize], gate: ArrayViewMut2<'_, f32>, up: ArrayViewMut2<'_, f32>) {
        let _ = (rows, gate, up);
    }
    /// What each output's activation counts; `None` if all count 1.
    fn gains(&self) -> Option<ArrayView1<'_, f32>> {
        None
    }
}

/// What importance follows from.
#[derive(Clone, Copy, Debug)]
enum Targets<'a> {
    Importance(ArrayView2<'a, f32>),
    Factors {
        gate: ArrayView2<'a, f32>,
        up: ArrayView2<'a, f32>,
        gains: Option<ArrayView1<'a, f32>>,
    },
}

/// Samples in memory.
#[derive(Clone, Copy, Debug)]
pub struct Matrices<'a> {
    features: ArrayView3<'a, f32>,
    targets: Targets<'a>,
}

fn same(what: &'static str, found: usize, expected: usize) -> Result<(), HashError> {
    match found == expected {
        true => Ok(()),
        false => Err(HashError::Length { what, found, expected }),
    }
}

impl<'a> Matrices<'a> {
    /// From features `[rows, stages, inputs]` and importances `[rows, outputs]`.
    ///
    /// # Errors
    ///
    /// [`HashError::Length`] if the numbers of rows differ.
    pub fn with_importance(
        features: ArrayView3<'a, f32>,
        importance: ArrayView2<'a, f32>,
    ) -> Result<Self, HashError> {
        same("importance", importance.nrows(), features.len_of(Axis(0)))?;
        Ok(Self { features, targets: Targets::Importance(importance) })
    }

    /// From features `[rows, stages, inputs]`, the factors of a gated MLP, `[rows, outputs]`
    /// each, and what each output counts.
    ///
    /// # Errors
    ///
    /// [`HashError::Length`] if the numbers of rows or outputs differ.
    pub fn with_factors(
        features: ArrayView3<'a, f32>,
        gate: ArrayView2<'a, f32>,
        up: ArrayView2<'a, f32>,
        gains: Option<ArrayView1<'a, f32>>,
    ) -> Result<Self, HashError> {
        same("gate", gate.nrows(), features.len_of(Axis(0)))?;
        same("up", up.nrows(), gate.nrows())?;
        same("outputs of up", up.ncols(), gate.ncols())?;
        same("gains", gains.map_or(gate.ncols(), |gains| gains.len()), gate.ncols())?;
        Ok(Self { features, targets: Targets::Factors { gate, up, gains } })
    }
}

impl Samples for Matrices<'_> {
    fn n_rows(&self) -> usize {
        self.features.len_of(Axis(0))
    }

    fn n_stages(&self) -> usize {
        self.features.len_of(Axis(1))
    }

    fn n_inputs(&self) -> usize {
        self.features.len_of(Axis(2))
    }

    fn n_outputs(&self) -> usize {
        match self.targets {
            Targets::Importance(of) | Targets::Factors { gate: of, .. } => of.ncols(),
        }
    }

    fn features(&self, picks: &[Pick], mut out: ArrayViewMut2<'_, f32>) {
        for (pick, mut out) in picks.iter().zip(out.rows_mut()) {
            out.assign(&self.features.slice(ndarray::s![pick.row, pick.stage, ..]));
        }
    }

    fn importance(&self, rows: &[usize], mut out: ArrayViewMut2<'_, f32>) {
        for (row, mut out) in rows.iter().zip(out.rows_mut()) {
            match &self.targets {
                Targets::Importance(of) => out.assign(&of.row(*row)),
                Targets::Factors { gate, up, gains } => {
                    let act = Zip::from(&mut out).and(gate.row(*row)).and(up.row(*row));
                    act.for_each(|out, g, u| *out = (g * sigmoid(*g) * u).abs());
                    if let Some(gains) = gains {
                        out *= gains;
                    }
                }
            }
        }
    }

    fn has_factors(&self) -> bool {
        matches!(self.targets, Targets::Factors { .. })
    }

    fn factors(
        &self,
        rows: &[usize],
        mut to_gate: ArrayViewMut2<'_, f32>,
        mut to_up: ArrayViewMut2<'_, f32>,
    ) {
        let Targets::Factors { gate, up, .. } = &self.targets else { return };
        for (i, row) in rows.iter().enumerate() {
            to_gate.row_mut(i).assign(&gate.row(*row));
            to_up.row_mut(i).assign(&up.row(*row));
        }
    }

    fn gains(&self) -> Option<ArrayView1<'_, f32>> {
        match &self.targets {
            Targets::Factors { gains, .. } => *gains,
            Targets::Importance(_) => None,
        }
    }
}
