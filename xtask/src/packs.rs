//! Packs of models, kept between runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace;

/// A pack and what is known of it.
#[derive(Clone, Debug)]
pub struct Pack {
    pub path: PathBuf,
    pub report: Report,
}

/// What `leanstream pack --json` says.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the weights that can be streamed.
    pub chunk_bytes: u64,
    /// Type of the down matrix of each layer.
    pub down: Vec<String>,
    pub file_bytes: u64,
}

impl Report {
    /// The types of the down matrices, each once.
    pub fn types(&self) -> String {
        let mut types: Vec<&str> = self.down.iter().map(String::as_str).collect();
        types.sort_unstable();
        types.dedup();
        types.join(", ")
    }
}

/// The model's pack with down matrices of the type `down`, made unless there is one that is newer
/// than the model.
pub fn pack(program: &Path, model: &Path, down: &str) -> Result<Pack> {
    packed(program, model, down, None)
}

/// The model's pack with its neurons in the order of what they add in a text, likewise.
pub fn ordered(program: &Path, model: &Path, text: &Path) -> Result<Pack> {
    packed(program, model, "auto", Some(text))
}

fn packed(program: &Path, model: &Path, down: &str, calibrate: Option<&Path>) -> Result<Pack> {
    let folder = workspace::cache_dir().join("packs");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(file_name(model, down, calibrate)?);
    // Written last, so a pack without it is not whole.
    let report = path.with_extension("json");
    if !is_newer(&path, model) || !is_newer(&report, model) {
        eprintln!("packing {} into {}", model.display(), path.display());
        let mut command = Command::new(program);
        command.arg("pack").arg(model).arg("-o").arg(&path);
        command.args(["--down", down, "--force", "--json"]);
        if let Some(text) = calibrate {
            command.arg("--calibrate").arg(text);
        }
        let json = workspace::output(&mut command)?;
        // Pages that are not on the disk yet cannot be dropped from the cache.
        fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .with_context(|| format!("cannot write {}", path.display()))?;
        fs::write(&report, json).with_context(|| format!("cannot write {}", report.display()))?;
    }
    let json =
        fs::read_to_string(&report).with_context(|| format!("cannot read {}", report.display()))?;
    let report = serde_json::from_str(&json).context("`pack` printed something unknown")?;
    Ok(Pack { path, report })
}

impl Pack {
    /// Removes it from the cache.
    pub fn remove(self) -> Result<()> {
        for path in [self.path.with_extension("json"), self.path] {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }
}

/// Models of the same name in different folders have different packs.
fn file_name(model: &Path, down: &str, calibrate: Option<&Path>) -> Result<String> {
    let full = fs::canonicalize(model).with_context(|| format!("no model {}", model.display()))?;
    let stem = full.file_stem().unwrap_or_default().to_string_lossy();
    let digest = workspace::sha256_of(full.as_os_str().as_encoded_bytes());
    let order = match calibrate {
        Some(text) => {
            let bytes = fs::read(text).with_context(|| format!("no text {}", text.display()))?;
            format!("-by-{}", &workspace::sha256_of(&bytes)[..8])
        }
        None => String::new(),
    };
    Ok(format!("{stem}-{}-{down}{order}.lspack", &digest[..8]))
}

/// Whether `file` is there and was written after the model.
fn is_newer(file: &Path, model: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let files = fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.path());
    let newest: Option<SystemTime> =
        files.chain([model.to_owned()]).filter_map(|path| time(&path)).max();
    time(file) > newest
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pack_is_used_again_until_the_model_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (model, pack) = (folder.path().join("m.gguf"), folder.path().join("m.lspack"));
        fs::write(&model, b"").unwrap();
        assert!(!is_newer(&pack, &model));
        fs::write(&pack, b"").unwrap();
        let later = |seconds| SystemTime::now() + Duration::from_secs(seconds);
        let touch = |path: &Path, seconds| {
            fs::File::options().append(true).open(path).unwrap().set_modified(later(seconds))
        };
        touch(&pack, 10).unwrap();
        assert!(is_newer(&pack, &model));
        touch(&model, 20).unwrap();
        assert!(!is_newer(&pack, &model));
    }

    #[test]
    fn the_same_name_elsewhere_is_another_pack() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|name| {
            let model = folder.path().join(name).join("m.gguf");
            fs::create_dir(model.parent().unwrap()).unwrap();
            fs::write(&model, b"").unwrap();
            file_name(&model, "auto", None).unwrap()
        });
        assert!(names[0].starts_with("m-") && names[0].ends_with("-auto.lspack"), "{}", names[0]);
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn types_are_named_once() {
        let down = ["Q6", "Q8", "Q6"].map(str::to_owned).to_vec();
        assert_eq!(Report { chunk_bytes: 1, down, file_bytes: 2 }.types(), "Q6, Q8");
    }
}
