//! What is known about the disk's cost of a read. `doctor` measures it, other commands make use of
//! it, and none of them waits for a measurement.

use std::path::{Path, PathBuf};

use ls_io::{BackendKind, Curve, ProbeOptions, probe_known};

/// The file with what was measured.
pub fn cache_file() -> Option<PathBuf> {
    Some(crate::folder::cache()?.join("disk.json"))
}

/// How reads were measured that are done as `backend` and `depth` say.
pub fn options(backend: BackendKind, depth: usize) -> ProbeOptions {
    ProbeOptions { backend, depth, ..ProbeOptions::default() }
}

/// The cost of reading the file at `path`, if it was measured. What stands in the way of an answer
/// will also stand in the way of the reads, which say so.
pub fn known_curve(path: &Path, backend: BackendKind, depth: usize) -> Option<Curve> {
    let known = probe_known(path, &cache_file()?, &options(backend, depth)).ok()??;
    Some(known.curve)
}

/// The cost of reads when the disk gives no more than `rate` bytes a second.
pub fn no_faster(known: Option<Curve>, rate: u64) -> Curve {
    let least = 1e6 * 1024.0 / rate as f64;
    let known = known.unwrap_or(Curve { fixed_us: 0.0, us_per_kib: least });
    Curve { us_per_kib: known.us_per_kib.max(least), ..known }
}
