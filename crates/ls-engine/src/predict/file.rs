//! Predictors as bytes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ls_hash::LookupPredictor;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{Cost, KEEPS, LayerPredictor, PredictError, PredictorInfo, SPREAD};

const MAGIC: [u8; 8] = *b"LSPRED\0\0";
const VERSION: u32 = 1;
const HEADER: usize = 48;
/// Bytes of a layer before its norms.
const FIXED: usize = 4 * (3 + KEEPS + KEEPS * SPREAD);

fn header(info: &PredictorInfo) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(info.pack.to_le_bytes());
    bytes.extend(info.text.to_le_bytes());
    bytes.extend(info.d_model.to_le_bytes());
    bytes.extend(info.n_layers.to_le_bytes());
    let sum = xxh3_64(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn record(i: usize, layer: &LayerPredictor) -> Vec<u8> {
    let predictor = layer.predictor.to_bytes();
    let n = FIXED + layer.norms.len() * 4 + predictor.len();
    let mut bytes = (n as u64).to_le_bytes().to_vec();
    bytes.extend((layer.norms.len() as u32).to_le_bytes());
    bytes.extend((predictor.len() as u32).to_le_bytes());
    let floats = [layer.weight].into_iter().chain(layer.missed);
    let floats =
        floats.chain(layer.spread.into_iter().flatten()).chain(layer.norms.iter().copied());
    bytes.extend(floats.flat_map(f32::to_le_bytes));
    bytes.extend(predictor);
    let sum = xxh3_64_with_seed(&bytes, i as u64);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn costs_record(i: usize, costs: &[Cost]) -> Vec<u8> {
    let mut bytes = (4 + 12 * costs.len() as u64).to_le_bytes().to_vec();
    bytes.extend((costs.len() as u32).to_le_bytes());
    let floats = costs.iter().flat_map(|cost| [cost.fraction, cost.rise, cost.kl]);
    bytes.extend(floats.flat_map(f32::to_le_bytes));
    let sum = xxh3_64_with_seed(&bytes, i as u64);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn failed(path: &Path) -> impl Fn(io::Error) -> PredictError {
    move |source| PredictError::Io { path: path.to_owned(), source }
}

/// Writes a whole file under another name, which it then takes.
pub(super) fn write(
    path: &Path,
    info: &PredictorInfo,
    layers: &[LayerPredictor],
    costs: &[Cost],
) -> Result<(), PredictError> {
    let part = part_of(path);
    let mut writer = PredictorWriter::create(path, info)?;
    for layer in layers {
        writer.layer(layer)?;
    }
    writer.append(&costs_record(layers.len(), costs))?;
    drop(writer);
    fs::rename(&part, path).map_err(failed(path))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // Not every system lets folders be synced; the bytes are.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// The name of a file that is not finished.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Writes predictors layer by layer to `NAME.part`, so that an interrupted training can go on.
#[derive(Debug)]
pub struct PredictorWriter {
    file: File,
    part: PathBuf,
    done: usize,
}

impl PredictorWriter {
    /// Begins the file that will be `path`.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create(path: &Path, info: &PredictorInfo) -> Result<Self, PredictError> {
        let part = part_of(path);
        let mut file = File::create(&part).map_err(failed(&part))?;
        file.write_all(&header(info)).map_err(failed(&part))?;
        Ok(Self { file, part, done: 0 })
    }

    /// Goes on with what was written of `path`, if it is of the same; the layers that are there.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written.
    pub fn resume(
        path: &Path,
        info: &PredictorInfo,
    ) -> Result<(Self, Vec<LayerPredictor>), PredictError> {
        let part = part_of(path);
        let layers = match read(&part) {
            Ok((found, layers, _)) if found == *info => layers,
            // What is cut or of something else is made anew.
            _ => Vec::new(),
        };
        let mut writer = Self::create(path, info)?;
        for layer in &layers {
            writer.layer(layer)?;
        }
        Ok((writer, layers))
    }

    /// Appends the next layer and waits until it is on the disk.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn layer(&mut self, layer: &LayerPredictor) -> Result<(), PredictError> {
        self.append(&record(self.done, layer))?;
        self.done += 1;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), PredictError> {
        self.file.write_all(bytes).map_err(failed(&self.part))?;
        self.file.sync_data().map_err(failed(&self.part))
    }
}

/// What a file of predictors holds; of one that is not finished, the layers so far and no costs.
pub type Contents = (PredictorInfo, Vec<LayerPredictor>, Option<Vec<Cost>>);

pub(super) fn read(path: &Path) -> Result<Contents, PredictError> {
    decode(path, &fs::read(path).map_err(failed(path))?)
}

/// Bytes that are taken from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    fn f32(&mut self) -> Option<f32> {
        self.u32().map(f32::from_bits)
    }
}

