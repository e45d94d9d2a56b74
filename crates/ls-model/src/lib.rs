//! Reads model files: GGUF and safetensors, configuration, tokenizer, chat template.

pub mod config;
mod dtype;
mod error;
mod file;
pub mod gguf;
mod json;
mod map;
pub mod safetensors;
mod schema;
mod shared;
pub mod template;
mod tensor;
pub mod tokenizer;
mod weights;

pub use config::Config;
pub use dtype::TensorType;
pub use error::{ModelError, Warning};
pub use file::{ModelFile, Source};
pub use shared::{SharedBytes, SharedTensor};
pub use template::ChatTemplate;
pub use tensor::{Tensor, TensorInfo};
pub use tokenizer::{Tokenizer, TokenizerError};
