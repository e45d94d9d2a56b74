//! Packs for tests, with columns that name their layer and neuron.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ls_model::ModelFile;
use ls_model::pack::{ColumnType, Columns, PackOptions, Summary, write};

/// A model among the fixtures.
pub fn fixture(name: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    // Tests that run on another machine are told where their fixtures are.
    let folder = std::env::var_os("LEANSTREAM_FIXTURES").map_or_else(here, PathBuf::from);
    folder.join("models").join(name)
}

/// Every model among the fixtures.
pub fn fixtures() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    assert!(paths.len() > 20);
    paths
}

/// Small chunks, so that a small model has several in each layer.
pub fn options(down: ColumnType) -> PackOptions {
    PackOptions { chunk_kib: 4, down, ..PackOptions::default() }
}

/// The bytes that stand for the column of a neuron.
pub fn column(layer: usize, neuron: usize, n_bytes: usize) -> Vec<u8> {
    let seed = (layer * 7919 + neuron * 31 + 1) as u32;
    (0..n_bytes as u32).map(|at| (seed.wrapping_mul(at + 1) >> 3) as u8).collect()
}

/// The columns of a layer.
pub fn columns(layer: usize, d_ff: usize, column_bytes: usize) -> Columns {
    Columns::new((0..d_ff).flat_map(|neuron| column(layer, neuron, column_bytes)).collect())
}

/// Packs `model` to `path`.
pub fn pack(model: &ModelFile, path: &Path, options: &PackOptions) -> Summary {
    let config = model.config();
    let mut make = |layer: usize| {
        let down = options.layer_down.get(layer).copied().unwrap_or(options.down);
        let column_bytes = down.column_bytes(config.d_model).unwrap();
        Ok::<_, Infallible>(columns(layer, config.d_ff, column_bytes))
    };
    write(model, path, options, &mut make, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A fixture, packed, with the bytes of the pack.
pub fn packed(name: &str, down: ColumnType) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.lspack");
    pack(&ModelFile::open(fixture(name)).unwrap(), &path, &options(down));
    std::fs::read(path).unwrap()
}

/// A permutation of `0 .. n`.
pub fn shuffled(n: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut state = seed | 1;
    for idx in (1..n).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(idx, (state >> 33) as usize % (idx + 1));
    }
    order
}
