//! Any bytes as a hash predictor, with the checksum made right so that what it guards is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ls_hash::{Mask, Predictor, Selector};
use xxhash_rust::xxh3::xxh3_64;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if let Some((content, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = xxh3_64(content).to_le_bytes();
    }
    let Ok(predictor) = Predictor::from_bytes(&bytes) else { return };
    assert_eq!(Predictor::from_bytes(&predictor.to_bytes()).as_ref(), Ok(&predictor));
    let shape = predictor.shape();
    let mut state = predictor.state();
    let features: Vec<f32> = (0..shape.n_inputs).map(|i| i as f32 % 7.0 - 3.0).collect();
    predictor.set(&mut state, &features);
    predictor.update(&mut state, &features);
    assert_eq!(state.scores().len(), shape.n_outputs);
    let mut mask = Mask::new();
    let k = shape.n_outputs / 2;
    assert_eq!(Selector::default().top_k(state.scores(), k, &mut mask), k);
});
