//! Packs a model: lays it out for streaming, with the down matrices by column.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::Path;

use ls_cpu::{Cpu, dequantize_row, quantize_column};
use ls_model::pack::{ColumnType, Columns, PackError, PackOptions, Progress, Summary, write};
use ls_model::{ModelFile, TensorType};

use crate::weights::{column_format, format};

/// Neurons that a thread transposes at once: a whole number of blocks in every format.
const BAND: usize = 256;

/// The column type that loses next to nothing for its size: what a layer is packed with unless
/// another is asked for.
///
/// Floats stay what they are. Quantised matrices lose a little, since their blocks run the other
/// way in a pack; `docs/benchmarks.md` has the measurements behind the choice.
pub fn default_column_type(down: TensorType, d_model: usize) -> ColumnType {
    let is_grouped = ColumnType::Q6.column_bytes(d_model).is_some();
    match down {
        TensorType::F32 => ColumnType::F32,
        TensorType::F16 => ColumnType::F16,
        TensorType::BF16 => ColumnType::BF16,
        // Too narrow or odd a model to be quantised along its width.
        _ if !is_grouped => ColumnType::F16,
        TensorType::Q8_0 => ColumnType::Q8,
        _ => ColumnType::Q6,
    }
}

/// The type that each layer's down matrix has in the source.
pub fn down_types(model: &ModelFile) -> Vec<TensorType> {
    let name = |layer| format!("blk.{layer}.ffn_down.weight");
    let info = |layer| model.tensors().iter().find(|info| info.name == name(layer));
    (0..model.config().n_layers).filter_map(|layer| info(layer).map(|info| info.dtype)).collect()
}

/// Packs `model` into the file at `out`. Each layer's down matrix becomes columns of the type that
/// `options` give it in `layer_down`, or of its [`default_column_type`] when that is empty.
///
/// # Errors
///
/// See [`PackError`]; nothing is left behind then.
pub fn pack(
    cpu: &Cpu,
    model: &ModelFile,
    out: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Summary, PackError<Infallible>> {
    let mut options = options.clone();
    if options.layer_down.is_empty() {
        let d_model = model.config().d_model;
        let types = down_types(model).into_iter();
        options.layer_down = types.map(|down| default_column_type(down, d_model)).collect();
    }
    let types = options.layer_down.clone();
    let mut columns = |layer: usize| {
        // A layer without a type is refused by the writer.
        let down = types.get(layer).copied().unwrap_or(options.down);
        Ok(Columns::new(transpose(cpu, model, layer, down)))
    };
    write(model, out, &options, &mut columns, progress)
}

/// The down matrix of `layer` by column.
fn transpose(cpu: &Cpu, model: &ModelFile, layer: usize, down: ColumnType) -> Vec<u8> {
    let (d_model, d_ff) = (model.config().d_model, model.config().d_ff);
    // What is wrong shows as a wrong length, which the writer refuses.
    let tensor = model.require(&format!("blk.{layer}.ffn_down.weight"), &[d_model, d_ff]);
    let (Ok(tensor), Some(column)) = (tensor, down.column_bytes(d_model)) else {
        return Vec::new();
    };
    let (from, to) = (format(tensor.dtype), column_format(down));
    let Some(row_bytes) = from.row_bytes(d_ff) else { return Vec::new() };
    let mut out = vec![0; d_ff * column];
    cpu.pool().for_each_chunk(&mut out, BAND * column, &|band, out| {
        let first = band * BAND;
        let n = out.len() / column;
        let block = first / from.block_len() * from.block_bytes();
        let blocks = block..block + n / from.block_len() * from.block_bytes();
        let (mut row, mut columns) = (vec![0.0; n], vec![0.0; n * d_model]);
        for (i, bytes) in tensor.data.chunks_exact(row_bytes).enumerate() {
            dequantize_row(from, &bytes[blocks.clone()], &mut row);
            for (j, value) in row.iter().enumerate() {
                columns[j * d_model + i] = *value;
            }
        }
        for (values, out) in columns.chunks_exact(d_model).zip(out.chunks_exact_mut(column)) {
            quantize_column(to, values, out);
        }
    });
    out
}
