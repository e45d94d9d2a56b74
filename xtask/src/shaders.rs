//! `cargo xtask shaders`: compiles the shaders of ls-vk to SPIR-V, or checks that what is committed
//! is what they compile to.
//!
//! A shader names its variants in its first comment: `// Variants: plain; dot: SUBGROUPS, DOT;` and
//! so on, each a name and macros to define. `plain` has no name of its own in the file's. Without
//! the line there is only the plain one. Beside the modules lies a manifest that says what each was
//! made from and by which compiler: another version may emit other bytes for the same source, so
//! bytes are compared only where the versions agree, and sources always.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::flags::ShadersArgs;
use crate::{setup, workspace};

const FOLDER: &str = "crates/ls-vk/src/shaders";
const MANIFEST: &str = "manifest.toml";
/// What all devices that ls-vk works on take.
const TARGET: &str = "vulkan1.1";

/// What the compiled modules are.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    compiler: String,
    target: String,
    module: Vec<Module>,
}

/// One compiled module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Module {
    name: String,
    source: String,
    defines: Vec<String>,
    /// Of the source and all that it includes.
    source_sha256: String,
    spirv_sha256: String,
    /// Buffers by their binding, in the order of the source.
    bindings: Vec<String>,
    /// Constants for specialisation, by their number.
    constants: Vec<String>,
}

/// Runs the command.
pub fn run(args: &ShadersArgs) -> Result<()> {
    setup::need_shader_tools()?;
    let folder = workspace::root().join(FOLDER);
    let built = tempfile::tempdir().context("no folder for temporary files")?;
    let manifest = build(&folder, built.path())?;
    if args.check {
        check(&folder, &manifest, built.path())
    } else {
        write(&folder, &manifest, built.path())
    }
}

fn write(folder: &Path, manifest: &Manifest, built: &Path) -> Result<()> {
    let spv = folder.join("spv");
    fs::create_dir_all(&spv).with_context(|| format!("cannot create {}", spv.display()))?;
    for file in modules_in(&spv)? {
        fs::remove_file(spv.join(&file)).with_context(|| format!("cannot remove {file}"))?;
    }
    for module in &manifest.module {
        let file = format!("{}.spv", module.name);
        fs::copy(built.join(&file), spv.join(&file))
            .with_context(|| format!("cannot write {file}"))?;
    }
    let text = toml::to_string(manifest).context("the manifest is no TOML")?;
    let text = format!("# Written by `cargo xtask shaders`.\n{text}");
    fs::write(folder.join(MANIFEST), text).context("cannot write the manifest")?;
    println!("{} modules by {}", manifest.module.len(), manifest.compiler);
    Ok(())
}

fn check(folder: &Path, now: &Manifest, built: &Path) -> Result<()> {
    let text = fs::read_to_string(folder.join(MANIFEST)).context("there is no manifest")?;
    let then: Manifest = toml::from_str(&text).context("the manifest cannot be read")?;
    let spv = folder.join("spv");
    let names = |modules: &[Module]| -> BTreeSet<String> {
        modules.iter().map(|module| format!("{}.spv", module.name)).collect()
    };
    let mut wrong = Vec::new();
    if modules_in(&spv)? != names(&now.module) || names(&then.module) != names(&now.module) {
        wrong.push("the compiled modules are not those that the sources name".to_owned());
    }
    let same_compiler = now.compiler == then.compiler;
    for (module, old) in now.module.iter().zip(&then.module) {
        let file = format!("{}.spv", module.name);
        let committed = spv.join(&file);
        if module.source_sha256 != old.source_sha256 {
            wrong.push(format!("{file} is older than its source"));
        } else if workspace::sha256(&committed)? != old.spirv_sha256 {
            wrong.push(format!("{file} is not what the manifest says"));
        } else if same_compiler && fs::read(&committed)? != fs::read(built.join(&file))? {
            wrong.push(format!("{file} is not what its source compiles to"));
        }
        validate(&committed)?;
    }
    if !wrong.is_empty() {
        bail!("{}\nrun: cargo xtask shaders", wrong.join("\n"));
    }
    if same_compiler {
        println!("{} modules are what their sources compile to", now.module.len());
    } else {
        println!(
            "{} modules are valid and their sources unchanged; they were compiled by {}, so bytes \
             are not compared with those of {}",
            now.module.len(),
            then.compiler,
            now.compiler
        );
    }
    Ok(())
}

