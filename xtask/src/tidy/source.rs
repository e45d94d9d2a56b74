//! Rules for Rust text: leftovers of work in progress, and how a crate opens.

use std::path::Path;

use super::Finding;

/// What may not be left in code, and why.
const LEFTOVERS: [(&str, &str); 3] = [
    ("todo!", "unfinished code: finish it or leave it out"),
    ("unimplemented!", "unfinished code: finish it or return an error"),
    ("dbg!", "a leftover of debugging"),
];

/// Macros of unfinished work, and ignored tests without a reason.
pub fn leftovers(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in code_of(text).iter().enumerate() {
        for (word, why) in LEFTOVERS {
            if line.contains(&format!("{word}(")) {
                findings.push(Finding::new(path, i + 1, format!("{word} is {why}")));
            }
        }
        if line.trim() == "#[ignore]" {
            let message = "an ignored test says why: #[ignore = \"…\"]";
            findings.push(Finding::new(path, i + 1, message));
        }
    }
    findings
}

/// A crate opens with what it is.
pub fn opening(path: &Path, text: &str) -> Vec<Finding> {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    if is_root && !text.starts_with("//! ") {
        return vec![Finding::new(path, 1, "a crate opens with `//!` docs that say what it is")];
    }
    Vec::new()
}

/// The text by lines, with comments and the contents of string literals blanked out.
pub fn code_of(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let chars: Vec<char> = text.chars().collect();
    let mut i = 0;
    while i < chars.len() {
        let end = skipped(&chars, i);
        if end == i {
            push(&mut out, chars[i]);
            i += 1;
        } else {
            // Line ends count, so that line numbers stay right.
            chars[i..end].iter().filter(|c| **c == '\n').for_each(|c| push(&mut out, *c));
            i = end;
        }
    }
    out
}

fn push(lines: &mut Vec<String>, c: char) {
    match (c, lines.last_mut()) {
        ('\n', _) | (_, None) => lines.push(String::new()),
        (c, Some(line)) => line.push(c),
    }
}

/// The end of the comment or literal that begins at `i`; `i` itself where none does.
fn skipped(chars: &[char], i: usize) -> usize {
    let at = |k: usize| chars.get(k).copied().unwrap_or('\0');
    let find = |from: usize, pattern: &[char]| {
        let found =
            chars[from.min(chars.len())..].windows(pattern.len()).position(|w| w == pattern);
        found.map_or(chars.len(), |n| from + n + pattern.len())
    };
    match (at(i), at(i + 1)) {
        ('/', '/') => chars[i..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| i + n),
        ('/', '*') => find(i + 2, &['*', '/']),
        ('"', _) => string_end(chars, i + 1),
        ('r', '"' | '#') if i == 0 || !at(i - 1).is_alphanumeric() && at(i - 1) != '_' => {
            let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
            if at(i + 1 + hashes) != '"' {
                return i;
            }
            let mut close = vec!['"'];
            close.resize(1 + hashes, '#');
            find(i + 2 + hashes, &close)
        }
        // A character literal; a lifetime has no second quote there.
        ('\'', '\\') => find(i + 3, &['\'']),
        ('\'', _) if at(i + 2) == '\'' => i + 3,
        _ => i,
    }
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let text = "a // x\nb /* y\nz */ c\nd(\"q\\\"{\", '\"', r#\"w\"#, 'l');\ne";
        assert_eq!(code_of(text), ["a ", "b ", " c", "d(, , , );", "e"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(code_of("fn f<'a>(r#type: &'a u8) // c"), ["fn f<'a>(r#type: &'a u8) "]);
    }

    #[test]
    fn leftovers_are_found_by_line() {
        let text = concat!(
            "fn f() {\n    to",
            "do!()\n}\n#[ignore]\n#[ignore = \"slow\"]\n// db",
            "g!(1)"
        );
        let lines: Vec<usize> = leftovers(Path::new("a.rs"), text).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 4]);
    }

    #[test]
    fn only_the_root_of_a_crate_has_to_open_with_docs() {
        assert_eq!(opening(Path::new("c/src/lib.rs"), "mod a;").len(), 1);
        assert_eq!(opening(Path::new("c/src/lib.rs"), "//! A crate.").len(), 0);
        assert_eq!(opening(Path::new("c/src/a.rs"), "mod b;").len(), 0);
    }
}
