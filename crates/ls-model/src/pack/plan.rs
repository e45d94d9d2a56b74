//! Where everything of a pack will lie, before a byte of it is written.

use super::directory::{Directory, TensorEntry, is_permutation};
use super::header::HEADER_BYTES;
use super::read::{EMBEDDING, mlp_name};
use super::size::is_target;
use super::write_error::PackError;
use super::{ALIGN, ColumnType, DEFAULT_CHUNK_KIB, LayerLayout, RowLayout};
use crate::{ModelFile, TensorType, schema};

/// How to pack a model.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Size of chunks to aim at, in KiB: [`MIN_CHUNK_KIB`](super::MIN_CHUNK_KIB) to
    /// [`MAX_CHUNK_KIB`](super::MAX_CHUNK_KIB). Chunks may be up to half longer.
    pub chunk_kib: usize,
    /// Type of the down columns.
    pub down: ColumnType,
    /// Types of the down columns of each layer; empty: `down` for all.
    pub layer_down: Vec<ColumnType>,
    /// For each layer, which of the source's neurons comes first, second, …; empty, for all layers
    /// or for one: the source's order.
    pub orders: Vec<Vec<u32>>,
    /// Whether a file of the pack's name is replaced.
    pub force: bool,
    /// The program that packs, for [`Facts`](super::Facts).
    pub producer: String,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            chunk_kib: DEFAULT_CHUNK_KIB,
            down: ColumnType::Q8,
            layer_down: Vec::new(),
            orders: Vec::new(),
            force: false,
            producer: concat!("ls-model ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// The layout of a whole pack.
#[derive(Debug)]
pub(super) struct Plan {
    /// Complete but for the tensors' checksums.
    pub directory: Directory,
    pub directory_at: u64,
    pub resident_at: u64,
    pub rows_at: u64,
    pub streamed_at: u64,
    pub file_len: u64,
}

impl Plan {
    /// Lays out a pack of `model` whose metadata section has `metadata_bytes`.
    pub fn new<E>(
        model: &ModelFile,
        options: &PackOptions,
        metadata_bytes: u64,
    ) -> Result<Self, PackError<E>> {
        let mut directory = Directory {
            tensors: resident(model),
            rows: rows(model)?,
            layers: layers(model, options)?,
            orders: orders(model, options)?,
        };
        let align = |end: u64| end.next_multiple_of(ALIGN as u64);
        let directory_at = align(HEADER_BYTES as u64 + metadata_bytes);
        let resident_at = align(directory_at + directory.encode().len() as u64);
        let mut end = resident_at;
        for tensor in &mut directory.tensors {
            tensor.info.offset = end;
            end = align(end + tensor.info.n_bytes as u64);
        }
        let rows_at = end;
        if let Some(rows) = &mut directory.rows {
            rows.offset = end;
            end += rows.stored_bytes();
        }
        let streamed_at = end;
        for layer in &mut directory.layers {
            layer.offset = end;
            end += layer.stored_bytes();
        }
        Ok(Self { directory, directory_at, resident_at, rows_at, streamed_at, file_len: end })
    }
}

/// The tensors that stay in one piece. What the decoder does not have is left out.
fn resident(model: &ModelFile) -> Vec<TensorEntry> {
    let config = model.config();
    let mut names = schema::names(config);
    for layer in 0..config.n_layers {
        for part in ["gate", "up", "down"] {
            names.remove(&mlp_name(layer, part));
        }
    }
    // Of the two matrices that a tied model could have, the embedding is the one that is used.
    names.remove(if config.tied_output { "output.weight" } else { EMBEDDING });
    let kept = model.tensors().iter().filter(|info| names.contains(&info.name));
    kept.map(|info| TensorEntry { info: info.clone(), sum: 0 }).collect()
}

fn rows<E>(model: &ModelFile) -> Result<Option<RowLayout>, PackError<E>> {
    let config = model.config();
    if config.tied_output {
        return Ok(None);
    }
    let embedding = model.require(EMBEDDING, &[config.vocab_size, config.d_model])?;
    match RowLayout::new(embedding.dtype, config.vocab_size, config.d_model) {
        Some(layout) => Ok(Some(layout)),
        None => Err(PackError::TooLarge { what: "the token embedding".to_owned() }),
    }
}

fn layers<E>(model: &ModelFile, options: &PackOptions) -> Result<Vec<LayerLayout>, PackError<E>> {
    if !is_target(options.chunk_kib) {
        return Err(PackError::ChunkSize { found: options.chunk_kib });
    }
    let config = model.config();
    check_count("column types", options.layer_down.len(), config.n_layers)?;
    let dtype = |layer, part| -> Result<TensorType, PackError<E>> {
        let name = mlp_name(layer, part);
        Ok(model.require(&name, &[config.d_ff, config.d_model])?.dtype)
    };
    let layout = |layer: usize| {
        let down = options.layer_down.get(layer).copied().unwrap_or(options.down);
        let d_model = config.d_model;
        if down.column_bytes(d_model).is_none() {
            return Err(PackError::ColumnType { layer, down, d_model });
        }
        let (gate, up) = (dtype(layer, "gate")?, dtype(layer, "up")?);
        LayerLayout::new(d_model, config.d_ff, gate, up, down, options.chunk_kib << 10)
            .ok_or_else(|| PackError::TooLarge { what: format!("layer {layer}") })
    };
    (0..config.n_layers).map(layout).collect()
}

fn orders<E>(
    model: &ModelFile,
    options: &PackOptions,
) -> Result<Vec<Option<Vec<u32>>>, PackError<E>> {
    let (n_layers, d_ff) = (model.config().n_layers, model.config().d_ff);
    check_count("orders of neurons", options.orders.len(), n_layers)?;
    let order = |layer: usize| match options.orders.get(layer) {
        None => Ok(None),
        Some(order) if order.is_empty() => Ok(None),
        Some(order) if order.len() == d_ff && is_permutation(order) => Ok(Some(order.clone())),
        Some(_) => Err(PackError::Order { layer, d_ff }),
    };
    (0..n_layers).map(order).collect()
}

fn check_count<E>(what: &'static str, found: usize, expected: usize) -> Result<(), PackError<E>> {
    if found == 0 || found == expected {
        return Ok(());
    }
    Err(PackError::LayerCount { what, expected, found })
}
