//! Lanes: replicas that form separate pipelines. The first workers of all stages form one, the
//! second workers the next, and so on.

use super::work::Work;
use super::{Costs, Layout, Process};
use crate::ids::{StageId, WorkerId};
use crate::replicas::StagePlacement;
use std::collections::BTreeMap;

/// One of these pipelines. Its workers and its microbatches are numbered from 0.
pub(super) struct Lane {
    pub(super) layout: Layout,
    pub(super) costs: Costs,
    /// The outer numbers of its workers.
    pub(super) workers: Vec<WorkerId>,
    /// The outer numbers of its microbatches.
    pub(super) microbatches: Vec<u32>,
}

/// The pipelines. `None` if stages differ in their number of replicas or in their assignment of
/// microbatches.
pub(super) fn lanes(work: &Work<'_>, costs: &Costs) -> Option<Vec<Lane>> {
    let stage_placement = &work.layout.stage_placement;
    let replicas = stage_placement.of(StageId(0)).len();
    let same_deal = |stage| {
        (0..work.microbatches).all(|m| {
            work.microbatch_assignment.replica(stage, m)
                == work.microbatch_assignment.replica(StageId(0), m)
        })
    };
    if !stage_placement.iter().all(|(stage, workers)| workers.len() == replicas && same_deal(stage))
    {
        return None;
    }
    Some((0..replicas).map(|replica| lane(work, costs, replica)).collect())
}

fn lane(work: &Work<'_>, costs: &Costs, replica: usize) -> Lane {
    let stage_placement = &work.layout.stage_placement;
    let mut workers: Vec<WorkerId> = Vec::new();
    let mut inside = Vec::new();
    for (_, replicas) in stage_placement.iter() {
        let number = workers.iter().position(|w| *w == replicas[replica]).unwrap_or_else(|| {
            workers.push(replicas[replica]);
            workers.len() - 1
        });
        inside.push(WorkerId(number as u16));
    }
    let microbatches = (0..work.microbatches)
        .filter(|m| usize::from(work.microbatch_assignment.replica(StageId(0), *m)) == replica);
    let name = |number: usize| WorkerId(number as u16);
    let mut links = BTreeMap::new();
    for (a, from) in workers.iter().enumerate() {
        for (b, to) in workers.iter().enumerate().filter(|(b, _)| *b != a) {
            links.insert((name(a), name(b)), costs.link(*from, *to));
        }
    }
    let stages =
        stage_placement.iter().map(|(stage, replicas)| costs.stage(stage, replicas[replica]));
    let renamed = |process: Process| match process {
        Process::Boss => Some(process),
        Process::Worker(w) => {
            workers.iter().position(|other| *other == w).map(|number| Process::Worker(name(number)))
        }
    };
    let machines =
        costs.machines.iter().filter_map(|(process, machine)| Some((renamed(*process)?, *machine)));
    let boss_links =
        workers.iter().enumerate().map(|(number, w)| (name(number), costs.boss_link(*w)));
    let of_lane = Costs {
        links,
        machines: machines.collect(),
        boss_links: boss_links.collect(),
        stages: stages.collect(),
        replicas: BTreeMap::new(),
        ..costs.clone()
    };
    Lane {
        layout: Layout { stage_placement: StagePlacement::single(inside), ..work.layout.clone() },
        costs: of_lane,
        microbatches: microbatches.collect(),
        workers,
    }
}
