//! Writing a pack.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::blobs;
use super::checksum::{chunk_seed, seal};
use super::header::{HEADER_BYTES, Header, Section, SectionKind};
use super::plan::{PackOptions, Plan};
use super::read::{EMBEDDING, FACTS, GGUF, mlp_name};
use super::sink::{Sink, free_bytes};
use super::write_error::PackError;
use super::{Facts, LayerLayout};
use crate::gguf::image;
use crate::json::read_file;
use crate::safetensors::Folder;
use crate::{ModelFile, Source};

/// Bytes of a tensor that are written between two reports of progress.
const PIECE: usize = 4 << 20;

/// The down matrix of one layer, by columns.
#[derive(Clone, Debug)]
pub struct Columns {
    data: Vec<u8>,
}

impl Columns {
    /// `data` holds the column of each neuron, one after the other in the source's order, each as
    /// long as [`ColumnType::column_bytes`](super::ColumnType::column_bytes) says.
    pub fn new(data: Vec<u8>) -> Self {
        Self { data }
    }
}

/// How far the writing of a pack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the file that are written.
    pub bytes_done: u64,
    /// Bytes that the file will have.
    pub bytes_total: u64,
    /// The layer whose chunks are being written; `None` before the first.
    pub layer: Option<usize>,
    /// Layers of the model.
    pub n_layers: usize,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Length of the file.
    pub file_bytes: u64,
    /// Bytes of tensors in one piece.
    pub resident_bytes: u64,
    /// Bytes of embedding rows, without padding and checksums; 0 when they are a tensor.
    pub row_bytes: u64,
    /// Bytes of MLP weights, without padding and checksums.
    pub streamed_bytes: u64,
    /// Bytes of chunk records, with padding and checksums.
    pub stored_bytes: u64,
}

/// Packs `model` into the file at `out`.
///
/// For each layer in order, `columns` is asked for the down matrix by columns, of the type that
/// `options` give. After every few megabytes `progress` is told; when it says to break, writing
/// stops. The file is written under a temporary name in the same folder, made durable, and then
/// renamed, so that it appears whole or not at all.
///
/// Beside the columns of one layer and the settings of the source, a few megabytes of memory are
/// used.
///
/// # Errors
/// See [`PackError`]. Nothing is left behind then, and a file that was there is not touched.
pub fn write<E>(
    model: &ModelFile,
    out: &Path,
    options: &PackOptions,
    columns: &mut dyn FnMut(usize) -> Result<Columns, E>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Summary, PackError<E>> {
    if model.pack().is_some() {
        return Err(PackError::IsPack { path: model.path().to_owned() });
    }
    check_target(model, out, options)?;
    let blobs = source_blobs(model, options)?;
    let index = blobs::encode_index(&blobs);
    let metadata_bytes = index.len() + blobs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    let plan = Plan::new(model, options, metadata_bytes as u64)?;
    if let Some(free) = free_bytes(out).filter(|free| *free < plan.file_len) {
        let (path, needed) = (out.to_owned(), plan.file_len);
        return Err(PackError::NoSpace { path, needed, free: Some(free) });
    }
    let sink = Sink::create(out).map_err(|error| refused("create", out, plan.file_len, error))?;
    let mut job = Job { model, out, plan, sink, progress, layer: None, sections: Vec::new() };
    job.metadata(&index, blobs)?;
    job.resident()?;
    job.rows()?;
    job.streamed(columns)?;
    job.finish(options)
}

fn check_target<E>(
    model: &ModelFile,
    out: &Path,
    options: &PackOptions,
) -> Result<(), PackError<E>> {
    let Ok(target) = out.canonicalize() else { return Ok(()) };
    let is_target = |file: &Path| file.canonicalize().is_ok_and(|file| file == target);
    if model.files().any(is_target) {
        return Err(PackError::OntoSource { path: out.to_owned() });
    }
    if options.force && target.is_file() {
        return Ok(());
    }
    Err(PackError::Exists { path: out.to_owned() })
}

/// The settings of the source, and the facts about the pack.
fn source_blobs<E>(
    model: &ModelFile,
    options: &PackOptions,
) -> Result<Vec<(&'static str, Vec<u8>)>, PackError<E>> {
    let mut blobs = Vec::new();
    match model.source() {
        Source::Gguf(metadata) => blobs.push((GGUF, image(metadata))),
        Source::Safetensors(folder) => {
            for (name, limit) in Folder::FILES {
                let bytes = read_file(&folder.path().join(name), limit)?;
                blobs.extend(bytes.map(|bytes| (name, bytes)));
            }
        }
    }
    let facts = serde_json::to_vec(&facts(model, options)).expect("facts have no keys but strings");
    blobs.push((FACTS, facts));
    Ok(blobs)
}

fn facts(model: &ModelFile, options: &PackOptions) -> Facts {
    let down = match options.layer_down.as_slice() {
        [] => vec![options.down; model.config().n_layers],
        each => each.to_vec(),
    };
    let identity = |order: &Vec<u32>| order.iter().zip(0..).all(|(neuron, idx)| *neuron == idx);
    Facts {
        producer: options.producer.clone(),
        name: model.config().name.clone(),
        source_file: model.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        source_bytes: model.size_bytes(),
        chunk_kib: options.chunk_kib as u32,
        down,
        reordered: !options.orders.iter().all(identity),
    }
}

/// What the system's refusal means.
fn refused<E>(action: &'static str, out: &Path, needed: u64, source: io::Error) -> PackError<E> {
    let path = out.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            PackError::NoSpace { path, needed, free: None }
        }
        _ => PackError::Io { action, path, source },
    }
}

