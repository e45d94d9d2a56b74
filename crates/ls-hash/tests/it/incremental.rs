//! Predictions do not depend on the way to them.

use ls_hash::{Isa, Norm, Predictor, Shape};
use proptest::prelude::*;

use crate::{features, shapes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_update_scores_as_the_sum_does(
        shape in shapes(),
        seed in any::<u64>(),
        // Which stretch of features changes, and how much.
        changes in prop::collection::vec((0.0f32..1.0, 0.0f32..0.5, -3.0f32..3.0), 1..6),
    ) {
        let n = shape.n_inputs;
        let predictor = Predictor::random(shape, seed).unwrap();
        let mut updated = predictor.state();
        let mut sum = features(n, seed);
        predictor.set(&mut updated, &sum);
        for (begin, len, size) in changes {
            let begin = (begin * n as f32) as usize;
            let end = n.min(begin + (len * n as f32) as usize);
            let mut delta = vec![0.0; n];
            delta[begin..end].fill(size);
            sum.iter_mut().zip(&delta).for_each(|(sum, delta)| *sum += delta);
            predictor.update(&mut updated, &delta);
            let mut set = predictor.state();
            predictor.set(&mut set, &sum);
            prop_assert_eq!(set.bits(), updated.bits());
            prop_assert_eq!(set.scores(), updated.scores());
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_scores(shape in shapes(), seed in any::<u64>()) {
        let x = features(shape.n_inputs, seed);
        let predictor = Predictor::random(shape, seed).unwrap().with_isa(Isa::SCALAR);
        let mut plain = predictor.state();
        predictor.set(&mut plain, &x);
        prop_assert!(plain.scores().iter().all(|score| score.is_finite()));
        for isa in Isa::available() {
            let predictor = predictor.clone().with_isa(isa);
            let mut state = predictor.state();
            predictor.set(&mut state, &x);
            prop_assert_eq!(plain.scores(), state.scores(), "{}", isa);
        }
    }
}

#[test]
fn scores_do_not_depend_on_the_size_of_normalised_features() {
    let shape = Shape { norm: Norm::Rms, ..Shape::new(256, 64) };
    let predictor = Predictor::random(shape, 5).unwrap();
    let (mut one, mut large) = (predictor.state(), predictor.state());
    let x = features(256, 9);
    predictor.set(&mut one, &x);
    predictor.set(&mut large, &x.iter().map(|x| x * 64.0).collect::<Vec<_>>());
    assert_eq!(one.bits(), large.bits());
}

#[test]
fn what_is_not_a_number_gives_scores_all_the_same() {
    for norm in [Norm::None, Norm::Rms] {
        let predictor = Predictor::random(Shape { norm, ..Shape::new(64, 64) }, 5).unwrap();
        let mut state = predictor.state();
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut x = features(64, 1);
            x[3] = bad;
            predictor.set(&mut state, &x);
            predictor.update(&mut state, &x);
            assert!(state.scores().iter().all(|score| score.is_finite()));
        }
    }
}
