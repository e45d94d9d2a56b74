//! Writes the seeds of model files, the smallest valid ones of every architecture, of predictors,
//! of traces, and of what the scheduler reads. Those of tokenizers and templates are text, written by
//! hand.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use ls_engine::predict::{KEEPS, LayerPredictor, PredictorInfo, PredictorWriter, SPREAD};
use ls_engine::trace::{RecordOptions, record};
use ls_engine::{Engine, LoadOptions};
use ls_hash::{Form, LookupPredictor, LookupShape, Norm, Predictor, Shape, WeightType};
use ls_model::gguf::write::Writer;
use ls_model::pack::{ColumnType, Columns, PackOptions, write};
use ls_model::{ModelFile, TensorType};
use ls_sched::sim::Synthetic;

/// Sizes of a model; small, so that seeds stay small.
const WIDTH: usize = 4;
const FF: usize = 6;
const VOCAB: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for name in ["gguf", "hash_predictor", "pack", "predictors", "safetensors_header", "sched", "trace"] {
        fs::create_dir_all(root.join(name))?;
    }
    for arch in ["llama", "qwen2", "qwen3", "gemma3"] {
        let path = root.join("gguf").join(format!("{arch}.gguf"));
        model(arch)?.write(&path)?;
        packed(&path, &root.join("pack").join(format!("{arch}.lspack")), &[])?;
    }
    let order = (0..FF as u32).rev().collect();
    let path = root.join("pack/folder.lspack");
    packed(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/models/llama")),
        &path,
        &[],
    )?;
    trace(&path, &root.join("trace/llama"))?;
    let path = root.join("pack/reordered.lspack");
    packed(&root.join("gguf/llama.gguf"), &path, &[order])?;
    quantised()?.write(&root.join("gguf/quantised.gguf"))?;
    predictors(&root.join("hash_predictor"))?;
    file_of_predictors(&root.join("predictors/unfinished"))?;
    let table = ls_sched::solve(&ls_sched::Profile::new(2, 3))?;
    fs::write(root.join("sched/table"), table.to_bytes())?;
    let (n_tokens, n_layers, n_chunks, stages) = (2, 2, 9, 2);
    let of = Synthetic { n_tokens, n_layers, n_chunks, stages, ..Synthetic::default() };
    fs::write(root.join("sched/trace"), of.trace()?.to_bytes())?;
    let safetensors = root.join("safetensors_header");
    fs::write(safetensors.join("empty"), with_header("{}", 0))?;
    let one = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
    fs::write(safetensors.join("one"), with_header(one, 8))?;
    let three = concat!(
        r#"{"model.norm.weight":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"#,
        r#""b":{"dtype":"F16","shape":[],"data_offsets":[6,8]},"#,
        r#""c\u00e9":{"dtype":"F32","shape":[1,0],"data_offsets":[8,8]}}"#
    );
    fs::write(safetensors.join("three"), with_header(three, 8))?;
    Ok(())
}

/// Hash predictors of all kinds.
fn predictors(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let base = Shape { stacks: vec![64], ..Shape::new(40, 9) };
    let sparse = Shape { blocks_per_bit: 1, weights: WeightType::Ternary, ..base.clone() };
    let direct = Shape { form: Form::Direct, n_codes: 2, norm: Norm::Rms, ..sparse.clone() };
    let stacked = Shape { stacks: vec![128, 64], ..sparse.clone() };
    let shapes = [("dense", base), ("sparse", sparse), ("direct", direct), ("stacked", stacked)];
    for (name, shape) in shapes {
        fs::write(folder.join(name), Predictor::random(shape, 1)?.to_bytes())?;
    }
    Ok(())
}

/// What an interrupted training leaves: a header and two layers.
fn file_of_predictors(out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let info = PredictorInfo { pack: 1, text: 2, d_model: 32, n_layers: 3 };
    let mut writer = PredictorWriter::create(out, &info)?;
    for n_kinds in [1, 3] {
        let shape = LookupShape::within(32, 9, 2000, n_kinds)?;
        writer.layer(&LayerPredictor {
            predictor: LookupPredictor::random(shape, 1)?,
            norms: vec![1.0; 9].into(),
            weight: 0.5,
            missed: [0.25; KEEPS],
            spread: [[1.0; SPREAD]; KEEPS],
        })?;
    }
    drop(writer);
    fs::rename(out.with_extension("part"), out)?;
    Ok(())
}

