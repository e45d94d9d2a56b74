//! `leanstream inspect`: what is in a model file and what it takes to run it.

mod pack;
mod verify;

use std::collections::BTreeMap;
use std::process::ExitCode;

use ls_model::config::Architecture;
use ls_model::{Config, ModelFile, Source, TensorInfo, Tokenizer};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::output::UsageError;
use crate::{cmd, output};
use pack::PackReport;
use verify::{Verified, verify};

#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    architecture: Architecture,
    files: Vec<String>,
    file_bytes: u64,
    weight_bytes: u64,
    parameters: u64,
    types: Vec<TypeTotal>,
    config: &'a Config,
    /// `None` when it is unusable; a warning says why.
    tokenizer: Option<TokenizerSummary>,
    memory: MemoryNeed,
    /// `None`: no pack, so it streams only after packing.
    pack: Option<PackReport>,
    /// `None` when it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<Verified>,
    warnings: Vec<String>,
    tensors: Vec<TensorRow<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct TypeTotal {
    dtype: &'static str,
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct TokenizerSummary {
    kind: String,
    tokens: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    chat_template: bool,
}

/// Memory of a run in bytes. The weights stay in the mapped file: the system can take their pages
/// back, but then reads them again for the next token.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct MemoryNeed {
    context: u64,
    weight_bytes: u64,
    kv_bytes_per_token: u64,
    kv_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    dtype: &'static str,
    /// Outermost dimension first.
    shape: &'a [usize],
    bytes: u64,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    cmd::check_path(&args.model)?;
    let model = ModelFile::open(&args.model)?;
    let config = model.config();
    let mut warnings: Vec<String> = model.warnings().iter().map(ToString::to_string).collect();
    let tokenizer = match Tokenizer::from_model(&model) {
        Ok(tokenizer) => Some(tokenizer),
        Err(error) => {
            let reason = output::sentence(&error.into());
            warnings.push(format!("{}: no usable tokenizer: {reason}", args.model.display()));
            None
        }
    };
    // While there is a tokenizer: it counts for the budget.
    let pack = model.pack().map(|pack| PackReport::new(&model, pack, args.context)).transpose()?;
    let verified = match (args.verify, model.pack()) {
        (false, _) => None,
        (true, Some(pack)) => Some(verify(&model, pack)?),
        (true, None) => {
            let message = "--verify needs a .lspack file; other models carry no checksums";
            return Err(UsageError(message.into()).into());
        }
    };
    let tokenizer = tokenizer.map(|tokenizer| tokenizer_summary(&model, &tokenizer));
    let report = Report {
        name: &config.name,
        architecture: config.arch,
        files: model.files().map(|path| path.display().to_string()).collect(),
        file_bytes: model.size_bytes(),
        weight_bytes: model.weights_bytes(),
        parameters: parameters(&model),
        types: totals(model.tensors()),
        config,
        tokenizer,
        memory: memory_need(config, model.weights_bytes(), cmd::context(config, args.context)),
        pack,
        verified,
        warnings,
        tensors: model.tensors().iter().map(tensor_row).collect(),
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::stdout(&text(&report, args.tensors))?;
    }
    match report.verified.as_ref().and_then(|verified| verified.damaged.first()) {
        None => Ok(ExitCode::SUCCESS),
        Some(damage) => {
            anyhow::bail!("{} is damaged: {damage}; pack the model again", args.model.display())
        }
    }
}

/// Elements of all weights, also of those that a pack has no tensors of.
fn parameters(model: &ModelFile) -> u64 {
    let whole: u64 = model.tensors().iter().map(|info| info.n_elements() as u64).sum();
    let Some(pack) = model.pack() else { return whole };
    let layers = pack.layers().iter().map(|layer| 3 * (layer.d_ff * layer.d_model) as u64);
    let rows = pack.rows().map(|rows| (rows.n_rows * rows.d_model) as u64);
    layers.chain(rows).sum::<u64>() + whole
}

/// Totals by type, the largest first.
fn totals(tensors: &[TensorInfo]) -> Vec<TypeTotal> {
    let mut by_type = BTreeMap::new();
    for info in tensors {
        let empty = TypeTotal { dtype: info.dtype.name(), tensors: 0, parameters: 0, bytes: 0 };
        let total = by_type.entry(info.dtype.name()).or_insert(empty);
        total.tensors += 1;
        total.parameters += info.n_elements() as u64;
        total.bytes += info.n_bytes as u64;
    }
    let mut totals: Vec<TypeTotal> = by_type.into_values().collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}

fn tokenizer_summary(model: &ModelFile, tokenizer: &Tokenizer) -> TokenizerSummary {
    TokenizerSummary {
        kind: tokenizer_kind(model.source()),
        tokens: tokenizer.vocab_size(),
        bos: tokenizer.bos(),
        eos: tokenizer.eos(),
        adds_bos: tokenizer.adds_bos(),
        chat_template: model.chat_template().is_some(),
    }
}

/// The kind of tokenizer and its rule for cutting words, as the model's files name them.
fn tokenizer_kind(source: &Source) -> String {
    let Source::Gguf(metadata) = source else { return "tokenizer.json".into() };
    let value = |key| metadata.get::<&str>(key).ok().flatten();
    let kind = match value("tokenizer.ggml.model") {
        Some("llama") => "SentencePiece",
        Some("gpt2") => "byte-level BPE",
        other => other.unwrap_or("unnamed"),
    };
    value("tokenizer.ggml.pre").map_or(kind.into(), |pre| format!("{kind} ({pre})"))
}

