//! What neurons add, and packs that are ordered by it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ls_cpu::{Cpu, Isa};
use ls_engine::{Engine, Layerwise, PerplexityOptions, hotness, pack, perplexity};
use ls_model::ModelFile;
use ls_model::pack::PackOptions;

use crate::streaming::{in_memory, packed};
use crate::{fixtures, load};

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + i * 37 % 280).collect()
}

fn texts() -> Vec<Vec<u32>> {
    vec![prompt(40), prompt(30).into_iter().rev().collect()]
}

fn measured(engine: &Engine) -> Vec<Vec<f32>> {
    hotness(engine, &texts(), &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

/// Packs `model` with the hottest neurons first, and says which these are.
fn ordered(model: &Path, folder: &Path) -> (PathBuf, Vec<Vec<u32>>) {
    let order = |scores: &Vec<f32>| {
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        order
    };
    let orders: Vec<Vec<u32>> = measured(&load(model, 2)).iter().map(order).collect();
    let options = PackOptions { chunk_kib: 4, orders: orders.clone(), ..PackOptions::default() };
    let (cpu, out) = (Cpu::new(1, Isa::detect()).unwrap(), folder.join("ordered.lspack"));
    let options = PackOptions { down: ls_model::pack::ColumnType::F32, ..options };
    let model = ModelFile::open(model).unwrap();
    pack(&cpu, &model, &out, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    (out, orders)
}

/// By the values and columns that the engine hands out.
#[test]
fn hotness_is_the_mean_share_of_the_energy() {
    let dir = tempfile::tempdir().unwrap();
    let engine = in_memory(&packed(&fixtures().join("models/f32.gguf"), dir.path()));
    let (d, d_ff) = (engine.config().d_model, engine.config().d_ff);
    let found = measured(&engine);
    let mut pass = Layerwise::new(&engine, &texts()).unwrap();
    while let Some(layer) = pass.attend().unwrap() {
        let mut x = vec![0.0; 70 * d];
        pass.normed(0..70, &mut x);
        let mut values = vec![0.0; 70 * d_ff];
        engine.mlp_activations(layer, &x, &mut values).unwrap();
        let mut norms = Vec::new();
        let norm = |column: &[f32]| column.iter().map(|w| f64::from(w * w)).sum::<f64>();
        let mut each = |rows: ls_engine::MlpRows<'_>| {
            norms.extend(rows.down.chunks_exact(d).map(norm));
        };
        engine.mlp_weights(layer, &mut each).unwrap();
        let mut want = vec![0.0; d_ff];
        for row in values.chunks_exact(d_ff) {
            let energy = |j: usize| f64::from(row[j]).powi(2) * norms[j];
            let all: f64 = (0..d_ff).map(energy).sum();
            want.iter_mut().enumerate().for_each(|(j, want)| *want += energy(j) / all / 70.0);
        }
        for (got, want) in found[layer].iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{got} for {want}");
        }
        pass.mlp().unwrap();
    }
    assert_eq!(found.len(), engine.config().n_layers);
}

#[test]
fn a_source_and_its_pack_agree_whatever_the_threads() {
    let (source, dir) = (fixtures().join("models/f32.gguf"), tempfile::tempdir().unwrap());
    let of_source = measured(&load(&source, 1));
    assert_eq!(of_source, measured(&load(&source, 3)));
    let of_pack = measured(&in_memory(&packed(&source, dir.path())));
    for (a, b) in of_source.iter().flatten().zip(of_pack.iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

#[test]
fn it_stops_when_it_is_told() {
    let engine = load(&fixtures().join("models/f32.gguf"), 1);
    let mut asked = 0;
    let mut stop = |progress: &ls_engine::HotnessProgress| {
        assert!(progress.done <= progress.total && progress.layer < progress.n_layers);
        asked += 1;
        if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert_eq!(hotness(&engine, &texts(), &mut stop).unwrap(), None);
    assert_eq!(asked, 3);
}

/// Floats lose nothing when they are packed, so only the order of sums differs.
#[test]
fn a_pack_that_is_ordered_computes_the_same() {
    let (source, dir) = (fixtures().join("models/f32.gguf"), tempfile::tempdir().unwrap());
    let (path, orders) = ordered(&source, dir.path());
    let engine = in_memory(&path);
    for (layer, order) in orders.iter().enumerate() {
        assert_eq!(engine.model().pack().unwrap().order(layer), Some(&order[..]));
        assert!(order.iter().enumerate().any(|(i, j)| i as u32 != *j), "layer {layer}");
    }
    let found = measured(&engine);
    for layer in &found {
        // What was first by the source is still among the first.
        let half: f32 = layer[..layer.len() / 2].iter().sum();
        assert!(half > 0.5, "{half}");
    }
    let of = |engine: &Engine| {
        let mut state = engine.new_state().unwrap();
        let options = PerplexityOptions { n_ctx: 64, max_chunks: None, bos: None };
        let go = &mut |_: &_| ControlFlow::Continue(());
        perplexity(engine, &mut state, &prompt(128), &options, go).unwrap().ppl
    };
    let natural = tempfile::tempdir().unwrap();
    let (a, b) = (of(&in_memory(&packed(&source, natural.path()))), of(&engine));
    assert!((a / b - 1.0).abs() < 1e-5, "{a} and {b}");
}
