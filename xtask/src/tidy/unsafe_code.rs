//! Where `unsafe` may be, and that each block says why it is sound.

use std::path::Path;

use super::Finding;
use super::source::code_of;

/// Lines above a block in which its reason has to begin.
const REACH: usize = 12;

/// `unsafe` outside of `allowed`, and blocks or implementations without a SAFETY comment.
pub fn check(path: &Path, text: &str, allowed: &[&str]) -> Vec<Finding> {
    let name = path.to_string_lossy().replace('\\', "/");
    let may = allowed.iter().any(|a| name == *a || (a.ends_with('/') && name.starts_with(a)));
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<String> = code_of(text);
    let mut findings = Vec::new();
    for (i, line) in code.iter().enumerate() {
        if !has_word(line, "unsafe") {
            continue;
        }
        if !may {
            let message = "`unsafe` is not allowed in this file; UNSAFE_ALLOWED in \
                           xtask/src/tidy.rs lists where it is";
            findings.push(Finding::new(path, i + 1, message));
        } else if opens_block(line, code.get(i + 1)) && !has_reason(&lines, &code, i) {
            let message = "this unsafe block has no `// SAFETY:` comment above it";
            findings.push(Finding::new(path, i + 1, message));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

fn opens_block(line: &str, next: Option<&String>) -> bool {
    let after = line.split("unsafe").skip(1).map(str::trim_start);
    let mut parts = after.peekable();
    while let Some(part) = parts.next() {
        let at_end = part.is_empty() && parts.peek().is_none();
        let brace_follows = at_end && next.is_some_and(|n| n.trim_start().starts_with('{'));
        if part.starts_with('{') || part.starts_with("impl") || brace_follows {
            return true;
        }
    }
    false
}

/// Whether a comment with SAFETY stands on the line, or above the statement that it is part of.
fn has_reason(lines: &[&str], code: &[String], at: usize) -> bool {
    let is_comment = |i: usize| code[i].trim().is_empty() && !lines[i].trim().is_empty();
    let mut in_comment = false;
    for i in (at.saturating_sub(REACH)..=at).rev() {
        if lines[i].contains("SAFETY:") {
            return true;
        }
        if is_comment(i) {
            in_comment = true;
        } else if in_comment || (i < at && code[i].trim_end().ends_with([';', '}'])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(text: &str, allowed: &[&str]) -> Vec<usize> {
        check(Path::new("c/a.rs"), text, allowed).iter().map(|f| f.line).collect()
    }

    #[test]
    fn unsafe_outside_of_the_list_is_found() {
        assert_eq!(lines_found("fn f() {\n    unsafe { g() }\n}", &[]), [2]);
        assert_eq!(lines_found("unsafe fn f() {}", &["c/b.rs"]), [1]);
        assert_eq!(lines_found("unsafe fn f() {}", &["c/"]), [0; 0]);
    }

    #[test]
    fn the_word_in_comments_strings_and_longer_names_is_not_code() {
        let text = "// unsafe\nlet a = \"unsafe {\";\n#![deny(unsafe_code)]\n/* unsafe { } */";
        assert_eq!(lines_found(text, &[]), [0; 0]);
    }

    #[test]
    fn a_block_needs_a_reason_of_its_own() {
        let allowed = &["c/a.rs"];
        let with = "// SAFETY: g has no conditions.\nunsafe { g() }";
        assert_eq!(lines_found(with, allowed), [0; 0]);
        let statement =
            "// SAFETY: fine,\n// as said.\n#[allow(unsafe_code)]\nlet x =\n    unsafe { g() };";
        assert_eq!(lines_found(statement, allowed), [0; 0]);
        let second = "// SAFETY: fine.\nunsafe { g() };\nunsafe { g() };";
        assert_eq!(lines_found(second, allowed), [3]);
        assert_eq!(lines_found("unsafe impl Sync for A {}", allowed), [1]);
    }
}
