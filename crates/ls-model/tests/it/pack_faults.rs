//! Packs that are cut, flipped, or made to deceive.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use ls_model::pack::{ColumnType, PackFileError, verify_chunk, verify_rows};
use ls_model::{ModelError, ModelFile, Tokenizer};
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use crate::packing::packed;

/// A file whose bytes change.
struct Bench {
    dir: TempDir,
    file: File,
}

impl Bench {
    fn new(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.lspack");
        std::fs::write(&path, bytes).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        Self { dir, file }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("model.lspack")
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.file.seek(SeekFrom::Start(at)).unwrap();
        self.file.write_all(bytes).unwrap();
    }

    fn open(&self) -> Result<ModelFile, ModelError> {
        ModelFile::open(self.path())
    }
}

/// Offset, length and place of the checksum of each section.
fn sections(bytes: &[u8]) -> Vec<(usize, usize, usize)> {
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let n = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
    let entries = (0..n.min(5)).map(|idx| 32 + idx * 32);
    entries.map(|at| (u64_at(at + 8), u64_at(at + 16), at + 24)).collect()
}

/// Makes the checksums of metadata, directory and header right again.
fn reseal(bytes: &mut [u8]) {
    for (offset, n_bytes, sum_at) in sections(bytes).into_iter().take(2) {
        let sum = bytes.get(offset..).and_then(|rest| rest.get(..n_bytes)).map_or(0, xxh3_64);
        bytes[sum_at..sum_at + 8].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = xxh3_64(&bytes[..4088]);
    bytes[4088..4096].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_flipped_byte_before_the_tensors_is_an_error_or_harmless() {
    for name in ["llama", "q8_0.gguf"] {
        let bytes = packed(name, ColumnType::Q4);
        let mut bench = Bench::new(&bytes);
        let whole = bench.open().unwrap();
        let sections = sections(&bytes);
        let meaningful = |at: usize| {
            at < 4096 || sections[..2].iter().any(|(begin, n, _)| (*begin..begin + n).contains(&at))
        };
        for (at, byte) in bytes.iter().enumerate().take(sections[2].0) {
            bench.put(at as u64, &[byte ^ (1 << (at % 8))]);
            match bench.open() {
                Err(error) => assert!(meaningful(at), "{at}: {error}"),
                Ok(model) => {
                    assert!(!meaningful(at), "byte {at} of {name} was not noticed");
                    assert_eq!(model.config(), whole.config());
                }
            }
            bench.put(at as u64, &[*byte]);
        }
        bench.open().unwrap();
    }
}

#[test]
fn every_section_has_its_checksum() {
    for name in ["llama", "q8_0.gguf", "qwen2.gguf"] {
        let bytes = packed(name, ColumnType::F16);
        let sections = sections(&bytes);
        let has_rows = Bench::new(&bytes).open().unwrap().pack().unwrap().rows().is_some();
        assert_eq!(sections.len(), 4 + usize::from(has_rows));
        for (offset, n_bytes, sum_at) in sections {
            assert_eq!(
                bytes[sum_at..sum_at + 8],
                xxh3_64(&bytes[offset..][..n_bytes]).to_le_bytes()
            );
        }
    }
}

#[test]
fn a_pack_that_is_cut_or_longer_is_refused() {
    let bytes = packed("llama.gguf", ColumnType::Q8);
    let mut edges: Vec<usize> = vec![9, 12, 100, 4095, 4096, bytes.len() - 4096, bytes.len()];
    for (offset, n_bytes, _) in sections(&bytes) {
        edges.extend([offset - 1, offset, offset + 1, offset + n_bytes - 1, offset + n_bytes]);
    }
    edges.retain(|edge| *edge < bytes.len());
    edges.extend([bytes.len() + 1, bytes.len() + 4096]);
    // From the longest on, since what was cut off does not come back.
    edges.sort_by_key(|edge| std::cmp::Reverse(*edge));
    let bench = Bench::new(&bytes);
    for edge in edges {
        bench.file.set_len(edge as u64).unwrap();
        match bench.open().unwrap_err() {
            ModelError::Pack { source: PackFileError::Length { found, .. }, .. } => {
                assert_eq!(found, edge as u64);
            }
            ModelError::Pack { source: PackFileError::Short { .. }, .. } => assert!(edge < 12),
            error => panic!("{edge}: {error}"),
        }
    }
}

#[test]
fn other_versions_and_pointers_are_named() {
    let bytes = packed("llama.gguf", ColumnType::Q8);
    let mut bench = Bench::new(&bytes);
    bench.put(8, &2_u32.to_le_bytes());
    let error = bench.open().unwrap_err().to_string();
    assert!(error.contains("version 2 of the format, and this program reads version 1"), "{error}");
    let bench = Bench::new(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert!(matches!(bench.open(), Err(ModelError::LfsPointer { .. })));
}

#[test]
fn damage_of_data_is_found_by_who_reads_it() {
    let bytes = packed("llama.gguf", ColumnType::Q6);
    let mut bench = Bench::new(&bytes);
    let model = bench.open().unwrap();
    let pack = model.pack().unwrap();
    let flip = |bench: &mut Bench, at: u64| bench.put(at, &[bytes[at as usize] ^ 0x40]);
    for (layer, layout) in pack.layers().iter().enumerate() {
        for chunk in 0..layout.n_chunks {
            let at = (chunk as usize * 577) % layout.record_bytes;
            flip(&mut bench, layout.chunk_offset(chunk) + at as u64);
            let record =
                model.share_range(layout.chunk_offset(chunk), layout.record_bytes).unwrap();
            let damage = verify_chunk(&record, layer as u32, chunk).unwrap_err();
            assert_eq!((damage.layer, damage.chunk), (layer as u32, chunk));
        }
    }
    let rows = pack.rows().unwrap();
    for idx in 0..rows.n_records() {
        flip(&mut bench, rows.record_offset(idx) + idx);
        let record = model.share_range(rows.record_offset(idx), rows.record_bytes).unwrap();
        assert_eq!(verify_rows(&record, idx).unwrap_err().record, idx);
    }
    for info in model.tensors() {
        flip(&mut bench, info.offset() + info.n_bytes as u64 - 1);
        let tensor = model.tensor(&info.name).unwrap().unwrap();
        let damage = pack.verify_tensor(&info.name, tensor.data).unwrap_err();
        assert_eq!(damage.tensor, info.name);
    }
    // Opening reads none of it.
    bench.open().unwrap();
}

#[test]
fn records_at_each_others_places_are_damage() {
    let bench = Bench::new(&packed("llama.gguf", ColumnType::Q8));
    let model = bench.open().unwrap();
    let layout = model.pack().unwrap().layers()[1];
    let record = model.share_range(layout.chunk_offset(1), layout.record_bytes).unwrap();
    verify_chunk(&record, 1, 1).unwrap();
    for (layer, chunk) in [(0, 1), (1, 0), (1, 2)] {
        verify_chunk(&record, layer, chunk).unwrap_err();
    }
}

/// The tensor whose bytes end up in the configuration is checked while opening.
#[test]
fn damaged_frequencies_are_not_computed_with() {
    let bytes = packed("llama3.gguf", ColumnType::Q8);
    let mut bench = Bench::new(&bytes);
    let model = bench.open().unwrap();
    let at = model.tensors().iter().find(|t| t.name == "rope_freqs.weight").unwrap().offset();
    bench.put(at + 1, &[bytes[at as usize + 1] ^ 1]);
    let error = bench.open().unwrap_err().to_string();
    assert!(error.contains("tensor \"rope_freqs.weight\" is damaged"), "{error}");
}

#[test]
fn a_tokenizer_that_changed_after_opening_is_noticed() {
    let bytes = packed("llama", ColumnType::Q8);
    let mut bench = Bench::new(&bytes);
    let model = bench.open().unwrap();
    let at = bytes.windows(8).position(|window| window == b"\"merges\"").unwrap();
    bench.put(at as u64, b"x");
    let error = Tokenizer::from_model(&model).unwrap_err().to_string();
    assert!(error.contains("\"tokenizer.json\" in the metadata"), "{error}");
}

#[test]
fn a_pack_that_is_cut_while_open_gives_an_error() {
    let bytes = packed("llama.gguf", ColumnType::Q8);
    let bench = Bench::new(&bytes);
    let model = bench.open().unwrap();
    model.check_whole().unwrap();
    bench.file.set_len(bytes.len() as u64 - 1).unwrap();
    assert!(matches!(model.check_whole(), Err(ModelError::Shrank { .. })));
}

/// What lies in the metadata must fit what lies in the directory.
#[test]
fn contradictions_are_named() {
    let good = packed("llama.gguf", ColumnType::Q8);
    let begin = sections(&good)[1].0;
    let find = |text: &[u8]| good.windows(text.len()).position(|w| w == text).unwrap();
    let change = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        reseal(&mut bad);
        let bench = Bench::new(&bad);
        let error = bench.open().unwrap_err();
        crate::support::sentence(&error, bench.dir.path())
    };
    // An entry begins with the length of the name, which type, dimensions and offset follow.
    let tensor = begin + 16;
    let name_len = good[tensor] as usize;
    let after_name = tensor + 4 + name_len;
    let sentences = [
        change(begin, &[255, 255]),
        change(begin + 4, &[1]),
        change(begin + 4, &[255, 255]),
        change(begin + 8, &[0]),
        change(tensor + 4, &[0xff]),
        change(after_name, &[99]),
        change(after_name + 4, &[9]),
        change(after_name + 8, &[0; 8]),
        change(after_name + 8, &[0xff; 8]),
        change(find(b"output_norm.weight"), b"output_norm.weighs"),
        change(find(b"blk.0.attn_norm.weight"), b"blk.0.attn_norm.weighs"),
        change(find(b"pack.json"), b"pack.jsom"),
        change(find(b"llama.block_count"), b"llama.block_couns"),
    ];
    insta::assert_snapshot!(sentences.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_wrong_under_right_checksums_opens_or_fails_but_never_panics(
        changes in vec((0.0..1.0, vec(prop_oneof![Just(0), Just(255), any::<u8>()], 1..9)), 1..3),
        which in 0..4_usize,
    ) {
        // Made once: it takes longer than all that follows.
        static GOOD: std::sync::LazyLock<[Vec<u8>; 2]> = std::sync::LazyLock::new(|| {
            ["llama", "qwen2.gguf"].map(|name| packed(name, ColumnType::Q5))
        });
        let mut bytes = GOOD[which / 2].clone();
        let sections = sections(&bytes);
        let (begin, n) = match which % 2 {
            0 => (sections[1].0, sections[1].1),
            _ => (0, sections[2].0),
        };
        for (at, new) in &changes {
            let at = begin + (at * n as f64) as usize;
            for (old, new) in bytes[at..].iter_mut().zip(new) {
                *old = *new;
            }
        }
        reseal(&mut bytes);
        let bench = Bench::new(&bytes);
        if let Ok(model) = bench.open() {
            use_all(&model);
        }
        prop_assert!(crate::ALLOCATED.peak_usage_as_mb() < 256.0);
    }
}

/// Everything that a pack offers lies in its file and has the shapes of its configuration.
fn use_all(model: &ModelFile) {
    let (pack, config) = (model.pack().unwrap(), model.config());
    for info in model.tensors() {
        let tensor = model.tensor(&info.name).unwrap().unwrap();
        assert_eq!(tensor.data.len(), info.n_bytes);
        let _ = pack.verify_tensor(&info.name, tensor.data);
    }
    assert_eq!(pack.layers().len(), config.n_layers);
    for (layer, layout) in pack.layers().iter().enumerate() {
        assert_eq!((layout.d_ff, layout.d_model), (config.d_ff, config.d_model));
        assert!(pack.order(layer).is_none_or(|order| order.len() == config.d_ff));
        let neurons: usize = (0..layout.n_chunks).map(|chunk| layout.neurons_in(chunk)).sum();
        assert_eq!(neurons, config.d_ff);
        assert!(layout.segments().flatten().eq(0..layout.n_chunks));
        for chunk in 0..layout.n_chunks {
            let offset = layout.chunk_offset(chunk);
            let record = model.share_range(offset, layout.record_bytes).unwrap();
            for part in [layout.gate(chunk), layout.up(chunk), layout.down(chunk)] {
                let _ = record[part].len();
            }
            let _ = verify_chunk(&record, layer as u32, chunk);
        }
    }
    if let Some(rows) = pack.rows() {
        for row in 0..config.vocab_size {
            let idx = rows.record_of(row);
            let record = model.share_range(rows.record_offset(idx), rows.record_bytes).unwrap();
            assert_eq!(record[rows.row_in_record(row)].len(), rows.row_bytes());
        }
    }
    let _ = Tokenizer::from_model(model);
}
