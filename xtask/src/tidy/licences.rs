//! Every dependency has a licence that we may use and comes from a registry.

use anyhow::Result;

use super::Finding;
use super::crates::{Metadata, Package};

/// Packages with another licence, or from another place than a registry or this workspace.
pub fn check(metadata: &Metadata, allowed: &[&str]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        for message in faults(package, allowed) {
            findings.push(Finding::new("Cargo.lock".as_ref(), 0, message));
        }
    }
    Ok(findings)
}

fn faults(package: &Package, allowed: &[&str]) -> Vec<String> {
    let name = format!("{} {}", package.name, package.version);
    let mut faults = Vec::new();
    match &package.license {
        None => faults.push(format!("{name} states no licence")),
        Some(licence) if !is_allowed(licence, allowed) => {
            let list = "LICENCES in xtask/src/tidy.rs lists those that are";
            faults.push(format!("{name} has the licence {licence}, which is not allowed; {list}"));
        }
        Some(_) => {}
    }
    if let Some(source) = package.source.as_deref().filter(|s| !s.starts_with("registry+")) {
        faults.push(format!("{name} comes from {source}, not from the registry"));
    }
    faults
}

/// Whether an SPDX expression can be met with the allowed licences.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    // Old packages separate alternatives with a slash.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed };
    parser.any() == Some(true) && parser.tokens.is_empty()
}

/// Reads an expression from its front; `None` where it is malformed.
struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl<'a> Parser<'a> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.tokens.first() == Some(&word);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(word)
    }

    fn any(&mut self) -> Option<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Some(met)
    }

    fn all(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let met = self.any()?;
            return self.take(")").then_some(met);
        }
        let id = self.word()?;
        if self.take("WITH") {
            let whole = format!("{id} WITH {}", self.word()?);
            return Some(self.allowed.contains(&whole.as_str()));
        }
        Some(self.allowed.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "GPL-2.0 WITH Classpath-exception-2.0 OR MIT",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MIT WITH X", "", "MIT OR", "(MIT", "MIT MIT"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn a_git_source_and_a_missing_licence_are_faults() {
        let mut package = Package::named("a");
        package.source = Some("git+https://example.com/a".to_owned());
        assert_eq!(faults(&package, &["MIT"]).len(), 2);
    }
}
