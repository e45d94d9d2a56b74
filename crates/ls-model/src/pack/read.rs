//! Opening a pack.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::blobs::{self, BlobEntry};
use super::checksum::{TensorDamage, sum};
use super::directory::{Directory, MAX_DIRECTORY, TensorEntry};
use super::file_error::PackFileError;
use super::header::{HEADER_BYTES, Header, Section, SectionKind, header_sum};
use super::{ALIGN, Facts, LayerLayout, RowLayout};
use crate::config::{self, Config};
use crate::gguf::{first_overlap, parse_image};
use crate::map::Mapping;
use crate::safetensors::{Folder, TOKENIZER};
use crate::tensor::TensorInfo;
use crate::weights::Weights;
use crate::{ModelError, Source};

/// The blob with a GGUF file's metadata.
pub(super) const GGUF: &str = "gguf";
/// The blob with [`Facts`].
pub(super) const FACTS: &str = "pack.json";
/// The token embedding's name.
pub(super) const EMBEDDING: &str = "token_embd.weight";
/// Longest metadata of a GGUF file that is read, in bytes.
const MAX_GGUF: u64 = 256 << 20;
const MAX_FACTS: u64 = 4 << 20;
/// Bytes that are read at once when only their checksum is wanted.
const PIECE: u64 = 1 << 20;

/// Where the parts of a pack lie that are not tensors in one piece.
#[derive(Clone, Debug)]
pub struct Pack {
    path: PathBuf,
    facts: Facts,
    layers: Vec<LayerLayout>,
    rows: Option<RowLayout>,
    orders: Vec<Option<Vec<u32>>>,
    sums: HashMap<String, u64>,
    checksum: u64,
}

impl Pack {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of the header, which has those of all sections: files that were made for this
    /// very pack name it.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// How the pack was made.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The chunks of each layer.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.layers
    }

    /// The rows of the token embedding; `None` when it is a tensor like others, because it is the
    /// output head too.
    pub fn rows(&self) -> Option<&RowLayout> {
        self.rows.as_ref()
    }

    /// For each position in the layer, which of the source's neurons lies there; `None`: the one
    /// of the same number, or no such layer.
    pub fn order(&self, layer: usize) -> Option<&[u32]> {
        self.orders.get(layer)?.as_deref()
    }

    /// Checks that `bytes` are those of the tensor `name`, as it was written.
    ///
    /// # Errors
    /// They are not, or there is no such tensor in one piece.
    pub fn verify_tensor(&self, name: &str, bytes: &[u8]) -> Result<(), TensorDamage> {
        let (expected, found) = (self.sums.get(name).copied(), sum(bytes));
        if expected == Some(found) {
            return Ok(());
        }
        Err(TensorDamage { tensor: name.to_owned(), expected, found })
    }

    /// Bytes of all weights that are not in one piece, without padding and checksums.
    pub fn scattered_bytes(&self) -> u64 {
        self.streamed_bytes() + self.rows.map_or(0, |rows| rows.useful_bytes())
    }

    /// Bytes of all MLP weights, without padding and checksums.
    pub fn streamed_bytes(&self) -> u64 {
        self.layers.iter().map(LayerLayout::useful_bytes).sum()
    }
}

/// A named piece of a pack's metadata, read when it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    file: Arc<Mapping>,
    entry: BlobEntry,
}

impl Blob {
    /// Its bytes, at most `limit`.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, ModelError> {
        let BlobEntry { ref name, offset, n_bytes, sum: expected } = self.entry;
        let path = || self.file.path().to_owned();
        if n_bytes > limit {
            let path = path().join(name);
            return Err(ModelError::TooLong { path, limit, found: n_bytes });
        }
        let bytes = self.file.read(offset, n_bytes)?;
        let found = sum(&bytes);
        if found == expected {
            return Ok(bytes);
        }
        let what = format!("{name:?} in the metadata");
        let source = PackFileError::Sum { what, offset, expected, found };
        Err(ModelError::Pack { path: path(), source })
    }
}

