//! How much to keep, and in which units.

use super::{ChoiceError, MlpShape};

/// Fractions of neurons to keep, from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Keep(Fractions);

#[derive(Clone, Debug, PartialEq)]
enum Fractions {
    Uniform(f64),
    ByLayer(Vec<f64>),
}

impl Keep {
    /// The same for each layer.
    pub fn uniform(fraction: f64) -> Self {
        Self(Fractions::Uniform(fraction))
    }

    /// One for each layer.
    pub fn by_layer(fractions: Vec<f64>) -> Self {
        Self(Fractions::ByLayer(fractions))
    }

    /// The fraction of each of `n_layers` layers.
    ///
    /// # Errors
    ///
    /// If there are fractions for another number of layers, or one is none.
    pub fn fractions(&self, n_layers: usize) -> Result<Vec<f64>, ChoiceError> {
        let fractions = match &self.0 {
            Fractions::Uniform(fraction) => vec![*fraction; n_layers],
            Fractions::ByLayer(fractions) => fractions.clone(),
        };
        if fractions.len() != n_layers {
            return Err(ChoiceError::Layers { found: fractions.len(), expected: n_layers });
        }
        match fractions.iter().position(|fraction| !(0.0..=1.0).contains(fraction)) {
            Some(layer) => Err(ChoiceError::Fraction { layer, value: fractions[layer] }),
            None => Ok(fractions),
        }
    }
}

/// What is chosen as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grain {
    /// Single neurons.
    #[default]
    Neuron,
    /// All neurons of a chunk alike.
    Chunk,
}

/// The units of a layer that a choice takes, and how many of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    pub shape: MlpShape,
    pub grain: Grain,
    /// Units to keep.
    pub keep: usize,
}

impl Units {
    /// Of each layer.
    pub fn of(keep: &Keep, grain: Grain, layers: &[MlpShape]) -> Result<Vec<Self>, ChoiceError> {
        let fractions = keep.fractions(layers.len())?;
        let units = layers.iter().zip(fractions).map(|(shape, fraction)| {
            let mut units = Self { shape: *shape, grain, keep: 0 };
            units.keep = (fraction * units.len() as f64).round() as usize;
            units
        });
        Ok(units.collect())
    }

    /// Units in all.
    pub fn len(&self) -> usize {
        match self.grain {
            Grain::Neuron => self.shape.d_ff,
            Grain::Chunk => self.shape.n_chunks(),
        }
    }

    /// The neurons of a unit.
    pub fn neurons(&self, unit: usize) -> std::ops::Range<usize> {
        match self.grain {
            Grain::Neuron => unit..unit + 1,
            Grain::Chunk => self.shape.chunk(unit),
        }
    }

    /// Score of a unit by those of its neurons: the root of the sum of their squares.
    fn score(&self, unit: usize, scores: &[f32]) -> f32 {
        match self.grain {
            Grain::Neuron => scores[unit],
            Grain::Chunk => {
                scores[self.neurons(unit)].iter().map(|score| score * score).sum::<f32>().sqrt()
            }
        }
    }

    /// Marks the units that have the highest scores; among equals, the first. `scores` are those of
    /// the neurons, none negative; what is no number comes first. `order` is scratch memory.
    pub fn mark_top(&self, scores: &[f32], order: &mut Vec<u64>, words: &mut [u64]) {
        let n = self.len();
        if self.keep == 0 {
            return;
        }
        order.clear();
        // Magnitudes sort as their bits do; the lower half lets the first of equals be the largest.
        order.extend((0..n).map(|unit| {
            let bits = self.score(unit, scores).to_bits() & 0x7fff_ffff;
            u64::from(bits) << 32 | u64::from(!(unit as u32))
        }));
        let from = n - self.keep.min(n);
        order.select_nth_unstable(from);
        for chosen in &order[from..] {
            ls_cpu::set_range(words, self.neurons(!(*chosen as u32) as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MlpShape = MlpShape { d_model: 4, d_ff: 10, neurons_per_chunk: 4 };

    fn units(fraction: f64, grain: Grain) -> Units {
        Units::of(&Keep::uniform(fraction), grain, &[SHAPE]).unwrap()[0]
    }

    fn top(units: Units, scores: [f32; 10]) -> Vec<usize> {
        let (mut order, mut words) = (Vec::new(), [0u64]);
        units.mark_top(&scores, &mut order, &mut words);
        (0..64).filter(|j| words[0] >> j & 1 == 1).collect()
    }

    #[test]
    fn the_highest_are_marked_and_the_first_of_equals() {
        let scores = [0.5, 3.0, 1.0, 1.0, 0.0, 2.0, 1.0, 0.0, 9.0, 0.1];
        assert_eq!(top(units(0.4, Grain::Neuron), scores), [1, 2, 5, 8]);
        assert_eq!(top(units(0.0, Grain::Neuron), scores), [0usize; 0]);
        assert_eq!(top(units(1.0, Grain::Neuron), scores), Vec::from_iter(0..10));
        assert_eq!(top(units(0.1, Grain::Neuron), [f32::NAN; 10]), [0]);
    }

    #[test]
    fn chunks_are_marked_by_the_energy_of_their_neurons() {
        // √(4 · 1) against √(3²), and against the last chunk, which is shorter.
        let scores = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0];
        assert_eq!(top(units(0.34, Grain::Chunk), scores), [4, 5, 6, 7]);
        assert_eq!(top(units(0.67, Grain::Chunk), scores), Vec::from_iter(0..8));
        let last = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1];
        assert_eq!(top(units(0.34, Grain::Chunk), last), [8, 9]);
    }

    #[test]
    fn what_is_no_fraction_is_refused() {
        let by_layer = |fractions: &[f64]| Keep::by_layer(fractions.to_vec()).fractions(2);
        assert_eq!(by_layer(&[0.0, 1.0]).unwrap(), [0.0, 1.0]);
        for bad in [-0.1, 1.1, f64::NAN] {
            let error = by_layer(&[0.5, bad]).unwrap_err();
            assert!(matches!(error, ChoiceError::Fraction { layer: 1, .. }), "{error}");
        }
        let error = by_layer(&[0.5]).unwrap_err();
        assert!(matches!(error, ChoiceError::Layers { found: 1, expected: 2 }), "{error}");
    }
}