/// What `bytes` hold, which errors call those of the file at `path`. Whether they fit a pack is not looked
/// at, as [`Predictors::open`](super::Predictors::open) does.
///
/// # Errors
///
/// If they are damaged, or not those of such a file.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<Contents, PredictError> {
    if !bytes.starts_with(&MAGIC) {
        let found = bytes[..bytes.len().min(MAGIC.len())].to_vec();
        return Err(PredictError::Magic { path: path.to_owned(), found });
    }
    let cut = |part: String| PredictError::Length { path: path.to_owned(), part };
    let mut rest = Bytes(bytes);
    let head = rest.take(HEADER).ok_or_else(|| cut("the header".into()))?;
    let info = decode_header(path, head)?;
    let (mut layers, mut costs) = (Vec::new(), None);
    while !rest.0.is_empty() {
        let i = layers.len();
        let part = || format!("layer {i}");
        let all = rest.0;
        let mut ahead = Bytes(all);
        let n = ahead.u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| cut(part()))?;
        let total = n.checked_add(16).filter(|total| *total <= all.len());
        let record = rest.take(total.ok_or_else(|| cut(part()))?).ok_or_else(|| cut(part()))?;
        let (content, sum) = record.split_at(record.len() - 8);
        let expected = Bytes(sum).u64().unwrap_or(0);
        let found = xxh3_64_with_seed(content, i as u64);
        if expected != found {
            let (path, part) = (path.to_owned(), part());
            return Err(PredictError::Checksum { path, part, expected, found });
        }
        if i == info.n_layers as usize {
            if costs.is_some() {
                return Err(cut("the end".into()));
            }
            costs = Some(decode_costs(path, i, &content[8..])?);
            continue;
        }
        layers.push(decode_layer(path, i, &content[8..])?);
    }
    Ok((info, layers, costs))
}

fn decode_header(path: &Path, head: &[u8]) -> Result<PredictorInfo, PredictError> {
    let cut = || PredictError::Length { path: path.to_owned(), part: "the header".into() };
    let mut bytes = Bytes(&head[8..]);
    for (what, known) in [("version", VERSION), ("flags", 0)] {
        let found = bytes.u32().ok_or_else(cut)?;
        if found != known {
            let (path, expected) = (path.to_owned(), known);
            return Err(PredictError::Version { path, what, found, expected });
        }
    }
    let (content, sum) = head.split_at(HEADER - 8);
    let (expected, found) = (Bytes(sum).u64().unwrap_or(0), xxh3_64(content));
    if expected != found {
        let (path, part) = (path.to_owned(), "the header".to_owned());
        return Err(PredictError::Checksum { path, part, expected, found });
    }
    let info = || {
        Some(PredictorInfo {
            pack: bytes.u64()?,
            text: bytes.u64()?,
            d_model: bytes.u32()?,
            n_layers: bytes.u32()?,
        })
    };
    let mut info = info;
    info().ok_or_else(cut)
}

fn decode_costs(path: &Path, i: usize, content: &[u8]) -> Result<Vec<Cost>, PredictError> {
    let cut = || PredictError::Length { path: path.to_owned(), part: "the costs".into() };
    let mut bytes = Bytes(content);
    let n = bytes.u32().ok_or_else(cut)? as usize;
    if bytes.0.len() != n.checked_mul(12).ok_or_else(cut)? {
        return Err(cut());
    }
    let mut costs = Vec::with_capacity(n);
    for _ in 0..n {
        let mut next = || bytes.f32().ok_or_else(cut);
        costs.push(Cost { fraction: next()?, rise: next()?, kl: next()? });
    }
    let is_sound = |cost: &Cost| cost.rise.is_finite() && (0.0..=1.0).contains(&cost.fraction);
    match costs.iter().all(is_sound) && costs.is_sorted_by(|a, b| a.fraction <= b.fraction) {
        true => Ok(costs),
        false => Err(PredictError::Field { path: path.to_owned(), what: "a cost", layer: i }),
    }
}

fn decode_layer(path: &Path, i: usize, content: &[u8]) -> Result<LayerPredictor, PredictError> {
    let cut = || PredictError::Length { path: path.to_owned(), part: format!("layer {i}") };
    let field = |what| PredictError::Field { path: path.to_owned(), what, layer: i };
    let mut bytes = Bytes(content);
    let n_neurons = bytes.u32().ok_or_else(cut)? as usize;
    let n_bytes = bytes.u32().ok_or_else(cut)? as usize;
    let weight = bytes.f32().ok_or_else(cut)?;
    let (mut missed, mut spread) = ([0.0; KEEPS], [[0.0; SPREAD]; KEEPS]);
    for to in missed.iter_mut().chain(spread.iter_mut().flatten()) {
        *to = bytes.f32().ok_or_else(cut)?;
    }
    let norms = bytes.take(n_neurons.checked_mul(4).ok_or_else(cut)?).ok_or_else(cut)?;
    let norms: Arc<[f32]> =
        norms.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let predictor = bytes.take(n_bytes).ok_or_else(cut)?;
    if !bytes.0.is_empty() {
        return Err(cut());
    }
    let is_sound = |x: &f32| x.is_finite() && *x >= 0.0;
    for (what, values) in
        [("the weight", &[weight][..]), ("missed importance", &missed), ("a norm", &norms)]
    {
        if !values.iter().all(is_sound) {
            return Err(field(what));
        }
    }
    if !spread.iter().flatten().all(is_sound) {
        return Err(field("the spread"));
    }
    let predictor = LookupPredictor::from_bytes(predictor)
        .map_err(|source| PredictError::Predictor { path: path.to_owned(), layer: i, source })?;
    if predictor.shape().n_outputs != norms.len() {
        return Err(field("the number of neurons"));
    }
    Ok(LayerPredictor { predictor, norms, weight, missed, spread })
}