fn memory_need(config: &Config, weight_bytes: u64, context: u64) -> MemoryNeed {
    let kv_bytes_per_token = cmd::kv_bytes_per_token(config);
    let kv_bytes = kv_bytes_per_token.saturating_mul(context);
    let total_bytes = weight_bytes.saturating_add(kv_bytes);
    MemoryNeed { context, weight_bytes, kv_bytes_per_token, kv_bytes, total_bytes }
}

fn tensor_row(info: &TensorInfo) -> TensorRow<'_> {
    TensorRow {
        name: &info.name,
        dtype: info.dtype.name(),
        shape: &info.shape,
        bytes: info.n_bytes as u64,
    }
}

fn text(report: &Report, with_tensors: bool) -> String {
    let mut out = output::table(&facts(report), &[]);
    out += "\n";
    if let Some(pack) = &report.pack {
        out += &output::table(&pack.budget_rows(), &[0, 1, 2, 3]);
        out += "\n";
    }
    out += &output::table(&type_rows(report), &[1, 2, 3]);
    if with_tensors {
        out += "\n";
        out += &output::table(&tensor_rows(report), &[3]);
    }
    for damage in report.verified.iter().flat_map(|verified| &verified.damaged) {
        out += &format!("\ndamaged: {damage}\n");
    }
    for warning in &report.warnings {
        out += &format!("\nwarning: {warning}\n");
    }
    out
}

fn facts(report: &Report) -> Vec<Vec<String>> {
    let config = report.config;
    let fact = |name: &str, value: String| vec![name.to_string(), value];
    let memory = &report.memory;
    let heads = format!("{} of {} elements", config.n_heads, config.head_dim);
    let windowed = config.window.iter().flatten().count();
    let mut facts = vec![
        fact("name", report.name.to_string()),
        fact("architecture", cmd::architecture_name(report.architecture)),
        fact("files", report.files.join(", ")),
        fact("parameters", count(report.parameters)),
        fact("layers", config.n_layers.to_string()),
        fact("width", config.d_model.to_string()),
        fact("heads", format!("{heads}, {} for keys and values", config.n_kv_heads)),
        fact("MLP neurons", format!("{} per layer, {:?}", config.d_ff, config.activation)),
        fact("vocabulary", config.vocab_size.to_string()),
        fact("context", format!("{} tokens trained", config.context_len)),
        fact("rope", rope(config)),
        fact("output head", if config.tied_output { "the embedding" } else { "its own" }.into()),
        fact("tokenizer", report.tokenizer.as_ref().map_or("unusable".into(), tokenizer_line)),
        fact("weights", output::bytes(report.weight_bytes)),
        fact("KV cache", format!("{} per token", output::bytes(memory.kv_bytes_per_token))),
        fact("memory", memory_line(memory)),
    ];
    if let Some(window) = config.window.iter().flatten().max() {
        let line = format!("{window} tokens in {windowed} of {} layers", config.n_layers);
        facts.insert(11, fact("sliding window", line));
    }
    match &report.pack {
        Some(pack) => facts.extend(pack.facts()),
        None => facts.push(fact("streaming", "once it is packed, see leanstream pack".into())),
    }
    facts.extend(report.verified.iter().map(|verified| fact("checksums", verified.line())));
    facts
}

fn rope(config: &Config) -> String {
    let rope = &config.rope;
    let scaling = match &rope.scaling {
        ls_model::config::RopeScaling::None => "no scaling".to_string(),
        ls_model::config::RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        ls_model::config::RopeScaling::Factors(_) => "scaling by frequency".to_string(),
    };
    format!("{:?}, base {}, {} elements, {scaling}", rope.layout, rope.base, rope.dim)
}

fn tokenizer_line(tokenizer: &TokenizerSummary) -> String {
    let bos = if tokenizer.adds_bos { "adds BOS" } else { "adds no BOS" };
    let template = if tokenizer.chat_template { "chat template" } else { "no chat template" };
    format!("{}, {} tokens, {bos}, {template}", tokenizer.kind, tokenizer.tokens)
}

fn memory_line(memory: &MemoryNeed) -> String {
    format!(
        "{} for {} tokens of context ({} weights mapped from the file, {} KV cache), and buffers",
        output::bytes(memory.total_bytes),
        memory.context,
        output::bytes(memory.weight_bytes),
        output::bytes(memory.kv_bytes),
    )
}

fn type_rows(report: &Report) -> Vec<Vec<String>> {
    let kind = if report.pack.is_some() { "type in memory" } else { "type" };
    let titles = [kind, "tensors", "parameters", "size"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    rows.extend(report.types.iter().map(|total| {
        vec![
            total.dtype.to_string(),
            total.tensors.to_string(),
            count(total.parameters),
            output::bytes(total.bytes),
        ]
    }));
    rows
}

fn tensor_rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![["tensor", "type", "shape", "bytes"].map(String::from).to_vec()];
    rows.extend(report.tensors.iter().map(|tensor| {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        vec![
            tensor.name.to_string(),
            tensor.dtype.to_string(),
            shape.join(" × "),
            tensor.bytes.to_string(),
        ]
    }));
    rows
}

/// A number of parameters for people: `135 M`, `1.54 G`.
fn count(n: u64) -> String {
    let (value, unit) = match n {
        0..1_000 => return n.to_string(),
        1_000..1_000_000 => (n as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (n as f64 / 1e6, "M"),
        _ => (n as f64 / 1e9, "G"),
    };
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits() {
        for (n, text) in [
            (999, "999"),
            (49_152, "49.2 K"),
            (134_515_008, "135 M"),
            (1_543_714_304, "1.54 G"),
            (70_553_706_496, "70.6 G"),
        ] {
            assert_eq!(count(n), text);
        }
    }
}
