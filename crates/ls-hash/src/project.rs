//! The first step: sums over features, whose signs are the first hash bits.

use crate::error::HashError;
use crate::isa::Isa;
use crate::rng::Rng;
use crate::shape::Shape;
use crate::simd::{self, BLOCK, Layout};
use crate::state::State;

/// How the weights of the projection are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// One byte each.
    Int8,
    /// −1, 0 or 1, in two bits.
    Ternary,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Weights {
    /// `[bit][block][input]`, none of them −128.
    Int8(Vec<i8>),
    /// `[bit][block]`, each the inputs that count positive and negative.
    Ternary(Vec<[u32; 2]>),
}

/// Sums of quantised features, each over some blocks of them, and thresholds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Projection {
    pub per_bit: usize,
    /// `[bit][block]`, or nothing if each bit reads all blocks.
    pub blocks: Vec<u16>,
    pub weights: Weights,
    /// A bit is set where its sum reaches this.
    pub thresholds: Vec<i32>,
}

/// For each bit as many different blocks as it reads, in ascending order; nothing for all.
pub(crate) fn choose_blocks(shape: &Shape, rng: &mut Rng) -> Vec<u16> {
    if shape.is_dense() {
        return Vec::new();
    }
    let mut chosen = Vec::with_capacity(shape.stacks[0] * shape.per_bit());
    // From one shuffled deck after the other, so that all blocks are read about equally often.
    let mut deck: Vec<u16> = Vec::new();
    for _ in 0..shape.stacks[0] {
        let first = chosen.len();
        while chosen.len() - first < shape.per_bit() {
            if deck.is_empty() {
                deck = (0..shape.n_blocks() as u16).collect();
                rng.shuffle(&mut deck);
            }
            // A new deck can hold blocks that this bit has from the last one.
            let fresh = deck.iter().rposition(|block| !chosen[first..].contains(block));
            match fresh {
                Some(at) => chosen.push(deck.swap_remove(at)),
                None => deck.clear(),
            }
        }
        chosen[first..].sort_unstable();
    }
    chosen
}

impl Projection {
    pub(crate) fn random(shape: &Shape, rng: &mut Rng) -> Self {
        let n_blocks = shape.stacks[0] * shape.per_bit();
        let blocks = choose_blocks(shape, rng);
        let weights = match shape.weights {
            WeightType::Int8 => {
                let bytes = (0..n_blocks * BLOCK).map(|_| rng.below(255) as i16 - 127);
                Weights::Int8(bytes.map(|w| w as i8).collect())
            }
            WeightType::Ternary => {
                let words = (0..n_blocks).map(|_| rng.next());
                let planes = words.map(|w| [w as u32, !(w as u32) & (w >> 32) as u32]);
                Weights::Ternary(planes.collect())
            }
        };
        let thresholds = vec![0; shape.stacks[0]];
        Self { per_bit: shape.per_bit(), blocks, weights, thresholds }
    }

    pub(crate) fn check(&self, shape: &Shape) -> Result<(), HashError> {
        let length = |what, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(HashError::Length { what, found, expected }),
        };
        let n_blocks = shape.stacks[0] * shape.per_bit();
        length("blocks of a bit", self.per_bit, shape.per_bit())?;
        length("blocks", self.blocks.len(), if shape.is_dense() { 0 } else { n_blocks })?;
        length("thresholds", self.thresholds.len(), shape.stacks[0])?;
        match &self.weights {
            Weights::Int8(weights) => {
                length("weights", weights.len(), n_blocks * BLOCK)?;
                // Its magnitude does not fit, and the kernels multiply magnitudes.
                if let Some(index) = weights.iter().position(|w| *w == i8::MIN) {
                    return Err(HashError::NotFinite { what: "weight", index });
                }
            }
            Weights::Ternary(weights) => length("weights", weights.len(), n_blocks)?,
        }
        let n_blocks = shape.n_blocks();
        match self.blocks.iter().position(|block| usize::from(*block) >= n_blocks) {
            None => Ok(()),
            Some(at) => Err(HashError::Block {
                bit: at / self.per_bit,
                block: usize::from(self.blocks[at]),
                n_blocks,
            }),
        }
    }

    pub(crate) fn n_bytes(&self) -> usize {
        let weights = match &self.weights {
            Weights::Int8(weights) => weights.len(),
            Weights::Ternary(weights) => weights.len() * 8,
        };
        weights + self.blocks.len() * 2 + self.thresholds.len() * 4
    }

    /// `sums[bit] = Σ weights · x`; `x` is filled up to whole blocks.
    pub(crate) fn project(&self, isa: Isa, x: &[i8], sums: &mut [i32]) {
        let blocks = (!self.blocks.is_empty()).then_some(&*self.blocks);
        let layout = Layout { per_bit: self.per_bit, blocks };
        match &self.weights {
            Weights::Int8(weights) => simd::project_i8(isa, layout, weights, x, sums),
            Weights::Ternary(weights) => simd::project_ternary(isa, layout, weights, x, sums),
        }
    }

    /// Adds the sums over the difference of the features, block by block where it is not zero.
    pub(crate) fn add(&self, isa: Isa, state: &mut State) {
        for (bit, sum) in state.sums.iter_mut().enumerate() {
            for i in bit * self.per_bit..(bit + 1) * self.per_bit {
                let block = match self.blocks.is_empty() {
                    true => i - bit * self.per_bit,
                    false => usize::from(self.blocks[i]),
                };
                if !state.changed[block] {
                    continue;
                }
                let layout = Layout { per_bit: 1, blocks: None };
                let x = &state.next[block * BLOCK..][..BLOCK];
                let mut part = [0];
                match &self.weights {
                    Weights::Int8(weights) => {
                        let weights = &weights[i * BLOCK..][..BLOCK];
                        simd::project_i8(isa, layout, weights, x, &mut part);
                    }
                    Weights::Ternary(weights) => {
                        simd::project_ternary(isa, layout, &weights[i..=i], x, &mut part);
                    }
                }
                *sum += part[0];
            }
        }
    }
}
