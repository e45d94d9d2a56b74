//! How fast the disk is read, and in which way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use anyhow::Context;
use ls_io::{
    ALIGN, AlignedBuf, BackendKind, IoError, Priority, Probe, ProbeOptions, Request, Stream,
    StreamOptions, probe, probe_anew, probe_known,
};
use serde::Serialize;

use super::sample::Sample;
use crate::{disk, interrupt, output};

/// A shorter file is not read to measure with.
const MIN_FILE: u64 = 16 << 20;

/// The disk under a path.
#[derive(Debug, Serialize)]
pub struct Disk {
    path: PathBuf,
    /// Whether this was measured before.
    is_known: bool,
    /// `None` when it could not be measured; `failure` says why.
    probe: Option<Probe>,
    failure: Option<String>,
    io_uring: Uring,
    /// Ways to read that do not work, and what is done instead.
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Uring {
    works: bool,
    /// Why it does not.
    reason: Option<String>,
}

impl Disk {
    /// Looks at the disk under `path`: a file to read, or a folder to make one in.
    ///
    /// # Errors
    ///
    /// If there is nothing to read there. A disk that cannot be measured is no error.
    pub fn examine(path: &Path, is_fresh: bool) -> anyhow::Result<Self> {
        let metadata = fs::metadata(path)
            .with_context(|| format!("cannot look at the disk under {}", path.display()))?;
        if metadata.is_file() && metadata.len() >= MIN_FILE {
            return Self::of(path, path, is_fresh, &mut || Ok(()));
        }
        let here = Path::new(".");
        let folder = match metadata.is_dir() {
            true => path,
            false => path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(here),
        };
        let sample = Sample::create(folder)
            .with_context(|| format!("cannot make a file in {} to read", folder.display()))?;
        let fill = || {
            sample
                .fill(interrupt::flag())
                .with_context(|| format!("cannot write to {} to read", folder.display()))
        };
        Self::of(path, sample.path(), is_fresh, &mut { fill })
    }

    /// Reads `file`, which `fill` gives its bytes when they are needed.
    fn of(
        path: &Path,
        file: &Path,
        is_fresh: bool,
        fill: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let options = disk::options(BackendKind::Auto, ProbeOptions::default().depth);
        let cache_file = disk::cache_file();
        let known = cache_file.as_deref().filter(|_| !is_fresh);
        let known = known.and_then(|cache| probe_known(file, cache, &options).ok()?);
        let is_known = known.is_some();
        let measured = match (known, cache_file) {
            (Some(known), _) => Ok(known),
            (None, cache_file) => {
                fill()?;
                match cache_file {
                    Some(cache_file) => probe_anew(file, &cache_file, &options),
                    None => probe(file, &options),
                }
            }
        };
        let (probe, failure) = match measured {
            Ok(probe) => (Some(probe), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let (path, io_uring) = (fs::canonicalize(path)?, Uring::of(file));
        Ok(Self { path, is_known, probe, failure, io_uring, notices: notices(file) })
    }

    /// Lines for people: names and values.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("disk", self.path.display().to_string())];
        let uring = match &self.io_uring.reason {
            None => "works".to_owned(),
            Some(reason) => format!("does not work here: {reason}"),
        };
        rows.push(("io_uring", uring));
        if let Some(probe) = &self.probe {
            let when = if self.is_known { "measured before" } else { "measured now" };
            let cache = if probe.direct { "past" } else { "through" };
            rows.push(("reads", format!("{}, {cache} the page cache; {when}", probe.backend)));
            let curve = probe.curve;
            rows.push((
                "cost of a read",
                format!(
                    "{:.0} µs and {:.2} µs for each KiB, many at once; gaps below {} are read \
                     through",
                    curve.fixed_us,
                    curve.us_per_kib,
                    output::bytes(curve.gap_bytes()),
                ),
            ));
        }
        rows.extend(self.failure.iter().map(|failure| ("not measured", failure.clone())));
        rows.extend(self.notices.iter().map(|notice| ("notice", notice.clone())));
        rows
    }

    /// Speeds by size and depth.
    pub fn table(&self) -> Option<Vec<Vec<String>>> {
        let table = &self.probe.as_ref()?.table;
        let mut depths: Vec<usize> = table.iter().map(|row| row.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        let mut sizes: Vec<usize> = table.iter().map(|row| row.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut rows = vec![vec!["read size".to_owned()]];
        rows[0].extend(depths.iter().map(|depth| format!("MB/s, {depth} at once")));
        for size in sizes {
            let mut row = vec![format!("{} KiB", size >> 10)];
            row.extend(depths.iter().map(|depth| {
                let cell = table.iter().find(|row| (row.size, row.depth) == (size, *depth));
                cell.map_or("-".into(), |cell| format!("{:.0}", cell.mb_per_s))
            }));
            rows.push(row);
        }
        Some(rows)
    }
}

impl Uring {
    fn of(file: &Path) -> Self {
        let options = StreamOptions { backend: BackendKind::Uring, ..StreamOptions::default() };
        match Stream::<AlignedBuf>::open(file, &options, |_| ()) {
            Ok(_) => Self { works: true, reason: None },
            Err(IoError::BackendUnavailable { source, .. }) => {
                Self { works: false, reason: Some(source.to_string()) }
            }
            Err(error) => Self { works: false, reason: Some(error.to_string()) },
        }
    }
}

/// What one read of the file has to say.
fn notices(file: &Path) -> Vec<String> {
    let (sender, done) = channel();
    let stream = Stream::open(file, &StreamOptions::default(), move |completion| {
        sender.send(completion).ok();
    });
    let Ok(stream) = stream else { return Vec::new() };
    if let Ok(buf) = AlignedBuf::new(ALIGN) {
        stream.submit([Request { tag: 0, offset: 0, priority: Priority(0), buf }]);
        // A file that is shorter fails here, and has said by then what does not work.
        done.recv().ok();
    }
    stream.notices().iter().map(ToString::to_string).collect()
}
