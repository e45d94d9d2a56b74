//! Any bytes as a trace, with checksums made right so that what they guard is reached.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ls_engine::trace::Trace;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a header before the sampled tokens.
const FIXED: usize = 64;

/// Where inputs are put to be opened.
static FILE: LazyLock<tempfile::NamedTempFile> = LazyLock::new(|| {
    let memory = std::path::Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::NamedTempFile::new_in(memory)
    } else {
        tempfile::NamedTempFile::new()
    };
    made.expect("a temporary file can be made")
});

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    let _ = reseal(&mut bytes);
    std::fs::write(FILE.path(), &bytes).expect("the temporary file can be written");
    let Ok(mut trace) = Trace::open(FILE.path()) else { return };
    let info = trace.info().clone();
    let (n, d) = (info.sampled.len(), info.d_model as usize);
    assert!(info.sampled.iter().all(|token| *token < info.n_tokens));
    for layer in 0..info.n_layers as usize {
        let Ok(values) = trace.layer(layer) else { continue };
        assert_eq!(values.len(), n);
        let mut all = vec![0.0; n * d];
        values.rows(0..n, &mut all);
    }
    trace.layer(info.n_layers as usize).expect_err("there are no more");
});

/// Makes the checksums of the header and of as many layers as there are right.
fn reseal(bytes: &mut [u8]) -> Option<()> {
    let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let n = usize::try_from(number(48)?).ok()?;
    let d = usize::try_from(number(56)? & 0xffff_ffff).ok()?;
    let header = n.checked_mul(4)?.checked_add(FIXED)?;
    put(bytes, 0, header, |bytes| xxh3_64(bytes))?;
    let len = n.checked_mul(d)?.checked_mul(2)?;
    let mut at = header + 8;
    for layer in 0..bytes.len() as u64 {
        put(bytes, at, len, |bytes| xxh3_64_with_seed(bytes, layer))?;
        at += len + 8;
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
