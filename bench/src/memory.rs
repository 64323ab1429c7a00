//! The peak memory of processes, as Linux counts it.

use anyhow::Result;
use std::fs;

/// Returns the peak resident memory of each child of this process, in bytes, oldest child first.
/// The list is empty on a system without `/proc`.
///
/// # Errors
/// `/proc` exists but cannot be read.
pub fn of_children() -> Result<Vec<u64>> {
    let Ok(folders) = fs::read_dir("/proc") else { return Ok(Vec::new()) };
    let me = u64::from(std::process::id());
    let mut found = Vec::new();
    for folder in folders {
        // A process may end during this loop.
        let Ok(status) = fs::read_to_string(folder?.path().join("status")) else { continue };
        if field(&status, "PPid") == Some(me) {
            if let (Some(id), Some(kib)) = (field(&status, "Pid"), field(&status, "VmHWM")) {
                found.push((id, kib * 1024));
            }
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, bytes)| bytes).collect())
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "Name:\tworker\nPid:\t7\nPPid:\t3\nVmPeak:\t 900 kB\nVmHWM:\t  12345 kB\n";
        assert_eq!(field(status, "Pid"), Some(7));
        assert_eq!(field(status, "PPid"), Some(3));
        assert_eq!(field(status, "VmHWM"), Some(12345));
        assert_eq!(field(status, "Vm"), None);
    }
}
