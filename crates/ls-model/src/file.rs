//! A model on disk, ready to be read.

use std::path::{Path, PathBuf};

use crate::config::{self, Config};
use crate::error::{ModelError, Warning};
use crate::gguf::{self, Metadata};
use crate::pack::{self, Pack};
use crate::safetensors::{self, Folder};
use crate::schema;
use crate::shared::{SharedBytes, SharedTensor};
use crate::tensor::{Tensor, TensorInfo};
use crate::weights::Weights;

/// Where a model's settings and tokenizer come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A GGUF file: the metadata, of the first part if there are several.
    Gguf(Metadata),
    /// A Hugging Face folder.
    Safetensors(Box<Folder>),
}

/// An open model: configuration, tensors, and what its tokenizer is made from.
///
/// Opening has checked that every tensor that the architecture needs is there with the shape
/// that the configuration asks for. Tensor data stays in the mapped files and is borrowed from
/// here.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    source: Source,
    config: Config,
    weights: Weights,
    pack: Option<Pack>,
    warnings: Vec<Warning>,
}

/// What opening a model of any kind gives.
type Opened = (Source, Config, Weights, Option<Pack>);

impl ModelFile {
    /// Opens a `.gguf` file (any part of one that is split), a safetensors folder, or a pack,
    /// which is known by its first bytes.
    ///
    /// # Errors
    /// The model cannot be read, is damaged, or needs something that is not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let (source, config, weights, pack) = if path.is_dir() {
            open_folder(path)?
        } else if pack::is_pack(path) {
            open_pack(path)?
        } else {
            open_gguf(path)?
        };
        let warnings = schema::check(&config, &weights, path)?;
        Ok(Self { path: path.to_owned(), source, config, weights, pack, warnings })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that hold tensors, in order; [`TensorInfo::file_idx`] counts them.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.weights.files()
    }

    /// Bytes of all files that hold tensors.
    pub fn size_bytes(&self) -> u64 {
        self.weights.file_bytes()
    }

    /// Bytes of all tensors, those included that a pack has in pieces; without padding.
    pub fn weights_bytes(&self) -> u64 {
        let whole: u64 = self.weights.infos().iter().map(|info| info.n_bytes as u64).sum();
        whole + self.pack.as_ref().map_or(0, Pack::scattered_bytes)
    }

    /// Where the tensors lie that are not in one piece, if the model is a pack.
    pub fn pack(&self) -> Option<&Pack> {
        self.pack.as_ref()
    }

    /// Shapes and choices of the decoder.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Settings and tokenizer, as the file has them.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What is odd but does not keep the model from working.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The chat template in Jinja, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        match &self.source {
            Source::Gguf(metadata) => metadata.get("tokenizer.chat_template").ok().flatten(),
            Source::Safetensors(folder) => folder.chat_template(),
        }
    }

    /// Names, types and shapes of all tensors, in the order of the files. Of a pack: those in one
    /// piece.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.weights.infos()
    }

    /// The tensor of this name, as GGUF names it; `None` when there is none, or not in one piece.
    ///
    /// # Errors
    /// The file was cut since it was opened.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor<'_>>, ModelError> {
        self.weights.info(name).map(|info| self.weights.load(info)).transpose()
    }

    /// The tensor of this name, which must have the shape `expected` (outermost first).
    ///
    /// # Errors
    /// It is missing, in pieces or has another shape, or the file was cut since it was opened.
    pub fn require(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, ModelError> {
        self.weights.load(self.weights.require(name, expected, &self.path)?)
    }

    /// The tensor of this name, with data that keeps the file mapped; `None` when there is none,
    /// or not in one piece.
    ///
    /// # Errors
    /// The file was cut since it was opened.
    pub fn share(&self, name: &str) -> Result<Option<SharedTensor>, ModelError> {
        self.weights.info(name).map(|info| self.weights.share(info)).transpose()
    }

    /// Any bytes of the first file, kept mapped by what is returned: chunks and rows of a pack.
    ///
    /// # Errors
    /// The file does not have them, or was cut since it was opened.
    pub fn share_range(&self, offset: u64, n_bytes: usize) -> Result<SharedBytes, ModelError> {
        self.weights.share_range(offset, n_bytes)
    }

    /// Says that a tensor's bytes will not be read again soon.
    pub(crate) fn forget(&self, name: &str) {
        self.weights.forget(name);
    }

    /// Gives the files' pages back to the system, as far as it takes them. What is read from the
    /// mapped files nevertheless comes from the disk again.
    ///
    /// For who reads weights by other means: memory of a limited process should hold them once.
    pub fn release_pages(&self) {
        self.weights.forget_all();
    }

    /// Looks whether the files still hold all tensors. Cheap enough to call before each prompt.
    ///
    /// Reading a tensor from a file that was cut meanwhile ends the process (SIGBUS); this
    /// notices the cut before.
    ///
    /// # Errors
    /// A file was cut since it was opened.
    pub fn check_whole(&self) -> Result<(), ModelError> {
        self.weights.check_whole()?;
        match self.pack {
            // Its last bytes are in no tensor, and are mapped without being touched.
            Some(_) => self.share_range(self.size_bytes(), 0).map(drop),
            None => Ok(()),
        }
    }
}

fn open_pack(path: &Path) -> Result<Opened, ModelError> {
    let (source, config, weights, pack) = pack::open(path)?;
    Ok((source, config, weights, Some(pack)))
}

fn open_gguf(path: &Path) -> Result<Opened, ModelError> {
    let (metadata, weights) = gguf::open(path)?;
    let config = config::from_gguf(&metadata, &weights, path)?;
    Ok((Source::Gguf(metadata), config, weights, None))
}

fn open_folder(path: &Path) -> Result<Opened, ModelError> {
    let folder = Folder::read(path)?;
    let config = config::from_folder(&folder)?;
    let weights = safetensors::open(&folder, config.arch)?;
    Ok((Source::Safetensors(Box::new(folder)), config, weights, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<ModelFile>();
    }
}
