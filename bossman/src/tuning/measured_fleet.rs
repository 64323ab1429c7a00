//! The measured figures of the workers.

use super::batch_shape::MicrobatchSizes;
use super::layer_probes::machines;
use super::worker_memory;
use crate::settings::user_settings::ParallelSettings;
use link::WorkerInfo;
use pipeline::fleet::Fleet;
use pipeline::ids::WorkerId;
use pipeline::message::LinkReport;
use pipeline::schedule::Link;
use pipeline::task::LayerTimes;

/// The overhead of an action: the session and the ways to and from the compute thread.
const PER_ACTION_NANOS: u64 = 30_000;

/// The measurements of the workers, and the microbatch with which they measured.
pub(crate) struct MeasuredFleet {
    pub(crate) fleet: Fleet,
    pub(crate) microbatch: MicrobatchSizes,
}

impl MeasuredFleet {
    /// Combines the figures of all workers: `times` of each layer by worker (empty if layers were
    /// not measured), memory, and the links between workers.
    pub(crate) fn new(
        times: Vec<Vec<LayerTimes>>,
        microbatch: MicrobatchSizes,
        workers: &[WorkerInfo],
        links: &[(WorkerId, Option<WorkerId>, LinkReport)],
        settings: &ParallelSettings,
    ) -> Self {
        let memory = worker_memory::shared(&workers.iter().collect::<Vec<_>>());
        let mut fleet = Fleet {
            times,
            per_action: PER_ACTION_NANOS,
            spared: worker_memory::spared(&memory, settings.shortages),
            memory,
            devices: worker_memory::of_devices(workers),
            compress: settings.compress,
            sharding: settings.sharding,
            machines: machines(workers.len(), links),
            ..Fleet::default()
        };
        for (from, to, report) in links {
            if report.bytes_per_second == 0 {
                continue;
            }
            let link = Link::measured(report.rtt.0.saturating_mul(1000), report.bytes_per_second);
            match to {
                Some(to) => {
                    fleet.links.insert((*from, *to), link);
                    fleet.links.entry((*to, *from)).or_insert(link);
                }
                None => drop(fleet.boss_links.insert(*from, link)),
            }
        }
        estimate_links(&mut fleet, workers.len());
        MeasuredFleet { fleet, microbatch }
    }
}

/// Adds the links between workers that no plan has connected yet, or for which the boss relays.
/// Each counts as the way through the boss.
fn estimate_links(fleet: &mut Fleet, workers: usize) {
    let workers = || (0..workers as u16).map(WorkerId);
    for (from, to) in
        workers().flat_map(|from| workers().map(move |to| (from, to))).filter(|(a, b)| a != b)
    {
        if let (Some(there), Some(back)) = (fleet.boss_links.get(&from), fleet.boss_links.get(&to))
        {
            fleet.links.entry((from, to)).or_insert(there.then(*back));
        }
    }
}
