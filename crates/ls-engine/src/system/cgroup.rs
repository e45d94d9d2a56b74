//! Limits of control groups, version 1 and 2, with those of every ancestor.
//!
//! A limit binds all groups below it, so the tightest one on the way to the root counts. Page cache
//! is charged to a group too, but the kernel takes it back when memory is short: it is not use.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::read;

/// Which interface a limit was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// A finite memory limit of one control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CgroupLimit {
    /// The group's folder.
    pub path: PathBuf,
    /// Interface.
    pub version: CgroupVersion,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes in use, page cache left out.
    pub used_bytes: u64,
}

impl CgroupLimit {
    /// Bytes that the group may still take.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Finite memory limits of this process's groups, the innermost first.
pub(super) fn memory_limits(root: &Path) -> Vec<CgroupLimit> {
    let groups = groups(root, "memory");
    groups.iter().filter_map(|(version, path)| memory_limit(*version, path)).collect()
}

fn memory_limit(version: CgroupVersion, path: &Path) -> Option<CgroupLimit> {
    let (limit, usage, cache) = match version {
        CgroupVersion::V1 => (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_active_file", "total_inactive_file"],
        ),
        CgroupVersion::V2 => ("memory.max", "memory.current", ["active_file", "inactive_file"]),
    };
    let number = |name| read(&path.join(name))?.trim().parse::<u64>().ok();
    // Version 1 writes "no limit" as the largest multiple of the page size.
    let limit_bytes = number(limit).filter(|&bytes| bytes < 1 << 60)?;
    let stat = read(&path.join("memory.stat")).unwrap_or_default();
    let cache_bytes: u64 = cache.iter().filter_map(|name| stat_field(&stat, name)).sum();
    let used_bytes = number(usage).unwrap_or(0).saturating_sub(cache_bytes);
    Some(CgroupLimit { path: path.to_path_buf(), version, limit_bytes, used_bytes })
}

/// The tightest quota of processor time, in cores.
pub(super) fn cpu_quota(root: &Path) -> Option<f64> {
    let groups = groups(root, "cpu");
    groups.iter().filter_map(|(version, path)| group_quota(*version, path)).min_by(f64::total_cmp)
}

fn group_quota(version: CgroupVersion, path: &Path) -> Option<f64> {
    let text = match version {
        CgroupVersion::V2 => read(&path.join("cpu.max"))?,
        CgroupVersion::V1 => {
            let part = |name| read(&path.join(name));
            part("cpu.cfs_quota_us")? + " " + &part("cpu.cfs_period_us")?
        }
    };
    // "max" and -1 both mean that there is no quota.
    let mut parts = text.split_whitespace().map(|part| part.parse::<f64>().ok());
    let (quota, period) = (parts.next()??, parts.next()??);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Folders of the process's group and its ancestors in each hierarchy that has `controller`.
fn groups(root: &Path, controller: &str) -> Vec<(CgroupVersion, PathBuf)> {
    let mounts = read(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let membership = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        if mount.version == CgroupVersion::V1 && !mount.options.split(',').any(|o| o == controller)
        {
            continue;
        }
        let Some(group) = group_path(&membership, mount.version, controller) else { continue };
        let top = root.join(mount.point.trim_start_matches('/'));
        let inner = top.join(below(group, mount.root));
        let ancestors = inner.ancestors().take_while(|folder| folder.starts_with(&top));
        folders.extend(ancestors.map(|folder| (mount.version, folder.to_path_buf())));
    }
    folders
}

/// The path of the process's group, as `/proc/self/cgroup` has it: `id:controllers:path`.
fn group_path<'a>(
    membership: &'a str,
    version: CgroupVersion,
    controller: &str,
) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let found = match version {
            CgroupVersion::V1 => controllers.split(',').any(|c| c == controller),
            CgroupVersion::V2 => id == "0" && controllers.is_empty(),
        };
        found.then_some(path)
    })
}

