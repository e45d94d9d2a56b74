//! Reading a trace.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::bf16;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::TraceError;
use super::header::{FIXED_BYTES, SUM_BYTES, TraceInfo, u64_at};

/// An open trace.
///
/// A file is not trusted: each length is checked against the file's own before anything is allocated
/// for it, and each layer's checksum when it is read.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    file: File,
    info: TraceInfo,
}

/// What enters the MLP of one layer, for each sampled token.
#[derive(Debug)]
pub struct TraceLayer {
    d_model: usize,
    /// As the file has them, `[sampled, d_model]`.
    bytes: Vec<u8>,
}

impl Trace {
    /// Opens a finished trace.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not one.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let (trace, len) = Self::open_any(path)?;
        let info = &trace.info;
        let n = info.sampled.len() as u64;
        let expected = TraceInfo::bytes(n, info.d_model, info.n_layers).unwrap_or(u64::MAX);
        if len != expected {
            return Err(TraceError::Length { path: path.to_owned(), expected, found: len });
        }
        Ok(trace)
    }

    /// Opens a trace of which layers may be missing; with its length.
    pub(super) fn open_any(path: &Path) -> Result<(Self, u64), TraceError> {
        let fail = TraceError::io(path);
        let mut file = File::open(path).map_err(&fail)?;
        let len = file.metadata().map_err(&fail)?.len();
        let mut bytes = Vec::new();
        file.by_ref().take(FIXED_BYTES as u64).read_to_end(&mut bytes).map_err(&fail)?;
        let header = TraceInfo::decode_len(path, &bytes, len)?;
        let rest = header - bytes.len() as u64;
        file.by_ref().take(rest).read_to_end(&mut bytes).map_err(&fail)?;
        if bytes.len() as u64 != header {
            let found = bytes.len() as u64;
            return Err(TraceError::Length { path: path.to_owned(), expected: header, found });
        }
        let info = TraceInfo::decode(path, &bytes)?;
        Ok((Self { path: path.to_owned(), file, info }, len))
    }

    /// What it is a trace of.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// Reads a layer, as `n_sampled · d_model` values of two bytes.
    ///
    /// # Errors
    ///
    /// If there is no such layer, it cannot be read, or it is damaged.
    pub fn layer(&mut self, layer: usize) -> Result<TraceLayer, TraceError> {
        let n_layers = self.info.n_layers as usize;
        if layer >= n_layers {
            return Err(TraceError::NoLayer { layer, n_layers });
        }
        let fail = TraceError::io(&self.path);
        let offset = self.info.offset(layer);
        let len = self.info.offset(layer + 1) - offset;
        self.file.seek(SeekFrom::Start(offset)).map_err(&fail)?;
        let mut bytes = Vec::new();
        // The file was as long as that when it was opened.
        bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX)).map_err(|_| {
            TraceError::Io {
                path: self.path.clone(),
                source: std::io::ErrorKind::OutOfMemory.into(),
            }
        })?;
        self.file.by_ref().take(len).read_to_end(&mut bytes).map_err(&fail)?;
        if bytes.len() as u64 != len {
            let (expected, found) = (offset + len, offset + bytes.len() as u64);
            return Err(TraceError::Length { path: self.path.clone(), expected, found });
        }
        let sum = bytes.split_off(bytes.len() - SUM_BYTES as usize);
        let (expected, found) = (u64_at(&sum, 0), xxh3_64_with_seed(&bytes, layer as u64));
        if expected != found {
            let (path, part) = (self.path.clone(), format!("layer {layer}"));
            return Err(TraceError::Checksum { path, part, expected, found });
        }
        Ok(TraceLayer { d_model: self.info.d_model as usize, bytes })
    }
}

impl TraceLayer {
    /// Sampled tokens.
    pub fn len(&self) -> usize {
        self.bytes.len() / 2 / self.d_model
    }

