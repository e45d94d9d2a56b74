//! The header of a GGUF file, from bytes.

use std::collections::{BTreeMap, HashSet};

use super::cursor::{Cursor, Short};
use super::error::{GgufError, Place};
use super::metadata::{Metadata, Span, Stored};
use super::types;
use super::value::{Value, ValueType};
use crate::tensor::TensorInfo;

/// Alignment of tensor data when the metadata names none.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
/// Larger alignments exist in no real file and would only waste memory.
pub(super) const MAX_ALIGNMENT: u64 = 1 << 16;
const MAX_NAME: usize = 1 << 16;
const MAX_NESTING: u32 = 4;
/// Name length, one-byte name, type and one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Name length, one-byte name, number of dimensions, one dimension, type and offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A parsed header.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Header {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// Key–value part. It owns the header's bytes.
    pub metadata: Metadata,
    /// Tensors in the order of the file. Every one lies inside the file and shares no byte with
    /// another.
    pub tensors: Vec<TensorInfo>,
}

/// Parses a whole GGUF file that is in memory.
///
/// Never panics, and allocates in proportion to `bytes.len()` at most.
///
/// # Errors
/// Anything that is not a valid little-endian GGUF file of version 2 or 3.
pub fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let layout = parse_prefix(bytes, bytes.len() as u64)?;
    let header = bytes.get(..layout.header_len).unwrap_or_default().to_vec();
    Ok(layout.into_header(header))
}

/// A header whose strings still lie in the bytes that it was parsed from.
#[derive(Debug)]
pub(super) struct Layout {
    version: u32,
    entries: BTreeMap<String, Stored>,
    tensors: Vec<TensorInfo>,
    header_len: usize,
}

impl Layout {
    /// Joins the layout with the bytes that it describes; what follows the header is dropped.
    pub(super) fn into_header(self, mut bytes: Vec<u8>) -> Header {
        bytes.truncate(self.header_len);
        bytes.shrink_to_fit();
        let metadata = Metadata { header: bytes, entries: self.entries };
        Header { version: self.version, metadata, tensors: self.tensors }
    }
}

/// Parses the header at the start of a file of `file_len` bytes, of which `bytes` are the first.
///
/// [`GgufError::Truncated`] with an end inside the file means: come again with more bytes.
pub(super) fn parse_prefix(bytes: &[u8], file_len: u64) -> Result<Layout, GgufError> {
    let mut parser = Parser { at: Cursor::new(bytes, 0), bytes, file_len };
    let version = parser.version()?;
    let n_tensors = parser.count("tensors", MIN_TENSOR_BYTES)?;
    let n_keys = parser.count("metadata keys", MIN_KEY_BYTES)?;
    let entries = parser.entries(n_keys)?;
    let alignment = alignment(&entries)?;
    let mut tensors = parser.tensors(n_tensors)?;
    let header_len = parser.at.pos();
    place(&mut tensors, header_len as u64, alignment, file_len)?;
    Ok(Layout { version, entries, tensors, header_len })
}

struct Parser<'a> {
    at: Cursor<'a>,
    bytes: &'a [u8],
    file_len: u64,
}

impl<'a> Parser<'a> {
    fn truncated(&self, place: Place) -> impl FnOnce(Short) -> GgufError + use<> {
        let file_len = self.file_len;
        move |Short { offset, needed }| GgufError::Truncated { place, offset, needed, file_len }
    }

    fn offset(&self) -> u64 {
        self.at.pos() as u64
    }

    fn version(&mut self) -> Result<u32, GgufError> {
        let magic = self.bytes.get(..4).unwrap_or(self.bytes);
        if magic != b"GGUF" {
            return Err(GgufError::Magic { found: magic.to_vec() });
        }
        self.at.take(4).map_err(self.truncated(Place::Header))?;
        let version = self.at.u32().map_err(self.truncated(Place::Header))?;
        match version {
            2 | 3 => Ok(version),
            // Versions are small: one that is small only when its bytes are swapped tells.
            _ if version.swap_bytes() <= 0xffff && version > 0xffff => {
                Err(GgufError::BigEndian { version: version.swap_bytes() })
            }
            found => Err(GgufError::Version { found }),
        }
    }

