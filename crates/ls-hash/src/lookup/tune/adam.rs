//! Moments of parameters, and steps down their gradients.

use rayon::prelude::*;

const DECAY: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-10;
/// Parameters that are one task.
const PART: usize = 1 << 14;

/// How far to go in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// With the corrections of the moments' bias.
    by: f32,
    root: f32,
}

impl Rate {
    /// Of step `step`, counted from 0.
    pub(crate) fn new(by: f32, step: usize) -> Self {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let [first, second] = DECAY.map(|decay| 1.0 - decay.powi(t));
        Self { by: by / first, root: second.sqrt().recip() }
    }
}

/// Means of gradients and of their squares.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    /// Rate beside those of other parameters.
    rate: f32,
}

impl Moments {
    /// Of `n` parameters.
    pub(crate) fn new(n: usize, rate: f32) -> Self {
        Self { first: vec![0.0; n], second: vec![0.0; n], rate }
    }

    /// One step of Adam.
    pub(crate) fn step(&mut self, values: &mut [f32], gradient: &[f32], rate: Rate) {
        let by = rate.by * self.rate;
        let parts = values.par_chunks_mut(PART).zip(gradient.par_chunks(PART));
        let moments = self.first.par_chunks_mut(PART).zip(self.second.par_chunks_mut(PART));
        parts.zip(moments).for_each(|((values, gradient), (first, second))| {
            let moments = first.iter_mut().zip(second);
            for ((x, g), (first, second)) in values.iter_mut().zip(gradient).zip(moments) {
                *first = DECAY[0] * *first + (1.0 - DECAY[0]) * g;
                *second = DECAY[1] * *second + (1.0 - DECAY[1]) * g * g;
                *x -= by * *first / (second.sqrt() * rate.root + EPSILON);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_is_found() {
        let mut moments = Moments::new(2, 1.0);
        let mut x = [3.0, -2.0];
        for step in 0..400 {
            let gradient = [2.0 * (x[0] - 1.0), 20.0 * (x[1] - 0.5)];
            let fallen = 1.0 - step as f32 / 400.0;
            moments.step(&mut x, &gradient, Rate::new(0.05 * fallen, step));
        }
        assert!((x[0] - 1.0).abs() < 0.01 && (x[1] - 0.5).abs() < 0.01, "{x:?}");
    }
}
