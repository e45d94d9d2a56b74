//! The tensors of a model, in one file or several.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::map::Mapping;
use crate::tensor::{Tensor, TensorInfo};
use crate::{ModelError, SharedBytes, SharedTensor};

/// Mapped files and the tensors in them, found by name.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    files: Vec<Arc<Mapping>>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// Shapes of tensors that the files have in many pieces.
    scattered: HashMap<String, Vec<usize>>,
}

impl Weights {
    /// Adds a file with its tensors.
    pub fn add(
        &mut self,
        file: impl Into<Arc<Mapping>>,
        tensors: Vec<TensorInfo>,
    ) -> Result<(), ModelError> {
        let file = file.into();
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

    /// Adds a tensor that is there, but not in one piece.
    pub fn scatter(&mut self, name: String, shape: Vec<usize>) {
        self.scattered.insert(name, shape);
    }

    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len()).sum()
    }

    pub fn infos(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|idx| self.tensors.get(*idx))
    }

    /// The shape of a tensor, in one piece or not.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let whole = self.info(name).map(|info| &info.shape);
        whole.or_else(|| self.scattered.get(name)).map(Vec::as_slice)
    }

    /// Checks that a tensor, in one piece or not, is there with this shape; `model` is named when
    /// it is not.
    pub fn check_shape(
        &self,
        name: &str,
        expected: &[usize],
        model: &Path,
    ) -> Result<(), ModelError> {
        let (tensor, expected) = (name.to_owned(), expected.to_vec());
        match self.shape(name) {
            None => Err(ModelError::MissingTensor { path: model.to_owned(), tensor, expected }),
            Some(found) if *found != expected => {
                let path = self.info(name).map_or(model, |info| self.path_of(info)).to_owned();
                let found = found.to_vec();
                Err(ModelError::Shape { path, tensor, expected, found })
            }
            Some(_) => Ok(()),
        }
    }

    /// The entry of a tensor that must be there, in one piece and with this shape; `model` is
    /// named when it is not.
    pub fn require(
        &self,
        name: &str,
        expected: &[usize],
        model: &Path,
    ) -> Result<&TensorInfo, ModelError> {
        self.check_shape(name, expected, model)?;
        let (path, tensor) = (model.to_owned(), name.to_owned());
        self.info(name).ok_or(ModelError::Scattered { path, tensor })
    }

    /// The file of `info`, which must come from this very model.
    pub fn path_of(&self, info: &TensorInfo) -> &Path {
        self.files.get(info.file_idx).map_or(Path::new(""), |file| file.path())
    }

    /// Bytes of the first file that keep it mapped.
    pub fn share_range(&self, offset: u64, n_bytes: usize) -> Result<SharedBytes, ModelError> {
        let file = self.files.first();
        let file_len = file.map_or(0, |file| file.len());
        let end = offset.checked_add(n_bytes as u64);
        match file.filter(|_| end.is_some_and(|end| end <= file_len)) {
            Some(file) => file.share("bytes of the file", offset, n_bytes),
            None => Err(ModelError::OutOfFile {
                path: file.map_or(Path::new(""), |file| file.path()).to_owned(),
                offset,
                n_bytes: n_bytes as u64,
                file_len,
            }),
        }
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

    /// Says that nothing of the files will be read through the page cache again.
    pub fn forget_all(&self) {
        self.files.iter().for_each(|file| file.forget_all());
    }

    /// Says that a tensor's bytes will not be read again soon.
    pub fn forget(&self, name: &str) {
        let Some(info) = self.info(name) else { return };
        if let Some(file) = self.files.get(info.file_idx) {
            file.forget(info.offset, info.n_bytes);
        }
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