    /// A count of things that take at least `min_bytes` each.
    fn count(&mut self, of: &'static str, min_bytes: u64) -> Result<u64, GgufError> {
        let found = self.at.u64().map_err(self.truncated(Place::Header))?;
        let max = self.file_len / min_bytes;
        if found > max {
            return Err(GgufError::Count { of, found, max, file_len: self.file_len });
        }
        Ok(found)
    }

    fn name(&mut self, place: &Place) -> Result<&'a str, GgufError> {
        let raw = self.at.string().map_err(self.truncated(place.clone()))?;
        let bad = |reason| GgufError::Name { place: place.clone(), offset: self.offset(), reason };
        if raw.is_empty() {
            return Err(bad("it is empty"));
        }
        if raw.len() > MAX_NAME {
            return Err(bad("it is longer than 65536 bytes"));
        }
        std::str::from_utf8(raw).map_err(|_| bad("it is not valid UTF-8"))
    }

    fn entries(&mut self, n_keys: u64) -> Result<BTreeMap<String, Stored>, GgufError> {
        let mut entries = BTreeMap::new();
        for idx in 0..n_keys {
            let key = self.name(&Place::KeyName(idx))?;
            if entries.contains_key(key) {
                let key = key.to_owned();
                return Err(GgufError::DuplicateKey { key, offset: self.offset() });
            }
            let stored = self.value(key)?;
            entries.insert(key.to_owned(), stored);
        }
        Ok(entries)
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let place = || Place::Key(key.to_owned());
        let found = self.at.u32().map_err(self.truncated(place()))?;
        ValueType::from_code(found).ok_or_else(|| GgufError::ValueType {
            place: place(),
            offset: self.offset(),
            found,
        })
    }

    fn value(&mut self, key: &str) -> Result<Stored, GgufError> {
        let short = |parser: &Self| parser.truncated(Place::Key(key.to_owned()));
        let value_type = self.value_type(key)?;
        if let Some(value) = Value::read_fixed(value_type, &mut self.at).map_err(short(self))? {
            return Ok(Stored::Plain(value));
        }
        if value_type == ValueType::String {
            let len = self.at.string().map_err(short(self))?.len();
            return Ok(Stored::String(Span { start: self.at.pos() - len, len }));
        }
        let element = self.value_type(key)?;
        let len = self.at.u64().map_err(short(self))?;
        let start = self.at.pos();
        self.skip_array(key, element, len, 1)?;
        let span = Span { start, len: self.at.pos() - start };
        // Every element took at least a byte, so `len` fits.
        Ok(Stored::Array { element, len: len as usize, span })
    }

    fn skip_array(
        &mut self,
        key: &str,
        element: ValueType,
        len: u64,
        depth: u32,
    ) -> Result<(), GgufError> {
        let place = || Place::Key(key.to_owned());
        if let Some(size) = element.size() {
            let n = len.saturating_mul(size);
            return self.at.take(n).map(drop).map_err(self.truncated(place()));
        }
        if depth > MAX_NESTING {
            let offset = self.offset();
            return Err(GgufError::Nesting { place: place(), offset, limit: MAX_NESTING });
        }
        for _ in 0..len {
            if element == ValueType::String {
                if let Err(short) = self.at.string() {
                    return Err(self.truncated(place())(short));
                }
            } else {
                let inner = self.value_type(key)?;
                let inner_len = self.at.u64().map_err(self.truncated(place()))?;
                self.skip_array(key, inner, inner_len, depth + 1)?;
            }
        }
        Ok(())
    }

    fn tensors(&mut self, n_tensors: u64) -> Result<Vec<TensorInfo>, GgufError> {
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for idx in 0..n_tensors {
            let offset = self.offset();
            let name = self.name(&Place::TensorName(idx))?;
            if !names.insert(name) {
                return Err(GgufError::DuplicateTensor { tensor: name.to_owned(), offset });
            }
            tensors.push(self.tensor(name)?);
        }
        Ok(tensors)
    }

    /// One entry of the tensor table. `offset` is still relative to the data section.
    fn tensor(&mut self, name: &str) -> Result<TensorInfo, GgufError> {
        let short = |parser: &Self| parser.truncated(Place::TensorInfo(name.to_owned()));
        let tensor = || name.to_owned();
        let offset = self.offset();
        let n_dims = self.at.u32().map_err(short(self))?;
        if !(1..=4).contains(&n_dims) {
            return Err(GgufError::Dimensions { tensor: tensor(), offset, found: n_dims });
        }
        let dims_offset = self.offset();
        let mut dims = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            dims.push(self.at.u64().map_err(short(self))?);
        }
        // The file counts from the innermost dimension.
        dims.reverse();
        let type_offset = self.offset();
        let type_code = self.at.u32().map_err(short(self))?;
        let data_offset = self.at.u64().map_err(short(self))?;
        let Some(dtype) = types::from_code(type_code) else {
            let found = types::unsupported_name(type_code);
            return Err(GgufError::UnsupportedType {
                tensor: tensor(),
                offset: type_offset,
                found,
            });
        };
        if dims.contains(&0) {
            let shape = dims;
            return Err(GgufError::ZeroDimension { tensor: tensor(), offset: dims_offset, shape });
        }
        let overflow =
            || GgufError::Overflow { tensor: tensor(), offset: dims_offset, shape: dims.clone() };
        let shape = addressable(&dims).ok_or_else(overflow)?;
        let (rows, cols) = rows_and_cols(&shape);
        if !cols.is_multiple_of(dtype.block_len()) {
            let block_len = dtype.block_len();
            return Err(GgufError::PartialBlock { tensor: tensor(), cols, block_len });
        }
        let n_bytes =
            dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows)).ok_or_else(overflow)?;
        Ok(TensorInfo { name: tensor(), dtype, shape, n_bytes, file_idx: 0, offset: data_offset })
    }
}

