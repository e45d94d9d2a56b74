//! Any bytes as a pack, with checksums made right so that what they guard is reached.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ls_model::pack::{verify_chunk, verify_rows};
use ls_model::{ModelFile, Tokenizer};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;
const METADATA: u32 = 1;
const DIRECTORY: u32 = 2;

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
    reseal(&mut bytes);
    std::fs::write(FILE.path(), &bytes).expect("the temporary file can be written");
    if let Ok(model) = ModelFile::open(FILE.path()) {
        ask(&model);
    }
});

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    let value = u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?);
    usize::try_from(value).ok()
}

/// Puts the checksum of `begin .. begin + n` at `at`, where all of them are in the file.
fn put_sum(bytes: &mut [u8], begin: usize, n: usize, at: usize) {
    let range = begin.checked_add(n).map(|end| begin..end);
    let Some(sum) = range.and_then(|range| bytes.get(range)).map(xxh3_64) else { return };
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = sum.to_le_bytes();
    }
}

/// Makes length and checksums right: of blobs, of metadata and directory, and of the header.
fn reseal(bytes: &mut [u8]) {
    let len = bytes.len() as u64;
    if let Some(place) = bytes.get_mut(16..).and_then(|rest| rest.first_chunk_mut()) {
        *place = len.to_le_bytes();
    }
    for entry in (32..PAGE - 40).step_by(32) {
        let Some(kind) = u32_at(bytes, entry).filter(|kind| [METADATA, DIRECTORY].contains(kind))
        else {
            continue;
        };
        let place = u64_at(bytes, entry + 8).zip(u64_at(bytes, entry + 16));
        let Some((offset, n)) = place else { continue };
        if kind == METADATA {
            let _ = reseal_blobs(bytes, offset);
        }
        put_sum(bytes, offset, n, entry + 24);
    }
    put_sum(bytes, 0, PAGE - 8, PAGE - 8);
}

fn reseal_blobs(bytes: &mut [u8], section: usize) -> Option<()> {
    let n = u32_at(bytes, section)?.min(16);
    let mut entry = section.checked_add(8)?;
    for _ in 0..n {
        let after_name = entry.checked_add(4)?.checked_add(u32_at(bytes, entry)? as usize)?;
        let offset = section.checked_add(u64_at(bytes, after_name)?)?;
        let n_bytes = u64_at(bytes, after_name + 8)?;
        put_sum(bytes, offset, n_bytes, after_name + 16);
        entry = after_name + 24;
    }
    Some(())
}

/// Reads everything that the pack offers: all of it must lie in the file.
fn ask(model: &ModelFile) {
    model.check_whole().expect("the file was not cut");
    let pack = model.pack().expect("nothing else begins so");
    for info in model.tensors() {
        let tensor = model.tensor(&info.name).expect("the file was not cut").expect("it is listed");
        let _ = pack.verify_tensor(&info.name, tensor.data);
    }
    let config = model.config();
    for (layer, layout) in pack.layers().iter().enumerate() {
        assert_eq!((layout.d_ff, layout.d_model), (config.d_ff, config.d_model));
        assert!(pack.order(layer).is_none_or(|order| order.len() == config.d_ff));
        assert!(layout.segments().flatten().eq(0..layout.n_chunks));
        for chunk in 0..layout.n_chunks {
            let record = model.share_range(layout.chunk_offset(chunk), layout.record_bytes);
            let record = record.expect("the record lies in the file");
            for part in [layout.gate(chunk), layout.up(chunk), layout.down(chunk)] {
                assert!(record.get(part).is_some());
            }
            let _ = verify_chunk(&record, layer as u32, chunk);
        }
    }
    if let Some(rows) = pack.rows() {
        for record_idx in 0..rows.n_records() {
            let record = model.share_range(rows.record_offset(record_idx), rows.record_bytes);
            let record = record.expect("the record lies in the file");
            for row in rows.rows(record_idx) {
                assert!(record.get(rows.row_in_record(row)).is_some());
            }
            let _ = verify_rows(&record, record_idx);
        }
    }
    let _ = Tokenizer::from_model(model);
}
