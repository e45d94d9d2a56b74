//! The folder here in which a run makes what it sends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Removes the folder `$1` when its input ends, as it does when the driver is gone.
const KEEPER: &str = "trap '' HUP INT TERM; read -r word; rm -rf \"$1\"";

/// A folder that goes when this value does, or when this process is killed.
#[derive(Debug)]
pub struct Staging {
    /// Where it is.
    pub path: PathBuf,
    keeper: Child,
}

impl Staging {
    /// Makes the folder in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("staging");
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(&path);
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut keeper, 0);
        let keeper = keeper.spawn().context("cannot start sh")?;
        let made = Self { path, keeper };
        fs::create_dir(&made.path)
            .with_context(|| format!("cannot make {}", made.path.display()))?;
        Ok(made)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_folder_goes_with_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Staging::new(folder.path()).unwrap();
        fs::write(staging.path.join("a"), "b").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
