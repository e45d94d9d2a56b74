//! `leanstream pack`: lays a model out for streaming.

mod order;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use ls_cpu::{Cpu, Isa};
use ls_engine::{default_column_type, down_types, system};
use ls_model::ModelFile;
use ls_model::pack::{ColumnType, PackError, PackOptions, Summary};
use serde::Serialize;

use crate::args::{Down, PackArgs};
use crate::interrupt::{self, Interrupted};
use crate::{cmd, output};

#[derive(Debug, Serialize)]
struct Report {
    path: String,
    file_bytes: u64,
    source_bytes: u64,
    resident_bytes: u64,
    row_bytes: u64,
    chunk_bytes: u64,
    stored_chunk_bytes: u64,
    n_chunks: u64,
    record_bytes: usize,
    neurons_per_chunk: usize,
    down: Vec<ColumnType>,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &PackArgs) -> anyhow::Result<ExitCode> {
    cmd::check_path(&args.model)?;
    interrupt::install()?;
    let start = Instant::now();
    let model = ModelFile::open(&args.model)?;
    let out = out(args);
    let threads = args.threads.map_or_else(|| system::cores().usable, usize::from);
    let options = PackOptions {
        chunk_kib: usize::from(args.chunk_kib),
        layer_down: columns(&model, args.down),
        orders: order::orders(args, &model, threads)?,
        force: args.force,
        ..options()
    };
    let Some(summary) = pack(&model, &out, &options, threads)? else {
        return Err(Interrupted("packing was interrupted; nothing was written".into()).into());
    };
    report(args, &model, &out, &options, &summary, start.elapsed().as_secs_f64())?;
    Ok(ExitCode::SUCCESS)
}

/// The file to write: a folder stands for a file of the model's name in it.
fn out(args: &PackArgs) -> PathBuf {
    let name = cmd::model_name(&args.model) + ".lspack";
    match &args.output {
        Some(folder) if folder.is_dir() => folder.join(name),
        Some(file) => file.clone(),
        None => PathBuf::from(name),
    }
}

/// Packs with the defaults; a model that was asked to run within a budget needs it.
pub fn pack_for_cache(model: &ModelFile, out: &Path, threads: usize) -> anyhow::Result<()> {
    interrupt::install()?;
    let layer_down = columns(model, Down::Auto);
    // A file that is there and does not open is of no use.
    let options = PackOptions { layer_down, force: true, ..options() };
    match pack(model, out, &options, threads)? {
        Some(_) => Ok(()),
        None => Err(Interrupted("packing was interrupted; nothing was written".into()).into()),
    }
}

fn options() -> PackOptions {
    let producer = concat!("leanstream ", env!("CARGO_PKG_VERSION")).to_owned();
    PackOptions { producer, ..PackOptions::default() }
}

/// Packs with a progress bar; `None` when it was interrupted.
fn pack(
    model: &ModelFile,
    out: &Path,
    options: &PackOptions,
    threads: usize,
) -> anyhow::Result<Option<Summary>> {
    let cpu = Cpu::new(threads, Isa::detect())?;
    let bar = output::progress("pack", 0);
    let style = "{prefix} {wide_bar} {bytes}/{total_bytes} {msg} {bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let result = ls_engine::pack(&cpu, model, out, options, &mut |progress| {
        show(&bar, &progress);
        if interrupt::take() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    match result {
        Ok(summary) => Ok(Some(summary)),
        Err(PackError::Stopped) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn show(bar: &ProgressBar, progress: &ls_model::pack::Progress) {
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
    if let Some(layer) = progress.layer {
        bar.set_message(format!("layer {}/{}", layer + 1, progress.n_layers));
    }
}

/// The column type of each layer.
fn columns(model: &ModelFile, down: Down) -> Vec<ColumnType> {
    let all = match down {
        Down::Auto => None,
        Down::F32 => Some(ColumnType::F32),
        Down::F16 => Some(ColumnType::F16),
        Down::Bf16 => Some(ColumnType::BF16),
        Down::Q8 => Some(ColumnType::Q8),
        Down::Q6 => Some(ColumnType::Q6),
        Down::Q5 => Some(ColumnType::Q5),
        Down::Q4 => Some(ColumnType::Q4),
    };
    let d_model = model.config().d_model;
    let of = |source| all.unwrap_or_else(|| default_column_type(source, d_model));
    down_types(model).into_iter().map(of).collect()
}

fn report(
    args: &PackArgs,
    model: &ModelFile,
    out: &Path,
    options: &PackOptions,
    summary: &Summary,
    seconds: f64,
) -> anyhow::Result<()> {
    let packed = ModelFile::open(out)?;
    let layers = packed.pack().map(|pack| pack.layers()).unwrap_or_default();
    let report = Report {
        path: out.display().to_string(),
        file_bytes: summary.file_bytes,
        source_bytes: model.weights_bytes(),
        resident_bytes: summary.resident_bytes,
        row_bytes: summary.row_bytes,
        chunk_bytes: summary.streamed_bytes,
        stored_chunk_bytes: summary.stored_bytes,
        n_chunks: layers.iter().map(|layer| u64::from(layer.n_chunks)).sum(),
        record_bytes: layers.first().map_or(0, |layer| layer.record_bytes),
        neurons_per_chunk: layers.first().map_or(0, |layer| layer.neurons_per_chunk),
        down: options.layer_down.clone(),
        seconds,
    };
    if args.json {
        return output::json(&report);
    }
    Ok(output::stdout(&format!(
        "{}: {}, of which {} stay in memory and {} are {} chunks of {} ({} neurons) to stream; \
         {seconds:.1} s\n",
        report.path,
        output::bytes(report.file_bytes),
        output::bytes(report.resident_bytes),
        output::bytes(report.stored_chunk_bytes),
        report.n_chunks,
        output::bytes(report.record_bytes as u64),
        report.neurons_per_chunk,
    ))?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn an_interrupted_pack_leaves_nothing_behind() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-book.gguf");
        let (model, dir) = (ModelFile::open(path).unwrap(), tempfile::tempdir().unwrap());
        interrupt::flag().store(true, Ordering::SeqCst);
        let out = dir.path().join("model.lspack");
        assert!(pack(&model, &out, &options(), 1).unwrap().is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