/// Where `group` lies below the group that is mounted; the mount itself when it lies elsewhere, as
/// in a container that sees its own group as the root.
fn below<'a>(group: &'a str, mount_root: &str) -> &'a Path {
    let path = Path::new(group);
    let inside = path.strip_prefix(mount_root).unwrap_or(Path::new(""));
    let plain = inside.components().all(|c| matches!(c, Component::Normal(_)));
    if plain { inside } else { Path::new("") }
}

struct Mount<'a> {
    version: CgroupVersion,
    root: &'a str,
    point: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo`: id, parent, device, root, mount point, options, optional fields, `-`,
    /// type, source, options of the file system.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup" => CgroupVersion::V1,
            "cgroup2" => CgroupVersion::V2,
            _ => return None,
        };
        Some(Self { version, root, point, options: system.nth(1)? })
    }
}

/// The value of `name 123` in `memory.stat`.
fn stat_field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = dir.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(dir)
        }

        fn limits(&self) -> Vec<(u64, u64)> {
            memory_limits(self.0.path()).iter().map(|l| (l.limit_bytes, l.used_bytes)).collect()
        }
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    #[test]
    fn ancestors_limits_count_and_page_cache_does_not() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/slice/unit\n"),
            ("sys/fs/cgroup/slice/unit/memory.max", "max\n"),
            ("sys/fs/cgroup/slice/unit/memory.current", "1000\n"),
            ("sys/fs/cgroup/slice/memory.max", "5000\n"),
            ("sys/fs/cgroup/slice/memory.current", "4000\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 900\nactive_file 1000\ninactive_file 2000\n"),
        ]);
        assert_eq!(tree.limits(), [(5000, 1000)]);
        assert_eq!(memory_limits(tree.0.path())[0].free_bytes(), 4000);
    }

    #[test]
    fn version_1_has_its_own_names_and_a_huge_number_for_none() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n"),
            ("proc/self/cgroup", "4:memory:/a/b\n1:cpu:/\n0::/\n"),
            ("cg/memory/a/b/memory.limit_in_bytes", "700\n"),
            ("cg/memory/a/b/memory.usage_in_bytes", "600\n"),
            ("cg/memory/a/b/memory.stat", "total_active_file 100\ntotal_inactive_file 200\n"),
            ("cg/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(tree.limits(), [(700, 300)]);
    }

    #[test]
    fn a_container_that_sees_its_group_as_the_root_reads_the_mount() {
        let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup cgroup rw,memory\n";
        let files = [
            ("proc/self/mountinfo", mount),
            ("proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory.limit_in_bytes", "700\n"),
        ];
        assert_eq!(Tree::new(&files).limits(), [(700, 0)]);
        let outside = [files[0], ("proc/self/cgroup", "4:memory:/../x\n"), files[2]];
        assert_eq!(Tree::new(&outside).limits(), [(700, 0)]);
    }

    #[test]
    fn quota_is_the_tightest_of_all_ancestors() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", V2_MOUNT),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
        ]);
        assert_eq!(cpu_quota(tree.0.path()), Some(1.5));
    }

    #[test]
    fn quota_of_version_1_is_absent_when_negative() {
        let mount = "32 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        let with = |quota| {
            let tree = Tree::new(&[
                ("proc/self/mountinfo", mount),
                ("proc/self/cgroup", "1:cpu,cpuacct:/\n"),
                ("cg/cpu/cpu.cfs_quota_us", quota),
                ("cg/cpu/cpu.cfs_period_us", "100000\n"),
            ]);
            cpu_quota(tree.0.path())
        };
        assert_eq!(with("-1\n"), None);
        assert_eq!(with("300000\n"), Some(3.0));
    }

    #[test]
    fn torn_files_are_no_limits() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", "x\n - \n1 2 3\n30 23 0:26 / /cg rw - cgroup2\n"),
            ("proc/self/cgroup", "0:\n::\n"),
        ]);
        assert_eq!(tree.limits(), []);
        assert_eq!(cpu_quota(tree.0.path()), None);
    }
}
