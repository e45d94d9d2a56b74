//! Where things lie, and running programs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::setup;

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

/// The cargo that runs this driver, started in the workspace's root.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Builds a program of the workspace with optimisation and returns its path.
pub fn release_binary(package: &str, name: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--locked", "--release", "--package", package, "--bin", name]);
    if !setup::has_cxx() {
        println!("Without a C++ compiler the program is built without Vulkan.");
        build.arg("--no-default-features");
    }
    run(&mut build)?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Ok(target_dir()?.join("release").join(file))
}

/// The folder of what cargo builds.
pub fn target_dir() -> Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let mut ask = cargo();
    let json = output(ask.args(["metadata", "--format-version", "1", "--no-deps", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&json).context("cargo metadata is unknown")?;
    Ok(metadata.target_directory)
}

/// Runs a program and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and returns what it printed on stdout; its stderr passes through.
pub fn output(command: &mut Command) -> Result<String> {
    command.stderr(std::process::Stdio::inherit());
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{} failed: {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name} printed invalid UTF-8"))
}

/// A command as one would type it.
pub fn shown(command: &Command) -> String {
    let quoted = |part: &std::ffi::OsStr| {
        let text = part.to_string_lossy();
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            return text.into_owned();
        }
        format!("'{}'", text.replace('\'', r"'\''"))
    };
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts.map(quoted).collect::<Vec<_>>().join(" ")
}

/// The SHA-256 digest of a file in lower-case hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let read = || -> io::Result<String> {
        let mut hash = Sha256::new();
        io::copy(&mut File::open(path)?, &mut hash)?;
        Ok(hexadecimal(&hash.finalize()))
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// The same of bytes.
pub fn sha256_of(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_typed() {
        let mut command = Command::new("run");
        command.args(["-p", "it's a", "", "a/b.c"]);
        assert_eq!(shown(&command), r"run -p 'it'\''s a' '' a/b.c");
    }

    #[test]
    fn a_digest_is_the_published_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).unwrap(), expected);
        assert_eq!(sha256_of(b"abc"), expected);
    }
}
