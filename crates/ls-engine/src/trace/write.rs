//! Writing a trace, layer by layer.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use xxhash_rust::xxh3::Xxh3;

use super::header::TraceInfo;
use super::{Trace, TraceError};

/// A trace that is being written.
#[derive(Debug)]
pub(super) struct TraceWriter {
    path: PathBuf,
    file: BufWriter<File>,
    info: TraceInfo,
    next: usize,
}

impl TraceWriter {
    /// Begins a trace.
    pub fn create(path: &Path, info: &TraceInfo) -> Result<Self, TraceError> {
        let file = File::create(path).map_err(TraceError::io(path))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&info.encode()).and_then(|()| file.flush()).map_err(TraceError::io(path))?;
        Ok(Self { path: path.to_owned(), file, info: info.clone(), next: 0 })
    }

    /// Goes on with a trace that has at least `n_layers` layers; what follows them is dropped.
    pub fn resume(path: &Path, info: &TraceInfo, n_layers: usize) -> Result<Self, TraceError> {
        let (mut trace, found) = Trace::open_any(path)?;
        if trace.info() != info {
            return Err(TraceError::Other { path: path.to_owned(), what: "pack, text or limit" });
        }
        let expected = info.offset(n_layers);
        if found < expected {
            return Err(TraceError::Length { path: path.to_owned(), expected, found });
        }
        for layer in 0..n_layers {
            trace.layer(layer)?;
        }
        let fail = TraceError::io(path);
        let mut file = OpenOptions::new().write(true).open(path).map_err(&fail)?;
        file.set_len(expected).map_err(&fail)?;
        file.seek(SeekFrom::End(0)).map_err(&fail)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path: path.to_owned(), file, info: info.clone(), next: n_layers })
    }

    /// Layers that were written.
    pub fn n_layers(&self) -> usize {
        self.next
    }

    /// Appends the next layer: of `residual`, `[n_tokens, d_model]`, the sampled tokens.
    pub fn layer(&mut self, residual: &[f32]) -> Result<(), TraceError> {
        let d = self.info.d_model as usize;
        let mut hash = Xxh3::with_seed(self.next as u64);
        let mut row = Vec::with_capacity(2 * d);
        let mut write = || {
            for token in &self.info.sampled {
                let values = &residual[*token as usize * d..][..d];
                row.clear();
                row.extend(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
                hash.update(&row);
                self.file.write_all(&row)?;
            }
            self.file.write_all(&hash.digest().to_le_bytes())?;
            self.file.flush()
        };
        write().map_err(TraceError::io(&self.path))?;
        self.next += 1;
        Ok(())
    }

    /// Makes what was written durable.
    pub fn sync(&mut self) -> Result<(), TraceError> {
        let result = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        result.map_err(TraceError::io(&self.path))
    }
}
