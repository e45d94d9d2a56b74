//! Settings in JSON files, with typed getters.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ModelError;
use crate::map::is_lfs_pointer;

/// Most bytes that are read of a file of settings.
pub(crate) const MAX_SETTINGS: u64 = 32 << 20;

/// Reads a file of at most `limit` bytes; `None` when it is not there.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ModelError> {
    let io = |source| ModelError::Io { action: "read", path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    let found = file.metadata().map_err(io)?.len();
    if found > limit {
        return Err(ModelError::TooLong { path: path.to_owned(), limit, found });
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(io)?;
    if is_lfs_pointer(&bytes) {
        return Err(ModelError::LfsPointer { path: path.to_owned() });
    }
    Ok(Some(bytes))
}

/// Reads a JSON object; `None` when the file is not there.
pub(crate) fn read_settings(path: PathBuf) -> Result<Option<Settings>, ModelError> {
    let bytes = read_file(&path, MAX_SETTINGS)?;
    bytes.map(|bytes| parse_settings(path, &bytes)).transpose()
}

/// The JSON object in `bytes`, which are those of the file at `path`.
pub(crate) fn parse_settings(path: PathBuf, bytes: &[u8]) -> Result<Settings, ModelError> {
    match serde_json::from_slice(bytes) {
        Ok(fields) => Ok(Settings { path, fields }),
        Err(source) => Err(ModelError::Json { path, source }),
    }
}

/// A JSON object and the file that it comes from. A `null` counts as absent.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub path: PathBuf,
    pub fields: Map<String, Value>,
}

impl Settings {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// The error that says that `key` is not `expected`.
    pub fn wrong(&self, key: &str, expected: &'static str) -> ModelError {
        let found = match self.fields.get(key) {
            None => "missing".to_owned(),
            Some(value) => value.to_string().chars().take(80).collect(),
        };
        ModelError::Setting { path: self.path.clone(), key: key.to_owned(), expected, found }
    }

    pub fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.typed(key, "a whole number, not negative", Value::as_u64)
    }

    pub fn f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.typed(key, "a number", |value| value.as_f64().map(|v| v as f32))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn array(&self, key: &str) -> Result<Option<&[Value]>, ModelError> {
        self.typed(key, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// A nested object, as settings of the same file.
    pub fn object(&self, key: &str) -> Result<Option<Self>, ModelError> {
        let fields = self.typed(key, "an object", Value::as_object)?;
        Ok(fields.map(|fields| Self { path: self.path.clone(), fields: fields.clone() }))
    }
}
