//! Choices that need no training: the bounds that predictions are measured between.

use std::cell::RefCell;
use std::sync::Arc;

use ls_cpu::{Cpu, Masks};

use super::keep::Units;
use super::{ChoiceError, Choose, Choosing, Grain, Keep, MlpInput, MlpShape, Needs};

thread_local! {
    /// Units in the order of their scores.
    static ORDER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The neurons, or chunks, of the highest true importance: the best that a prediction can do.
#[derive(Clone, Debug)]
pub struct Oracle {
    keep: Keep,
    grain: Grain,
}

impl Oracle {
    /// Chooses as many as `keep` says. A chunk's importance is the root of the sum of the squares of
    /// its neurons'.
    pub fn new(keep: Keep, grain: Grain) -> Self {
        Self { keep, grain }
    }
}

impl Choose for Oracle {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        Ok(Box::new(OracleOf(Units::of(&self.keep, self.grain, layers)?)))
    }

    fn needs(&self) -> Needs {
        Needs::Importance
    }
}

#[derive(Debug)]
struct OracleOf(Vec<Units>);

impl Choosing for OracleOf {
    fn choose(&mut self, cpu: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        let (units, d_ff) = (&self.0[at.layer], masks.n_neurons());
        let importance = at.importance.expect("it says that it needs it");
        masks.for_each_row(cpu, at.n, &|t, words| {
            mark_top(units, &importance[t * d_ff..][..d_ff], words);
        });
    }
}

fn mark_top(units: &Units, scores: &[f32], words: &mut [u64]) {
    ORDER.with_borrow_mut(|order| units.mark_top(scores, order, words));
}

/// What was truly important for the token before: what caches hope for. A sequence's first token
/// computes everything.
#[derive(Clone, Debug)]
pub struct LastSet {
    keep: Keep,
    grain: Grain,
}

impl LastSet {
    /// Chooses as many as `keep` says, as [`Oracle`] does for the token before.
    pub fn new(keep: Keep, grain: Grain) -> Self {
        Self { keep, grain }
    }
}

impl Choose for LastSet {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        let units = Units::of(&self.keep, self.grain, layers)?;
        let last = |units: Units| Last {
            units,
            next_position: 0,
            words: vec![0; units.shape.d_ff.div_ceil(64)],
        };
        Ok(Box::new(LastSetOf(units.into_iter().map(last).collect())))
    }

    fn needs(&self) -> Needs {
        Needs::Importance
    }
}

#[derive(Debug)]
struct LastSetOf(Vec<Last>);

/// What the last token of a layer would have chosen.
#[derive(Debug)]
struct Last {
    units: Units,
    /// The position that it is the last token before.
    next_position: usize,
    words: Vec<u64>,
}

impl Choosing for LastSetOf {
    fn choose(&mut self, cpu: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        let last = &mut self.0[at.layer];
        let (importance, d_ff) =
            (at.importance.expect("it says that it needs it"), masks.n_neurons());
        let is_known = at.position > 0 && last.next_position == at.position;
        let (units, before) = (&last.units, &last.words);
        masks.for_each_row(cpu, at.n, &|t, words| match t.checked_sub(1) {
            Some(t) => mark_top(units, &importance[t * d_ff..][..d_ff], words),
            None if is_known => words.copy_from_slice(before),
            None => ls_cpu::set_range(words, 0..d_ff),
        });
        last.next_position = at.position + at.n;
        last.words.fill(0);
        mark_top(&last.units, &importance[(at.n - 1) * d_ff..][..d_ff], &mut last.words);
    }
}

/// The same neurons for every token.
#[derive(Clone, Debug)]
pub struct Hot(HotSets);

#[derive(Clone, Debug)]
enum HotSets {
    First(Keep, Grain),
    Scores(Arc<Vec<Vec<f32>>>, Keep, Grain),
    Lists(Arc<Vec<Vec<u32>>>),
}

impl Hot {
    /// The first of each layer, which are the hottest if the pack was ordered so.
    pub fn first(keep: Keep, grain: Grain) -> Self {
        Self(HotSets::First(keep, grain))
    }

    /// Those with the highest scores: for each layer a score for each neuron, in the pack's order,
    /// none negative.
    pub fn by_score(scores: Vec<Vec<f32>>, keep: Keep, grain: Grain) -> Self {
        Self(HotSets::Scores(Arc::new(scores), keep, grain))
    }

