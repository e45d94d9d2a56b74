//! Reads model files: GGUF and safetensors, configuration, tokenizer, chat template.

pub mod config;
mod dtype;

pub use config::Config;
pub use dtype::TensorType;
