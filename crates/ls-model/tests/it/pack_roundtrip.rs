//! What was packed is what was there.

use ls_model::pack::{
    ColumnType, LayerLayout, Pack, PackOptions, is_pack, verify_chunk, verify_rows,
};
use ls_model::tokenizer::EncodeOptions;
use ls_model::{ModelFile, Source, Tokenizer};

use crate::packing::{column, fixture, fixtures, options, pack, shuffled};
use crate::support::Tiny;

const EMBEDDING: &str = "token_embd.weight";

fn is_mlp(name: &str) -> bool {
    ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"].iter().any(|part| name.ends_with(part))
}

fn same_settings(source: &ModelFile, packed: &ModelFile) {
    assert_eq!(packed.config(), source.config());
    assert_eq!(packed.chat_template(), source.chat_template());
    assert_eq!(packed.warnings(), []);
    match (source.source(), packed.source()) {
        (Source::Gguf(source), Source::Gguf(packed)) => {
            let all = |metadata: &ls_model::gguf::Metadata| -> Vec<String> {
                metadata.iter().map(|(key, value)| format!("{key}={value:?}")).collect()
            };
            assert_eq!(all(packed), all(source));
        }
        (Source::Safetensors(source), Source::Safetensors(packed)) => {
            assert_eq!(packed.config(), source.config());
            assert_eq!(packed.tokenizer_config(), source.tokenizer_config());
            assert_eq!(packed.generation_config(), source.generation_config());
            assert_eq!(packed.read_tokenizer().unwrap(), source.read_tokenizer().unwrap());
        }
        (source, packed) => panic!("{source:?} became {packed:?}"),
    }
    let tokenizer = |model| Tokenizer::from_model(model).unwrap();
    let text = "Once upon a time, 123 wörlds <|im_end|>\n\n  of </s> tokens";
    let ids = |model| tokenizer(model).encode(text, EncodeOptions::PROMPT).unwrap();
    assert_eq!(ids(packed), ids(source));
}

fn same_tensors(source: &ModelFile, packed: &ModelFile) {
    let pack = packed.pack().unwrap();
    let tied = source.config().tied_output;
    let kept = |name: &str| !is_mlp(name) && (tied || name != EMBEDDING);
    let names = |model: &ModelFile| -> Vec<String> {
        let names = model.tensors().iter().map(|info| info.name.clone());
        names.filter(|name| kept(name)).collect()
    };
    assert_eq!(names(packed), names(source));
    assert_eq!(packed.tensors().len(), names(packed).len());
    for info in packed.tensors() {
        assert_eq!(info.offset() % 4096, 0);
        let expected = source.require(&info.name, &info.shape).unwrap();
        let found = packed.tensor(&info.name).unwrap().unwrap();
        assert_eq!((found.dtype, found.data), (expected.dtype, expected.data), "{}", info.name);
        pack.verify_tensor(&info.name, found.data).unwrap();
        pack.verify_tensor(&info.name, &found.data[1..]).unwrap_err();
    }
}

fn same_rows(source: &ModelFile, packed: &ModelFile) {
    let config = source.config();
    let Some(rows) = packed.pack().unwrap().rows() else {
        assert!(config.tied_output);
        return;
    };
    assert_eq!((rows.n_rows, rows.d_model), (config.vocab_size, config.d_model));
    let expected = source.require(EMBEDDING, &[rows.n_rows, rows.d_model]).unwrap();
    for (row, bytes) in expected.data.chunks(rows.row_bytes()).enumerate() {
        let idx = rows.record_of(row);
        let record = packed.share_range(rows.record_offset(idx), rows.record_bytes).unwrap();
        verify_rows(&record, idx).unwrap();
        assert_eq!(&record[rows.row_in_record(row)], bytes, "row {row}");
        assert!(rows.rows(idx).contains(&row));
    }
}