    /// The neurons that are listed for each layer, as positions in the pack.
    pub fn list(neurons: Vec<Vec<u32>>) -> Self {
        Self(HotSets::Lists(Arc::new(neurons)))
    }
}

impl Choose for Hot {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        let words = |shape: &MlpShape| vec![0u64; shape.d_ff.div_ceil(64)];
        let check = |found: usize| match found == layers.len() {
            true => Ok(()),
            false => Err(ChoiceError::Layers { found, expected: layers.len() }),
        };
        let mut sets: Vec<_> = layers.iter().map(words).collect();
        match &self.0 {
            HotSets::First(keep, grain) => {
                for (units, words) in Units::of(keep, *grain, layers)?.iter().zip(&mut sets) {
                    (0..units.keep).for_each(|u| ls_cpu::set_range(words, units.neurons(u)));
                }
            }
            HotSets::Scores(scores, keep, grain) => {
                check(scores.len())?;
                let units = Units::of(keep, *grain, layers)?;
                for (layer, (scores, words)) in scores.iter().zip(&mut sets).enumerate() {
                    let (found, expected) = (scores.len(), layers[layer].d_ff);
                    if found != expected {
                        return Err(ChoiceError::Neurons { layer, found, expected });
                    }
                    mark_top(&units[layer], scores, words);
                }
            }
            HotSets::Lists(lists) => {
                check(lists.len())?;
                for (layer, (list, words)) in lists.iter().zip(&mut sets).enumerate() {
                    for neuron in list.iter().map(|neuron| *neuron as usize) {
                        let expected = layers[layer].d_ff;
                        if neuron >= expected {
                            return Err(ChoiceError::UnknownNeuron { layer, neuron, expected });
                        }
                        ls_cpu::set_range(words, neuron..neuron + 1);
                    }
                }
            }
        }
        Ok(Box::new(HotOf(sets)))
    }
}

/// The words of each layer's mask.
#[derive(Debug)]
struct HotOf(Vec<Vec<u64>>);

impl Choosing for HotOf {
    fn choose(&mut self, _: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        (0..at.n).for_each(|t| masks.words_mut(t).copy_from_slice(&self.0[at.layer]));
    }
}

#[cfg(test)]
mod tests {
    use ls_cpu::Isa;

    use super::*;
    use crate::Random;

    const LAYERS: [MlpShape; 2] = [
        MlpShape { d_model: 4, d_ff: 150, neurons_per_chunk: 4 },
        MlpShape { d_model: 4, d_ff: 128, neurons_per_chunk: 20 },
    ];

    fn choose(chooser: &dyn Choose, at: MlpInput<'_>) -> Vec<Vec<usize>> {
        let mut choosing = chooser.begin(&LAYERS).unwrap();
        choose_again(&mut *choosing, at)
    }

    fn choose_again(choosing: &mut dyn Choosing, at: MlpInput<'_>) -> Vec<Vec<usize>> {
        let cpu = Cpu::new(2, Isa::detect()).unwrap();
        let d_ff = LAYERS[at.layer].d_ff;
        let mut masks = Masks::new(at.n, d_ff);
        choosing.choose(&cpu, &at, &mut masks);
        (0..at.n).map(|t| masks.row(t).ones(0..d_ff).collect()).collect()
    }

