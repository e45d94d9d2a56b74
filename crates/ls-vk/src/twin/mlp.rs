//! The gated MLP over a list of neurons.

use super::{read_column, read_row};
use crate::kernels::mlp::{Activation, MlpShape};

/// What came out, and how large what was added is.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `[d_model]`.
    pub out: Vec<f64>,
    /// Of each output, the sum of the magnitudes of what was added up: rounding errors are relative
    /// to it.
    pub magnitude: Vec<f64>,
}

fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + z.tanh())
        }
    }
}

/// `Σ act(gate · x) · (up · x) · down` over `neurons`: pairs of a frame's bytes and a neuron's index.
///
/// # Panics
///
/// If the shape is impossible or a frame too short.
pub fn mlp<'a>(
    shape: &MlpShape,
    neurons: impl IntoIterator<Item = (&'a [u8], usize)>,
    x: &[f64],
) -> Answer {
    let zero = || vec![0.0; shape.d_model];
    let mut answer = Answer { out: zero(), magnitude: zero() };
    let [gate, up, down] = shape.neuron_bytes();
    for (frame, j) in neurons {
        let product = |format, row: &[u8]| -> (f64, f64) {
            let terms = read_row(format, row).into_iter().zip(x).map(|(w, x)| w * x);
            terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()))
        };
        let (g, g_size) = product(shape.gate, &frame[j * gate..][..gate]);
        let (u, u_size) = product(shape.up, &frame[shape.up_at + j * up..][..up]);
        let h = activation(shape.activation, g) * u;
        // The derivatives of both activations stay below 1.13.
        let size = 1.13 * g_size * u.abs() + activation(shape.activation, g).abs() * u_size;
        let column = read_column(shape.down, &frame[shape.down_at + j * down..][..down]);
        for ((out, magnitude), w) in answer.out.iter_mut().zip(&mut answer.magnitude).zip(column) {
            *out += h * w;
            *magnitude += size.max(h.abs()) * w.abs();
        }
    }
    answer
}
