//! The memory of workers that plans may use.

use link::WorkerInfo;

/// The share of the memory that remains for plans after each time that some worker was out of it:
/// three quarters.
const REMAINING: [u64; 2] = [3, 4];

/// The bytes of each worker that plans may use, or `None` if unknown, after workers were out of
/// memory this many times. Workers on one device share it.
pub(crate) fn usable(workers: &[&WorkerInfo], shortages: u32) -> Vec<Option<u64>> {
    let sharing = |worker: &WorkerInfo| {
        let same =
            |other: &&&WorkerInfo| other.host == worker.host && other.device == worker.device;
        workers.iter().filter(same).count().max(1) as u64
    };
    let [part, of] = REMAINING;
    let remaining = |bytes| (0..shortages).fold(bytes, |bytes, _| bytes / of * part);
    workers.iter().map(|worker| Some(remaining(worker.memory_bytes? / sharing(worker)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_on_one_device_share_it_and_a_shortage_leaves_three_quarters() {
        let info = |host: &str, device: &str, memory_bytes| WorkerInfo {
            host: host.into(),
            device: device.into(),
            memory_bytes,
            ..WorkerInfo::default()
        };
        let workers = [
            info("a", "cuda:0", Some(1600)),
            info("a", "cuda:0", Some(1600)),
            info("b", "cuda:0", Some(1600)),
            info("b", "cpu", None),
        ];
        let workers: Vec<_> = workers.iter().collect();
        assert_eq!(usable(&workers, 0), [Some(800), Some(800), Some(1600), None]);
        assert_eq!(usable(&workers, 2), [Some(450), Some(450), Some(900), None]);
    }
}
