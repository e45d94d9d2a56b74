//! Choosing by predictors.

use std::sync::Arc;

use ls_cpu::{Cpu, Masks};
use ls_hash::{
    FeatureKind, LookupPart, LookupPredictor, LookupProjection, LookupState, Mask, Selector,
};
use parking_lot::Mutex;

use super::{KeepPlan, Predictors};
use crate::sparse::{ChoiceError, Choose, Choosing, MlpInput, MlpShape};

/// Parts that one prediction is scored in at most.
const MAX_PARTS: usize = 16;

/// The neurons with the highest expected importance, and of these the down columns that turn out to
/// matter.
#[derive(Clone, Debug)]
pub struct Predicted {
    predictors: Arc<Predictors>,
    plan: Vec<KeepPlan>,
}

impl Predicted {
    /// Chooses as `plan` says for each layer ([`Predictors::plan`]).
    pub fn new(predictors: Arc<Predictors>, plan: Vec<KeepPlan>) -> Self {
        Self { predictors, plan }
    }
}

impl Choose for Predicted {
    fn begin(&self, layers: &[MlpShape]) -> Result<Box<dyn Choosing>, ChoiceError> {
        let predictors = self.predictors.layers();
        for found in [predictors.len(), self.plan.len()] {
            if found != layers.len() {
                return Err(ChoiceError::Layers { found, expected: layers.len() });
            }
        }
        for (layer, (shape, of)) in layers.iter().zip(predictors).enumerate() {
            let (found, expected) = (of.norms.len(), shape.d_ff);
            if found != expected {
                return Err(ChoiceError::Neurons { layer, found, expected });
            }
            let value = self.plan[layer].rows;
            if !(0.0..=1.0).contains(&value) {
                return Err(ChoiceError::Fraction { layer, value });
            }
        }
        Ok(Box::new(PredictedOf { by: self.clone(), scratch: Vec::new() }))
    }
}

#[derive(Debug)]
struct PredictedOf {
    by: Predicted,
    /// One for each thread.
    scratch: Vec<Mutex<Scratch>>,
}

/// The memory of predictions, one after the other.
#[derive(Debug)]
pub(crate) struct Scorer {
    /// By shape of predictor: layers of one shape share it.
    states: Vec<LookupState>,
}

impl Scorer {
    /// For these predictors.
    pub fn new(predictors: &Predictors) -> Self {
        let mut states: Vec<LookupState> = Vec::new();
        for layer in predictors.layers() {
            if !states.iter().any(|state| state.shape() == layer.predictor.shape()) {
                states.push(layer.predictor.state());
            }
        }
        Self { states }
    }

    /// The memory for `predictor`, one of those it was made for.
    fn state(&mut self, predictor: &LookupPredictor) -> &mut LookupState {
        let state = self.states.iter_mut().find(|state| state.shape() == predictor.shape());
        state.expect("made for each shape")
    }

    /// Scores of all neurons for one token's features, on all threads.
    pub fn score(
        &mut self,
        cpu: &Cpu,
        predictor: &LookupPredictor,
        x: &[f32],
        kind: FeatureKind,
    ) -> &[f32] {
        let state = self.state(predictor);
        predictor.begin(state, x, kind);
        let n = cpu.pool().threads().min(MAX_PARTS);
        on_all_threads(cpu, predictor.projections(state, n), &LookupProjection::project);
        predictor.fill_tables(state);
        on_all_threads(cpu, predictor.parts(state, n), &LookupPart::score);
        self.state(predictor).scores()
    }
}

/// Runs each of at most [`MAX_PARTS`] parts once.
fn on_all_threads<T: Send>(cpu: &Cpu, parts: impl Iterator<Item = T>, run: &(dyn Fn(T) + Sync)) {
    let places = [const { Mutex::new(None) }; MAX_PARTS];
    let n = places.iter().zip(parts).map(|(place, part)| *place.lock() = Some(part)).count();
    cpu.pool().run(n, &|i| {
        if let Some(part) = places[i].lock().take() {
            run(part);
        }
    });
}

