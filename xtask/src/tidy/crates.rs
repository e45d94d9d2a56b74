//! Rules for the crates: which depends on which, what manifests inherit, that docs know them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use crate::workspace;

/// What `cargo metadata` says, as far as rules ask.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    workspace_members: Vec<String>,
}

/// A package.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Package {
    id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    /// Where it comes from; `None` for a path.
    pub source: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Dependency {
    name: String,
}

impl Metadata {
    /// The packages of this workspace.
    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// Dependencies between members of the workspace that `arrows` does not hold.
pub fn arrows(metadata: &Metadata, arrows: &[(&str, &[&str])]) -> Result<Vec<Finding>> {
    let members: Vec<&Package> = metadata.members().collect();
    let is_member = |name: &str| members.iter().any(|member| member.name == name);
    let mut findings = Vec::new();
    for member in &members {
        let path = relative(&member.manifest_path);
        let Some((_, allowed)) = arrows.iter().find(|(name, _)| *name == member.name) else {
            let message = format!("{} is not in ARROWS of xtask/src/tidy.rs", member.name);
            findings.push(Finding::new(&path, 0, message));
            continue;
        };
        for name in member.dependencies.iter().map(|d| d.name.as_str()) {
            if is_member(name) && !allowed.contains(&name) {
                let message = format!(
                    "{} may not depend on {name}; docs/architecture.md says why",
                    member.name
                );
                findings.push(Finding::new(&path, line_of(&member.manifest_path, name), message));
            }
        }
    }
    Ok(findings)
}

/// Members that the architecture page or the README does not name.
pub fn described(root: &Path, metadata: &Metadata) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for page in ["README.md", "docs/architecture.md"] {
        let text =
            fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        for member in metadata.members() {
            if !text.contains(&format!("`{}`", member.name)) {
                let message = format!("the crate `{}` is not described here", member.name);
                findings.push(Finding::new(Path::new(page), 0, message));
            }
        }
    }
    Ok(findings)
}

/// Lines that a member's manifest has to have, so that nothing is decided twice.
const INHERITED: [&str; 5] = [
    "version.workspace = true",
    "edition.workspace = true",
    "rust-version.workspace = true",
    "license.workspace = true",
    "publish.workspace = true",
];

/// What a member's manifest does not inherit.
pub fn inherits(path: &Path, manifest: &str) -> Vec<Finding> {
    // Fuzz targets are built by another tool, apart from the workspace.
    if path.starts_with("fuzz") {
        return Vec::new();
    }
    let has = |line: &str| manifest.lines().any(|l| l.trim() == line);
    let mut findings = Vec::new();
    for line in INHERITED {
        if !has(line) {
            findings.push(Finding::new(path, 0, format!("`{line}` is missing")));
        }
    }
    if !manifest.replace(' ', "").contains("[lints]\nworkspace=true") {
        findings.push(Finding::new(path, 0, "`[lints] workspace = true` is missing"));
    }
    findings
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix(workspace::root()).unwrap_or(path).to_owned()
}

/// The line of a manifest that names the dependency; 0 where it cannot be found.
fn line_of(manifest: &Path, name: &str) -> usize {
    let text = fs::read_to_string(manifest).unwrap_or_default();
    text.lines().position(|line| line.starts_with(name)).map_or(0, |i| i + 1)
}

#[cfg(test)]
impl Package {
    /// A package with nothing but a name.
    pub fn named(name: &str) -> Self {
        Self { id: name.to_owned(), name: name.to_owned(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depends(name: &str, on: &[&str]) -> Package {
        let dependencies = on.iter().map(|n| Dependency { name: (*n).to_owned() }).collect();
        Package { dependencies, ..Package::named(name) }
    }

    #[test]
    fn an_arrow_that_is_not_listed_is_found() {
        let packages = vec![depends("a", &["b", "serde"]), depends("b", &["a"]), depends("c", &[])];
        let workspace_members = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let metadata = Metadata { packages, workspace_members };
        let found = arrows(&metadata, &[("a", &["b"]), ("b", &[])]).unwrap();
        let messages: Vec<&str> = found.iter().map(|f| f.message.as_str()).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].starts_with("b may not depend on a"), "{messages:?}");
        assert!(messages[1].starts_with("c is not in ARROWS"), "{messages:?}");
    }

    #[test]
    fn a_manifest_inherits_everything_that_is_decided_once() {
        let whole = INHERITED.join("\n") + "\n\n[lints]\nworkspace = true\n";
        assert_eq!(inherits(Path::new("c/Cargo.toml"), &whole), []);
        let part = whole.replace("edition.workspace = true", "edition = \"2021\"");
        assert_eq!(inherits(Path::new("c/Cargo.toml"), &part).len(), 1);
        assert_eq!(inherits(Path::new("c/Cargo.toml"), "").len(), 6);
    }
}
