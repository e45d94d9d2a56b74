//! A Hugging Face model folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::{header, names};
use crate::ModelError;
use crate::config::Architecture;
use crate::json::{MAX_SETTINGS, Settings, parse_settings, read_file, read_settings};
use crate::map::Mapping;
use crate::pack::Blob;
use crate::weights::Weights;

/// Longest tokenizer.json that is read; the largest real ones have about 35 MB.
const MAX_TOKENIZER: u64 = 256 << 20;
const CONFIG: &str = "config.json";
/// The folder's tokenizer, also by this name in a pack.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The files of a Hugging Face model beside its tensors.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    pub(crate) config: Settings,
    tokenizer_config: Option<Settings>,
    generation_config: Option<Settings>,
    chat_template: Option<String>,
    tokenizer: TokenizerPlace,
}

/// Where tokenizer.json is read from when it is asked for.
#[derive(Clone, Debug)]
enum TokenizerPlace {
    Folder,
    Pack(Option<Blob>),
}

/// The file of this name and at most that many bytes, if there is one.
type ReadFile<'a> = dyn Fn(&str, u64) -> Result<Option<Vec<u8>>, ModelError> + 'a;

impl Folder {
    /// Files beside the tensors that matter, each with the most bytes that it may have.
    pub(crate) const FILES: [(&str, u64); 5] = [
        (CONFIG, MAX_SETTINGS),
        (TOKENIZER, MAX_TOKENIZER),
        (TOKENIZER_CONFIG, MAX_SETTINGS),
        (GENERATION_CONFIG, MAX_SETTINGS),
        (CHAT_TEMPLATE, MAX_SETTINGS),
    ];

    /// Reads the settings of the folder at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, ModelError> {
        let file = |name: &str, limit| read_file(&path.join(name), limit);
        Self::from_files(path, &file, TokenizerPlace::Folder)
    }

    /// The folder that a pack was made from, out of the pack at `path`.
    pub(crate) fn packed(
        path: &Path,
        file: &ReadFile<'_>,
        tokenizer: Option<Blob>,
    ) -> Result<Self, ModelError> {
        Self::from_files(path, file, TokenizerPlace::Pack(tokenizer))
    }

    fn from_files(
        path: &Path,
        file: &ReadFile<'_>,
        tokenizer: TokenizerPlace,
    ) -> Result<Self, ModelError> {
        let settings = |name: &str| {
            let bytes = file(name, MAX_SETTINGS)?;
            bytes.map(|bytes| parse_settings(path.join(name), &bytes)).transpose()
        };
        let config = settings(CONFIG)?
            .ok_or_else(|| ModelError::NotAModelFolder { path: path.to_owned() })?;
        let tokenizer_config = settings(TOKENIZER_CONFIG)?;
        let generation_config = settings(GENERATION_CONFIG)?;
        let template = file(CHAT_TEMPLATE, MAX_SETTINGS)?;
        let chat_template = match template {
            Some(bytes) => Some(utf8(path.join(CHAT_TEMPLATE), bytes)?),
            None => template_of(tokenizer_config.as_ref())?,
        };
        let path = path.to_owned();
        Ok(Self { path, config, tokenizer_config, generation_config, chat_template, tokenizer })
    }

    /// The folder; for a pack that was made from one, the pack.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// config.json.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config.fields
    }

    /// tokenizer_config.json, if the folder has one.
    pub fn tokenizer_config(&self) -> Option<&Map<String, Value>> {
        self.tokenizer_config.as_ref().map(|settings| &settings.fields)
    }

    /// generation_config.json, if the folder has one.
    pub fn generation_config(&self) -> Option<&Map<String, Value>> {
        self.generation_config.as_ref().map(|settings| &settings.fields)
    }

    /// The chat template: chat_template.jinja, or else what tokenizer_config.json holds.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Where tokenizer.json lies, whether it exists or not.
    pub fn tokenizer_path(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// The bytes of tokenizer.json, or `None` when the folder has none.
    ///
    /// # Errors
    /// It cannot be read, is a git-lfs pointer or too long, or is damaged in a pack.
    pub fn read_tokenizer(&self) -> Result<Option<Vec<u8>>, ModelError> {
        match &self.tokenizer {
            TokenizerPlace::Folder => read_file(&self.tokenizer_path(), MAX_TOKENIZER),
            TokenizerPlace::Pack(blob) => {
                blob.as_ref().map(|blob| blob.read(MAX_TOKENIZER)).transpose()
            }
        }
    }
}

