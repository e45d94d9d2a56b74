//! A file that is written from front to back, under a temporary name.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

/// Bytes that are handed to the system at once.
const BUFFER: usize = 1 << 20;

/// The unfinished file. Dropped before it is finished, it is removed.
#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    file: BufWriter<File>,
    pos: u64,
    finished: bool,
}

impl Sink {
    /// Creates the temporary file beside `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = temporary(path);
        let file = BufWriter::with_capacity(BUFFER, File::create(&path)?);
        Ok(Self { path, file, pos: 0, finished: false })
    }

    /// Bytes from the start of the file to where the next write goes.
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Goes on at `pos`; what was never written is zeros.
    pub fn seek(&mut self, pos: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(pos))?;
        self.pos = pos;
        Ok(())
    }

    /// Writes all of `bytes`, which `hash` takes in, too.
    pub fn write(&mut self, bytes: &[u8], hash: &mut Xxh3) -> io::Result<()> {
        hash.update(bytes);
        self.write_plain(bytes)
    }

    /// Writes all of `bytes`.
    pub fn write_plain(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.pos += bytes.len() as u64;
        Ok(())
    }

    /// Makes the file durable, then gives it its name.
    pub fn finish(mut self, path: &Path, len: u64) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().set_len(len)?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.path, path)?;
        self.finished = true;
        sync_folder(path);
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.finished {
            // The error that stopped the writing is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    path.with_file_name(name)
}

/// The folder that `path` lies in.
#[cfg(any(unix, test))]
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the new name durable. The file is whole already, and some file systems cannot do this, so
/// nothing is said when it fails.
#[cfg(unix)]
fn sync_folder(path: &Path) {
    let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) {}

/// Bytes that may still be written to the file system of the folder that `path` lies in; `None`
/// when the system does not say.
#[cfg(unix)]
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder(path)).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
pub(super) fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_zeros_and_the_name_comes_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut sink = Sink::create(&path).unwrap();
        sink.seek(3).unwrap();
        sink.write(b"later", &mut Xxh3::new()).unwrap();
        assert_eq!(sink.pos(), 8);
        sink.seek(0).unwrap();
        sink.write_plain(b"a").unwrap();
        assert!(!path.exists());
        sink.finish(&path, 9).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\0\0later\0");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_without_a_folder_lies_in_this_one() {
        assert_eq!(folder(Path::new("model.lspack")), Path::new("."));
        assert_eq!(folder(Path::new("a/model.lspack")), Path::new("a"));
    }

    #[cfg(unix)]
    #[test]
    fn free_space_is_known_where_the_folder_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(&dir.path().join("out")).is_some());
        assert_eq!(free_bytes(&dir.path().join("absent/out")), None);
    }
}