/// The dimensions as `usize`, when their product fits too.
fn addressable(dims: &[u64]) -> Option<Vec<usize>> {
    dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim))?;
    dims.iter().map(|dim| usize::try_from(*dim).ok()).collect()
}

fn rows_and_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [outer @ .., cols] => (outer.iter().product(), *cols),
        [] => (0, 0),
    }
}

fn alignment(entries: &BTreeMap<String, Stored>) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let plain = entries.get_key_value(key).map(|(key, stored)| (key.clone(), *stored));
    let lone = Metadata { header: Vec::new(), entries: plain.into_iter().collect() };
    let found = lone.get::<u64>(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !found.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&found) {
        return Err(GgufError::Alignment { found, max: MAX_ALIGNMENT });
    }
    Ok(found)
}

/// Turns relative offsets into file offsets and checks that the data is there, apart from all
/// other data.
fn place(
    tensors: &mut [TensorInfo],
    header_len: u64,
    alignment: u64,
    file_len: u64,
) -> Result<(), GgufError> {
    let data_start = header_len.next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        if !tensor.offset.is_multiple_of(alignment) {
            let (tensor, found) = (tensor.name.clone(), tensor.offset);
            return Err(GgufError::Misaligned { tensor, found, alignment });
        }
        // A sum beyond u64 is beyond the end of any file.
        let begin = data_start.saturating_add(tensor.offset);
        if begin.saturating_add(tensor.n_bytes as u64) > file_len {
            return Err(GgufError::Truncated {
                place: Place::TensorData(tensor.name.clone()),
                offset: begin,
                needed: tensor.n_bytes as u64,
                file_len,
            });
        }
        tensor.offset = begin;
    }
    check_overlap(tensors)
}

pub(crate) fn first_overlap(tensors: &[TensorInfo]) -> Option<(&TensorInfo, &TensorInfo)> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().filter(|t| t.n_bytes > 0).collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    by_offset.iter().zip(by_offset.iter().skip(1)).find_map(|(first, second)| {
        // In range of the file, so the sum does not overflow.
        (first.offset + first.n_bytes as u64 > second.offset).then_some((*first, *second))
    })
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    match first_overlap(tensors) {
        None => Ok(()),
        Some((first, second)) => Err(GgufError::Overlap {
            first: first.name.clone(),
            second: second.name.clone(),
            end: first.offset + first.n_bytes as u64,
            begin: second.offset,
        }),
    }
}
