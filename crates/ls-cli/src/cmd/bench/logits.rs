//! Logits of a run in a file, and the comparison of others with them.
//!
//! The file: the magic, the size of the vocabulary, and for each prediction the token that was decoded, the one that
//! came next, and the logits between them; all little-endian words of 32 bits.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use ls_engine::{Compared, Predictions, SparseCounts};

use crate::args::BenchArgs;

const MAGIC: &[u8; 8] = b"LSLOGIT1";

/// What becomes of the logits of a text.
pub enum Logits {
    /// Nothing.
    Ignored,
    /// They are written, to a file that gets its name when it is whole.
    Written { path: PathBuf, file: BufWriter<File> },
    /// They are compared with those of a file.
    Compared(Box<Comparison>),
}

pub struct Comparison {
    path: PathBuf,
    file: BufReader<File>,
    /// A row of the file, in bytes and as logits.
    bytes: Vec<u8>,
    logits: Vec<f32>,
    predictions: Predictions,
    n: usize,
}

impl Logits {
    /// As the arguments say, for a vocabulary of `vocab_size` tokens.
    pub fn open(args: &BenchArgs, vocab_size: usize) -> anyhow::Result<Self> {
        if let Some(path) = &args.write_logits {
            Self::write(path, vocab_size)
        } else if let Some(path) = &args.compare_logits {
            Self::compare(path, vocab_size)
        } else {
            Ok(Self::Ignored)
        }
    }

    fn write(path: &Path, vocab_size: usize) -> anyhow::Result<Self> {
        let written = || -> std::io::Result<_> {
            let mut file = BufWriter::new(File::create(part(path))?);
            file.write_all(MAGIC)?;
            file.write_all(&(vocab_size as u32).to_le_bytes())?;
            Ok(file)
        };
        let file =
            written().with_context(|| format!("cannot write logits to {}", path.display()))?;
        Ok(Self::Written { path: path.to_owned(), file })
    }

    fn compare(path: &Path, vocab_size: usize) -> anyhow::Result<Self> {
        let name = path.display();
        let mut file = BufReader::new(File::open(path).with_context(|| {
            format!("cannot read the logits {name}; bench with --write-logits makes such a file")
        })?);
        let mut head = [0; 12];
        let is_read = file.read_exact(&mut head).is_ok();
        ensure!(is_read && head.starts_with(MAGIC), "{name} is no file of logits");
        let found = word(&head[8..]) as usize;
        ensure!(
            found == vocab_size,
            "{name} has logits of {found} tokens, but the model has {vocab_size}: it is of another model"
        );
        let (bytes, logits) = (vec![0; vocab_size * 4], vec![0.0; vocab_size]);
        let (path, predictions) = (path.to_owned(), Predictions::default());
        Ok(Self::Compared(Box::new(Comparison { path, file, bytes, logits, predictions, n: 0 })))
    }

    /// Takes the logits after `token`, where `next` comes.
    pub fn take(&mut self, token: u32, logits: &[f32], next: u32) -> anyhow::Result<()> {
        match self {
            Self::Ignored => Ok(()),
            Self::Written { path, file } => {
                let words = [token, next].into_iter().chain(logits.iter().map(|l| l.to_bits()));
                let written: std::io::Result<()> =
                    words.map(u32::to_le_bytes).try_for_each(|word| file.write_all(&word));
                written.with_context(|| format!("cannot write logits to {}", path.display()))
            }
            Self::Compared(comparison) => comparison.take(token, logits, next),
        }
    }

    /// Nothing more is to come: gives what was written its name.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        let Self::Written { path, file } = self else { return Ok(()) };
        let renamed = file.flush().and_then(|()| std::fs::rename(part(path), &*path));
        renamed.with_context(|| format!("cannot write logits to {}", path.display()))?;
        *self = Self::Ignored;
        Ok(())
    }

    /// What the comparison found, where `counts` were computed.
    pub fn compared(&self, counts: SparseCounts) -> Option<Compared> {
        match self {
            Self::Compared(comparison) => comparison.predictions.compared(counts),
            Self::Ignored | Self::Written { .. } => None,
        }
    }
}