/// Compares every neuron of a layer and that all else in its records is zero.
fn same_layer(source: &ModelFile, packed: &ModelFile, layer: usize, layout: &LayerLayout) {
    let pack = packed.pack().unwrap();
    let shape = [layout.d_ff, layout.d_model];
    let gate = source.require(&format!("blk.{layer}.ffn_gate.weight"), &shape).unwrap();
    let up = source.require(&format!("blk.{layer}.ffn_up.weight"), &shape).unwrap();
    assert_eq!((layout.gate, layout.up), (gate.dtype, up.dtype));
    let row = |data: &[u8], n_bytes: usize, idx: usize| data[idx * n_bytes..][..n_bytes].to_vec();
    let mut position = 0;
    for chunk in 0..layout.n_chunks {
        let offset = layout.chunk_offset(chunk);
        let record = packed.share_range(offset, layout.record_bytes).unwrap();
        verify_chunk(&record, layer as u32, chunk).unwrap();
        let mut expected = vec![0; layout.record_bytes];
        for slot in 0..layout.neurons_in(chunk) {
            let neuron = pack.order(layer).map_or(position, |order| order[position] as usize);
            let parts = [
                (layout.gate(chunk), row(gate.data, layout.gate_row_bytes(), neuron)),
                (layout.up(chunk), row(up.data, layout.up_row_bytes(), neuron)),
                (layout.down(chunk), column(layer, neuron, layout.column_bytes())),
            ];
            for (range, bytes) in parts {
                expected[range][slot * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
            }
            position += 1;
        }
        let end = layout.record_bytes - 8;
        assert_eq!(record[..end], expected[..end], "chunk {chunk} of layer {layer}");
    }
    assert_eq!(position, layout.d_ff);
}

fn roundtrip(source: &ModelFile, options: &PackOptions) {
    let dir = tempfile::tempdir().unwrap();
    // The name is no hint: a pack is known by its bytes.
    let path = dir.path().join("model.gguf");
    let summary = pack(source, &path, options);
    assert!(is_pack(&path));
    let packed = ModelFile::open(&path).unwrap();
    packed.check_whole().unwrap();
    same_settings(source, &packed);
    same_tensors(source, &packed);
    same_rows(source, &packed);
    let layers = packed.pack().unwrap().layers();
    assert_eq!(layers.len(), source.config().n_layers);
    for (idx, layout) in layers.iter().enumerate() {
        same_layer(source, &packed, idx, layout);
    }
    let useful = summary.resident_bytes + summary.row_bytes + summary.streamed_bytes;
    assert_eq!(packed.weights_bytes(), useful);
    assert_eq!((packed.size_bytes(), packed.size_bytes() % 4096), (summary.file_bytes, 0));
    assert_eq!(packed.size_bytes(), std::fs::metadata(&path).unwrap().len());
    let facts = packed.pack().unwrap().facts();
    assert_eq!(facts.source_bytes, source.size_bytes());
    assert_eq!(facts.reordered, layers.iter().enumerate().any(|(idx, _)| is_ordered(&packed, idx)));
}

fn is_ordered(packed: &ModelFile, layer: usize) -> bool {
    packed.pack().and_then(|pack: &Pack| pack.order(layer)).is_some()
}

#[test]
fn every_fixture_survives() {
    for (path, down) in fixtures().iter().zip(ColumnType::ALL.into_iter().cycle()) {
        let source = ModelFile::open(path).unwrap();
        roundtrip(&source, &options(down));
    }
}

#[test]
fn every_fixture_survives_in_another_order() {
    for path in fixtures() {
        let source = ModelFile::open(&path).unwrap();
        let (n_layers, d_ff) = (source.config().n_layers, source.config().d_ff);
        let orders = (0..n_layers).map(|layer| shuffled(d_ff, layer as u64 + 5)).collect();
        roundtrip(&source, &PackOptions { orders, ..options(ColumnType::Q5) });
    }
}

#[test]
fn layers_may_differ() {
    let source = ModelFile::open(fixture("llama.gguf")).unwrap();
    let (n_layers, d_ff) = (source.config().n_layers, source.config().d_ff);
    let layer_down: Vec<ColumnType> = ColumnType::ALL.into_iter().cycle().take(n_layers).collect();
    let mut orders = vec![Vec::new(); n_layers];
    orders[1] = shuffled(d_ff, 3);
    roundtrip(
        &source,
        &PackOptions { layer_down: layer_down.clone(), orders, ..options(ColumnType::Q4) },
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.lspack");
    pack(
        &source,
        &path,
        &PackOptions { layer_down: layer_down.clone(), ..options(ColumnType::Q4) },
    );
    let packed = ModelFile::open(&path).unwrap();
    let found: Vec<ColumnType> = packed.pack().unwrap().layers().iter().map(|l| l.down).collect();
    assert_eq!((&found, &packed.pack().unwrap().facts().down), (&layer_down, &layer_down));
}

#[test]
fn chunks_are_of_the_size_that_was_asked_for() {
    let source = ModelFile::open(fixture("f32.gguf")).unwrap();
    for chunk_kib in [4, 16, 64, 1024] {
        roundtrip(&source, &PackOptions { chunk_kib, ..options(ColumnType::F32) });
    }
}

#[test]
fn what_the_decoder_does_not_use_is_left_out() {
    let mut writer = Tiny::new("llama").writer();
    crate::support::add_zeros(&mut writer, "vision.weight", ls_model::TensorType::F16, &[64, 64]);
    let source = crate::support::open(&writer).unwrap();
    assert_eq!(source.warnings().len(), 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.lspack");
    pack(&source, &path, &options(ColumnType::Q8));
    let packed = ModelFile::open(&path).unwrap();
    assert_eq!(packed.warnings(), []);
    assert!(packed.tensor("vision.weight").unwrap().is_none());
}

#[test]
fn tensors_in_pieces_are_not_handed_out_in_one() {
    let source = ModelFile::open(fixture("llama.gguf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.lspack");
    pack(&source, &path, &options(ColumnType::Q8));
    let packed = ModelFile::open(&path).unwrap();
    let name = "blk.0.ffn_up.weight";
    let shape = source.tensor(name).unwrap().unwrap().shape.to_vec();
    assert!(packed.tensor(name).unwrap().is_none() && packed.share(name).unwrap().is_none());
    let error = packed.require(name, &shape).unwrap_err();
    assert!(matches!(error, ls_model::ModelError::Scattered { .. }), "{error}");
    let error = packed.require(name, &[1, 2]).unwrap_err();
    assert!(matches!(error, ls_model::ModelError::Shape { .. }), "{error}");
    let error = packed.share_range(packed.size_bytes() - 1, 2).unwrap_err();
    assert!(matches!(error, ls_model::ModelError::OutOfFile { .. }), "{error}");
    packed.share_range(u64::MAX, 2).unwrap_err();
    // The source keeps its own.
    assert!(source.pack().is_none() && !is_pack(fixture("llama.gguf")));
}

#[test]
fn a_model_in_parts_is_packed_whole() {
    let dir = crate::shards::folder(&crate::shards::parts(None));
    let source = ModelFile::open(crate::shards::shard(dir.path(), 1)).unwrap();
    let path = dir.path().join("model.lspack");
    pack(&source, &path, &options(ColumnType::Q8));
    let packed = ModelFile::open(&path).unwrap();
    assert_eq!((packed.config(), packed.files().len()), (source.config(), 1));
    same_layer(&source, &packed, 1, &packed.pack().unwrap().layers()[1]);
    let Source::Gguf(metadata) = packed.source() else { panic!("not from GGUF") };
    assert!(!metadata.contains("split.count"));
}
