//! The memory of this machine that the process may use: that of a container may be less.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The memory of the host in bytes, and the group of processes that may use less of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostMemory {
    pub(crate) free: u64,
    pub(crate) total: u64,
    /// A number for the group of control (`cgroup`) whose limit holds. `None` if all may be used.
    pub(crate) group: Option<u64>,
}

/// Reads it from Linux's files. `None` elsewhere.
pub(crate) fn read() -> Option<HostMemory> {
    let text = |path: &str| std::fs::read_to_string(path).ok();
    let memory = of_meminfo(&text("/proc/meminfo")?)?;
    let groups = text("/proc/self/cgroup").unwrap_or_default();
    Some(limited(memory, &groups, Path::new("/sys/fs/cgroup")))
}

/// Reads the text of `/proc/meminfo`, which counts in KiB.
fn of_meminfo(meminfo: &str) -> Option<HostMemory> {
    let bytes_of = |field: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let (free, total) = (bytes_of("MemAvailable")?, bytes_of("MemTotal")?);
    Some(HostMemory { free, total, group: None })
}

/// Applies the limits of the groups in the text of `/proc/self/cgroup`, whose files are below
/// `root`.
fn limited(memory: HostMemory, groups: &str, root: &Path) -> HostMemory {
    let limits = groups.lines().filter_map(|line| group_files(line, root)).flatten();
    let limit = |file: PathBuf| {
        // Without a limit it is `max`, or a number above all memory.
        let bytes = std::fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok()?;
        let group = file.parent()?.metadata().ok()?.ino();
        (bytes < memory.total).then_some((bytes, group))
    };
    match limits.filter_map(limit).min() {
        Some((total, group)) => {
            HostMemory { free: memory.free.min(total), total, group: Some(group) }
        }
        None => memory,
    }
}

/// The files with the limits of a group and of those that it is in: a line has the number, the
/// controllers and the path of a group. In a container the path may be one of the host, so that
/// only the root is there.
fn group_files(line: &str, root: &Path) -> Option<Vec<PathBuf>> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, file) = match (number, controllers) {
        ("0", "") => (root.to_path_buf(), "memory.max"),
        (_, of) if of.split(',').any(|one| one == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(path.trim_start_matches('/'));
    Some(group.ancestors().map(|group| root.join(group).join(file)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_is_read_from_meminfo() {
        let text = "MemTotal:  2048 kB\nMemFree:  10 kB\nMemAvailable:   1024 kB\n";
        let expected = HostMemory { free: 1 << 20, total: 2 << 20, group: None };
        assert_eq!(of_meminfo(text), Some(expected));
        assert_eq!(of_meminfo("nonsense"), None);
    }

    #[test]
    fn a_container_has_the_least_of_its_limits() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/memory.max", "900\n");
        write("a/b/memory.max", "max\n");
        write("c/memory.max", "700\n");
        write("c/d/memory.max", "5000\n");
        write("memory/v/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/w/memory.limit_in_bytes", "600\n");
        write("memory/memory.limit_in_bytes", "800\n");
        let all = HostMemory { free: 750, total: 1000, group: None };
        let found = |groups: &str| {
            let HostMemory { free, total, group } = limited(all, groups, root.path());
            (free, total, group.is_some())
        };
        assert_eq!(found(""), (750, 1000, false));
        assert_eq!(found("0::/\n"), (750, 1000, false));
        assert_eq!(found("0::/a/b\n"), (750, 900, true));
        assert_eq!(found("0::/c/d\n"), (700, 700, true));
        assert_eq!(found("3:cpu:/w\n2:memory,hugetlb:/w\n0::/x\n"), (600, 600, true));
        // The path of the host is not there.
        assert_eq!(found("2:memory:/docker/12ab\n"), (750, 800, true));
        assert_eq!(found("2:memory:/v:x\nnonsense\n"), (750, 800, true));
        // Workers in one container share it, and those in two do not.
        let group = |groups: &str| limited(all, groups, root.path()).group;
        assert_eq!(group("0::/a\n"), group("0::/a/b\n"));
        assert_ne!(group("0::/a\n"), group("0::/c\n"));
    }
}
