//! The directory section: where tensors, embedding rows and chunks lie.

use super::file_error::PackFileError;
use super::{ColumnType, LayerLayout, RowLayout};
use crate::TensorType;
use crate::gguf::{Cursor, Short, type_code, type_from_code};
use crate::tensor::TensorInfo;

/// Longest directory that is read, in bytes.
pub(super) const MAX_DIRECTORY: u64 = 512 << 20;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 8;
/// Bytes of a tensor's entry with a name of no bytes and no dimension.
const MIN_TENSOR_BYTES: u64 = 4 + 4 + 4 + 8 + 8 + 8;
/// Bytes of a layer's entry.
const LAYER_BYTES: u64 = 56;
const WHAT: &str = "the directory";

/// Everything that the directory says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Directory {
    pub tensors: Vec<TensorEntry>,
    pub rows: Option<RowLayout>,
    pub layers: Vec<LayerLayout>,
    /// For each layer, the source's neuron at each position; `None`: the same one.
    pub orders: Vec<Option<Vec<u32>>>,
}

/// A tensor of the resident section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorEntry {
    pub info: TensorInfo,
    pub sum: u64,
}

impl Directory {
    /// The section as the file has it. Its length depends on names and shapes only.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put = |out: &mut Vec<u8>, value: usize| out.extend((value as u32).to_le_bytes());
        put(&mut out, self.tensors.len());
        put(&mut out, self.layers.len());
        put(&mut out, self.rows.is_some().into());
        put(&mut out, 0);
        for TensorEntry { info, sum } in &self.tensors {
            put(&mut out, info.name.len());
            out.extend(info.name.as_bytes());
            out.extend(type_code(info.dtype).to_le_bytes());
            put(&mut out, info.shape.len());
            info.shape.iter().for_each(|dim| out.extend((*dim as u64).to_le_bytes()));
            out.extend(info.offset.to_le_bytes());
            out.extend((info.n_bytes as u64).to_le_bytes());
            out.extend(sum.to_le_bytes());
        }
        if let Some(rows) = &self.rows {
            out.extend(type_code(rows.dtype).to_le_bytes());
            for value in [rows.n_rows, rows.d_model, rows.rows_per_record, rows.record_bytes] {
                put(&mut out, value);
            }
            put(&mut out, 0);
            out.extend(rows.offset.to_le_bytes());
        }
        for (layer, order) in self.layers.iter().zip(&self.orders) {
            put_layer(&mut out, layer, order.is_some());
        }
        for order in self.orders.iter().flatten() {
            order.iter().for_each(|neuron| out.extend(neuron.to_le_bytes()));
        }
        out
    }

    /// Decodes the section. Of what it returns, only layouts are known to be sound in themselves.
    pub fn decode(bytes: &[u8]) -> Result<Self, PackFileError> {
        let mut reader = Reader { at: Cursor::new(bytes, 0), n_bytes: bytes.len() as u64 };
        let n_tensors = reader.count("tensors", MIN_TENSOR_BYTES)?;
        let n_layers = reader.count("layers", LAYER_BYTES)?;
        let has_rows = reader.u32()? != 0;
        reader.u32()?;
        let tensors = (0..n_tensors).map(|_| reader.tensor()).collect::<Result<_, _>>()?;
        let rows = if has_rows { Some(reader.rows()?) } else { None };
        let mut layers = Vec::with_capacity(n_layers);
        let mut has_order = Vec::with_capacity(n_layers);
        for layer in 0..n_layers {
            let (layout, ordered) = reader.layer(layer)?;
            layers.push(layout);
            has_order.push(ordered);
        }
        let mut orders = Vec::with_capacity(n_layers);
        for (layer, (layout, ordered)) in layers.iter().zip(has_order).enumerate() {
            orders.push(if ordered { Some(reader.order(layer, layout.d_ff)?) } else { None });
        }
        if reader.at.pos() != bytes.len() {
            let reason = "it has more bytes than its entries need";
            return Err(PackFileError::Entry { what: WHAT.to_owned(), reason });
        }
        Ok(Self { tensors, rows, layers, orders })
    }
}

fn put_layer(out: &mut Vec<u8>, layer: &LayerLayout, has_order: bool) {
    let fields = [
        layer.d_ff as u32,
        layer.d_model as u32,
        layer.neurons_per_chunk as u32,
        layer.n_chunks,
        type_code(layer.gate),
        type_code(layer.up),
        layer.down.code(),
        layer.up_at as u32,
        layer.down_at as u32,
        layer.record_bytes as u32,
        layer.segment_chunks,
        has_order.into(),
    ];
    fields.iter().for_each(|field| out.extend(field.to_le_bytes()));
    out.extend(layer.offset.to_le_bytes());
}

/// Whether `order` names each of its positions once.
pub(super) fn is_permutation(order: &[u32]) -> bool {
    let mut seen = vec![false; order.len()];
    order.iter().all(|neuron| {
        seen.get_mut(*neuron as usize).is_some_and(|seen| !std::mem::replace(seen, true))
    })
}

struct Reader<'a> {
    at: Cursor<'a>,
    n_bytes: u64,
}

impl<'a> Reader<'a> {
    fn short(short: Short) -> PackFileError {
        PackFileError::short(WHAT)(short)
    }