/// Opens the pack at `path`.
pub(crate) fn open(path: &Path) -> Result<(Source, Config, Weights, Pack), ModelError> {
    let at = |source| ModelError::Pack { path: path.to_owned(), source };
    let file = Arc::new(Mapping::open(path)?);
    let page = file.read(0, HEADER_BYTES as u64)?;
    let header = Header::decode(&page, file.len()).map_err(at)?;
    let blobs = read_blobs(&file, header.require(SectionKind::Metadata).map_err(at)?)?;
    let section = header.require(SectionKind::Directory).map_err(at)?;
    let bytes = read_section(&file, section)?;
    let directory = Directory::decode(&bytes).map_err(at)?;
    drop(bytes);
    check_places(&directory, &header).map_err(at)?;
    let facts = match blob(&blobs, FACTS) {
        Some(blob) => serde_json::from_slice(&blob.read(MAX_FACTS)?)
            .map_err(|error| at(PackFileError::Facts(error)))?,
        None => return Err(at(PackFileError::MissingBlob { blob: FACTS })),
    };
    let (pack, tensors) = assemble(path, facts, directory, header_sum(&page));
    check_apart(&tensors).map_err(at)?;
    let weights = weights(&file, &pack, tensors)?;
    let (source, mut config) = read_source(path, &blobs, &weights, &pack)?;
    config.name.clone_from(&pack.facts.name);
    check_config(&config, &pack).map_err(at)?;
    Ok((source, config, weights, pack))
}

fn blob<'a>(blobs: &'a [Blob], name: &str) -> Option<&'a Blob> {
    blobs.iter().find(|blob| blob.entry.name == name)
}

fn read_blobs(file: &Arc<Mapping>, section: &Section) -> Result<Vec<Blob>, ModelError> {
    let at = |source| ModelError::Pack { path: file.path().to_owned(), source };
    check_section(file, section)?;
    let prefix = file.read(section.offset, section.n_bytes.min(blobs::PREFIX_BYTES as u64))?;
    let n = blobs::index_bytes(&prefix, section).map_err(at)?;
    let index = file.read(section.offset, n)?;
    let entries = blobs::decode(&index, section).map_err(at)?;
    Ok(entries.into_iter().map(|entry| Blob { file: Arc::clone(file), entry }).collect())
}

/// Reads a section in small pieces, to check it without keeping it.
fn check_section(file: &Mapping, section: &Section) -> Result<(), ModelError> {
    let mut hash = Xxh3::new();
    let mut done = 0;
    while done < section.n_bytes {
        let piece = file.read(section.offset + done, PIECE.min(section.n_bytes - done))?;
        if piece.is_empty() {
            break;
        }
        hash.update(&piece);
        done += piece.len() as u64;
    }
    compare("the metadata section", file, section, hash.digest())
}

/// Reads the whole directory.
fn read_section(file: &Mapping, section: &Section) -> Result<Vec<u8>, ModelError> {
    if section.n_bytes > MAX_DIRECTORY {
        let (found, limit) = (section.n_bytes, MAX_DIRECTORY);
        let source = PackFileError::TooMany { what: "bytes in its directory", found, limit };
        return Err(ModelError::Pack { path: file.path().to_owned(), source });
    }
    let bytes = file.read(section.offset, section.n_bytes)?;
    compare("the directory section", file, section, sum(&bytes))?;
    Ok(bytes)
}

fn compare(what: &str, file: &Mapping, section: &Section, found: u64) -> Result<(), ModelError> {
    if section.sum == found {
        return Ok(());
    }
    let (what, offset, expected) = (what.to_owned(), section.offset, section.sum);
    let source = PackFileError::Sum { what, offset, expected, found };
    Err(ModelError::Pack { path: file.path().to_owned(), source })
}

/// Checks that everything lies in its section, aligned, and apart from its neighbours.
fn check_places(directory: &Directory, header: &Header) -> Result<(), PackFileError> {
    let resident = header.require(SectionKind::Resident)?;
    for TensorEntry { info, .. } in &directory.tensors {
        let wrong = |reason| entry(format!("tensor {:?}", info.name), reason);
        if !info.offset.is_multiple_of(ALIGN as u64) {
            return Err(wrong("its offset is not a multiple of 4096"));
        }
        if !resident.holds(info.offset, info.n_bytes as u64) {
            return Err(wrong("it lies outside of the resident section"));
        }
    }
    if let Some(rows) = &directory.rows {
        let section = header.require(SectionKind::Rows)?;
        if !section.holds(rows.offset, rows.stored_bytes()) {
            let reason = "they lie outside of the rows section";
            return Err(entry("the token embedding's rows".to_owned(), reason));
        }
    }
    let streamed = header.require(SectionKind::Streamed)?;
    let mut end = streamed.offset;
    for (idx, layer) in directory.layers.iter().enumerate() {
        let wrong = |reason| Err(entry(format!("layer {idx}"), reason));
        if !streamed.holds(layer.offset, layer.stored_bytes()) {
            return wrong("its chunks lie outside of the streamed section");
        }
        if layer.offset < end {
            return wrong("its chunks overlap those of the layer before");
        }
        end = layer.offset + layer.stored_bytes();
    }
    Ok(())
}

