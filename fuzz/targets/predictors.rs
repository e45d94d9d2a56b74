//! Any bytes as a file of predictors, with checksums made right so that what they guard is reached.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use ls_engine::predict::decode;
use ls_hash::{FeatureKind, LookupPredictor};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a header.
const HEADER: usize = 48;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    let _ = reseal(&mut bytes);
    let Ok((_, layers, _)) = decode(Path::new("bytes"), &bytes) else { return };
    for layer in &layers {
        let predictor = &layer.predictor;
        assert_eq!(LookupPredictor::from_bytes(&predictor.to_bytes()).as_ref(), Ok(predictor));
        let shape = predictor.shape();
        assert_eq!(layer.norms.len(), shape.n_outputs);
        let features: Vec<f32> = (0..shape.n_inputs).map(|i| i as f32 % 7.0 - 3.0).collect();
        let mut state = predictor.state();
        for kind in &FeatureKind::ALL[..shape.n_kinds] {
            predictor.set(&mut state, &features, *kind);
            assert!(state.scores().iter().all(|score| !score.is_nan()));
        }
    }
});

/// Makes the checksums of the header, of the records and of the predictors in them right.
fn reseal(bytes: &mut [u8]) -> Option<()> {
    put(bytes, 0, HEADER - 8, xxh3_64)?;
    let mut at = HEADER;
    for layer in 0..bytes.len() as u64 {
        let n = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        let len = usize::try_from(n).ok()?.checked_add(8)?;
        let end = at.checked_add(len)?;
        // The predictor is last; its own checksum ends it.
        let of_predictor = u32::from_le_bytes(*bytes.get(at + 12..)?.first_chunk()?) as usize;
        if let Some(begin) = end.checked_sub(of_predictor).filter(|begin| *begin > at) {
            let _ = put(bytes, begin, of_predictor.saturating_sub(8), xxh3_64);
        }
        put(bytes, at, len, |bytes| xxh3_64_with_seed(bytes, layer))?;
        at = end.checked_add(8)?;
    }
    Some(())
}

/// Puts the checksum of the `len` bytes from `begin` on behind them.
fn put(bytes: &mut [u8], begin: usize, len: usize, sum: impl Fn(&[u8]) -> u64) -> Option<()> {
    let end = begin.checked_add(len)?;
    let sum = sum(bytes.get(begin..end)?);
    *bytes.get_mut(end..)?.first_chunk_mut()? = sum.to_le_bytes();
    Some(())
}