/// A pack that is being written.
struct Job<'a> {
    model: &'a ModelFile,
    out: &'a Path,
    plan: Plan,
    sink: Sink,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    layer: Option<usize>,
    sections: Vec<Section>,
}

impl Job<'_> {
    fn refused<E>(&self) -> impl Fn(io::Error) -> PackError<E> + use<E> {
        let (out, needed) = (self.out.to_owned(), self.plan.file_len);
        move |error| refused("write", &out, needed, error)
    }

    /// Tells the caller how far it is.
    fn report<E>(&mut self) -> Result<(), PackError<E>> {
        let progress = Progress {
            bytes_done: self.sink.pos(),
            bytes_total: self.plan.file_len,
            layer: self.layer,
            n_layers: self.plan.directory.layers.len(),
        };
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(PackError::Stopped),
        }
    }

    /// Notes a section that ends here.
    fn section(&mut self, kind: SectionKind, offset: u64, hash: &Xxh3) {
        let n_bytes = self.sink.pos() - offset;
        self.sections.push(Section { code: kind.code(), offset, n_bytes, sum: hash.digest() });
    }

    /// Fills with zeros up to the next place where something may begin.
    fn pad<E>(&mut self, to: u64, hash: &mut Xxh3) -> Result<(), PackError<E>> {
        let n = to.saturating_sub(self.sink.pos());
        let zeros = vec![0; usize::try_from(n).unwrap_or_default()];
        self.sink.write(&zeros, hash).map_err(self.refused())
    }

    fn metadata<E>(
        &mut self,
        index: &[u8],
        blobs: Vec<(&'static str, Vec<u8>)>,
    ) -> Result<(), PackError<E>> {
        let offset = HEADER_BYTES as u64;
        let mut hash = Xxh3::new();
        self.sink.seek(offset).map_err(self.refused())?;
        self.sink.write(index, &mut hash).map_err(self.refused())?;
        for (_, bytes) in &blobs {
            self.sink.write(bytes, &mut hash).map_err(self.refused())?;
        }
        self.section(SectionKind::Metadata, offset, &hash);
        self.report()
    }

    fn resident<E>(&mut self) -> Result<(), PackError<E>> {
        let offset = self.plan.resident_at;
        self.sink.seek(offset).map_err(self.refused())?;
        let mut hash = Xxh3::new();
        for idx in 0..self.plan.directory.tensors.len() {
            let Some(entry) = self.plan.directory.tensors.get(idx) else { break };
            let (name, at) = (entry.info.name.clone(), entry.info.offset);
            self.pad(at, &mut hash)?;
            let sum = self.tensor(&name, &mut hash)?;
            if let Some(entry) = self.plan.directory.tensors.get_mut(idx) {
                entry.sum = sum;
            }
        }
        self.section(SectionKind::Resident, offset, &hash);
        self.pad(self.plan.rows_at, &mut Xxh3::new())
    }

    /// Copies a tensor and returns its checksum.
    fn tensor<E>(&mut self, name: &str, hash: &mut Xxh3) -> Result<u64, PackError<E>> {
        let model = self.model;
        let Some(tensor) = model.tensor(name)? else { return Ok(0) };
        let mut own = Xxh3::new();
        for piece in tensor.data.chunks(PIECE) {
            own.update(piece);
            self.sink.write(piece, hash).map_err(self.refused())?;
            self.report()?;
        }
        model.forget(name);
        Ok(own.digest())
    }

    fn rows<E>(&mut self) -> Result<(), PackError<E>> {
        let Some(layout) = self.plan.directory.rows else { return Ok(()) };
        let model = self.model;
        let embedding = model.require(EMBEDDING, &[layout.n_rows, layout.d_model])?;
        let (mut hash, row_bytes) = (Xxh3::new(), layout.row_bytes());
        let mut record = vec![0; layout.record_bytes];
        let rows = embedding.data.chunks(layout.rows_per_record * row_bytes);
        for (idx, rows) in (0_u64..).zip(rows) {
            record.fill(0);
            copy(&mut record, 0, rows);
            seal(&mut record, idx);
            self.sink.write(&record, &mut hash).map_err(self.refused())?;
            self.report_sometimes(record.len())?;
        }
        model.forget(EMBEDDING);
        self.section(SectionKind::Rows, layout.offset, &hash);
        Ok(())
    }

    /// Reports where a record of this length has crossed into the next piece.
    fn report_sometimes<E>(&mut self, n_bytes: usize) -> Result<(), PackError<E>> {
        let piece = PIECE as u64;
        let crossed = self.sink.pos() / piece != (self.sink.pos() - n_bytes as u64) / piece;
        if crossed { self.report() } else { Ok(()) }
    }

    fn streamed<E>(
        &mut self,
        columns: &mut dyn FnMut(usize) -> Result<Columns, E>,
    ) -> Result<(), PackError<E>> {
        let mut hash = Xxh3::new();
        for layer in 0..self.plan.directory.layers.len() {
            self.layer = Some(layer);
            self.report()?;
            let columns = columns(layer).map_err(|source| PackError::Columns { layer, source })?;
            self.layer(layer, &columns.data, &mut hash)?;
        }
        self.section(SectionKind::Streamed, self.plan.streamed_at, &hash);
        Ok(())
    }

    fn layer<E>(
        &mut self,
        layer: usize,
        columns: &[u8],
        hash: &mut Xxh3,
    ) -> Result<(), PackError<E>> {
        let Some(layout) = self.plan.directory.layers.get(layer).copied() else { return Ok(()) };
        let order = self.plan.directory.orders.get_mut(layer).and_then(Option::take);
        let (expected, found) = (layout.d_ff * layout.column_bytes(), columns.len());
        if found != expected {
            return Err(PackError::ColumnsLen { layer, expected, found });
        }
        let model = self.model;
        let shape = [layout.d_ff, layout.d_model];
        let (gate, up) = (mlp_name(layer, "gate"), mlp_name(layer, "up"));
        let gather = Gather {
            layout,
            order: order.as_deref(),
            gate: model.require(&gate, &shape)?.data,
            up: model.require(&up, &shape)?.data,
            down: columns,
        };
        let mut record = vec![0; layout.record_bytes];
        for chunk in 0..layout.n_chunks {
            gather.chunk(chunk, &mut record);
            seal(&mut record, chunk_seed(layer as u32, chunk));
            self.sink.write(&record, hash).map_err(self.refused())?;
            self.report_sometimes(record.len())?;
        }
        for name in [gate, up, mlp_name(layer, "down")] {
            model.forget(&name);
        }
        if let Some(place) = self.plan.directory.orders.get_mut(layer) {
            *place = order;
        }
        Ok(())
    }

    fn finish<E>(mut self, options: &PackOptions) -> Result<Summary, PackError<E>> {
        self.report()?;
        let directory = self.plan.directory.encode();
        let mut hash = Xxh3::new();
        self.sink.seek(self.plan.directory_at).map_err(self.refused())?;
        self.sink.write(&directory, &mut hash).map_err(self.refused())?;
        self.section(SectionKind::Directory, self.plan.directory_at, &hash);
        self.sections.sort_by_key(|section| section.offset);
        let file_len = self.plan.file_len;
        let header = Header { file_len, sections: std::mem::take(&mut self.sections) };
        self.sink.seek(0).map_err(self.refused())?;
        self.sink.write_plain(&header.encode()).map_err(self.refused())?;
        let refused = self.refused();
        let summary = summary(&self.plan);
        // A file may have taken the name since writing began.
        check_target(self.model, self.out, options)?;
        self.sink.finish(self.out, file_len).map_err(refused)?;
        Ok(summary)
    }
}

