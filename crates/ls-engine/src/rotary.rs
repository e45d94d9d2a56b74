//! Cosines and sines of the rotary embedding.

use ls_model::config::{Rope, RopeScaling};

/// The angles of one kind of layer: what a position turns each pair by.
#[derive(Clone, Debug)]
pub(crate) struct Frequencies(Vec<f64>);

/// Cosines and sines for the positions of a batch, `[n, dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Angles {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Frequencies {
    /// For layers that see everything.
    pub fn full(rope: &Rope) -> Self {
        Self::new(rope, rope.base, true)
    }

    /// For layers with a sliding window.
    pub fn local(rope: &Rope) -> Self {
        Self::new(rope, rope.local_base, !rope.local_unscaled)
    }

    fn new(rope: &Rope, base: f32, scaled: bool) -> Self {
        let frequency = |i: usize| {
            let plain = f64::from(base).powf(-2.0 * i as f64 / rope.dim as f64);
            match &rope.scaling {
                RopeScaling::Linear { factor } if scaled => plain / f64::from(*factor),
                RopeScaling::Factors(f) if scaled => {
                    plain / f64::from(f.get(i).copied().unwrap_or(1.0))
                }
                _ => plain,
            }
        };
        Self((0..rope.dim / 2).map(frequency).collect())
    }
}

impl Angles {
    /// Room for `n` positions.
    pub fn new(rope: &Rope, n: usize) -> Self {
        let half = rope.dim / 2;
        Self { half, cos: vec![0.0; n * half], sin: vec![0.0; n * half] }
    }

    /// Writes the angles of positions `start..start + n`.
    pub fn set(&mut self, frequencies: &Frequencies, start: usize, n: usize) {
        let rows = self.cos.chunks_exact_mut(self.half).zip(self.sin.chunks_exact_mut(self.half));
        for (t, (cos, sin)) in rows.take(n).enumerate() {
            for ((c, s), f) in cos.iter_mut().zip(sin).zip(&frequencies.0) {
                let (sine, cosine) = ((start + t) as f64 * f).sin_cos();
                (*c, *s) = (cosine as f32, sine as f32);
            }
        }
    }

    /// Cosines and sines of the batch's position `t`.
    pub fn at(&self, t: usize) -> (&[f32], &[f32]) {
        let at = t * self.half..(t + 1) * self.half;
        (&self.cos[at.clone()], &self.sin[at])
    }
}
