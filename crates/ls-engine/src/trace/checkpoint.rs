//! Where an interrupted recording goes on: how far it came, and all residual streams.
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | 8 bytes | magic: `LSRESUM`, 0 |
//! | 8 | u32 | version: 1 |
//! | 12 | u32 | 0: attention of the layer comes next or is under way; 1: its MLP |
//! | 16 | u64 | XXH3-64 of the trace's header |
//! | 24 | u64 | layer |
//! | 32 | u64 | tokens that are done of this part |
//! | 40 | u64 | number of values, n |
//! | 48 | f32 × n | residual streams |
//! | 48 + 4 n | u64 | XXH3-64 of all before |

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::header::{SUM_BYTES, u32_at, u64_at};
use super::{TraceError, TraceInfo};
use crate::{Part, Position};

const MAGIC: [u8; 8] = *b"LSRESUM\0";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 48;
/// Values that are converted at once.
const PIECE: usize = 1 << 16;

/// Writes the place of a recording of `info`, under its name when it is whole.
pub(super) fn save(
    path: &Path,
    info: &TraceInfo,
    position: Position,
    residual: &[f32],
) -> Result<(), TraceError> {
    let temporary = temporary(path);
    let written =
        write(&temporary, info, position, residual).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error that stopped the writing is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(TraceError::io(path))
}

fn write(path: &Path, info: &TraceInfo, position: Position, residual: &[f32]) -> io::Result<()> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend(u32::from(position.part == Part::Mlp).to_le_bytes());
    let numbers =
        [run_sum(info), position.layer as u64, position.done as u64, residual.len() as u64];
    head.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    let (mut file, mut hash) = (BufWriter::new(File::create(path)?), Xxh3::new());
    hash.update(&head);
    file.write_all(&head)?;
    let mut bytes = Vec::with_capacity(4 * PIECE);
    for values in residual.chunks(PIECE) {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        hash.update(&bytes);
        file.write_all(&bytes)?;
    }
    file.write_all(&hash.digest().to_le_bytes())?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// Reads the place of a recording of `info`.
pub(super) fn load(path: &Path, info: &TraceInfo) -> Result<(Position, Vec<f32>), TraceError> {
    let fail = TraceError::io(path);
    let file = File::open(path).map_err(&fail)?;
    let len = file.metadata().map_err(&fail)?.len();
    let mut file = BufReader::new(file);
    let mut head = Vec::new();
    file.by_ref().take(FIXED_BYTES as u64).read_to_end(&mut head).map_err(&fail)?;
    let n = decode_head(path, &head, info, len)?;
    let mut residual = Vec::new();
    let no_memory = |_| fail(io::ErrorKind::OutOfMemory.into());
    residual.try_reserve_exact(n).map_err(no_memory)?;
    let mut hash = Xxh3::new();
    hash.update(&head);
    let mut bytes = vec![0; 4 * PIECE.min(n)];
    while residual.len() < n {
        let bytes = &mut bytes[..4 * PIECE.min(n - residual.len())];
        file.read_exact(bytes).map_err(&fail)?;
        hash.update(bytes);
        residual.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
    }
    let mut sum = [0; SUM_BYTES as usize];
    file.read_exact(&mut sum).map_err(&fail)?;
    let (expected, found) = (u64::from_le_bytes(sum), hash.digest());
    if expected != found {
        let (path, part) = (path.to_owned(), "the saved place".to_owned());
        return Err(TraceError::Checksum { path, part, expected, found });
    }
    let number = |at| usize::try_from(u64_at(&head, at)).unwrap_or(usize::MAX);
    let part = if u32_at(&head, 12) == 0 { Part::Attention } else { Part::Mlp };
    Ok((Position { layer: number(24), part, done: number(32) }, residual))
}

/// The number of values, which the file has and the run asks for.
fn decode_head(path: &Path, head: &[u8], info: &TraceInfo, len: u64) -> Result<usize, TraceError> {
    let owned = || path.to_owned();
    if !head.starts_with(&MAGIC) {
        let found = head[..head.len().min(MAGIC.len())].to_vec();
        return Err(TraceError::Magic { path: owned(), what: "saved place", found });
    }
    let n = u64::from(info.n_tokens) * u64::from(info.d_model);
    // Both are at most 2³².
    let expected = u128::from(n) * 4 + FIXED_BYTES as u128 + u128::from(SUM_BYTES);
    let expected = u64::try_from(expected).unwrap_or(u64::MAX);
    if head.len() < FIXED_BYTES {
        return Err(TraceError::Length { path: owned(), expected, found: len });
    }
    let found = u32_at(head, 8);
    if found != VERSION {
        let (what, expected) = ("version", VERSION);
        return Err(TraceError::Version { path: owned(), what, found, expected });
    }
    if u64_at(head, 16) != run_sum(info) || u64_at(head, 40) != n {
        return Err(TraceError::Other { path: owned(), what: "pack, text or limit" });
    }
    if len != expected {
        return Err(TraceError::Length { path: owned(), expected, found: len });
    }
    Ok(usize::try_from(n).unwrap_or(usize::MAX))
}

/// What a recording is known by.
fn run_sum(info: &TraceInfo) -> u64 {
    xxh3_64(&info.encode())
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> TraceInfo {
        let sampled = vec![1, 2];
        TraceInfo { pack: 1, text: 2, seed: 3, n_tokens: 4, sampled, d_model: 5, n_layers: 6 }
    }

    #[test]
    fn a_place_comes_back_and_no_damage_goes_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.resume");
        let residual: Vec<f32> = (0..20).map(|i| i as f32 / 3.0).collect();
        let position = Position { layer: 3, part: Part::Mlp, done: 2 };
        save(&path, &info(), position, &residual).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(load(&path, &info()).unwrap(), (position, residual));
        let other = TraceInfo { seed: 4, ..info() };
        assert!(matches!(load(&path, &other), Err(TraceError::Other { .. })));
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, &damaged).unwrap();
            load(&path, &info()).unwrap_err();
            std::fs::write(&path, &bytes[..at]).unwrap();
            load(&path, &info()).unwrap_err();
        }
    }
}
