//! The sparse side of one sequence's state.

use std::sync::Arc;

use ls_cpu::{Cpu, Masks, Touched};
use ls_model::pack::LayerLayout;

use super::importance::Importance;
use super::{Choosing, MlpInput, Prompts, SparseCounts};

/// Who chooses for a sequence, and the memory for it.
#[derive(Debug)]
pub(crate) struct Sparse {
    choosing: Box<dyn Choosing>,
    prompts: Prompts,
    pub masks: Masks,
    pub importance: Option<Importance>,
    pub counts: SparseCounts,
}

/// What a pass computes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Tokens that are given.
    Prompt,
    /// A token that was generated.
    Decode,
}

impl Prompts {
    /// Whether neurons are chosen in such a pass.
    pub(crate) fn chooses_in(self, phase: Phase) -> bool {
        phase == Phase::Decode || self == Self::Sparse
    }
}

impl Sparse {
    /// For layers with so many neurons at most, and batches of up to `batch` tokens. `norms` are those
    /// of the down columns, if the choice needs importance.
    pub fn new(
        choosing: Box<dyn Choosing>,
        prompts: Prompts,
        norms: Option<Arc<Vec<Vec<f32>>>>,
        d_ff: usize,
        batch: usize,
    ) -> Self {
        let rows = match prompts {
            Prompts::Dense => 1,
            Prompts::Sparse => batch.max(1),
        };
        Self {
            choosing,
            prompts,
            masks: Masks::new(rows, d_ff),
            importance: norms.map(|norms| Importance::new(norms, rows, d_ff)),
            counts: SparseCounts::default(),
        }
    }

    /// Whether it chooses in such a pass.
    pub fn applies_to(&self, phase: Phase) -> bool {
        self.prompts.chooses_in(phase)
    }

    /// Marks the neurons of the tokens `at`.
    pub fn choose(&mut self, cpu: &Cpu, at: MlpInput<'_>, d_ff: usize) {
        self.masks.begin(at.n, d_ff);
        let importance = self.importance.as_ref().map(|importance| importance.of(at.n, d_ff));
        self.choosing.choose(cpu, &MlpInput { importance, ..at }, &mut self.masks);
    }

    /// Adds what stands in for the neurons that were left out.
    pub fn compensate(&mut self, cpu: &Cpu, at: MlpInput<'_>, out: &mut [f32]) {
        let importance = self.importance.as_ref().map(|all| all.of(at.n, self.masks.n_neurons()));
        let at = MlpInput { importance, ..at };
        self.choosing.compensate(cpu, &at, &self.masks, out);
    }

    /// Counts a layer of `n` tokens.
    pub fn count(&mut self, layout: &LayerLayout, n: usize, touched: Touched) {
        self.counts.add_all(layout, n);
        self.counts.add(layout, touched);
    }
}
