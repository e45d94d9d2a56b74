//! Ranking: from features to scores of chunks, and to the neurons that are computed.

use ls_hash::FeatureKind;
use ls_sched::Basis;

use super::{Count, Inner, Refiner};
use crate::forward::Forward;
use crate::predict::least_of;
use crate::state::Buffers;

impl Inner {
    /// Ranks the chunks of `layer` from the residual stream and what was added to it so far, or from the
    /// input of the MLP that was entered. The scores are in `self.chunks` then.
    pub(super) fn rank(
        &mut self,
        by: &Refiner,
        forward: &Forward<'_>,
        b: &Buffers,
        layer: u32,
        basis: Basis,
    ) {
        let d = self.feature.len();
        let predictor = &by.predictors.layers()[layer as usize].predictor;
        let (cpu, layer) = (forward.cpu, layer as usize);
        let scores = if basis.layer as usize == layer {
            self.is_ranked = true;
            self.scorer.score(cpu, predictor, b.normed.rows(1), FeatureKind::Exact)
        } else {
            let kind = match basis.stages {
                0 => FeatureKind::Speculative,
                _ => FeatureKind::Refined,
            };
            // A predictor that was not trained on refined features takes them as early ones.
            let is_known = kind.idx() < predictor.shape().n_kinds;
            let kind = if is_known { kind } else { FeatureKind::Speculative };
            self.feature.copy_from_slice(&b.x[..d]);
            if basis.stages > 0 {
                let norm = &forward.weights.layers[basis.layer as usize].post_ffn_norm;
                self.delta.copy_from_slice(&b.delta[..d]);
                forward.add_output(norm, &mut self.delta, &mut self.feature);
            }
            let weight = &forward.weights.layers[layer].ffn_norm;
            let (isa, eps) = (cpu.isa(), forward.config.norm_eps);
            ls_cpu::rms_norm_in_place(isa, &mut self.feature, weight, eps);
            self.scorer.score(cpu, predictor, &self.feature, kind)
        };
        self.neurons[layer].clear();
        self.neurons[layer].extend_from_slice(scores);
        self.chunks.clear();
        let layout = forward.chunk_layout(layer);
        if by.count == Count::Fixed {
            let neurons = scores.chunks(layout.neurons_per_chunk);
            self.chunks.extend(neurons.map(|neurons| neurons.iter().sum::<f32>()));
            return;
        }
        // What a chunk adds is what its neurons exceed those by which they are replaced otherwise.
        let k = (by.plan[layer].rows * layout.d_ff as f64).round() as usize;
        self.selector.top_k(scores, k.clamp(1, scores.len()), &mut self.selected);
        let least = least_of(scores, self.selected.as_raw_slice());
        self.chunks.extend(ls_sched::gains(scores, layout.neurons_per_chunk, least));
    }

    /// Marks the neurons of the layer that are computed: the best of the chunks that are chosen, or were
    /// taken by a stage.
    pub(super) fn mark_neurons(&mut self, by: &Refiner, forward: &Forward<'_>, layer: u32) {
        let (plan, i) = (by.plan[layer as usize], layer as usize);
        let layout = forward.chunk_layout(i);
        self.masks.begin(1, layout.d_ff);
        let neurons = &self.neurons[i];
        if neurons.is_empty() {
            // What was chosen without a ranking is computed whole.
            self.masks.set_range(0, 0..layout.d_ff);
            return;
        }
        if plan.least > 0.0 {
            self.masks.set_norms(by.predictors.layers()[i].norms.clone());
        }
        self.reachable.clear();
        self.reachable.resize(layout.d_ff, -1.0);
        let chosen = self.controller.chosen(layer).unwrap_or_default();
        for chunk in chosen.iter().chain(&self.taken) {
            let range = layout.neurons((*chunk).into());
            self.reachable[range.clone()].copy_from_slice(&neurons[range]);
        }
        let k = (plan.rows * layout.d_ff as f64).round() as usize;
        let within = self.reachable.iter().filter(|score| **score >= 0.0).count();
        self.selector.top_k(&self.reachable, k.min(within), &mut self.selected);
        self.masks.words_mut(0).copy_from_slice(self.selected.as_raw_slice());
        if plan.least > 0.0 {
            let least = least_of(neurons, self.selected.as_raw_slice());
            let least = if least.is_finite() { (least * plan.least).sqrt() } else { 0.0 };
            self.masks.set_least(0, least);
        }
    }
}