fn modules_in(folder: &Path) -> Result<BTreeSet<String>> {
    let list = fs::read_dir(folder).with_context(|| format!("no folder {}", folder.display()))?;
    list.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn build(folder: &Path, to: &Path) -> Result<Manifest> {
    let version = workspace::output(Command::new("glslangValidator").arg("--version"))?;
    let compiler = version.lines().next().unwrap_or("unknown").trim().to_owned();
    let mut sources: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    sources.retain(|path| path.extension().is_some_and(|ext| ext == "comp"));
    sources.sort();
    let mut module = Vec::new();
    for source in &sources {
        for (variant, defines) in variants(&read(source)?) {
            module.push(compile(source, &variant, &defines, to)?);
        }
    }
    Ok(Manifest { compiler, target: TARGET.to_owned(), module })
}

fn compile(source: &Path, variant: &str, defines: &[String], to: &Path) -> Result<Module> {
    let stem = source.file_stem().context("a file has a name")?.to_string_lossy();
    let name = if variant == "plain" { stem.into_owned() } else { format!("{stem}.{variant}") };
    let spirv = to.join(format!("{name}.spv"));
    let mut command = Command::new("glslangValidator");
    command.args(["--quiet", "-V", "--target-env", TARGET]);
    command.args(defines.iter().map(|define| format!("-D{define}")));
    workspace::run(command.arg(source).arg("-o").arg(&spirv))?;
    validate(&spirv)?;
    let text = with_includes(source)?;
    Ok(Module {
        name,
        source: source.file_name().context("a file has a name")?.to_string_lossy().into_owned(),
        defines: defines.to_vec(),
        source_sha256: workspace::sha256_of(text.as_bytes()),
        spirv_sha256: workspace::sha256(&spirv)?,
        bindings: numbered(&text, "binding = ", |line| {
            line.split("buffer ").nth(1)?.split_whitespace().next()
        }),
        constants: numbered(&text, "constant_id = ", |line| {
            line.split(" const ").nth(1)?.split_whitespace().nth(1)
        }),
    })
}

fn validate(spirv: &Path) -> Result<()> {
    workspace::run(Command::new("spirv-val").args(["--target-env", TARGET]).arg(spirv))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A source, and each file that it includes in the place where it does.
fn with_includes(source: &Path) -> Result<String> {
    let folder = source.parent().context("a file lies in a folder")?;
    let mut text = String::new();
    for line in read(source)?.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(file) => text += &with_includes(&folder.join(file))?,
            None => {
                text += line;
                text.push('\n');
            }
        }
    }
    Ok(text)
}

/// Names of variants and what each defines, from a shader's first comment.
fn variants(source: &str) -> Vec<(String, Vec<String>)> {
    let comment: Vec<&str> = source
        .lines()
        .map_while(|line| line.strip_prefix("//"))
        .map(str::trim)
        .skip_while(|line| !line.starts_with("Variants:"))
        .collect();
    let list = comment.join(" ");
    let Some(list) = list.strip_prefix("Variants:") else {
        return vec![("plain".to_owned(), vec![])];
    };
    let variant = |text: &str| {
        let (name, defines) = text.split_once(':').unwrap_or((text, ""));
        let defines = defines.split(',').map(str::trim).filter(|d| !d.is_empty());
        (name.trim().to_owned(), defines.map(str::to_owned).collect())
    };
    list.split(';').filter(|text| !text.trim().is_empty()).map(variant).collect()
}

/// `number name` of each declaration with a number of this kind.
fn numbered(text: &str, kind: &str, name: impl Fn(&str) -> Option<&str>) -> Vec<String> {
    let entry = |line: &str| {
        let number: String =
            line.split(kind).nth(1)?.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{number} {}", name(line)?))
    };
    text.lines().filter(|line| line.starts_with("layout(")).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_read_from_the_first_comment() {
        let source =
            "// A kernel.\n//\n// Variants: plain; a: X;\n// b: X, Y\n#version 450\n// c: Z";
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let want = vec![
            ("plain".to_owned(), names(&[])),
            ("a".to_owned(), names(&["X"])),
            ("b".to_owned(), names(&["X", "Y"])),
        ];
        assert_eq!(variants(source), want);
        assert_eq!(variants("// A kernel.\n#version 450\n"), vec![("plain".to_owned(), vec![])]);
    }

    #[test]
    fn declarations_are_listed_by_their_numbers() {
        let text = "layout(set = 0, binding = 3) coherent buffer Partials { vec4 p[]; };\n\
                    layout(constant_id = 12) const uint D = 32;\nuint binding = 7;\n";
        let bindings = numbered(text, "binding = ", |line| {
            line.split("buffer ").nth(1)?.split_whitespace().next()
        });
        assert_eq!(bindings, ["3 Partials"]);
        let constants = numbered(text, "constant_id = ", |line| {
            line.split(" const ").nth(1)?.split_whitespace().nth(1)
        });
        assert_eq!(constants, ["12 D"]);
    }
}
