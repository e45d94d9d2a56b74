//! Measures what reads of a device cost.

mod cache;

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use cache::{probe_anew, probe_cached, probe_known};

use crate::rng::Rng;
use crate::{
    ALIGN, AlignedBuf, BackendKind, Completion, Curve, Direct, FaultPlan, IoError, Priority,
    Request, Stream, StreamOptions,
};

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// The system's way to read.
    pub backend: BackendKind,
    /// Whether reads bypass the page cache. Otherwise the cache is measured too.
    pub direct: Direct,
    /// Reads in flight at once; one at a time is measured too.
    pub depth: usize,
    /// Sizes of reads in bytes, multiples of [`ALIGN`].
    pub sizes: Vec<usize>,
    /// Time for all measurements together.
    pub time: Duration,
    /// Faults to inject, such as a slower device.
    pub fault: Option<FaultPlan>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            backend: BackendKind::Auto,
            direct: Direct::Try,
            depth: 16,
            sizes: [4, 16, 64, 256, 512, 1024].map(|kib| kib << 10).into(),
            time: Duration::from_millis(1200),
            fault: None,
        }
    }
}

/// What reads of a device cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The name of the system's way to read.
    pub backend: String,
    /// Whether reads bypassed the page cache.
    pub direct: bool,
    /// The cost of a read at depth.
    pub curve: Curve,
    /// What was measured.
    pub table: Vec<ProbeRow>,
}

/// Reads of one size at one depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRow {
    /// Bytes of each read.
    pub size: usize,
    /// Reads in flight.
    pub depth: usize,
    /// Reads that were timed.
    pub reads: usize,
    /// 10⁶ bytes per second.
    pub mb_per_s: f64,
}

impl ProbeRow {
    /// Time from one read's end to the next one's, in microseconds.
    #[must_use]
    pub fn us_per_read(&self) -> f64 {
        self.size as f64 / self.mb_per_s
    }
}

/// Reads per row before the time is looked at.
const MIN_READS: usize = 8;
/// A file must have room for reads at different places.
const MIN_FILE: u64 = 16 << 20;

/// Reads `path` at random places, in several sizes, one at a time and at depth, and fits a curve
/// to the times at depth.
///
/// The file should be larger than what the device itself caches, and not sparse.
///
/// # Errors
///
/// If the file is too short, or a read fails.
pub fn probe(path: &Path, options: &ProbeOptions) -> Result<Probe, IoError> {
    let sizes: Vec<_> =
        options.sizes.iter().map(|size| size.next_multiple_of(ALIGN).max(ALIGN)).collect();
    let depths = if options.depth > 1 { vec![1, options.depth] } else { vec![1] };
    let n_rows = u32::try_from(sizes.len() * depths.len()).unwrap_or(u32::MAX).max(1);
    let mut rng = Rng::new(0x10);
    let mut table = Vec::new();
    let (mut backend, mut direct) = (String::new(), false);
    for &depth in &depths {
        for &size in &sizes {
            let stream = Measured::open(path, options, size, depth)?;
            table.push(stream.measure(size, depth, options.time / n_rows, &mut rng)?);
            backend = stream.stream.backend().to_owned();
            direct = stream.stream.is_direct();
        }
    }
    let at_depth = table.iter().filter(|row| row.depth == options.depth.max(1));
    let points: Vec<_> = at_depth.map(|row| (row.size as u64, row.us_per_read())).collect();
    let curve = Curve::fit(&points).ok_or_else(|| IoError::NoCurve { path: path.to_owned() })?;
    Ok(Probe { backend, direct, curve, table })
}

/// A stream whose reads are never joined, and its buffers.
struct Measured {
    stream: Stream<AlignedBuf>,
    completions: std::sync::mpsc::Receiver<Completion<AlignedBuf>>,
}

impl Measured {
    fn open(
        path: &Path,
        options: &ProbeOptions,
        size: usize,
        depth: usize,
    ) -> Result<Self, IoError> {
        let options = StreamOptions {
            backend: options.backend,
            depth,
            max_read_bytes: size,
            direct: options.direct,
            curve: None,
            fault: options.fault.clone(),
        };
        let (sender, completions) = channel();
        let stream = Stream::open(path, &options, move |completion| {
            sender.send(completion).ok();
        })?;
        let (found, needed) = (stream.len_bytes(), MIN_FILE.max(size as u64));
        if found < needed {
            return Err(IoError::TooShort { path: path.to_owned(), needed, found });
        }
        Ok(Self { stream, completions })
    }

    /// Reads until `time` is over.
    fn measure(
        &self,
        size: usize,
        depth: usize,
        time: Duration,
        rng: &mut Rng,
    ) -> Result<ProbeRow, IoError> {
        // A second set waits its turn, so that the device never waits for this thread.
        let n_bufs = if depth > 1 { 2 * depth } else { 2 };
        let places = (self.stream.len_bytes() - size as u64) / ALIGN as u64 + 1;
        let request = |buf, rng: &mut Rng| {
            let offset = rng.below(places) * ALIGN as u64;
            Request { tag: 0, offset, priority: Priority(rng.next()), buf }
        };
        let bufs = AlignedBuf::many(n_bufs, size).map_err(|source| IoError::Memory { source })?;
        self.stream.submit(bufs.into_iter().map(|buf| request(buf, rng)));
        // The first reads wake the device and touch the buffers: they are not timed.
        for _ in 0..n_bufs {
            let buf = self.next()?;
            self.stream.submit([request(buf, rng)]);
        }
        let began = Instant::now();
        let mut reads = 0;
        while reads < MIN_READS || began.elapsed() < time {
            let buf = self.next()?;
            reads += 1;
            self.stream.submit([request(buf, rng)]);
        }
        let mb_per_s = (reads * size) as f64 / 1e6 / began.elapsed().as_secs_f64();
        Ok(ProbeRow { size, depth, reads, mb_per_s })
    }

    fn next(&self) -> Result<AlignedBuf, IoError> {
        let gone = |_| IoError::Thread { source: std::io::ErrorKind::BrokenPipe.into() };
        let completion = self.completions.recv().map_err(gone)?;
        completion.result?;
        Ok(completion.buf)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn each_size_is_measured_at_both_depths() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; 17 << 20]).unwrap();
        let options = ProbeOptions {
            backend: BackendKind::Pread,
            depth: 4,
            sizes: vec![64 << 10, 1 << 20],
            time: Duration::from_millis(80),
            fault: Some(FaultPlan::slow(100_000_000, Duration::ZERO)),
            ..ProbeOptions::default()
        };
        let probe = probe(file.path(), &options).unwrap();
        assert_eq!((probe.backend.as_str(), probe.table.len()), ("pread", 4));
        assert!(probe.table.iter().all(|row| row.reads >= MIN_READS && row.mb_per_s > 0.0));
        assert!(probe.curve.us_per_kib > 0.0, "{:?}", probe.curve);
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = probe(file.path(), &ProbeOptions::default()).unwrap_err();
        assert!(matches!(error, IoError::TooShort { found: 0, .. }), "{error}");
    }
}
