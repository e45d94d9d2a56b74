//! What the operating system says about memory, cores and pages.
//!
//! Everything is read from files of Linux's `/proc` and `/sys`. What is missing or unreadable is
//! `None`, never an error: a program runs in containers and on systems that hide them.

mod cgroup;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Serialize;

pub use cgroup::{CgroupLimit, CgroupVersion};

/// Memory that this process may still take, and the parts of that answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Installed memory in bytes.
    pub total_bytes: Option<u64>,
    /// What the kernel says new programs can take without swapping, in bytes.
    pub mem_available_bytes: Option<u64>,
    /// Finite limits of the process's control group and its ancestors.
    pub cgroup_limits: Vec<CgroupLimit>,
    /// The least of all these in bytes: what may be used from here on.
    pub available_bytes: Option<u64>,
}

/// Cores that this process may use, and the parts of that answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cores {
    /// Cores in the process's affinity mask.
    pub affinity: Option<usize>,
    /// Cores' worth of time that the tightest control group allows.
    pub cgroup_quota: Option<f64>,
    /// Threads that can run at once: the mask, or the quota rounded down, at least 1.
    pub usable: usize,
}

/// Reads memory and the limits on it.
pub fn memory() -> Memory {
    memory_at(Path::new("/"))
}

fn memory_at(root: &Path) -> Memory {
    let meminfo = read(&root.join("proc/meminfo")).unwrap_or_default();
    let total_bytes = kib_field(&meminfo, "MemTotal");
    let mem_available_bytes = kib_field(&meminfo, "MemAvailable");
    let cgroup_limits = cgroup::memory_limits(root);
    let free_in_groups = cgroup_limits.iter().map(CgroupLimit::free_bytes);
    let available_bytes = mem_available_bytes.into_iter().chain(free_in_groups).min();
    Memory { total_bytes, mem_available_bytes, cgroup_limits, available_bytes }
}

/// Reads how many cores this process may use.
pub fn cores() -> Cores {
    cores_at(Path::new("/"))
}

fn cores_at(root: &Path) -> Cores {
    let status = read(&root.join("proc/self/status")).unwrap_or_default();
    let affinity = field(&status, "Cpus_allowed_list").and_then(count_cpu_list);
    let cgroup_quota = cgroup::cpu_quota(root);
    let mask = affinity
        .or_else(|| std::thread::available_parallelism().ok().map(|n| n.get()))
        .unwrap_or(1);
    // More threads than the quota has whole cores are put to sleep in the middle of a step while
    // the others wait for them.
    let quota = cgroup_quota.map_or(usize::MAX, |q| q as usize);
    Cores { affinity, cgroup_quota, usable: mask.min(quota).max(1) }
}

/// Anonymous memory of this process in bytes: what it allocated itself, without mapped files.
///
/// Allocates nothing, so it can be called between tokens.
pub fn rss_anon() -> Option<u64> {
    status_kib("RssAnon")
}

/// Mapped files of this process that are in memory, in bytes: the program's own code, mostly.
pub fn rss_file() -> Option<u64> {
    status_kib("RssFile")
}

fn status_kib(name: &str) -> Option<u64> {
    let mut buffer = [0u8; 4096];
    let mut len = 0;
    let mut file = File::open("/proc/self/status").ok()?;
    while let Some(n) = file.read(&mut buffer[len..]).ok().filter(|&n| n > 0) {
        len += n;
    }
    let end = buffer[..len].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    kib_field(std::str::from_utf8(&buffer[..end]).ok()?, name)
}

/// The size of a memory page in bytes.
pub fn page_size() -> Option<usize> {
    page_size_in(&std::fs::read("/proc/self/auxv").ok()?)
}

/// The version of the GNU C library that this process runs on; `None` on any other.
pub fn glibc_version() -> Option<String> {
    let maps = read(Path::new("/proc/self/maps"))?;
    let path = maps.lines().find_map(|line| {
        let path = line.split_whitespace().nth(5)?;
        let name = path.rsplit('/').next()?;
        (name.starts_with("libc.so") || name.starts_with("libc-2")).then_some(path)
    })?;
    glibc_version_in(&std::fs::read(path).ok()?)
}

