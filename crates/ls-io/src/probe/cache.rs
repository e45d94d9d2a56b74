//! Results of measurements, kept in a file.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Probe, ProbeOptions, probe};
use crate::{AlignedBuf, IoError, Stream, StreamOptions};

/// Like [`probe`], but looks into `cache_file` first, and writes what was measured to it.
///
/// Results are kept by device, backend, way through or past the page cache, and depth. A file that
/// does not exist or says nothing sensible is written anew. With faults to inject, nothing is kept.
///
/// # Errors
///
/// As [`probe`]; if the result cannot be written.
pub fn probe_cached(
    path: &Path,
    cache_file: &Path,
    options: &ProbeOptions,
) -> Result<Probe, IoError> {
    if let Some(probe) = probe_known(path, cache_file, options)? {
        return Ok(probe);
    }
    probe_anew(path, cache_file, options)
}

/// What `cache_file` knows about reads of `path`; measures nothing.
///
/// # Errors
///
/// If `path` cannot be opened for reads.
pub fn probe_known(
    path: &Path,
    cache_file: &Path,
    options: &ProbeOptions,
) -> Result<Option<Probe>, IoError> {
    // Opening is the longer part of it.
    if options.fault.is_some() || !cache_file.exists() {
        return Ok(None);
    }
    let key = key(path, options)?;
    Ok(read(cache_file).remove(&key))
}

/// Like [`probe_cached`], but measures anew.
///
/// # Errors
///
/// As [`probe_cached`].
pub fn probe_anew(
    path: &Path,
    cache_file: &Path,
    options: &ProbeOptions,
) -> Result<Probe, IoError> {
    let probe = probe(path, options)?;
    if options.fault.is_some() {
        return Ok(probe);
    }
    let mut known = read(cache_file);
    known.insert(key(path, options)?, probe.clone());
    write(cache_file, &known).map_err(|source| IoError::Io {
        action: "write",
        path: cache_file.to_owned(),
        source,
    })?;
    Ok(probe)
}

/// What a result holds for.
fn key(path: &Path, options: &ProbeOptions) -> Result<String, IoError> {
    let stream_options = StreamOptions {
        backend: options.backend,
        direct: options.direct,
        depth: 1,
        ..StreamOptions::default()
    };
    let stream = Stream::<AlignedBuf>::open(path, &stream_options, |_| ())?;
    let how = if stream.is_direct() { "direct" } else { "buffered" };
    let device = device(path).map_err(|source| IoError::Io {
        action: "inspect",
        path: path.to_owned(),
        source,
    })?;
    Ok(format!("{device} {} {how} {}", stream.backend(), options.depth))
}

#[cfg(unix)]
fn device(path: &Path) -> std::io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    Ok(format!("device {}", fs::metadata(path)?.dev()))
}

/// Where devices have no numbers, each folder counts as one.
#[cfg(not(unix))]
fn device(path: &Path) -> std::io::Result<String> {
    let path = fs::canonicalize(path)?;
    Ok(format!("folder {}", path.parent().unwrap_or(&path).display()))
}

fn read(cache_file: &Path) -> BTreeMap<String, Probe> {
    fs::read(cache_file)
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .unwrap_or_default()
}

/// Written beside and renamed, so that no one reads half of it.
fn write(cache_file: &Path, known: &BTreeMap<String, Probe>) -> std::io::Result<()> {
    let folder = cache_file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    fs::create_dir_all(&folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, known)?;
    file.flush()?;
    file.persist(cache_file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::BackendKind;

    #[test]
    fn a_device_is_measured_once() {
        let folder = tempfile::tempdir().unwrap();
        let (file, cache) = (folder.path().join("data"), folder.path().join("sub/cache.json"));
        fs::write(&file, vec![1; 17 << 20]).unwrap();
        let options = ProbeOptions {
            backend: BackendKind::Pread,
            depth: 2,
            // Pages in the cache cost nearly nothing at any size: far apart, a curve is found.
            sizes: vec![4 << 10, 1 << 20],
            time: Duration::from_millis(20),
            ..ProbeOptions::default()
        };
        assert_eq!(probe_known(&file, &cache, &options).unwrap(), None);
        let first = probe_cached(&file, &cache, &options).unwrap();
        assert_eq!(probe_cached(&file, &cache, &options).unwrap(), first);
        assert_eq!(probe_known(&file, &cache, &options).unwrap(), Some(first));
        let deeper = ProbeOptions { depth: 3, ..options.clone() };
        assert_eq!(probe_known(&file, &cache, &deeper).unwrap(), None);
        fs::write(&cache, "{ nonsense").unwrap();
        probe_cached(&file, &cache, &options).unwrap();
        assert_eq!(read(&cache).len(), 1, "written anew");
        assert_eq!(fs::read_dir(folder.path().join("sub")).unwrap().count(), 1);
    }
}
