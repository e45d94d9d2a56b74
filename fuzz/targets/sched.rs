//! Any bytes as a table of intervals and as a trace, with the checksum made right so that what it
//! guards is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ls_sched::Table;
use ls_sched::sim::Trace;
use xxhash_rust::xxh3::xxh3_64;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if let Some((content, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = xxh3_64(content).to_le_bytes();
    }
    if let Ok(table) = Table::from_bytes(&bytes) {
        assert_eq!(Table::from_bytes(&table.to_bytes()).as_ref(), Ok(&table));
        for done in 0..20 {
            let interval = table.interval(done, done as f32 / 3.0, 1.5);
            assert!(interval > 0);
        }
    }
    if let Ok(trace) = Trace::from_bytes(&bytes) {
        assert_eq!(Trace::from_bytes(&trace.to_bytes()).as_ref(), Ok(&trace));
        assert!(trace.layer(0, 0).is_some());
    }
});
