//! What the program prints: results on standard output, the rest on standard error.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use ls_engine::trace::TraceError;
use ls_engine::{EngineError, GenerateError, PerplexityError};
use ls_model::pack::PackError;
use serde::Serialize;

/// The command line makes no sense, in a way that only shows later than its parsing.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Prints `value` as the one JSON object on standard output.
pub fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(stdout(&text)?)
}

/// Prints `text` on standard output at once.
pub fn stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a line on standard error; that there is nobody to read it is no failure.
pub fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// An error with its causes as one sentence, and the flag that helps, if there is one.
///
/// Many errors have their cause's text in their own; it is not said again.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !out.contains(&text) {
            let separator = if out.is_empty() { "" } else { ": " };
            out += separator;
            out += &text;
        }
    }
    if let Some(flag) = error.chain().find_map(flag) {
        out += &format!(" ({flag})");
    }
    out
}

/// The flag that does what the library's error advises.
fn flag(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(PackError::<Infallible>::Exists { .. }) = error.downcast_ref() {
        return Some("--force".into());
    }
    match error.downcast_ref() {
        Some(TraceError::Exists { .. }) => return Some("--force".into()),
        Some(TraceError::Unfinished { .. }) => return Some("--resume, or --force".into()),
        Some(TraceError::Other { .. }) => return Some("--force".into()),
        Some(TraceError::Limit { .. }) => return Some("--trace-limit".into()),
        _ => {}
    }
    let engine = match error.downcast_ref() {
        Some(GenerateError::PromptTooLong { .. }) => return Some("--context".into()),
        Some(GenerateError::Engine(engine)) => Some(engine),
        _ => match error.downcast_ref() {
            Some(PerplexityError::Engine(engine)) => Some(engine),
            _ => match error.downcast_ref() {
                Some(TraceError::Engine(engine)) => Some(engine),
                _ => error.downcast_ref(),
            },
        },
    };
    match engine? {
        EngineError::ContextFull { .. } => Some("--context".into()),
        EngineError::Threads { .. } => Some("--threads".into()),
        // One more, since the program's own share is never twice the same.
        EngineError::Budget { floor, .. } => {
            Some(format!("--budget {}MiB", floor.bytes().div_ceil(1 << 20) + 1))
        }
        _ => None,
    }
}

/// Whether the reader of standard output has gone, as `head` does: no failure, just the end.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

/// A bar on standard error for `total` steps of `what`; hidden when that is not a terminal.
pub fn progress(what: &'static str, total: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg} eta {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_prefix(what)
}

/// A spinner on standard error; hidden when that is not a terminal.
pub fn spinner(what: String) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    spinner
}

/// Bytes for people: `469 MiB`, `1.04 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A table: columns as wide as their widest cell, numbers (in `right`) to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = (0..n_columns)
        .map(|column| cells(column).map(|cell| width(cell)).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[column] - width(cell));
            let separator = if column == 0 { "" } else { "  " };
            line += separator;
            line += &if right.contains(&column) { gap + cell } else { cell.clone() + &gap };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (98_362_432, "93.8 MiB"),
            (491_400_064, "469 MiB"),
            (1_117_320_768, "1.04 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn tables_line_up() {
        let row = |a: &str, b: &str| vec![a.to_string(), b.to_string()];
        let text = table(&[row("a", "1"), row("längst", "100")], &[1]);
        assert_eq!(text, "a         1\nlängst  100\n");
    }

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        let said = format!("cannot start 9 threads: {source}; try fewer threads (--threads)");
        let error = anyhow::Error::from(EngineError::Threads { threads: 9, source });
        assert_eq!(sentence(&error), said);
        assert_eq!(sentence(&error.context("no engine")), format!("no engine: {said}"));
    }

    #[test]
    fn advice_of_the_library_gets_its_flag_through_every_wrapper() {
        let full = || EngineError::ContextFull { limit: 8 };
        for error in [
            anyhow::Error::from(full()),
            GenerateError::from(full()).into(),
            PerplexityError::from(full()).into(),
        ] {
            let text = sentence(&error);
            assert_eq!(text, "the context of 8 tokens is full; use a larger context (--context)");
        }
    }

    #[test]
    fn a_closed_pipe_is_seen_through_context() {
        let pipe = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_closed_pipe(&pipe.context("while printing")));
        let other = anyhow::Error::from(io::Error::from(io::ErrorKind::NotFound));
        assert!(!is_closed_pipe(&other));
    }
}
