//! Any bytes as a safetensors file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ls_model::safetensors::parse;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = parse(bytes) else { return };
    for info in tensors {
        let end = info.offset() + info.n_bytes as u64;
        assert!(end <= bytes.len() as u64, "{} lies outside the file", info.name);
        let n_bytes = info.n_elements() * info.dtype.block_bytes();
        assert_eq!(n_bytes, info.n_bytes, "{}", info.name);
    }
});
