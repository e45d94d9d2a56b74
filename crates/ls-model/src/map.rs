//! A file that is mapped into memory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::{ModelError, SharedBytes};

/// A read-only mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Mapping {
    path: PathBuf,
    file: File,
    len: u64,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Arc<Mmap>>,
}

impl Mapping {
    /// Opens and maps `path`.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { action: "open", path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(ModelError::NotAFile { path: path.to_owned() });
        }
        let len = metadata.len();
        let map = if len == 0 { None } else { Some(Arc::new(map(&file).map_err(io)?)) };
        Ok(Self { path: path.to_owned(), file, len, map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes when the file was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The first `n` bytes, read into memory: unlike mapped ones they cannot vanish.
    pub fn read_prefix(&self, n: u64) -> Result<Vec<u8>, ModelError> {
        self.read(0, n)
    }

    /// Bytes `offset .. offset + n`, read into memory; fewer where the file ends before.
    pub fn read(&self, offset: u64, n: u64) -> Result<Vec<u8>, ModelError> {
        let n = n.min(self.len.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(n).unwrap_or(usize::MAX)];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match read_at(&self.file, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.path.clone();
                    return Err(ModelError::Io { action: "read", path, source });
                }
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Bytes `offset .. offset + n` of the mapping.
    ///
    /// Touching a page beyond the end of a file that was cut after it was mapped raises SIGBUS,
    /// which Rust cannot catch. So the length is looked up again before bytes are handed out; a
    /// cut made later than that is not seen. Replacing a model by renaming is always safe.
    pub fn slice(&self, tensor: &str, offset: u64, n: usize) -> Result<&[u8], ModelError> {
        let shrank = |found| ModelError::Shrank {
            path: self.path.clone(),
            tensor: tensor.to_owned(),
            end: offset.saturating_add(n as u64),
            expected: self.len,
            found,
        };
        let now = self.current_len()?;
        if offset.checked_add(n as u64).is_none_or(|end| end > now) {
            return Err(shrank(now));
        }
        let mapped = self.map.as_deref().map_or(&[][..], |map| map);
        usize::try_from(offset)
            .ok()
            .and_then(|offset| mapped.get(offset..)?.get(..n))
            .ok_or_else(|| shrank(now))
    }

    /// The same bytes, kept mapped by what is returned.
    pub fn share(&self, tensor: &str, offset: u64, n: usize) -> Result<SharedBytes, ModelError> {
        self.slice(tensor, offset, n)?;
        let range = usize::try_from(offset).ok().map(|offset| offset..offset.saturating_add(n));
        let shared = self.map.clone().zip(range).and_then(|(map, r)| SharedBytes::new(map, r));
        shared.ok_or_else(|| ModelError::Shrank {
            path: self.path.clone(),
            tensor: tensor.to_owned(),
            end: offset.saturating_add(n as u64),
            expected: self.len,
            found: self.len,
        })
    }

    /// Says that bytes will not be read again soon, so that their pages may go. What is read
    /// nevertheless comes from the file again.
    #[cfg(unix)]
    #[allow(unsafe_code)]
    pub fn forget(&self, offset: u64, n: usize) {
        let Some((map, offset)) = self.map.as_ref().zip(usize::try_from(offset).ok()) else {
            return;
        };
        if map.get(offset..).is_none_or(|rest| rest.len() < n) {
            return;
        }
        // SAFETY: the range lies in the mapping. Dropping pages loses writes to private memory
        // only; this mapping is read-only, so every page comes back as the file has it, and
        // borrowed slices keep their meaning.
        let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, n) };
        // It is advice: without it pages stay for longer.
        let _ = advised;
    }

    #[cfg(not(unix))]
    pub fn forget(&self, _offset: u64, _n: usize) {}

    /// Says that nothing of the file will be read through the page cache again.
    pub fn forget_all(&self) {
        self.forget(0, self.map.as_deref().map_or(0, |map| map.len()));
        // Unmapped pages stay in the page cache until they are dropped there too.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// Length of the file now.
    pub fn current_len(&self) -> Result<u64, ModelError> {
        let io = |source| ModelError::Io { action: "inspect", path: self.path.clone(), source };
        Ok(self.file.metadata().map_err(io)?.len())
    }
}

/// Reads at a place without moving the file's position, which other threads may rely on.
#[cfg(unix)]
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

/// Reads at a place, wherever the file's position is.
#[cfg(windows)]
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

/// Whether a file that begins with `bytes` is what git-lfs leaves in place of the file itself.
pub(crate) fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs")
}

#[allow(unsafe_code)]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and owned by the `Mapping` that also keeps the file open.
    // The bytes are only ever read as plain integers, for which every bit pattern is valid, and
    // nothing is concluded from one read that a second could contradict. That no one writes to or
    // cuts the file meanwhile is asked of the user (see the crate's documentation): a cut is
    // looked for each time that bytes are handed out.
    unsafe { Mmap::map(file) }
}