    /// Whether there are none, which no trace has.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The residual streams of sampled tokens `rows` as floats, `[rows, d_model]`.
    ///
    /// # Panics
    ///
    /// If there are no such rows, or `out` is not that long.
    pub fn rows(&self, rows: Range<usize>, out: &mut [f32]) {
        let bytes = &self.bytes[rows.start * self.d_model * 2..rows.end * self.d_model * 2];
        let values = bytes.as_chunks::<2>().0;
        assert_eq!(out.len(), values.len(), "values of rows {rows:?}");
        for (out, value) in out.iter_mut().zip(values) {
            *out = bf16::from_le_bytes(*value).to_f32();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::write::TraceWriter;
    use super::*;

    fn info(n: u32, d_model: u32, n_layers: u32) -> TraceInfo {
        let sampled = (0..n).map(|i| 3 * i).collect();
        TraceInfo { pack: 7, text: 8, seed: 9, n_tokens: 3 * n, sampled, d_model, n_layers }
    }

    /// Values that bf16 has exactly.
    fn value(layer: u32, token: u32, i: u32) -> f32 {
        (layer * 8 + token % 8) as f32 - i as f32 / 4.0
    }

    fn written(folder: &Path, info: &TraceInfo, n_layers: u32) -> PathBuf {
        let path = folder.join("a.lstrace");
        let mut writer = TraceWriter::create(&path, info).unwrap();
        let d = info.d_model;
        for layer in 0..n_layers {
            let all: Vec<f32> =
                (0..info.n_tokens * d).map(|i| value(layer, i / d, i % d)).collect();
            writer.layer(&all).unwrap();
        }
        writer.sync().unwrap();
        path
    }

    #[test]
    fn layers_come_back() {
        let (dir, info) = (tempfile::tempdir().unwrap(), info(13, 6, 3));
        let mut trace = Trace::open(&written(dir.path(), &info, 3)).unwrap();
        assert_eq!(trace.info(), &info);
        for layer in [2, 0, 1] {
            let values = trace.layer(layer).unwrap();
            assert_eq!((values.len(), values.is_empty()), (13, false));
            let mut out = [0.0; 12];
            values.rows(4..6, &mut out);
            for (i, out) in out.iter().enumerate() {
                let want = value(layer as u32, 3 * (4 + i as u32 / 6), i as u32 % 6);
                assert_eq!(*out, want);
            }
        }
        let error = trace.layer(3).unwrap_err();
        assert!(matches!(error, TraceError::NoLayer { layer: 3, n_layers: 3 }), "{error}");
    }

    #[test]
    fn a_trace_that_lacks_a_layer_is_no_trace() {
        let (dir, info) = (tempfile::tempdir().unwrap(), info(5, 4, 3));
        let path = written(dir.path(), &info, 2);
        let error = Trace::open(&path).unwrap_err();
        assert!(matches!(error, TraceError::Length { .. }), "{error}");
        let (mut part, len) = Trace::open_any(&path).unwrap();
        assert_eq!(len, info.offset(2));
        part.layer(1).unwrap();
        assert!(matches!(part.layer(2).unwrap_err(), TraceError::Length { .. }));
    }

    #[test]
    fn values_are_rounded_to_nearest() {
        let dir = tempfile::tempdir().unwrap();
        let info = TraceInfo { sampled: vec![0], n_tokens: 1, ..info(1, 3, 1) };
        let path = dir.path().join("a.lstrace");
        let mut writer = TraceWriter::create(&path, &info).unwrap();
        writer.layer(&[1.0 + 1.0 / 300.0, f32::NAN, 1e38]).unwrap();
        let mut out = [0.0; 3];
        Trace::open(&path).unwrap().layer(0).unwrap().rows(0..1, &mut out);
        assert_eq!(out[0], 1.0);
        assert!(out[1].is_nan() && (out[2] / 1e38 - 1.0).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn no_damage_goes_unnoticed(at in 0usize..1000, bit in 0u8..8, cut in any::<bool>()) {
            let (dir, info) = (tempfile::tempdir().unwrap(), info(7, 5, 2));
            let path = written(dir.path(), &info, 2);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at % bytes.len();
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
            std::fs::write(&path, bytes).unwrap();
            let read = Trace::open(&path).and_then(|mut t| t.layer(0).and_then(|_| t.layer(1)));
            prop_assert!(read.is_err());
        }

        /// Made to deceive: the checksums are right.
        #[test]
        fn any_header_is_refused_or_read(
            fields in prop::collection::vec((0usize..100, any::<u8>()), 0..12),
            len in 0usize..200,
        ) {
            let (dir, info) = (tempfile::tempdir().unwrap(), info(4, 2, 1));
            let mut bytes = info.encode();
            bytes.resize(len, 0x11);
            for (at, byte) in fields {
                if let Some(to) = bytes.get_mut(at) { *to = byte }
            }
            let n = bytes.get(48..56).map_or(0, |n| u64_at(n, 0));
            let end = TraceInfo::header_bytes(n).map_or(0, |n| n.min(len as u64) as usize);
            if let Some((content, sum)) = bytes[..end].split_last_chunk_mut::<8>() {
                *sum = xxhash_rust::xxh3::xxh3_64(content).to_le_bytes();
            }
            let path = dir.path().join("a.lstrace");
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(mut trace) = Trace::open(&path) {
                for layer in 0..trace.info().n_layers.min(9) as usize {
                    let _ = trace.layer(layer);
                }
            }
        }
    }
}
