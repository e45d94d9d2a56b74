//! What is sent to a device: a folder with programs, fixtures, and the list of steps to run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::workspace;

/// The list of steps in a bundle's folder.
const LIST: &str = "bundle.json";

/// The list of steps, and what the programs were built for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bundle {
    /// Target triple of the programs.
    pub target: String,
    /// The commit that they were built from.
    pub commit: String,
    pub steps: Vec<Step>,
}

/// Commands that are run on the device one after the other, until one fails.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Like `ls-io::it`.
    pub name: String,
    pub kind: Kind,
    /// Programs and arguments. A program with a slash lies in the bundle; `{root}` in an argument is the
    /// bundle's folder on the device, `{budget}` the memory that models may hold.
    pub commands: Vec<Vec<String>>,
    /// Folder to run in, relative to the bundle.
    #[serde(default)]
    pub folder: String,
}

/// What is made of a step's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Kind {
    /// Lines of Rust's test harness.
    Tests,
    /// The JSON of `leanstream doctor`.
    Doctor,
    /// The JSON of `leanstream run`, whose text has to begin like this.
    Golden { text: String },
    /// The JSON of `leanstream bench`.
    Bench,
    /// Nothing, but for its success.
    Plain,
}

impl Kind {
    /// Whether standard output is JSON, apart from messages.
    pub fn is_json(&self) -> bool {
        matches!(self, Self::Doctor | Self::Golden { .. } | Self::Bench)
    }
}

/// A bundle that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Packed {
    pub bundle: Bundle,
    /// The compressed archive of its folder.
    pub archive: PathBuf,
    pub bytes: u64,
}

impl Bundle {
    /// Reads the list of a bundle's folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(LIST);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("{} is no bundle", folder.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Writes the list into the bundle's folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("a bundle is JSON")?;
        fs::write(folder.join(LIST), text).context("cannot write the bundle's list")
    }

    /// Packs `folder` into `archive`.
    pub fn pack(self, folder: &Path, archive: &Path) -> Result<Packed> {
        let mut tar = Command::new("tar");
        // Who built it is nothing to the device, which may not know such a user.
        tar.args(["--owner=0", "--group=0", "-C"]).arg(folder).args(["-cf", "-", "."]);
        tar.stdout(std::process::Stdio::piped());
        let mut tar = tar.spawn().context("cannot start tar")?;
        let mut gzip = Command::new("gzip");
        gzip.arg("-1").stdin(tar.stdout.take().context("stdout is piped")?);
        gzip.stdout(File::create(archive).with_context(|| format!("{}", archive.display()))?);
        workspace::run(&mut gzip)?;
        if !tar.wait().context("cannot wait for tar")?.success() {
            bail!("{} could not be packed", folder.display());
        }
        let bytes = fs::metadata(archive).context("the archive was written")?.len();
        Ok(Packed { bundle: self, archive: archive.to_owned(), bytes })
    }
}
