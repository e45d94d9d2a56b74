//! Whole-crate tests.

mod format;
mod incremental;
mod training;

use ls_hash::{Form, Norm, Shape, WeightType};
use proptest::prelude::*;

/// Shapes of all kinds, small.
fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1usize..200, 1usize..70, prop::collection::vec(1usize..4, 1..4), 1usize..8);
    let kinds = (any::<[bool; 3]>(), 1usize..5);
    (sizes, kinds).prop_map(|((n_inputs, n_outputs, words, blocks), (kinds, n_codes))| Shape {
        n_inputs,
        n_outputs,
        stacks: words.into_iter().map(|words| words * 64).collect(),
        blocks_per_bit: if blocks == 7 { Shape::DENSE } else { blocks },
        weights: if kinds[0] { WeightType::Int8 } else { WeightType::Ternary },
        form: if kinds[1] { Form::Direct } else { Form::Bilinear },
        n_codes,
        norm: if kinds[2] { Norm::None } else { Norm::Rms },
    })
}

/// Features of varied size, which follow from `seed`.
fn features(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed | 1;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| 2.0 * next()).collect()
}
