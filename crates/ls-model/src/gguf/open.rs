//! GGUF files on disk, single or in parts.

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::metadata::Metadata;
use super::parse::{Header, parse_prefix};
use crate::ModelError;
use crate::map::{Mapping, is_lfs_pointer};
use crate::weights::Weights;

/// Bytes that are read at first; the headers of real models have 2 to 10 MB.
const FIRST_READ: u64 = 8 << 20;
/// Longest header that is read.
const MAX_HEADER: u64 = 256 << 20;

/// Opens the model that `path` is, or is a part of.
pub(crate) fn open(path: &Path) -> Result<(Metadata, Weights), ModelError> {
    let (file, header) = open_one(path)?;
    let mut weights = Weights::default();
    let n_shards = shard_value(&header.metadata, path, "split.count")?.unwrap_or(1);
    if n_shards <= 1 {
        weights.add(file, header.tensors)?;
        return Ok((header.metadata, weights));
    }
    drop(file);
    open_shards(path, n_shards)
}

fn open_shards(path: &Path, n_shards: u64) -> Result<(Metadata, Weights), ModelError> {
    let n_shards = usize::try_from(n_shards).unwrap_or(usize::MAX);
    let shard_path = shard_paths(path, n_shards)
        .ok_or_else(|| ModelError::ShardName { path: path.to_owned(), n_shards })?;
    let mut weights = Weights::default();
    let mut first = None;
    for idx in 0..n_shards {
        let shard = shard_path(idx);
        if !shard.exists() {
            let path = path.to_owned();
            return Err(ModelError::MissingShard { path, missing: shard, n_shards });
        }
        let (file, header) = open_one(&shard)?;
        for (key, expected) in [("split.count", n_shards as u64), ("split.no", idx as u64)] {
            check_shard_value(&header.metadata, &shard, key, expected)?;
        }
        weights.add(file, header.tensors)?;
        first.get_or_insert(header.metadata);
    }
    let metadata = first.unwrap_or_default();
    if let Some(expected) = shard_value(&metadata, path, "split.tensors.count")? {
        let found = weights.infos().len() as u64;
        if found != expected {
            let (path, key) = (shard_path(0), "split.tensors.count");
            return Err(ModelError::ShardMismatch { path, key, expected: found, found: expected });
        }
    }
    Ok((metadata, weights))
}

fn shard_value(metadata: &Metadata, path: &Path, key: &str) -> Result<Option<u64>, ModelError> {
    metadata.get(key).map_err(|source| ModelError::Metadata { path: path.to_owned(), source })
}

fn check_shard_value(
    metadata: &Metadata,
    path: &Path,
    key: &'static str,
    expected: u64,
) -> Result<(), ModelError> {
    let found = metadata
        .require(key)
        .map_err(|source| ModelError::Metadata { path: path.to_owned(), source })?;
    if found == expected {
        return Ok(());
    }
    Err(ModelError::ShardMismatch { path: path.to_owned(), key, expected, found })
}

/// From the path of any part, `PREFIX-00002-of-00003.gguf`, the paths of all, by index from 0.
fn shard_paths(path: &Path, n_shards: usize) -> Option<impl Fn(usize) -> PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-of-{n_shards:05}.gguf"))?;
    let (prefix, number) = stem.rsplit_once('-')?;
    let number: usize = number.parse().ok()?;
    if !(1..=n_shards).contains(&number) {
        return None;
    }
    let (folder, prefix) = (path.parent()?.to_owned(), prefix.to_owned());
    Some(move |idx| folder.join(format!("{prefix}-{:05}-of-{n_shards:05}.gguf", idx + 1)))
}

fn open_one(path: &Path) -> Result<(Mapping, Header), ModelError> {
    let file = Mapping::open(path)?;
    let header = read_header(&file)?;
    Ok((file, header))
}

/// Reads as much of the file as its header needs.
fn read_header(file: &Mapping) -> Result<Header, ModelError> {
    let gguf = |source| ModelError::Gguf { path: file.path().to_owned(), source };
    let mut n = FIRST_READ.min(file.len());
    loop {
        let bytes = file.read_prefix(n)?;
        // Fewer bytes than asked for: the file has been cut meanwhile.
        let file_len = if (bytes.len() as u64) < n { bytes.len() as u64 } else { file.len() };
        let error = match parse_prefix(&bytes, file_len) {
            Ok(layout) => return Ok(layout.into_header(bytes)),
            Err(error) => error,
        };
        match error {
            GgufError::Magic { .. } if is_lfs_pointer(&bytes) => {
                return Err(ModelError::LfsPointer { path: file.path().to_owned() });
            }
            GgufError::Truncated { place, offset, needed, .. }
                if n < file_len && offset.saturating_add(needed) <= file_len =>
            {
                let end = offset.saturating_add(needed);
                if end > MAX_HEADER {
                    return Err(gguf(GgufError::HeaderTooLong {
                        place,
                        offset,
                        limit: MAX_HEADER,
                    }));
                }
                n = end.max(n.saturating_mul(4)).min(file_len).min(MAX_HEADER);
            }
            error => return Err(gguf(error)),
        }
    }
}
