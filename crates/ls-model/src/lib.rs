//! Reads model files: GGUF and safetensors, configuration, tokenizer, chat template.

pub mod config;
mod dtype;
pub mod template;
pub mod tokenizer;

pub use config::Config;
pub use dtype::TensorType;
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