fn utf8(path: PathBuf, bytes: Vec<u8>) -> Result<String, ModelError> {
    String::from_utf8(bytes).map_err(|error| ModelError::Io {
        action: "read",
        path,
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error()),
    })
}

fn template_of(tokenizer: Option<&Settings>) -> Result<Option<String>, ModelError> {
    let Some(tokenizer) = tokenizer else { return Ok(None) };
    match tokenizer.get("chat_template") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(named)) => Ok(default_template(named)),
        Some(_) => Err(tokenizer.wrong("chat_template", "a string or an array of templates")),
    }
}

/// Of several named templates, the one called "default", or else the first.
fn default_template(named: &[Value]) -> Option<String> {
    let is_default = |entry: &&Value| entry.get("name").and_then(Value::as_str) == Some("default");
    let entry = named.iter().find(is_default).or(named.first())?;
    entry.get("template")?.as_str().map(str::to_owned)
}

/// Opens the tensors of the folder, under GGUF's names where they have one.
pub(crate) fn open(folder: &Folder, arch: Architecture) -> Result<Weights, ModelError> {
    let single = folder.path.join("model.safetensors");
    let index = folder.path.join("model.safetensors.index.json");
    let mut weights = Weights::default();
    match read_settings(index)? {
        Some(index) if !single.exists() => {
            let shards = weight_map(&index)?;
            for (name, tensors) in &shards {
                let shard = folder.path.join(name);
                if !shard.exists() {
                    let (path, n_shards) = (index.path.clone(), shards.len());
                    return Err(ModelError::MissingShard { path, missing: shard, n_shards });
                }
                add_file(&mut weights, &shard, arch, tensors)?;
            }
        }
        _ => add_file(&mut weights, &single, arch, &BTreeSet::new())?,
    }
    Ok(weights)
}

/// The index's files, each with the tensors that it should hold.
fn weight_map(index: &Settings) -> Result<BTreeMap<String, BTreeSet<String>>, ModelError> {
    let expected = "an object that maps tensors to files of the folder";
    let map = index.object("weight_map")?.ok_or_else(|| index.wrong("weight_map", expected))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in &map.fields {
        let Some(file) = file.as_str().filter(|file| is_plain_name(file)) else {
            return Err(map.wrong(tensor, "the name of a file in the same folder"));
        };
        shards.entry(file.to_owned()).or_default().insert(tensor.clone());
    }
    Ok(shards)
}

/// Whether `file` names a file of the folder itself: an index must not reach elsewhere.
fn is_plain_name(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn add_file(
    weights: &mut Weights,
    path: &Path,
    arch: Architecture,
    expected: &BTreeSet<String>,
) -> Result<(), ModelError> {
    let file = Mapping::open(path)?;
    if crate::map::is_lfs_pointer(&file.read_prefix(64)?) {
        return Err(ModelError::LfsPointer { path: path.to_owned() });
    }
    let mut tensors = header::read(&file)?;
    let found: BTreeSet<&str> = tensors.iter().map(|info| info.name.as_str()).collect();
    if let Some(missing) = expected.iter().find(|name| !found.contains(name.as_str())) {
        let (path, tensor) = (path.to_owned(), missing.clone());
        return Err(ModelError::MissingFromShard { path, tensor });
    }
    for info in &mut tensors {
        if let Some(name) = names::to_gguf(&info.name, arch) {
            info.name = name;
        }
    }
    weights.add(file, tensors)
}