    fn at(layer: usize, position: usize, n: usize) -> MlpInput<'static> {
        MlpInput { layer, n, position, x: &[], importance: None }
    }

    #[test]
    fn random_choices_have_the_number_asked_for_and_differ() {
        for (keep, grain) in [0.0, 0.01, 0.3, 0.5, 0.99, 1.0]
            .into_iter()
            .flat_map(|keep| [Grain::Neuron, Grain::Chunk].map(|grain| (keep, grain)))
        {
            let random = Random::new(Keep::uniform(keep), grain, 3);
            for (layer, shape) in LAYERS.iter().enumerate() {
                let units = Units::of(&Keep::uniform(keep), grain, &LAYERS).unwrap()[layer];
                let all = choose(&random, at(layer, 7, 3));
                for (t, chosen) in all.iter().enumerate() {
                    let mut of: Vec<usize> = match grain {
                        Grain::Neuron => chosen.clone(),
                        Grain::Chunk => {
                            chosen.iter().map(|j| j / shape.neurons_per_chunk).collect()
                        }
                    };
                    of.dedup();
                    assert_eq!(of.len(), units.keep, "{keep} {grain:?}");
                    assert_eq!(&choose(&random, at(layer, 7 + t, 1))[0], chosen);
                }
                if (0.3..0.9).contains(&keep) && grain == Grain::Neuron {
                    assert!(all[0] != all[1] && all[1] != all[2]);
                }
            }
        }
    }

    #[test]
    fn random_choices_are_even() {
        let random = Random::new(Keep::uniform(0.3), Grain::Neuron, 9);
        let mut counts = [0; 150];
        for chosen in choose(&random, at(0, 0, 2000)) {
            chosen.into_iter().for_each(|j| counts[j] += 1);
        }
        // 600 expected, with a deviation of 20.5.
        assert!(counts.iter().all(|n| (490..710).contains(n)), "{counts:?}");
    }

    #[test]
    fn the_oracle_takes_the_most_important_of_each_token() {
        let mut importance = vec![0.0; 2 * 150];
        (0..15).for_each(|i| importance[i * 10] = 1.0 + i as f32);
        (0..15).for_each(|i| importance[150 + i * 10 + 3] = 1.0 + i as f32);
        let at = MlpInput { importance: Some(&importance), ..at(0, 0, 2) };
        let oracle = Oracle::new(Keep::by_layer(vec![0.1, 0.5]), Grain::Neuron);
        let want = |first: usize| (0..15).map(|i| i * 10 + first).collect::<Vec<_>>();
        assert_eq!(choose(&oracle, at), [want(0), want(3)]);
    }

    #[test]
    fn the_last_set_is_that_of_the_token_before() {
        let row = |first: usize| -> Vec<f32> {
            (0..150).map(|j| if (first..first + 15).contains(&j) { 1.0 } else { 0.0 }).collect()
        };
        let last = LastSet::new(Keep::uniform(0.1), Grain::Neuron);
        let mut choosing = last.begin(&LAYERS).unwrap();
        let (all, set) = (Vec::from_iter(0..150), |first: usize| Vec::from_iter(first..first + 15));
        let two = [row(10), row(40)].concat();
        let mut at = MlpInput { importance: Some(&two), ..at(0, 0, 2) };
        assert_eq!(choose_again(&mut *choosing, at), [all.clone(), set(10)]);
        let one = row(90);
        (at.n, at.position, at.importance) = (1, 2, Some(&one[..]));
        assert_eq!(choose_again(&mut *choosing, at), [set(40)]);
        // The state was truncated, and what is remembered belongs to another place.
        at.position = 1;
        assert_eq!(choose_again(&mut *choosing, at), [all]);
        at.position = 2;
        assert_eq!(choose_again(&mut *choosing, at), [set(90)]);
    }

    #[test]
    fn hot_sets_are_what_they_are_given() {
        let first = Hot::first(Keep::uniform(0.5), Grain::Neuron);
        assert_eq!(choose(&first, at(1, 5, 2)), vec![Vec::from_iter(0..64); 2]);
        let lists = Hot::list(vec![vec![149, 3], vec![]]);
        assert_eq!(choose(&lists, at(0, 5, 1)), [[3, 149]]);
        let scores = vec![vec![0.0; 150], (0..128).map(|j| j as f32).collect()];
        let hot = Hot::by_score(scores, Keep::uniform(0.5), Grain::Neuron);
        assert_eq!(choose(&hot, at(1, 0, 1)), [Vec::from_iter(64..128)]);
    }

    #[test]
    fn hot_sets_of_other_models_are_refused() {
        let refuse = |hot: Hot| hot.begin(&LAYERS).map(drop).unwrap_err();
        let (keep, grain) = (Keep::uniform(0.5), Grain::Neuron);
        assert!(matches!(
            refuse(Hot::list(vec![vec![0]])),
            ChoiceError::Layers { found: 1, expected: 2 }
        ));
        assert!(matches!(
            refuse(Hot::list(vec![vec![], vec![128]])),
            ChoiceError::UnknownNeuron { layer: 1, neuron: 128, .. }
        ));
        assert!(matches!(
            refuse(Hot::by_score(vec![vec![0.0; 150], vec![0.0; 127]], keep, grain)),
            ChoiceError::Neurons { layer: 1, found: 127, .. }
        ));
    }
}
