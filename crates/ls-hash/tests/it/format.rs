//! Bytes of predictors: read as written, and refused where damaged.

use ls_hash::{HashError, Predictor, Shape};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use crate::shapes;

/// Makes the checksum right again, so that what it guards is reached.
fn reseal(bytes: &mut [u8]) {
    let (content, sum) = bytes.split_at_mut(bytes.len() - 8);
    sum.copy_from_slice(&xxh3_64(content).to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_predictor_is_read_as_it_was_written(shape in shapes(), seed in any::<u64>()) {
        let predictor = Predictor::random(shape, seed).unwrap();
        let read = Predictor::from_bytes(&predictor.to_bytes()).unwrap();
        prop_assert_eq!(read.to_bytes(), predictor.to_bytes());
        let (mut a, mut b) = (read.state(), predictor.state());
        let x = crate::features(predictor.shape().n_inputs, seed);
        read.set(&mut a, &x);
        predictor.set(&mut b, &x);
        prop_assert_eq!(a.scores(), b.scores());
    }

    #[test]
    fn damage_is_found(
        shape in shapes(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = Predictor::random(shape, 1).unwrap().to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(Predictor::from_bytes(&bytes).is_err());
    }

    /// With a right checksum any byte may be anything: an error or a predictor that can be used.
    #[test]
    fn resealed_damage_does_no_harm(
        shape in shapes(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_header in any::<bool>(),
    ) {
        let mut bytes = Predictor::random(shape, 1).unwrap().to_bytes();
        for (at, value) in damage {
            let len = if in_header { 60 } else { bytes.len() };
            bytes[at.index(len)] = value;
        }
        reseal(&mut bytes);
        if let Ok(predictor) = Predictor::from_bytes(&bytes) {
            let mut state = predictor.state();
            predictor.set(&mut state, &vec![0.5; predictor.shape().n_inputs]);
            prop_assert_eq!(state.scores().len(), predictor.shape().n_outputs);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Predictor::from_bytes(&bytes);
        if bytes.len() > 48 {
            bytes[..8].copy_from_slice(b"LSHP\x01\0\0\0");
            reseal(&mut bytes);
            let _ = Predictor::from_bytes(&bytes);
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let whole = Predictor::random(Shape::new(64, 8), 1).unwrap().to_bytes();
    let with = |at: usize, value: u32| {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        reseal(&mut bytes);
        Predictor::from_bytes(&bytes).unwrap_err()
    };
    assert!(matches!(with(0, 0), HashError::Magic { .. }));
    assert_eq!(with(4, 9), HashError::Version { found: 9, expected: 1 });
    assert!(matches!(with(8, 0), HashError::Size { what: "number of inputs", .. }));
    assert!(matches!(with(8, 65), HashError::Truncated { .. }));
    assert_eq!(with(24, 7), HashError::Field { what: "form", found: 7 });
    assert!(matches!(with(36, u32::MAX), HashError::Truncated { .. }));
    let cut = Predictor::from_bytes(&whole[..whole.len() - 1]).unwrap_err();
    assert!(matches!(cut, HashError::Checksum { .. }));
    assert!(matches!(Predictor::from_bytes(&[]).unwrap_err(), HashError::Truncated { .. }));
    let mut longer = whole.clone();
    longer.push(0);
    reseal(&mut longer);
    assert_eq!(Predictor::from_bytes(&longer).unwrap_err(), HashError::Trailing { n: 1 });
}
