//! The independent engine that ours is compared with: llama.cpp, through llama-cpp-python.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{setup, workspace};

/// What is installed. The versions are pinned so that figures and answers can be repeated.
const PACKAGES: [&str; 3] = ["llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy"];

/// The Python of an environment that has the peer, which is made when it is not there.
pub fn python() -> Result<PathBuf> {
    let folder = workspace::cache_dir().join("peer");
    let python = folder.join("bin/python3");
    if is_complete(&python) {
        return Ok(python);
    }
    setup::need_venv()?;
    setup::need_cxx()?;
    println!("Building llama-cpp-python in {} (about ten minutes, once)…", folder.display());
    workspace::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check"]).args(PACKAGES);
    workspace::run(&mut pip).context("the peer could not be installed; is there a network?")?;
    Ok(python)
}

fn is_complete(python: &Path) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import llama_cpp, gguf"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
