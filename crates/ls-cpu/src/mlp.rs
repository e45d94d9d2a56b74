//! The gated MLP, organised by neuron: `Σ_j act(gate_j · x) · (up_j · x) · down_j`.

use crate::elementwise::{Gate, gate_rows};
use crate::matmul::{BATCH, SCRATCH};
use crate::pool::Split;
use crate::quant::{GROUP, Q8Split};
use crate::simd;
use crate::tile::TILE_ROWS;
use crate::{Activations, Cpu, Matrix};

/// Where the neurons' values go.
struct Hidden<'a> {
    float: Split<'a, f32>,
    q8: Option<Q8Split<'a>>,
    cols: usize,
}

impl Hidden<'_> {
    /// Stores neurons `first..` of row `t`.
    fn store(&self, cpu: &Cpu, t: usize, first: usize, values: &[f32]) {
        // SAFETY: each task has its own neurons, whole groups of them.
        #[allow(unsafe_code)]
        unsafe {
            self.float.slice(t * self.cols + first, values.len()).copy_from_slice(values);
            if let Some(q8) = &self.q8 {
                let g = first / GROUP;
                let mut to = q8.groups(t, g..g + values.len() / GROUP);
                simd::quantize_row(cpu.isa, values, &mut to);
            }
        }
    }
}

impl Cpu {
    /// Every neuron's value for the first `n` rows of `x`: `hidden[t][j] = act(gate_j · x[t]) ·
    /// (up_j · x[t])`. `gate` and `up` are `[d_ff, d_model]`, `hidden` is `[n, d_ff]` and comes
    /// out quantised too, ready for the down matrix.
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn mlp_neurons(
        &self,
        gate: Matrix<'_>,
        up: Matrix<'_>,
        kind: Gate,
        x: &Activations,
        n: usize,
        hidden: &mut Activations,
    ) {
        let d_ff = gate.rows();
        assert_eq!((up.rows(), hidden.cols()), (d_ff, d_ff), "neurons of gate, up and hidden");
        assert_eq!((gate.cols(), up.cols()), (x.cols(), x.cols()), "inputs of gate and up");
        let quantize = hidden.q8.cols() > 0;
        let Activations { float, q8, .. } = hidden;
        let hidden =
            Hidden { float: Split::new(float), q8: quantize.then(|| q8.split()), cols: d_ff };
        self.pool.run(d_ff.div_ceil(GROUP), &|task| {
            let neurons = task * GROUP..((task + 1) * GROUP).min(d_ff);
            if n < BATCH {
                let (mut g, mut u) = ([0.0; GROUP], [0.0; GROUP]);
                let (g, u) = (&mut g[..neurons.len()], &mut u[..neurons.len()]);
                for t in 0..n {
                    self.dot_rows(&gate, neurons.clone(), x, t, g);
                    self.dot_rows(&up, neurons.clone(), x, t, u);
                    gate_rows(self.isa, kind, g, u);
                    hidden.store(self, t, neurons.start, g);
                }
            } else {
                self.batch_neurons(gate, up, kind, x, n, neurons, &hidden);
            }
        });
    }

    #[allow(clippy::too_many_arguments)] // one region's whole context
    fn batch_neurons(
        &self,
        gate: Matrix<'_>,
        up: Matrix<'_>,
        kind: Gate,
        x: &Activations,
        n: usize,
        neurons: std::ops::Range<usize>,
        hidden: &Hidden<'_>,
    ) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.group.resize(n, [0.0; GROUP]);
            for first in neurons.clone().step_by(TILE_ROWS) {
                let rows = first..(first + TILE_ROWS).min(neurons.end);
                self.tile(&gate, rows.clone(), x, n, &mut scratch.tile, &mut scratch.out);
                self.tile(&up, rows, x, n, &mut scratch.tile, &mut scratch.out_b);
                let at = first - neurons.start;
                let products = scratch.out.iter_mut().zip(&scratch.out_b);
                for ((gate, up), group) in products.zip(&mut scratch.group) {
                    gate_rows(self.isa, kind, gate, up);
                    group[at..at + TILE_ROWS].copy_from_slice(gate);
                }
            }
            for (t, group) in scratch.group.iter().enumerate() {
                hidden.store(self, t, neurons.start, &group[..neurons.len()]);
            }
        });
    }
}
