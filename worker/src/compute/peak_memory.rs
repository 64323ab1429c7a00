//! The file in which a boss on this machine finds how much memory its worker took of a GPU.

use std::path::PathBuf;
use tch::Device;
use tracing::warn;

/// A file with one number: the most bytes that tensors of this process had on its GPU at one time.
pub(super) struct PeakMemoryFile {
    path: PathBuf,
    written: u64,
}

impl PeakMemoryFile {
    /// A file that is not written yet.
    pub(super) fn new(path: PathBuf) -> Self {
        PeakMemoryFile { path, written: 0 }
    }

    /// Writes the number if it has grown. Does nothing on other devices than GPUs.
    pub(super) fn update(&mut self, device: Device) {
        let Some(peak) = tensor::device::peak_memory(device).filter(|peak| *peak > self.written)
        else {
            return;
        };
        self.written = peak;
        // The run does not need the file.
        if let Err(error) = std::fs::write(&self.path, peak.to_string()) {
            warn!(path = %self.path.display(), %error, "cannot write the most memory of the GPU");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a GPU, `tests/tests/it/gpu_memory.rs` reads the file.
    #[test]
    fn on_a_cpu_there_is_nothing_to_write() {
        let mut file = PeakMemoryFile::new("/nowhere/0".into());
        file.update(Device::Cpu);
        assert_eq!(file.written, 0);
    }
}
