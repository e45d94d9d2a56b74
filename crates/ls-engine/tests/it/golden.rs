//! Logits of every architecture and tensor type against llama.cpp's.

use std::path::Path;

use ls_engine::Engine;
use serde_json::Value;

use crate::{fixtures, json, load};

/// The logits after each token, fed one by one when `stepwise`, or all at once.
fn logits(engine: &Engine, tokens: &[u32], stepwise: bool) -> Vec<Vec<f32>> {
    let mut state = engine.new_state().unwrap();
    let mut all = Vec::new();
    if stepwise {
        for token in tokens {
            all.push(engine.decode(&mut state, *token).unwrap().to_vec());
        }
    } else {
        engine.prefill_each(&mut state, tokens, 0, &mut |_, l| all.push(l.to_vec())).unwrap();
    }
    all
}

/// Root mean square of the differences from the reference's logits, over their own spread.
fn relative_error(logits: &[Vec<f32>], golden: &Value) -> f64 {
    let (mut error, mut spread, mut n) = (0.0, 0.0, 0.0);
    for (logits, position) in logits.iter().zip(golden["positions"].as_array().unwrap()) {
        let pairs = ["top", "sampled"].map(|k| position[k].as_array().unwrap());
        for pair in pairs.into_iter().flatten() {
            let want = pair[1].as_f64().unwrap();
            let got = f64::from(logits[pair[0].as_u64().unwrap() as usize]);
            error += (got - want).powi(2);
            spread += want.powi(2);
            n += 1.0;
        }
    }
    assert!(n > 100.0, "enough logits compared");
    (error / spread).sqrt()
}

#[test]
fn tiny_models_match_llama_cpp() {
    let golden = json("golden.json");
    let tokens: Vec<u32> =
        golden["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let mut worst = Vec::new();
    for (name, golden) in golden["models"].as_object().unwrap() {
        let engine = load(&fixtures().join(name), 2);
        for stepwise in [false, true] {
            let error = relative_error(&logits(&engine, &tokens, stepwise), golden);
            // Both engines round activations to 8 bits, in blocks of their own choice.
            let bound = if name.ends_with("32.gguf") { 2e-3 } else { 0.03 };
            if error > bound {
                worst.push(format!("{name} (stepwise {stepwise}): {error:.5} > {bound}"));
            }
        }
    }
    assert!(worst.is_empty(), "relative errors of the logits:\n{}", worst.join("\n"));
}

#[test]
fn folders_answer_as_the_files_with_the_same_weights() {
    let tokens = [1, 17, 260, 5, 99, 271, 42];
    for name in ["llama", "qwen2", "qwen3", "gemma3"] {
        let of = |path: &Path| logits(&load(path, 1), &tokens, false);
        let models = fixtures().join("models");
        let folder = of(&models.join(name));
        let file = of(&models.join(format!("{name}.gguf")));
        for (folder, file) in folder.iter().flatten().zip(file.iter().flatten()) {
            assert!(
                (folder - file).abs() < 2e-3,
                "{name}: {folder} in the folder, {file} in the file"
            );
        }
    }
}
