//! The folder for what can be made again.

use std::path::PathBuf;

/// `leanstream` in the user's cache folder; `None` when the user has none. It may not exist yet.
pub fn cache() -> Option<PathBuf> {
    let is_usable = |folder: &PathBuf| folder.is_absolute();
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(is_usable);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(folder.join("leanstream"))
}
