//! A file to measure reads with, which leaves nothing behind.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ls_engine::Pcg32;

/// Bytes of the file, and what is written and synced at once.
const BYTES: usize = 64 << 20;
const PIECE: usize = 4 << 20;
/// With so many it can be measured with.
const ENOUGH: usize = 16 << 20;
/// A slow disk gets a shorter file after this.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The file. It has no name where the system lets it have none, so not even a kill leaves it.
#[derive(Debug)]
pub struct Sample {
    file: File,
    path: PathBuf,
    /// Removes the file, where it has a name.
    _named: Option<tempfile::TempPath>,
}

impl Sample {
    /// An empty file in `folder`.
    pub fn create(folder: &Path) -> io::Result<Self> {
        if let Some(sample) = Self::nameless(folder) {
            return Ok(sample);
        }
        let (file, named) = tempfile::NamedTempFile::new_in(folder)?.into_parts();
        Ok(Self { file, path: named.to_path_buf(), _named: Some(named) })
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn nameless(folder: &Path) -> Option<Self> {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile_in(folder).ok()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        File::open(&path).ok()?;
        Some(Self { file, path, _named: None })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn nameless(_folder: &Path) -> Option<Self> {
        None
    }

    /// Opens the file for as long as this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes bytes that no disk makes smaller; no more of them once `stop` is set.
    pub fn fill(&self, stop: &AtomicBool) -> io::Result<()> {
        let (mut rng, start) = (Pcg32::new(0), Instant::now());
        let mut piece = vec![0; PIECE];
        for done in (0..BYTES).step_by(PIECE) {
            let is_late = done >= ENOUGH && start.elapsed() > PATIENCE;
            if is_late || stop.load(Ordering::Relaxed) {
                break;
            }
            for word in piece.chunks_exact_mut(4) {
                word.copy_from_slice(&rng.next_u32().to_le_bytes());
            }
            (&self.file).write_all(&piece)?;
            self.file.sync_data()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let sample = Sample::create(dir.path()).unwrap();
        sample.fill(&AtomicBool::new(false)).unwrap();
        assert!(std::fs::metadata(sample.path()).unwrap().len() >= ENOUGH as u64);
        drop(sample);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
