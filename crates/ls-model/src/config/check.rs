//! Ranges of sensible values, and rules between them.

use std::path::Path;

use super::Config;
use crate::ModelError;

/// Largest values that any real model comes near to. They bound what is allocated before the
/// tensors have been seen.
pub(super) const MAX_LAYERS: usize = 4096;
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_HEADS: usize = 1 << 14;
pub(super) const MAX_FF: usize = 1 << 24;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_CONTEXT: usize = 1 << 30;

/// The value as a count from 1 to `max`.
pub(super) fn count(path: &Path, key: &str, value: u64, max: usize) -> Result<usize, ModelError> {
    match usize::try_from(value) {
        Ok(count) if (1..=max).contains(&count) => Ok(count),
        _ => Err(wrong(path, key, value, format!("1 to {max}"))),
    }
}

/// A finite number above zero.
pub(super) fn positive(path: &Path, key: &str, value: f32) -> Result<f32, ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(wrong(path, key, value, "a finite number above 0".to_owned()))
}

/// `whole / parts`, which must have no remainder.
pub(super) fn divide(
    path: &Path,
    key: &str,
    whole: usize,
    parts: usize,
) -> Result<usize, ModelError> {
    if whole.is_multiple_of(parts) {
        return Ok(whole / parts);
    }
    Err(wrong(path, key, parts, format!("a divisor of {whole}")))
}

pub(super) fn wrong(path: &Path, key: &str, found: impl ToString, expected: String) -> ModelError {
    let (path, key) = (path.to_owned(), key.to_owned());
    ModelError::Value { path, key, expected, found: found.to_string() }
}

pub(super) fn unsupported(
    path: &Path,
    key: &str,
    found: impl ToString,
    hint: &'static str,
) -> ModelError {
    let (path, key) = (path.to_owned(), key.to_owned());
    ModelError::Unsupported { path, key, found: found.to_string(), hint }
}

/// Names under which a source keeps the values that rules between values speak of.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyNames<'a> {
    pub n_kv_heads: &'a str,
    pub head_dim: &'a str,
    pub rope_dim: &'a str,
    pub norm_eps: &'a str,
}

/// Rules that hold for every configuration.
pub(super) fn check(config: &Config, keys: KeyNames<'_>, path: &Path) -> Result<(), ModelError> {
    divide(path, keys.n_kv_heads, config.n_heads, config.n_kv_heads)?;
    let width = config.n_heads.saturating_mul(config.head_dim);
    if width > MAX_WIDTH {
        let most = format!("at most {} with {} heads", MAX_WIDTH / config.n_heads, config.n_heads);
        return Err(wrong(path, keys.head_dim, config.head_dim, most));
    }
    let rope_dim = config.rope.dim;
    if !rope_dim.is_multiple_of(2) || !(2..=config.head_dim).contains(&rope_dim) {
        let most = format!("an even number from 2 to the head's {}", config.head_dim);
        return Err(wrong(path, keys.rope_dim, rope_dim, most));
    }
    if config.norm_eps >= 1.0 {
        return Err(wrong(path, keys.norm_eps, config.norm_eps, "below 1".to_owned()));
    }
    Ok(())
}