fn summary(plan: &Plan) -> Summary {
    let Plan { directory, file_len, .. } = plan;
    Summary {
        file_bytes: *file_len,
        resident_bytes: directory.tensors.iter().map(|t| t.info.n_bytes as u64).sum(),
        row_bytes: directory.rows.map_or(0, |rows| rows.useful_bytes()),
        streamed_bytes: directory.layers.iter().map(LayerLayout::useful_bytes).sum(),
        stored_bytes: directory.layers.iter().map(LayerLayout::stored_bytes).sum(),
    }
}

/// The weights of one layer, from which chunks are put together.
struct Gather<'a> {
    layout: LayerLayout,
    order: Option<&'a [u32]>,
    gate: &'a [u8],
    up: &'a [u8],
    down: &'a [u8],
}

impl Gather<'_> {
    fn chunk(&self, chunk: u32, record: &mut [u8]) {
        record.fill(0);
        let layout = &self.layout;
        let parts = [
            (self.gate, 0, layout.gate_row_bytes()),
            (self.up, layout.up_at, layout.up_row_bytes()),
            (self.down, layout.down_at, layout.column_bytes()),
        ];
        for (slot, position) in layout.neurons(chunk).enumerate() {
            let neuron = self.source_of(position);
            for (source, at, n_bytes) in parts {
                let begin = neuron * n_bytes;
                let bytes = source.get(begin..begin + n_bytes).unwrap_or_default();
                copy(record, at + slot * n_bytes, bytes);
            }
        }
    }

    fn source_of(&self, position: usize) -> usize {
        match self.order.and_then(|order| order.get(position)) {
            Some(neuron) => *neuron as usize,
            None => position,
        }
    }
}

/// Copies `bytes` to `record`, which has room for them at `at`.
fn copy(record: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = record.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_is_needed() {
        let told = |kind| {
            let error = io::Error::from(kind);
            refused::<io::Error>("write", Path::new("m.lspack"), 5000, error).to_string()
        };
        let full = "m.lspack needs 5000 bytes, and the disk is full; free some space or choose \
                    another folder";
        assert_eq!(told(io::ErrorKind::StorageFull), full);
        assert_eq!(told(io::ErrorKind::QuotaExceeded), full);
        let other = told(io::ErrorKind::PermissionDenied);
        assert!(other.starts_with("cannot write m.lspack: "), "{other}");
    }
}