/// A trace of the pack.
fn trace(pack: &Path, out: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::load(pack, &LoadOptions { threads: 1, ..LoadOptions::default() })?;
    let windows = [vec![0, 1, 2, 0, 1, 2, 0, 1], vec![2; 9]];
    let options = RecordOptions { limit: 4000, force: true, ..RecordOptions::default() };
    record(&engine, &windows, out, &options, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

/// Packs the model at `source` with columns of zeros.
fn packed(
    source: &Path,
    out: &Path,
    orders: &[Vec<u32>],
) -> Result<(), Box<dyn std::error::Error>> {
    let model = ModelFile::open(source)?;
    let n_bytes = model.config().d_ff * model.config().d_model * 2;
    let options = PackOptions {
        chunk_kib: 4,
        down: ColumnType::F16,
        orders: orders.to_vec(),
        force: true,
        ..PackOptions::default()
    };
    let mut columns = |_| Ok::<_, std::convert::Infallible>(Columns::new(vec![0; n_bytes]));
    write(&model, out, &options, &mut columns, &mut |_| ControlFlow::Continue(()))?;
    Ok(())
}

fn with_header(json: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

/// A model of one layer with two heads.
fn model(arch: &str) -> Result<Writer<'static>, Box<dyn std::error::Error>> {
    let mut writer = Writer::new();
    writer.alignment(8)?;
    writer.value("general.architecture", arch);
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", WIDTH),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("feed_forward_length", FF),
        ("context_length", 16),
        ("attention.sliding_window", 8),
    ] {
        writer.value(&format!("{arch}.{key}"), value as u32);
    }
    writer.value(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5_f32);
    writer.value(&format!("{arch}.rope.scaling.type"), "linear");
    writer.value(&format!("{arch}.rope.scaling.factor"), 2_f32);
    writer.value("tokenizer.ggml.tokens", ["a", "b", "<s>"].map(str::to_owned).to_vec());
    writer.value("tokenizer.ggml.scores", vec![0_f32, -1.0, 0.5]);
    writer.value("tokenizer.ggml.token_type", vec![1_i32, 1, 3]);
    let mut tensors: Vec<(&str, Vec<usize>)> = vec![
        ("token_embd.weight", vec![VOCAB, WIDTH]),
        ("output_norm.weight", vec![WIDTH]),
        ("blk.0.attn_norm.weight", vec![WIDTH]),
        ("blk.0.attn_q.weight", vec![WIDTH, WIDTH]),
        ("blk.0.attn_k.weight", vec![WIDTH / 2, WIDTH]),
        ("blk.0.attn_v.weight", vec![WIDTH / 2, WIDTH]),
        ("blk.0.attn_output.weight", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_norm.weight", vec![WIDTH]),
        ("blk.0.ffn_gate.weight", vec![FF, WIDTH]),
        ("blk.0.ffn_up.weight", vec![FF, WIDTH]),
        ("blk.0.ffn_down.weight", vec![WIDTH, FF]),
    ];
    tensors.extend(match arch {
        "qwen2" => vec![
            ("blk.0.attn_q.bias", vec![WIDTH]),
            ("blk.0.attn_k.bias", vec![WIDTH / 2]),
            ("blk.0.attn_v.bias", vec![WIDTH / 2]),
        ],
        "qwen3" | "gemma3" => vec![
            ("blk.0.attn_q_norm.weight", vec![WIDTH / 2]),
            ("blk.0.attn_k_norm.weight", vec![WIDTH / 2]),
        ],
        _ => vec![],
    });
    if arch == "gemma3" {
        tensors.push(("blk.0.post_attention_norm.weight", vec![WIDTH]));
        tensors.push(("blk.0.post_ffw_norm.weight", vec![WIDTH]));
    }
    for (name, shape) in tensors {
        let n_bytes = 2 * shape.iter().product::<usize>();
        writer.tensor(name, TensorType::F16, &shape, vec![0; n_bytes])?;
    }
    Ok(writer)
}

/// One block of every type.
fn quantised() -> Result<Writer<'static>, Box<dyn std::error::Error>> {
    let mut writer = Writer::new();
    for dtype in TensorType::ALL {
        let data = vec![0; dtype.block_bytes()];
        writer.tensor(dtype.name(), dtype, &[1, dtype.block_len()], data)?;
    }
    Ok(writer)
}
