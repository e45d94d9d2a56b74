//! `cargo xtask fixtures`: the generated model files that tests read.
//!
//! Every file comes from a seeded generator, so `--check` can make them again and compare bytes.
//! What an independent engine computes on them is asked once, with `--golden`, and committed.

mod golden;
mod model;
mod rng;
mod safetensors;
mod spec;
mod tokenizer_json;
mod vocab;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::flags::FixturesArgs;
use crate::workspace;

/// Runs the command.
pub fn run(args: &FixturesArgs) -> Result<()> {
    match (args.check, args.golden) {
        (true, _) => check(),
        (false, golden) => {
            write()?;
            if golden { golden::ask() } else { Ok(()) }
        }
    }
}

/// A generated file: its path under `fixtures/` and its bytes.
type Generated = (PathBuf, Vec<u8>);

fn generate() -> Result<Vec<Generated>> {
    let mut files = Vec::new();
    for spec in &spec::SPECS {
        let model = model::Model::new(spec);
        files.push((format!("models/{}.gguf", spec.name).into(), model.gguf()?));
        if spec.safetensors {
            for (name, bytes) in safetensors::folder(&model)? {
                files.push((format!("models/{}/{name}", spec.name).into(), bytes));
            }
        }
    }
    Ok(files)
}

fn write() -> Result<()> {
    let root = workspace::root().join("fixtures");
    let files = generate()?;
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    for (path, bytes) in &files {
        let path = root.join(path);
        let folder = path.parent().context("a fixture lies in a folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{} files, {} KB, written under {}", files.len(), total / 1000, root.display());
    Ok(())
}

fn check() -> Result<()> {
    let root = workspace::root().join("fixtures");
    let files = generate()?;
    let mut faults: Vec<String> = Vec::new();
    for (path, expected) in &files {
        faults.extend(difference(&root.join(path), expected));
    }
    for stray in strays(&root.join("models"), &root, &files)? {
        faults.push(format!("{}: no generator makes this file", stray.display()));
    }
    faults.extend(golden::stale(&root)?);
    if faults.is_empty() {
        println!("{} generated files are as their generator makes them", files.len());
        return Ok(());
    }
    bail!("{}\nrun `cargo xtask fixtures --golden` and commit what it writes", faults.join("\n"))
}

/// How the file differs from `expected`, if it does.
fn difference(path: &Path, expected: &[u8]) -> Option<String> {
    let found = match fs::read(path) {
        Ok(found) => found,
        Err(error) => return Some(format!("{}: {error}", path.display())),
    };
    if found == expected {
        return None;
    }
    let at = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let sizes = format!("{} bytes, expected {}", found.len(), expected.len());
    Some(format!("{}: differs from byte {at} on ({sizes})", path.display()))
}

/// Files under `folder` that are not in `files`.
fn strays(folder: &Path, root: &Path, files: &[Generated]) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            out.extend(strays(&path, root, files)?);
        } else if !files.iter().any(|(name, _)| root.join(name) == path) {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_located() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"abcd").unwrap();
        assert_eq!(difference(&path, b"abcd"), None);
        let fault = difference(&path, b"abxd").unwrap();
        assert!(fault.contains("byte 2"), "{fault}");
        assert!(difference(&folder.path().join("b"), b"").is_some());
    }

    #[test]
    fn a_stray_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("models")).unwrap();
        fs::write(root.join("models/a.gguf"), b"").unwrap();
        fs::write(root.join("models/b.gguf"), b"").unwrap();
        let known = vec![(PathBuf::from("models/a.gguf"), Vec::new())];
        let found = strays(&root.join("models"), root, &known).unwrap();
        assert_eq!(found, [root.join("models/b.gguf")]);
    }
}
