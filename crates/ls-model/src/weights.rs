//! The tensors of a model, in one file or several.

use std::collections::HashMap;
use std::path::Path;

use crate::map::Mapping;
use crate::tensor::{Tensor, TensorInfo};
use crate::{ModelError, SharedTensor};

/// Mapped files and the tensors in them, found by name.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    files: Vec<Mapping>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Weights {
    /// Adds a file with its tensors.
    pub fn add(&mut self, file: Mapping, tensors: Vec<TensorInfo>) -> Result<(), ModelError> {
        for mut tensor in tensors {
            tensor.file_idx = self.files.len();
            if self.by_name.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                let path = file.path().to_owned();
                return Err(ModelError::DuplicateTensor { path, tensor: tensor.name });
            }
            self.tensors.push(tensor);
        }
        self.files.push(file);
        Ok(())
    }

    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(Mapping::path)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(Mapping::len).sum()
    }

    pub fn infos(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|idx| self.tensors.get(*idx))
    }

    /// The entry of a tensor that must be there with this shape; `model` is named when it is not.
    pub fn require(
        &self,
        name: &str,
        expected: &[usize],
        model: &Path,
    ) -> Result<&TensorInfo, ModelError> {
        let (tensor, expected) = (name.to_owned(), expected.to_vec());
        let Some(info) = self.info(name) else {
            return Err(ModelError::MissingTensor { path: model.to_owned(), tensor, expected });
        };
        if info.shape != expected {
            let (path, found) = (self.path_of(info).to_owned(), info.shape.clone());
            return Err(ModelError::Shape { path, tensor, expected, found });
        }
        Ok(info)
    }

    /// The file of `info`, which must come from this very model.
    pub fn path_of(&self, info: &TensorInfo) -> &Path {
        self.files.get(info.file_idx).map_or(Path::new(""), Mapping::path)
    }

    /// The tensor with its data; fails when the file was cut since it was opened.
    pub fn load<'a>(&'a self, info: &'a TensorInfo) -> Result<Tensor<'a>, ModelError> {
        let file = self.files.get(info.file_idx).ok_or_else(|| ModelError::MissingTensor {
            path: Path::new("").to_owned(),
            tensor: info.name.clone(),
            expected: info.shape.clone(),
        })?;
        let data = file.slice(&info.name, info.offset, info.n_bytes)?;
        Ok(Tensor { name: &info.name, dtype: info.dtype, shape: &info.shape, data })
    }

    /// The tensor with data that keeps the file mapped.
    pub fn share(&self, info: &TensorInfo) -> Result<SharedTensor, ModelError> {
        let file = self.files.get(info.file_idx).ok_or_else(|| ModelError::MissingTensor {
            path: Path::new("").to_owned(),
            tensor: info.name.clone(),
            expected: info.shape.clone(),
        })?;
        let data = file.share(&info.name, info.offset, info.n_bytes)?;
        Ok(SharedTensor { dtype: info.dtype, shape: info.shape.clone(), data })
    }

    /// Whether every file still holds all of its tensors.
    pub fn check_whole(&self) -> Result<(), ModelError> {
        for file_idx in 0..self.files.len() {
            let in_file = self.tensors.iter().filter(|info| info.file_idx == file_idx);
            if let Some(last) = in_file.max_by_key(|info| info.offset) {
                self.load(last)?;
            }
        }
        Ok(())
    }
}