    fn u32(&mut self) -> Result<u32, PackFileError> {
        self.at.u32().map_err(Self::short)
    }

    fn usize(&mut self) -> Result<usize, PackFileError> {
        Ok(self.u32()? as usize)
    }

    fn u64(&mut self) -> Result<u64, PackFileError> {
        self.at.u64().map_err(Self::short)
    }

    /// A count of things that take at least `min_bytes` each.
    fn count(&mut self, what: &'static str, min_bytes: u64) -> Result<usize, PackFileError> {
        let found = self.u32()?;
        let limit = self.n_bytes / min_bytes;
        if u64::from(found) > limit {
            return Err(PackFileError::TooMany { what, found: found.into(), limit });
        }
        Ok(found as usize)
    }

    fn name(&mut self) -> Result<&'a str, PackFileError> {
        let n = self.u32()?;
        let bytes = self.at.take(n.into()).map_err(Self::short)?;
        std::str::from_utf8(bytes).map_err(|_| PackFileError::Entry {
            what: format!("a tensor named \"{}\"", bytes.escape_ascii()),
            reason: "its name is not valid UTF-8",
        })
    }

    fn dtype(&mut self, what: impl Fn() -> String) -> Result<TensorType, PackFileError> {
        let reason = "its type is not known";
        type_from_code(self.u32()?).ok_or_else(|| PackFileError::Entry { what: what(), reason })
    }

    fn tensor(&mut self) -> Result<TensorEntry, PackFileError> {
        let name = self.name()?;
        let what = || format!("tensor {name:?}");
        let wrong = |reason| PackFileError::Entry { what: what(), reason };
        let dtype = self.dtype(what)?;
        let n_dims = self.u32()?;
        if !(1..=MAX_DIMS).contains(&n_dims) {
            return Err(wrong("it has no dimension, or more than 8"));
        }
        let mut shape = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            let dim = usize::try_from(self.u64()?).ok().filter(|dim| *dim > 0);
            shape.push(dim.ok_or_else(|| wrong("a dimension is 0 or cannot be addressed"))?);
        }
        let (offset, n_bytes, sum) = (self.u64()?, self.u64()?, self.u64()?);
        let expected = n_bytes_of(dtype, &shape);
        let n_bytes = usize::try_from(n_bytes).ok().filter(|n| Some(*n) == expected);
        let n_bytes = n_bytes.ok_or_else(|| wrong("its length is not that of its shape"))?;
        let name = name.to_owned();
        Ok(TensorEntry {
            info: TensorInfo { name, dtype, shape, n_bytes, file_idx: 0, offset },
            sum,
        })
    }

    fn rows(&mut self) -> Result<RowLayout, PackFileError> {
        let what = || "the token embedding's rows".to_owned();
        let dtype = self.dtype(what)?;
        let (n_rows, d_model) = (self.usize()?, self.usize()?);
        let (rows_per_record, record_bytes) = (self.usize()?, self.usize()?);
        self.u32()?;
        let offset = self.u64()?;
        let layout = RowLayout { dtype, n_rows, d_model, rows_per_record, record_bytes, offset };
        if layout.is_sound() {
            return Ok(layout);
        }
        Err(PackFileError::Entry { what: what(), reason: "its sizes contradict one another" })
    }

    fn layer(&mut self, layer: usize) -> Result<(LayerLayout, bool), PackFileError> {
        let what = || format!("layer {layer}");
        let (d_ff, d_model) = (self.usize()?, self.usize()?);
        let (neurons_per_chunk, n_chunks) = (self.usize()?, self.u32()?);
        let (gate, up) = (self.dtype(what)?, self.dtype(what)?);
        let down = ColumnType::from_code(self.u32()?).ok_or_else(|| PackFileError::Entry {
            what: what(),
            reason: "the type of its columns is not known",
        })?;
        let (up_at, down_at, record_bytes) = (self.usize()?, self.usize()?, self.usize()?);
        let (segment_chunks, has_order) = (self.u32()?, self.u32()? != 0);
        let offset = self.u64()?;
        let layout = LayerLayout {
            d_ff,
            d_model,
            neurons_per_chunk,
            n_chunks,
            gate,
            up,
            down,
            up_at,
            down_at,
            record_bytes,
            offset,
            segment_chunks,
        };
        if layout.is_sound() {
            return Ok((layout, has_order));
        }
        Err(PackFileError::Entry { what: what(), reason: "its sizes contradict one another" })
    }

    fn order(&mut self, layer: usize, d_ff: usize) -> Result<Vec<u32>, PackFileError> {
        let bytes = self.at.take((d_ff as u64).saturating_mul(4)).map_err(Self::short)?;
        let (neurons, _) = bytes.as_chunks::<4>();
        let order: Vec<u32> = neurons.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        if is_permutation(&order) {
            return Ok(order);
        }
        let what = format!("layer {layer}");
        Err(PackFileError::Entry { what, reason: "its order does not name each neuron once" })
    }
}

/// Bytes of a tensor, or `None` when its rows are not whole blocks or it cannot be addressed.
pub(super) fn n_bytes_of(dtype: TensorType, shape: &[usize]) -> Option<usize> {
    let (cols, outer) = shape.split_last()?;
    outer.iter().try_fold(dtype.row_bytes(*cols)?, |bytes, dim| bytes.checked_mul(*dim))
}