/// The auxiliary vector is pairs of words; key 6 (`AT_PAGESZ`) has the page size.
fn page_size_in(auxv: &[u8]) -> Option<usize> {
    const AT_PAGESZ: usize = 6;
    let word = |bytes: &[u8]| bytes.try_into().ok().map(usize::from_ne_bytes);
    auxv.chunks_exact(2 * size_of::<usize>()).find_map(|pair| {
        let (key, value) = pair.split_at(size_of::<usize>());
        (word(key)? == AT_PAGESZ).then(|| word(value))?
    })
}

/// The library carries its version in a sentence that it prints when it is run.
fn glibc_version_in(library: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"GNU C Library";
    const VERSION: &[u8] = b"release version ";
    let start = library.windows(BEFORE.len()).position(|w| w == BEFORE)?;
    let sentence = &library[start..library.len().min(start + 200)];
    let start = sentence.windows(VERSION.len()).position(|w| w == VERSION)? + VERSION.len();
    let is_version = |b: &&u8| b.is_ascii_digit() || **b == b'.';
    let version: String =
        sentence[start..].iter().take_while(is_version).map(|&b| char::from(b)).collect();
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_string())
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The value of `Name: value` in a file of such lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim())
    })
}

/// The value of `Name: 123 kB` in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let number = field(text, name)?.strip_suffix("kB")?.trim_end();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// The number of cores in a list like `0-3,8,10-11`.
fn count_cpu_list(list: &str) -> Option<usize> {
    let count = |range: &str| -> Option<usize> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(|range| count(range.trim())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_matched_by_their_whole_name() {
        let status = "VmRSS:\t    1712 kB\nRssAnon:\t     112 kB\nRssAnonHuge:\t 7 kB\n";
        assert_eq!(kib_field(status, "RssAnon"), Some(112 * 1024));
        assert_eq!(kib_field(status, "Rss"), None);
        assert_eq!(kib_field("RssAnon: x kB\n", "RssAnon"), None);
        assert_eq!(kib_field("RssAnon: 18446744073709551615 kB\n", "RssAnon"), None);
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpu_list("0-1"), Some(2));
        assert_eq!(count_cpu_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpu_list("5"), Some(1));
        assert_eq!(count_cpu_list("3-1"), None);
        assert_eq!(count_cpu_list(""), None);
        assert_eq!(count_cpu_list("0-18446744073709551615"), None);
    }

    #[test]
    fn page_size_is_the_value_of_its_key() {
        let words: [usize; 6] = [16, 6, 6, 16384, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(page_size_in(&bytes), Some(16384));
        assert_eq!(page_size_in(&bytes[..16]), None);
    }

    #[test]
    fn glibc_version_is_found_in_the_sentence() {
        let library =
            b"\0\x7fELF GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n";
        assert_eq!(glibc_version_in(library), Some("2.36".to_string()));
        assert_eq!(glibc_version_in(b"GNU C Library"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_answers() {
        let memory = memory();
        assert!(memory.available_bytes.unwrap() <= memory.total_bytes.unwrap());
        assert!(cores().usable >= 1);
        assert!(page_size().unwrap().is_power_of_two());
    }

    #[test]
    fn quota_and_affinity_both_bound_the_cores() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n");
        assert_eq!(cores_at(dir.path()).usable, 8);
        put("proc/self/cgroup", "0::/a\n");
        put("proc/self/mountinfo", "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw\n");
        put("cg/a/cpu.max", "250000 100000\n");
        let cores = cores_at(dir.path());
        assert_eq!((cores.affinity, cores.cgroup_quota, cores.usable), (Some(8), Some(2.5), 2));
        put("cg/a/cpu.max", "50000 100000\n");
        assert_eq!(cores_at(dir.path()).usable, 1);
    }

    #[test]
    fn nothing_to_read_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let memory = memory_at(dir.path());
        assert_eq!((memory.total_bytes, memory.available_bytes), (None, None));
        assert!(cores_at(dir.path()).usable >= 1);
    }
}
