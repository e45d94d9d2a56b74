//! What a pack is, and what it needs of a budget.

use ls_cpu::{Cpu, Isa};
use ls_engine::{
    EngineError, Floor, LoadOptions, StreamOptions, plan_for, smallest_budget, system,
};
use ls_model::ModelFile;
use ls_model::pack::{ColumnType, LayerLayout, Pack};
use serde::Serialize;

use crate::{cmd, disk, output};

/// Steps from the smallest budget to the one that streams nothing.
const STEPS: u64 = 4;
/// Budgets are shown in whole ones of these.
const MIB: u64 = 1 << 20;

/// A pack's parts and budgets.
#[derive(Debug, Serialize)]
pub struct PackReport {
    producer: String,
    source_file: String,
    source_bytes: u64,
    /// Weights that are always in memory.
    resident_bytes: u64,
    /// The token embedding, read row by row; 0 when it is resident.
    row_bytes: u64,
    /// MLP weights, without padding and checksums.
    streamed_bytes: u64,
    /// Their chunks in the file.
    chunk_bytes: u64,
    n_chunks: u64,
    /// The size of chunks that was asked for.
    chunk_kib: u32,
    /// Least and most over the layers, as the next.
    record_bytes: [usize; 2],
    neurons_per_chunk: [usize; 2],
    /// Types of the down columns, one for each layer.
    columns: Vec<ColumnType>,
    reordered: bool,
    smallest_budget: ByMode,
    budgets: Vec<BudgetRow>,
}

/// The smallest budget in each mode.
#[derive(Debug, Serialize)]
struct ByMode {
    exact: Smallest,
}

#[derive(Debug, Serialize)]
struct Smallest {
    budget_bytes: u64,
    #[serde(flatten)]
    parts: Floor,
}

/// What a budget gives.
#[derive(Debug, Serialize)]
struct BudgetRow {
    budget_bytes: u64,
    context: u64,
    cache_bytes: u64,
    /// Read for each token.
    streamed_bytes: u64,
}

impl PackReport {
    /// Describes the `pack` of `model`, with budgets for `context` tokens. Call it when the process
    /// holds what it holds in a run: tokenizer and all.
    pub fn new(model: &ModelFile, pack: &Pack, context: Option<u64>) -> Result<Self, EngineError> {
        let (facts, layers) = (pack.facts(), pack.layers());
        let context = context.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        // Reads as `run` does them.
        let mut stream = StreamOptions::default();
        stream.curve = disk::known_curve(pack.path(), stream.backend, stream.depth);
        let options = LoadOptions { context, stream, ..LoadOptions::default() };
        let threads = system::cores().usable;
        // Dropped when the budgets are known.
        let _cpu = Cpu::new(threads, Isa::detect())
            .map_err(|source| EngineError::Threads { threads, source })?;
        model.release_pages();
        let floor = smallest_budget(model, &options)?;
        let exact = Smallest { budget_bytes: floor.bytes(), parts: floor };
        Ok(Self {
            producer: facts.producer.clone(),
            source_file: facts.source_file.clone(),
            source_bytes: facts.source_bytes,
            resident_bytes: model.tensors().iter().map(|info| info.n_bytes as u64).sum(),
            row_bytes: pack.rows().map_or(0, |rows| rows.useful_bytes()),
            streamed_bytes: pack.streamed_bytes(),
            chunk_bytes: layers.iter().map(LayerLayout::stored_bytes).sum(),
            n_chunks: layers.iter().map(|layer| u64::from(layer.n_chunks)).sum(),
            chunk_kib: facts.chunk_kib,
            record_bytes: range(layers.iter().map(|layer| layer.record_bytes)),
            neurons_per_chunk: range(layers.iter().map(|layer| layer.neurons_per_chunk)),
            columns: layers.iter().map(|layer| layer.down).collect(),
            reordered: facts.reordered,
            smallest_budget: ByMode { exact },
            budgets: budgets(model, floor.bytes(), &options)?,
        })
    }

