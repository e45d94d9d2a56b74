//! The open file, once for direct reads and once for those through the page cache.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{BackendKind, Direct, IoError, Notice, StreamOptions};

/// One file, opened twice, so that falling back to the page cache can never meet another file.
#[derive(Debug)]
pub(crate) struct Files {
    pub path: Arc<Path>,
    pub buffered: File,
    pub direct: Option<File>,
    /// Length in bytes when it was opened.
    pub len: u64,
}

impl Files {
    pub fn open(
        path: &Path,
        options: &StreamOptions,
        notices: &mut Vec<Notice>,
    ) -> Result<Self, IoError> {
        let io = |source| IoError::Io { action: "open", path: path.to_owned(), source };
        let buffered = File::open(path).map_err(io)?;
        let len = length(&buffered).map_err(io)?;
        let len = len.ok_or_else(|| IoError::NotAFile { path: path.to_owned() })?;
        expect_random_reads(&buffered);
        let direct = match options.direct {
            _ if options.backend == BackendKind::Mmap => None,
            Direct::Never => None,
            Direct::Try => {
                let refused = options.fault.as_ref().is_some_and(|fault| fault.refuse_direct_open);
                let opened = if refused {
                    Err(io::ErrorKind::InvalidInput.into())
                } else {
                    open_direct(path, &buffered)
                };
                opened
                    .map_err(|e| {
                        notices.push(Notice::DirectRefusedAtOpen { reason: e.to_string() })
                    })
                    .ok()
            }
        };
        Ok(Self { path: path.into(), buffered, direct, len })
    }

    /// The file to read from.
    pub fn get(&self, direct: bool) -> &File {
        self.direct.as_ref().filter(|_| direct).unwrap_or(&self.buffered)
    }

    /// Length of the file now.
    pub fn current_len(&self) -> io::Result<u64> {
        Ok(length(&self.buffered)?.unwrap_or(0))
    }

    /// Drops what was read from the page cache: the caller keeps it, so a second copy would only
    /// take memory.
    #[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(unused_variables))]
    pub fn forget(&self, offset: u64, len: u64) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        crate::backend::advise(&self.buffered, offset, len, libc::POSIX_FADV_DONTNEED);
    }
}

/// Length of a file or block device; `None` for anything else.
fn length(file: &File) -> io::Result<Option<u64>> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(Some(metadata.len()));
    }
    #[cfg(unix)]
    if std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()) {
        use std::io::{Seek, SeekFrom};
        // Positions are of no interest otherwise: all reads name theirs.
        return (&mut &*file).seek(SeekFrom::End(0)).map(Some);
    }
    Ok(None)
}

/// Read-ahead would fetch what no one asked for.
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(unused_variables))]
fn expect_random_reads(file: &File) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    crate::backend::advise(file, 0, 0, libc::POSIX_FADV_RANDOM);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path, buffered: &File) -> io::Result<File> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let (a, b) = (file.metadata()?, buffered.metadata()?);
    if (a.dev(), a.ino()) != (b.dev(), b.ino()) {
        return Err(io::Error::other("the file was replaced meanwhile"));
    }
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open_direct(_path: &Path, _buffered: &File) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}
