//! The tensors of a model, mapped or read into memory.

use std::collections::HashMap;
use std::sync::Arc;

use ls_io::{ALIGN, AlignedBuf};
use ls_model::pack::Pack;
use ls_model::{ModelFile, TensorInfo, TensorType};

use crate::EngineError;
use crate::bytes::Bytes;
use crate::reader::Reader;

/// A tensor with its data.
#[derive(Debug)]
pub(crate) struct LoadedTensor {
    pub dtype: TensorType,
    /// Outermost first.
    pub shape: Vec<usize>,
    pub data: Bytes,
}

/// Where tensors are taken from.
#[derive(Debug)]
pub(crate) struct Tensors<'a> {
    model: &'a ModelFile,
    /// Empty when they stay in the mapped file.
    read: HashMap<String, Bytes>,
}

impl<'a> Tensors<'a> {
    /// Tensors stay in the mapped file.
    pub fn mapped(model: &'a ModelFile) -> Self {
        Self { model, read: HashMap::new() }
    }

    /// Reads every tensor of a pack into memory, past the page cache: what is under a budget must
    /// not be there twice.
    pub fn read(model: &'a ModelFile, pack: &Pack, reader: &Reader) -> Result<Self, EngineError> {
        let infos: Vec<&TensorInfo> = model.tensors().iter().collect();
        let mut buffers = Vec::with_capacity(infos.len());
        for info in &infos {
            let len = info.n_bytes.next_multiple_of(ALIGN);
            let buffer = AlignedBuf::new(len)
                .map_err(|source| EngineError::Allocate { bytes: len as u64, source })?;
            buffers.push((info.offset(), buffer));
        }
        let mut read = HashMap::with_capacity(infos.len());
        reader.read(buffers, &mut |i, buffer| {
            let info = infos[i];
            pack.verify_tensor(&info.name, &buffer[..info.n_bytes])?;
            read.insert(info.name.clone(), Bytes::Owned(Arc::new(buffer), info.n_bytes));
            Ok(())
        })?;
        Ok(Self { model, read })
    }

    /// Bytes of memory that reading all tensors takes.
    pub fn resident_bytes(model: &ModelFile) -> u64 {
        let infos = model.tensors().iter();
        infos.map(|info| info.n_bytes.next_multiple_of(ALIGN) as u64).sum()
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.model.tensors().iter().find(|info| info.name == name)
    }

    /// The tensor of this name.
    pub fn require(&self, name: &str) -> Result<LoadedTensor, EngineError> {
        let missing = || EngineError::MissingTensor { tensor: name.to_owned() };
        if let Some(data) = self.read.get(name) {
            let info = self.info(name).ok_or_else(missing)?;
            let (dtype, shape, data) = (info.dtype, info.shape.clone(), data.clone());
            return Ok(LoadedTensor { dtype, shape, data });
        }
        let tensor = self.model.share(name)?.ok_or_else(missing)?;
        let data = Bytes::Mapped(tensor.data);
        Ok(LoadedTensor { dtype: tensor.dtype, shape: tensor.shape, data })
    }

    /// All elements of a tensor of floats.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let tensor = self.require(name)?;
        tensor
            .dtype
            .to_f32(&tensor.data)
            .ok_or_else(|| EngineError::NotFloats { tensor: name.to_owned(), dtype: tensor.dtype })
    }
}
