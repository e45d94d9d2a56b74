//! A memory cgroup of one program: version 1 or 2, whichever the system has.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How the cgroups made here are called, before the id of this process and a number.
const PREFIX: &str = "leanstream-bench-";

/// Tries to remove a cgroup: one whose last process has just ended is busy for a moment.
const REMOVALS: u32 = 50;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Where cgroups of this system are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Home {
    /// Looks under `system`, which is `/` but in tests.
    pub fn find(system: &Path) -> Result<Self> {
        let mount = system.join("sys/fs/cgroup");
        if mount.join("memory").is_dir() {
            return Ok(Self { folder: mount.join("memory"), version: Version::V1 });
        }
        let Ok(controllers) = fs::read_to_string(mount.join("cgroup.subtree_control")) else {
            bail!("this system has no memory cgroups under {}", mount.display());
        };
        if !controllers.split_whitespace().any(|name| name == "memory") {
            bail!(
                "memory is not delegated to cgroups below {0}: as root, \
                 echo +memory > {0}/cgroup.subtree_control",
                mount.display()
            );
        }
        Ok(Self { folder: mount, version: Version::V2 })
    }

    /// Removes what earlier processes left that were killed before they could.
    pub fn sweep(&self, system: &Path) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let Some((process, _)) = rest.and_then(|rest| rest.split_once('-')) else { continue };
            if !system.join("proc").join(process).exists() {
                // One that still has processes cannot be removed, and need not be.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// A memory cgroup, which is removed with this value.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    home: Home,
}

impl Cgroup {
    /// Makes one with so many bytes for all that is charged to it, and no swap.
    pub fn create(home: &Home, limit_bytes: u64) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = home.folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder).with_context(|| {
            format!("no memory limit, which needs root: cannot create {}", folder.display())
        })?;
        // From here on it is removed, whatever fails.
        let cgroup = Self { folder, home: home.clone() };
        let limit = limit_bytes.to_string();
        match home.version {
            Version::V1 => {
                cgroup.write("memory.limit_in_bytes", &limit)?;
                // Memory and swap together: absent where the kernel does not account for swap.
                let _ = cgroup.write("memory.memsw.limit_in_bytes", &limit);
            }
            Version::V2 => {
                cgroup.write("memory.max", &limit)?;
                let _ = cgroup.write("memory.swap.max", "0");
            }
        }
        Ok(cgroup)
    }

    /// The file to which a process writes its id to enter.
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// The most that was charged to it at a time; version 2 says it since Linux 5.19.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.home.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            // A process that the program left behind would keep it.
            for process in fs::read_to_string(self.members()).unwrap_or_default().lines() {
                let _ = fs::write(self.home.folder.join("cgroup.procs"), process);
            }
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) if error.kind() != ErrorKind::NotFound => break,
                _ => return,
            }
        }
        eprintln!("{} could not be removed", self.folder.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn read(cgroup: &Cgroup, file: &str) -> String {
        fs::read_to_string(cgroup.folder.join(file)).unwrap()
    }

    #[test]
    fn version_1_is_found_also_beside_version_2() {
        let system = system(&[
            ("sys/fs/cgroup/memory/cgroup.procs", ""),
            ("sys/fs/cgroup/unified/cgroup.subtree_control", ""),
        ]);
        let home = Home::find(system.path()).unwrap();
        assert_eq!(home.version, Version::V1);
        let cgroup = Cgroup::create(&home, 4096).unwrap();
        assert!(cgroup.folder.starts_with(system.path().join("sys/fs/cgroup/memory")));
        assert_eq!(read(&cgroup, "memory.limit_in_bytes"), "4096");
        fs::write(cgroup.folder.join("memory.max_usage_in_bytes"), "123\n").unwrap();
        assert_eq!(cgroup.peak_bytes(), Some(123));
    }

    #[test]
    fn version_2_has_no_swap_and_perhaps_no_peak() {
        let system = system(&[("sys/fs/cgroup/cgroup.subtree_control", "cpu memory pids\n")]);
        let home = Home::find(system.path()).unwrap();
        assert_eq!(home.version, Version::V2);
        let cgroup = Cgroup::create(&home, 4096).unwrap();
        assert_eq!(read(&cgroup, "memory.max"), "4096");
        assert_eq!(read(&cgroup, "memory.swap.max"), "0");
        assert_eq!(cgroup.peak_bytes(), None);
        fs::write(cgroup.folder.join("memory.peak"), "123\n").unwrap();
        assert_eq!(cgroup.peak_bytes(), Some(123));
    }

    #[test]
    fn what_is_missing_is_said() {
        let none = system(&[]);
        assert!(Home::find(none.path()).unwrap_err().to_string().contains("no memory cgroups"));
        let other = system(&[("sys/fs/cgroup/cgroup.subtree_control", "cpu pids\n")]);
        let error = Home::find(other.path()).unwrap_err().to_string();
        assert!(error.contains("echo +memory"), "{error}");
    }

    #[test]
    fn an_empty_cgroup_of_a_dead_process_is_swept_and_of_a_living_one_is_not() {
        let system = system(&[("proc/7/stat", ""), ("sys/fs/cgroup/memory/other-8-0/x", "")]);
        let home = Home::find(system.path()).unwrap();
        for name in ["leanstream-bench-7-0", "leanstream-bench-8-0"] {
            fs::create_dir(home.folder.join(name)).unwrap();
        }
        home.sweep(system.path());
        assert!(home.folder.join("leanstream-bench-7-0").exists());
        assert!(!home.folder.join("leanstream-bench-8-0").exists());
        assert!(home.folder.join("other-8-0").exists());
    }
}
