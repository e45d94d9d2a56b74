//! Where the workspace lies, and running programs in it.

use std::path::{Path, PathBuf};

/// The workspace's root folder.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace's root")
}

/// Where downloaded and built things are kept between runs.
pub fn cache_dir() -> PathBuf {
    let home = || std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => home().join(".cache"),
    };
    base.join("leanstream")
}