fn check_apart(tensors: &[TensorInfo]) -> Result<(), PackFileError> {
    match first_overlap(tensors) {
        Some((_, second)) => {
            let what = format!("tensor {:?}", second.name);
            Err(entry(what, "it overlaps another tensor"))
        }
        None => Ok(()),
    }
}

fn entry(what: String, reason: &'static str) -> PackFileError {
    PackFileError::Entry { what, reason }
}

fn assemble(
    path: &Path,
    facts: Facts,
    directory: Directory,
    checksum: u64,
) -> (Pack, Vec<TensorInfo>) {
    let Directory { tensors, rows, layers, orders } = directory;
    let sums = tensors.iter().map(|t| (t.info.name.clone(), t.sum)).collect();
    let tensors = tensors.into_iter().map(|tensor| tensor.info).collect();
    (Pack { path: path.to_owned(), facts, layers, rows, orders, sums, checksum }, tensors)
}

fn weights(
    file: &Arc<Mapping>,
    pack: &Pack,
    tensors: Vec<TensorInfo>,
) -> Result<Weights, ModelError> {
    let mut weights = Weights::default();
    weights.add(Arc::clone(file), tensors)?;
    let mut scattered: Vec<(String, Vec<usize>)> = Vec::new();
    for (idx, layer) in pack.layers.iter().enumerate() {
        let (d_ff, d_model) = (layer.d_ff, layer.d_model);
        scattered.push((mlp_name(idx, "gate"), vec![d_ff, d_model]));
        scattered.push((mlp_name(idx, "up"), vec![d_ff, d_model]));
        scattered.push((mlp_name(idx, "down"), vec![d_model, d_ff]));
    }
    scattered.extend(pack.rows.map(|r| (EMBEDDING.to_owned(), vec![r.n_rows, r.d_model])));
    for (name, shape) in scattered {
        if weights.info(&name).is_some() {
            return Err(ModelError::DuplicateTensor { path: file.path().to_owned(), tensor: name });
        }
        weights.scatter(name, shape);
    }
    Ok(weights)
}

/// GGUF's name of one of an MLP's matrices.
pub(super) fn mlp_name(layer: usize, part: &str) -> String {
    format!("blk.{layer}.ffn_{part}.weight")
}

fn read_source(
    path: &Path,
    blobs: &[Blob],
    weights: &Weights,
    pack: &Pack,
) -> Result<(Source, Config), ModelError> {
    if let Some(image) = blob(blobs, GGUF) {
        let metadata = parse_image(image.read(MAX_GGUF)?)
            .map_err(|source| ModelError::Gguf { path: path.to_owned(), source })?;
        check_factors(path, weights, pack)?;
        let config = config::from_gguf(&metadata, weights, path)?;
        return Ok((Source::Gguf(metadata), config));
    }
    let file = |name: &str, limit| blob(blobs, name).map(|blob| blob.read(limit)).transpose();
    if blob(blobs, "config.json").is_none() {
        let source = PackFileError::MissingBlob { blob: "config.json" };
        return Err(ModelError::Pack { path: path.to_owned(), source });
    }
    let folder = Folder::packed(path, &file, blob(blobs, TOKENIZER).cloned())?;
    let config = config::from_folder(&folder)?;
    Ok((Source::Safetensors(Box::new(folder)), config))
}

/// The one tensor that becomes part of the configuration is verified here.
fn check_factors(path: &Path, weights: &Weights, pack: &Pack) -> Result<(), ModelError> {
    let name = "rope_freqs.weight";
    let Some(info) = weights.info(name) else { return Ok(()) };
    pack.verify_tensor(name, weights.load(info)?.data)
        .map_err(|damage| ModelError::Pack { path: path.to_owned(), source: damage.into() })
}

fn check_config(config: &Config, pack: &Pack) -> Result<(), PackFileError> {
    if pack.layers.len() != config.n_layers {
        let reason = "there are more or fewer than the configuration asks for";
        return Err(entry("the layers".to_owned(), reason));
    }
    if config.tied_output && pack.rows.is_some() {
        let reason = "it is the output head too, so it must be in one piece";
        return Err(entry("the token embedding".to_owned(), reason));
    }
    Ok(())
}