    /// Lines for people.
    pub fn facts(&self) -> Vec<Vec<String>> {
        let fact = |name: &str, value: String| vec![name.to_string(), value];
        let bytes = output::bytes;
        let (producer, source) = (&self.producer, &self.source_file);
        let rows = match self.row_bytes {
            0 => "with the weights in memory".to_owned(),
            n => format!("{}, in memory if all else is, or read row by row", bytes(n)),
        };
        let order = if self.reordered { "by score" } else { "the source's" };
        let floor = &self.smallest_budget.exact;
        vec![
            fact("pack", format!("by {producer}, of {source} ({})", bytes(self.source_bytes))),
            fact("in memory", format!("{} of weights", bytes(self.resident_bytes))),
            fact("embedding", rows),
            fact("to stream", self.chunk_line()),
            fact("down columns", column_line(&self.columns)),
            fact("neuron order", order.to_owned()),
            fact("smallest budget", floor_line(floor)),
        ]
    }

    fn chunk_line(&self) -> String {
        let span = |[low, high]: [usize; 2], text: &dyn Fn(usize) -> String| match low == high {
            true => text(low),
            false => format!("{} to {}", text(low), text(high)),
        };
        format!(
            "{} in {} chunks of {}, {} neurons each",
            output::bytes(self.chunk_bytes),
            self.n_chunks,
            span(self.record_bytes, &|n| output::bytes(n as u64)),
            span(self.neurons_per_chunk, &|n| n.to_string()),
        )
    }

    /// What some budgets give.
    pub fn budget_rows(&self) -> Vec<Vec<String>> {
        let titles = ["budget", "context", "cache", "streamed for each token"];
        let mut rows = vec![titles.map(String::from).to_vec()];
        rows.extend(self.budgets.iter().map(|row| {
            vec![
                format!("{} MiB", row.budget_bytes / MIB),
                row.context.to_string(),
                output::bytes(row.cache_bytes),
                output::bytes(row.streamed_bytes),
            ]
        }));
        rows
    }
}

fn range(values: impl Iterator<Item = usize> + Clone) -> [usize; 2] {
    [values.clone().min().unwrap_or(0), values.max().unwrap_or(0)]
}

fn floor_line(Smallest { budget_bytes, parts }: &Smallest) -> String {
    let bytes = output::bytes;
    format!(
        "{}: {} weights, {} keys and values, {} buffers, {} streaming, {} the program",
        bytes(*budget_bytes),
        bytes(parts.resident_bytes),
        bytes(parts.kv_bytes),
        bytes(parts.buffer_bytes),
        bytes(parts.streaming_bytes),
        bytes(parts.process_bytes),
    )
}

/// `Q8 in 4 layers, Q6 in 20`.
fn column_line(columns: &[ColumnType]) -> String {
    let count = |kind: ColumnType| columns.iter().filter(|column| **column == kind).count();
    let kinds = ColumnType::ALL.into_iter().filter(|kind| count(*kind) > 0);
    let parts: Vec<String> =
        kinds.map(|kind| format!("{} in {} layers", kind.name(), count(kind))).collect();
    parts.join(", ")
}

/// Budgets in even steps from the smallest to the one that streams nothing.
fn budgets(
    model: &ModelFile,
    smallest: u64,
    options: &LoadOptions,
) -> Result<Vec<BudgetRow>, EngineError> {
    let whole = plan_for(model, options)?.planned_bytes();
    let step = whole.saturating_sub(smallest) / STEPS;
    let mut budgets: Vec<u64> =
        (0..=STEPS).map(|i| (smallest + i * step).div_ceil(MIB) * MIB + MIB).collect();
    budgets.dedup();
    let per_token = cmd::kv_bytes_per_token(model.config()).max(1);
    let row = |budget_bytes| -> Result<_, EngineError> {
        let plan = plan_for(model, &LoadOptions { budget: Some(budget_bytes), ..options.clone() })?;
        Ok(BudgetRow {
            budget_bytes,
            context: plan.kv_bytes / per_token,
            cache_bytes: plan.cache_bytes,
            streamed_bytes: plan.streamed_bytes(),
        })
    };
    let mut rows = budgets.into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
    // More than enough says nothing more.
    let enough = rows.iter().position(|row| row.streamed_bytes == 0);
    rows.truncate(enough.map_or(rows.len(), |i| i + 1));
    Ok(rows)
}
