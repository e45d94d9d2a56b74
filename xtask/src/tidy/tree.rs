//! Rules for every file: how large, how long, and which places it names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;

/// Lines that a file written by hand may have.
const MAX_LINES: usize = 600;
/// Bytes that one file may have outside of fixtures.
const MAX_FILE: u64 = 1_000_000;
/// Bytes that all fixtures may have.
const MAX_FIXTURES: u64 = 8_000_000;

/// Folders of one machine, and hosts of package registries. Spelt in halves, so that this file
/// does not break its own rule.
const PLACES: [(&str, &str); 9] = [
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/tmp", "/wt"), "a path of one machine"),
    (concat!("crates", ".io"), "a registry's host"),
    (concat!("pypi", ".org"), "a registry's host"),
    (concat!("pythonhosted", ".org"), "a registry's host"),
    (concat!("npmjs", ".org"), "a registry's host"),
];

/// Files that are too large.
pub fn sizes(root: &Path, paths: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut fixtures = 0;
    for path in paths {
        let meta = fs::metadata(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        if path.starts_with("fixtures") {
            fixtures += meta.len();
        } else if meta.len() > MAX_FILE {
            let message =
                format!("{} bytes: files outside of fixtures stay under 1 MB", meta.len());
            findings.push(Finding::new(path, 0, message));
        }
    }
    if fixtures > MAX_FIXTURES {
        let message = format!("{fixtures} bytes in all: fixtures stay under 8 MB");
        findings.push(Finding::new(Path::new("fixtures"), 0, message));
    }
    Ok(findings)
}

/// The file's text, or `None` for a binary file.
pub fn text(path: &Path) -> Result<Option<String>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}

/// A file that is too long to read.
pub fn length(path: &Path, text: &str) -> Vec<Finding> {
    let by_hand = matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "py" | "md"));
    let lines = text.lines().count();
    if by_hand && lines > MAX_LINES {
        let message = format!("{lines} lines: a file has at most {MAX_LINES}; split it by nouns");
        return vec![Finding::new(path, 0, message)];
    }
    Vec::new()
}

/// Places that mean nothing on another machine.
pub fn places(path: &Path, text: &str) -> Vec<Finding> {
    // Written by cargo, which names the registry.
    if path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for (place, what) in PLACES {
            if line.contains(place) {
                findings.push(Finding::new(path, i + 1, format!("{place} is {what}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found_and_data_may_be_long() {
        let text = "x\n".repeat(MAX_LINES + 1);
        assert_eq!(length(Path::new("a.rs"), &text).len(), 1);
        assert_eq!(length(Path::new("a.json"), &text).len(), 0);
        assert_eq!(length(Path::new("a.rs"), &text[2..]).len(), 0);
    }

    #[test]
    fn places_are_found_by_line() {
        let text = format!("a\nsee {}x and {}", PLACES[0].0, PLACES[6].0);
        let found: Vec<usize> = places(Path::new("a.md"), &text).iter().map(|f| f.line).collect();
        assert_eq!(found, [2, 2]);
    }

    #[test]
    fn a_large_file_is_found_outside_of_fixtures() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("fixtures")).unwrap();
        let paths = [PathBuf::from("a"), PathBuf::from("fixtures/b")];
        for path in &paths {
            fs::write(folder.path().join(path), vec![0; MAX_FILE as usize + 1]).unwrap();
        }
        let found = sizes(folder.path(), &paths).unwrap();
        assert_eq!(found.iter().map(|f| f.path.as_path()).collect::<Vec<_>>(), [Path::new("a")]);
    }
}