/// The least score of those whose bits are set; infinite if none is.
pub(crate) fn least_of(scores: &[f32], words: &[u64]) -> f32 {
    let mut least = f32::INFINITY;
    for (scores, word) in scores.chunks(u64::BITS as usize).zip(words) {
        let mut rest = *word;
        while rest != 0 {
            least = least.min(scores[rest.trailing_zeros() as usize]);
            rest &= rest - 1;
        }
    }
    least
}

/// What one prediction is made in.
#[derive(Debug)]
struct Scratch {
    scorer: Scorer,
    selector: Selector,
    mask: Mask,
}

impl Scratch {
    fn new(predictors: &Predictors) -> Self {
        let (selector, mask) = (Selector::default(), Mask::new());
        Self { scorer: Scorer::new(predictors), selector, mask }
    }

    /// Marks the highest scores; the importance that a chosen neuron must have for its column.
    fn select(
        state: &LookupState,
        selector: &mut Selector,
        mask: &mut Mask,
        plan: KeepPlan,
        words: &mut [u64],
    ) -> f32 {
        let scores = state.scores();
        let k = (plan.rows * scores.len() as f64).round() as usize;
        selector.top_k(scores, k, mask);
        words.copy_from_slice(mask.as_raw_slice());
        if plan.least <= 0.0 {
            return 0.0;
        }
        let least = least_of(scores, words);
        if least.is_finite() { (least * plan.least).sqrt() } else { 0.0 }
    }
}

impl PredictedOf {
    /// One token, on all threads.
    fn one(&mut self, cpu: &Cpu, layer: usize, x: &[f32], masks: &mut Masks) {
        let (of, plan) = (&self.by.predictors.layers()[layer], self.by.plan[layer]);
        let Scratch { scorer, selector, mask } = self.scratch[0].get_mut();
        scorer.score(cpu, &of.predictor, x, FeatureKind::Exact);
        let state = scorer.state(&of.predictor);
        let least = Scratch::select(state, selector, mask, plan, masks.words_mut(0));
        masks.set_least(0, least);
    }

    /// A token a thread.
    fn many(&self, cpu: &Cpu, layer: usize, x: &[f32], n: usize, masks: &mut Masks) {
        let (of, plan) = (&self.by.predictors.layers()[layer], self.by.plan[layer]);
        let d = x.len() / n;
        let out = Mutex::new(masks);
        cpu.pool().run(self.scratch.len(), &|thread| {
            let mut scratch = self.scratch[thread].lock();
            let Scratch { scorer, selector, mask } = &mut *scratch;
            let state = scorer.state(&of.predictor);
            let mut words = vec![0; of.norms.len().div_ceil(64)];
            for t in (thread..n).step_by(self.scratch.len()) {
                of.predictor.set(state, &x[t * d..][..d], FeatureKind::Exact);
                let least = Scratch::select(state, selector, mask, plan, &mut words);
                let mut out = out.lock();
                out.words_mut(t).copy_from_slice(&words);
                out.set_least(t, least);
            }
        });
    }
}

impl Choosing for PredictedOf {
    fn choose(&mut self, cpu: &Cpu, at: &MlpInput<'_>, masks: &mut Masks) {
        while self.scratch.len() < cpu.pool().threads() {
            self.scratch.push(Mutex::new(Scratch::new(&self.by.predictors)));
        }
        if self.by.plan[at.layer].least > 0.0 {
            masks.set_norms(self.by.predictors.layers()[at.layer].norms.clone());
        }
        if self.by.plan[at.layer].rows >= 1.0 {
            let n_neurons = masks.n_neurons();
            return (0..at.n).for_each(|t| masks.set_range(t, 0..n_neurons));
        }
        match at.n {
            1 => self.one(cpu, at.layer, at.x, masks),
            n => self.many(cpu, at.layer, at.x, n, masks),
        }
    }
}