impl Drop for Logits {
    fn drop(&mut self) {
        if let Self::Written { path, .. } = self {
            // Half of the runs are no reference.
            let _ = std::fs::remove_file(part(path));
        }
    }
}

impl Comparison {
    fn take(&mut self, token: u32, logits: &[f32], next: u32) -> anyhow::Result<()> {
        let (name, n) = (self.path.display(), self.n);
        let mut tokens = [0; 8];
        let read = self.file.read_exact(&mut tokens);
        if read.and_then(|()| self.file.read_exact(&mut self.bytes)).is_err() {
            bail!(
                "{name} has no more than {n} predictions; write it with at least as many -r, or use a smaller -r"
            );
        }
        let found = (word(&tokens), word(&tokens[4..]));
        ensure!(
            found == (token, next),
            "prediction {n} of {name} is of token {} after {}, but here {next} comes after {token}; the text and -n \
             must be the same",
            found.1,
            found.0
        );
        for (logit, bytes) in self.logits.iter_mut().zip(self.bytes.chunks_exact(4)) {
            *logit = f32::from_bits(word(bytes));
        }
        self.n += 1;
        let compared = self.predictions.add(&self.logits, logits, next, n);
        compared.with_context(|| format!("cannot compare prediction {n} with {name}"))
    }
}

/// The first word.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// Where a file is written before it is whole.
pub fn part(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, rows: &[(u32, [f32; 3], u32)]) {
        let mut logits = Logits::write(path, 3).unwrap();
        rows.iter().for_each(|(token, row, next)| logits.take(*token, row, *next).unwrap());
        assert!(!path.exists(), "not before it is whole");
        logits.finish().unwrap();
    }

    fn error(result: anyhow::Result<impl Sized>) -> String {
        format!("{:#}", result.err().unwrap())
    }

    #[test]
    fn what_was_written_is_compared_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.logits");
        let rows = [(7, [0.0, 1.0, 2.0], 1), (1, [3.0, 0.0, 0.5], 0)];
        write(&path, &rows);
        let mut same = Logits::compare(&path, 3).unwrap();
        let counts = SparseCounts::default();
        assert!(same.compared(counts).is_none());
        rows.iter().for_each(|(token, row, next)| same.take(*token, row, *next).unwrap());
        let found = same.compared(counts).unwrap();
        assert!(found.kl < 1e-12 && found.top1_agreement == 1.0, "{found:?}");
        let mut other = Logits::compare(&path, 3).unwrap();
        other.take(7, &[2.0, 1.0, 0.0], 1).unwrap();
        let found = other.compared(counts).unwrap();
        assert!(found.kl > 0.5 && found.top1_agreement == 0.0, "{found:?}");
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.logits");
        assert!(error(Logits::compare(&path, 3)).contains("--write-logits"));
        write(&path, &[(7, [0.0, 1.0, 2.0], 1)]);
        assert!(error(Logits::compare(&path, 4)).contains("another model"));
        let mut logits = Logits::compare(&path, 3).unwrap();
        assert!(error(logits.take(7, &[0.0; 3], 2)).contains("the text and -n must be the same"));
        let mut logits = Logits::compare(&path, 3).unwrap();
        logits.take(7, &[0.0; 3], 1).unwrap();
        assert!(error(logits.take(7, &[0.0; 3], 1)).contains("no more than 1 predictions"));
        std::fs::write(&path, "LSL").unwrap();
        assert!(error(Logits::compare(&path, 3)).contains("no file of logits"));
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.logits");
        let mut logits = Logits::write(&path, 3).unwrap();
        logits.take(7, &[0.0, 1.0, 2.0], 1).unwrap();
        drop(logits);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
