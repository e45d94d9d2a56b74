//! The header of a safetensors file: a length, then JSON.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::SafetensorsError;
use crate::gguf::first_overlap;
use crate::map::Mapping;
use crate::tensor::TensorInfo;
use crate::{ModelError, TensorType};

/// Longest header that is read, in bytes; what other readers accept, too.
const MAX_HEADER: u64 = 100_000_000;
const MAX_DIMS: usize = 8;
/// Bytes of the header's length.
const PREFIX: u64 = 8;

/// Parses a whole safetensors file that is in memory; names are as in the file.
///
/// Never panics, and allocates in proportion to `bytes.len()` at most.
///
/// # Errors
/// Anything that is not a valid safetensors file of floats.
pub fn parse(bytes: &[u8]) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let file_len = bytes.len() as u64;
    let n = header_len(bytes.first_chunk().copied(), file_len)?;
    // `header_len` has compared it with the file's length.
    let json = bytes.get(PREFIX as usize..).and_then(|rest| rest.get(..n as usize));
    tensors(json.unwrap_or_default(), file_len)
}

/// Reads the header of a mapped file.
pub(super) fn read(file: &Mapping) -> Result<Vec<TensorInfo>, ModelError> {
    let wrap = |source| ModelError::Safetensors { path: file.path().to_owned(), source };
    let start = file.read_prefix(PREFIX)?;
    let n = header_len(start.first_chunk().copied(), file.len()).map_err(wrap)?;
    let bytes = file.read_prefix(PREFIX + n)?;
    tensors(bytes.get(PREFIX as usize..).unwrap_or_default(), file.len()).map_err(wrap)
}

fn header_len(prefix: Option<[u8; 8]>, file_len: u64) -> Result<u64, SafetensorsError> {
    let truncated =
        |what, offset, needed| SafetensorsError::Truncated { what, offset, needed, file_len };
    let prefix = prefix.ok_or_else(|| truncated("the header's length", 0, PREFIX))?;
    let found = u64::from_le_bytes(prefix);
    if found > MAX_HEADER {
        return Err(SafetensorsError::HeaderTooLong { found, limit: MAX_HEADER });
    }
    if PREFIX + found > file_len {
        return Err(truncated("the header", PREFIX, found));
    }
    Ok(found)
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// All tensors in the order of the JSON, duplicates included.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;

        impl<'de> Visitor<'de> for Tensors {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(tensors))
            }
        }

        deserializer.deserialize_map(Tensors)
    }
}

fn tensors(json: &[u8], file_len: u64) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let RawHeader(raw) = serde_json::from_slice(json)?;
    let data_start = PREFIX + json.len() as u64;
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, raw) in &raw {
        if !names.insert(name) {
            return Err(SafetensorsError::DuplicateTensor { tensor: name.clone() });
        }
        tensors.push(tensor(name, raw, data_start, file_len)?);
    }
    if let Some((first, second)) = first_overlap(&tensors) {
        return Err(SafetensorsError::Overlap {
            first: first.name.clone(),
            second: second.name.clone(),
            end: first.offset + first.n_bytes as u64,
            begin: second.offset,
        });
    }
    Ok(tensors)
}

fn tensor(
    name: &str,
    raw: &RawTensor,
    data_start: u64,
    file_len: u64,
) -> Result<TensorInfo, SafetensorsError> {
    let tensor = name.to_owned();
    let dtype = match raw.dtype.as_str() {
        "F32" => TensorType::F32,
        "F16" => TensorType::F16,
        "BF16" => TensorType::BF16,
        other => {
            let found = other.to_owned();
            return Err(SafetensorsError::UnsupportedType { tensor, found });
        }
    };
    if raw.shape.len() > MAX_DIMS {
        let found = raw.shape.len();
        return Err(SafetensorsError::Dimensions { tensor, found, limit: MAX_DIMS });
    }
    let n_bytes = raw
        .shape
        .iter()
        .try_fold(dtype.block_bytes() as u64, |bytes, dim| bytes.checked_mul(*dim))
        .and_then(|bytes| usize::try_from(bytes).ok());
    let shape: Option<Vec<usize>> =
        raw.shape.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let (Some(n_bytes), Some(shape)) = (n_bytes, shape) else {
        return Err(SafetensorsError::Overflow { tensor, shape: raw.shape.clone() });
    };
    let [begin, end] = raw.data_offsets;
    let expected = n_bytes as u64;
    if end.checked_sub(begin) != Some(expected) {
        return Err(SafetensorsError::DataLen { tensor, expected, begin, end });
    }
    if data_start.checked_add(end).is_none_or(|end| end > file_len) {
        return Err(SafetensorsError::OutOfFile { tensor, end, data_start, file_len });
    }
    Ok(TensorInfo { name: tensor, dtype, shape, n_bytes, file_idx: 0, offset: data_start + begin })
}
