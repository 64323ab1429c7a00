//! The memory of workers that plans may use.

use link::WorkerInfo;
use pipeline::ids::WorkerId;
use pipeline::room::CutMemory;
use pipeline::schedule::DeviceMemory;

/// The share of the memory from which cuts rather come after some worker was out of it: three
/// quarters.
const SPARED: [u64; 2] = [3, 4];

/// The bytes of each worker, or `None` if unknown. Workers on one device share it.
pub(crate) fn shared(workers: &[&WorkerInfo]) -> Vec<Option<u64>> {
    let sharing = |worker: &WorkerInfo| {
        workers.iter().filter(|other| other.is_on_same_device(worker)).count().max(1) as u64
    };
    workers.iter().map(|worker| Some(worker.memory_bytes? / sharing(worker))).collect()
}

/// The memory of each device, with its workers.
pub(crate) fn of_devices(workers: &[WorkerInfo]) -> Vec<DeviceMemory> {
    let mut devices: Vec<(&WorkerInfo, DeviceMemory)> = Vec::new();
    for (number, worker) in workers.iter().enumerate() {
        let Some(bytes) = worker.memory_bytes else { continue };
        let number = WorkerId(number as u16);
        match devices.iter_mut().find(|(first, _)| first.is_on_same_device(worker)) {
            Some((_, device)) => {
                device.workers.push(number);
                device.bytes = device.bytes.min(bytes);
            }
            None => devices.push((worker, DeviceMemory { workers: vec![number], bytes })),
        }
    }
    devices.into_iter().map(|(_, device)| device).collect()
}

/// The memory for automatic cuts, after workers of the run were out of it this many times.
pub(crate) fn for_cuts(workers: &[&WorkerInfo], shortages: u32) -> CutMemory {
    let all = shared(workers);
    CutMemory { spared: spared(&all, shortages), all, ..CutMemory::default() }
}

/// The bytes from which cuts rather come. Empty if all may be used.
pub(crate) fn spared(all: &[Option<u64>], shortages: u32) -> Vec<Option<u64>> {
    let [part, of] = SPARED;
    let less = |bytes: u64| (0..shortages).fold(bytes, |bytes, _| bytes / of * part);
    match shortages {
        0 => Vec::new(),
        _ => all.iter().map(|bytes| bytes.map(less)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_on_one_device_share_it_and_a_shortage_leaves_three_quarters() {
        let info = |host: &str, device: &str, memory_bytes| WorkerInfo {
            host: host.into(),
            machine: format!("boot of {host}"),
            device: device.into(),
            device_id: format!("bus of {device}"),
            memory_bytes,
            ..WorkerInfo::default()
        };
        let slice =
            |id: &str| WorkerInfo { device_id: id.into(), ..info("c", "cuda:0", Some(100)) };
        let namesake = WorkerInfo { machine: "another".into(), ..info("b", "cuda:0", Some(70)) };
        let workers = [
            info("a", "cuda:0", Some(1600)),
            info("a", "cuda:0", Some(1600)),
            info("b", "cuda:0", Some(1600)),
            info("b", "cpu", None),
            slice("MIG-1"),
            slice("MIG-2"),
            namesake,
            // Two containers, and two processes that see other GPUs.
            WorkerInfo { host: "d1".into(), ..info("d", "cpu", Some(80)) },
            WorkerInfo { host: "d2".into(), ..info("d", "cpu", Some(80)) },
            info("e", "cuda:0", Some(60)),
            WorkerInfo { device: "cuda:1".into(), ..info("e", "cuda:0", Some(60)) },
        ];
        let devices = of_devices(&workers);
        let devices: Vec<_> = devices
            .iter()
            .map(|of| (of.workers.iter().map(|worker| worker.0).collect(), of.bytes))
            .collect();
        let alone = [(2, 1600), (4, 100), (5, 100), (6, 70)].map(|(w, bytes)| (vec![w], bytes));
        let together = [(vec![7, 8], 80), (vec![9, 10], 60)];
        let expected = [vec![(vec![0, 1], 1600)], alone.to_vec(), together.to_vec()].concat();
        assert_eq!(devices, expected);
        let workers: Vec<_> = workers.iter().collect();
        let all = [800, 800, 1600, 0, 100, 100, 70, 40, 40, 30, 30];
        let all = all.map(|bytes| (bytes > 0).then_some(bytes)).to_vec();
        let whole = CutMemory { all: all.clone(), ..CutMemory::default() };
        assert_eq!(for_cuts(&workers, 0), whole);
        let spared =
            all.iter().map(|bytes: &Option<u64>| bytes.map(|bytes| bytes / 4 * 3)).collect();
        assert_eq!(for_cuts(&workers, 1), CutMemory { spared, ..whole });
    }
}
