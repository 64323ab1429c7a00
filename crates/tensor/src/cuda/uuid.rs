//! GPUs by their UUIDs, as NVIDIA's tools name them: `GPU-..`, and `MIG-..` for a slice of one.
//!
//! CUDA shows a process one MIG slice only, so each slice needs a process that names it.

use std::process::{Command, Stdio};

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Whether a device's name is the UUID of a GPU or of a slice.
pub fn is_uuid(name: &str) -> bool {
    let digits = name.strip_prefix("GPU-").or_else(|| name.strip_prefix("MIG-"));
    digits.is_some_and(|rest| {
        // Old drivers name slices as MIG-GPU-<uuid>/7/0.
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '/');
        !rest.is_empty() && rest.chars().all(is_known)
    })
}

/// Shows this process the GPU or slice of this UUID alone, as `cuda:0`. Call it before
/// [`super::load`] and before other threads start, because it sets an environment variable.
pub fn show_only(uuid: &str) {
    std::env::set_var(VISIBLE, uuid);
}

/// The UUID of the MIG slice that is this process's GPU with this number. The slices of a GPU share
/// its bus address.
pub(crate) fn slice(gpu: usize) -> Option<String> {
    slice_of(&std::env::var(VISIBLE).ok()?, gpu)
}

fn slice_of(visible: &str, gpu: usize) -> Option<String> {
    let name = visible.split(',').nth(gpu)?.trim();
    name.starts_with("MIG-").then(|| name.to_string())
}

/// The UUIDs of the MIG slices of this machine, and of its GPUs that have none. Those that
/// `CUDA_VISIBLE_DEVICES` names, if it is set. Empty if there are no slices, if one is chosen, or
/// without `nvidia-smi`.
pub fn slices() -> Vec<String> {
    if let Some(visible) = std::env::var_os(VISIBLE) {
        return visible_slices(&visible.to_string_lossy());
    }
    let listed = Command::new("nvidia-smi").arg("-L").stderr(Stdio::null()).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    slices_of(&text.unwrap_or_default())
}

/// Reads a list of several slices. CUDA would show the first one alone.
fn visible_slices(visible: &str) -> Vec<String> {
    let named: Vec<&str> = visible.split(',').map(str::trim).filter(|one| is_uuid(one)).collect();
    match named.len() > 1 && named.iter().any(|one| one.starts_with("MIG-")) {
        true => named.into_iter().map(Into::into).collect(),
        false => Vec::new(),
    }
}

/// Reads the list of `nvidia-smi -L`: a line for each GPU, and below it one for each slice.
fn slices_of(list: &str) -> Vec<String> {
    let mut found: Vec<&str> = Vec::new();
    let uuids = list.lines().filter_map(|line| line.split_once("UUID: ")?.1.split(')').next());
    for uuid in uuids.filter(|uuid| is_uuid(uuid)) {
        let is_slice = uuid.starts_with("MIG-");
        // A GPU with slices cannot be used as a whole.
        if is_slice && found.last().is_some_and(|last| last.starts_with("GPU-")) {
            found.pop();
        }
        found.push(uuid);
    }
    match found.iter().any(|uuid| uuid.starts_with("MIG-")) {
        true => found.into_iter().map(Into::into).collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_told_from_other_names() {
        for uuid in ["GPU-ab12", "MIG-41b35cf4-1f48", "MIG-GPU-6f2f4f7a/7/0"] {
            assert!(is_uuid(uuid), "{uuid}");
        }
        for other in ["cuda:0", "GPU-", "MIG", "GPU-a,GPU-b", "GPU-\n"] {
            assert!(!is_uuid(other), "{other}");
        }
    }

    #[test]
    fn several_slices_may_be_visible() {
        assert_eq!(visible_slices("MIG-a, MIG-b"), ["MIG-a", "MIG-b"]);
        assert_eq!(visible_slices("GPU-a,MIG-b"), ["GPU-a", "MIG-b"]);
        for other in ["", "0,1", "MIG-a", "GPU-a,GPU-b"] {
            assert!(visible_slices(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn the_slice_of_a_process_is_told_from_a_gpu() {
        assert_eq!(slice_of("MIG-a", 0).as_deref(), Some("MIG-a"));
        assert_eq!(slice_of("GPU-b, MIG-a", 1).as_deref(), Some("MIG-a"));
        for (visible, gpu) in [("MIG-a", 1), ("GPU-b,MIG-a", 0), ("0,1", 0), ("", 0)] {
            assert_eq!(slice_of(visible, gpu), None, "{visible}, {gpu}");
        }
    }

    #[test]
    fn slices_and_whole_gpus_are_listed_if_there_are_slices() {
        let list = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n  \
                      MIG 3g.20gb     Device  0: (UUID: MIG-a1)\n  \
                      MIG 2g.10gb     Device  1: (UUID: MIG-a2)\n\
                    GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n";
        assert_eq!(slices_of(list), ["MIG-a1", "MIG-a2", "GPU-b"]);
        assert!(slices_of("GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-c)\n").is_empty());
        assert!(
            slices_of("Failed to initialize NVML: Driver/library version mismatch\n").is_empty()
        );
    }
}
