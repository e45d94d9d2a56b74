//! Relative links in Markdown lead somewhere.

use std::path::Path;

use super::Finding;

/// Links to files that are not there.
pub fn check(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let folder = root.join(path.parent().unwrap_or(Path::new("")));
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for target in targets(line) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !file.is_empty() && !folder.join(file).exists() {
                let message = format!("the link to {target} leads nowhere");
                findings.push(Finding::new(path, i + 1, message));
            }
        }
    }
    findings
}

/// What the inline links of a line point to.
fn targets(line: &str) -> Vec<&str> {
    // A code span is text, not a link.
    let is_text = |at: usize| line[..at].matches('`').count().is_multiple_of(2);
    let starts = line.match_indices("](").filter(|(at, _)| is_text(*at));
    starts.filter_map(|(at, _)| line[at + 2..].split([')', ' ']).next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_followed_and_others_left() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        std::fs::write(folder.path().join("docs/a.md"), "").unwrap();
        let text = "[a](a.md#part) [root](../docs/a.md)\n[gone](b.md) [web](https://x.y) [here](#top)\n`[c](c.md)`";
        let found = check(folder.path(), Path::new("docs/index.md"), text);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2]);
        assert!(found[0].message.contains("b.md"));
    }
}
