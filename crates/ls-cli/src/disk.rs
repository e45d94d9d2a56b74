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
