//! What a predictor computes with and leaves behind.

use crate::shape::Shape;
use crate::simd::{BLOCK, LANES};

/// Features, sums, bits and scores of one prediction, and all memory that making it needs.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) features: Vec<f32>,
    /// As bytes, filled up with zeros to whole blocks.
    pub(crate) quantized: Vec<i8>,
    /// The next of these; then what they differ by.
    pub(crate) next: Vec<i8>,
    /// Which blocks differ.
    pub(crate) changed: Vec<bool>,
    /// Of the first stack.
    pub(crate) sums: Vec<i32>,
    /// Products of further stacks.
    pub(crate) dots: Vec<i32>,
    /// Of all stacks, one after the other.
    pub(crate) bits: Vec<u64>,
    /// Filled up to whole groups.
    pub(crate) scores: Vec<f32>,
    n_outputs: usize,
}

impl State {
    pub(crate) fn empty(shape: &Shape) -> Self {
        let n = shape.n_blocks() * BLOCK;
        Self {
            features: vec![0.0; shape.n_inputs],
            quantized: vec![0; n],
            next: vec![0; n],
            changed: vec![false; shape.n_blocks()],
            sums: vec![0; shape.stacks[0]],
            dots: vec![0; shape.stacks.iter().copied().max().unwrap_or(0)],
            bits: vec![0; shape.n_bits() / 64],
            scores: vec![0.0; shape.n_groups() * LANES],
            n_outputs: shape.n_outputs,
        }
    }

    pub(crate) fn fits(&self, shape: &Shape) -> bool {
        self.features.len() == shape.n_inputs
            && self.sums.len() == shape.stacks[0]
            && self.bits.len() * 64 == shape.n_bits()
            && self.n_outputs == shape.n_outputs
    }

    /// A score for each output.
    pub fn scores(&self) -> &[f32] {
        &self.scores[..self.n_outputs]
    }

    /// The features that were scored.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// The hash bits of all stacks, one after the other.
    pub fn bits(&self) -> &[u64] {
        &self.bits
    }

    /// Makes of `quantized` the difference to `next`, which takes part in a swap; how many blocks
    /// differ, or `None` if a difference does not fit.
    pub(crate) fn difference(&mut self) -> Option<usize> {
        let mut n_changed = 0;
        let mut largest = 0;
        let (old, _) = self.quantized.as_chunks_mut::<BLOCK>();
        let (new, _) = self.next.as_chunks::<BLOCK>();
        for ((old, new), changed) in old.iter_mut().zip(new).zip(&mut self.changed) {
            *changed = old != new;
            n_changed += usize::from(*changed);
            for i in 0..BLOCK {
                let difference = i16::from(new[i]) - i16::from(old[i]);
                largest = difference.abs().max(largest);
                old[i] = difference as i8;
            }
        }
        // Equal: put back what the difference has overwritten.
        if n_changed == 0 {
            self.quantized.copy_from_slice(&self.next);
        }
        (largest <= 127).then_some(n_changed)
    }
}
