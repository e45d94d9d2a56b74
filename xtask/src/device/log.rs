//! The log of one device: all that was run there and all that it said.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result};

/// A log that threads may share.
#[derive(Debug)]
pub struct Log {
    name: String,
    file: Mutex<File>,
    began: Instant,
}

impl Log {
    /// Starts the file.
    pub fn new(path: &Path, name: &str) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { name: name.to_owned(), file: Mutex::new(file), began: Instant::now() })
    }

    /// Adds `text`, with the time, and with what it is before each line.
    pub fn line(&self, what: &str, text: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut out = String::new();
        for line in text.lines() {
            out += &format!("{seconds:9.3} {what:<5} {line}\n");
        }
        if let Ok(mut file) = self.file.lock() {
            // A log that cannot be written is no reason to leave a device as it is.
            let _ = file.write_all(out.as_bytes());
        }
    }

    /// Adds `text` and shows it to who watches.
    pub fn tell(&self, text: &str) {
        self.line("note", text);
        println!("{:<10} {text}", self.name);
    }
}
