//! Random faults of every kind, again and again, for random models, cuts and networks.

use crate::memberships::MembershipRun;
use crate::network::Conditions;
use crate::planned_faults::{FrameFault, PlannedFault, PlannedFaults, BOSS_GIVES_UP};
use crate::recovery::another;
use crate::seeds::{each_seed, Log};
use crate::{models, Setting};
use pipeline::ids::WorkerId;
use std::collections::BTreeMap;
use testkit::Random;

/// Draws the faults of one membership of `workers` workers.
fn faults(random: &mut Random, workers: u64) -> PlannedFaults {
    let mut faults = PlannedFaults::default();
    let time = |random: &mut Random| *random.pick(&[1, 1000, 100_000, BOSS_GIVES_UP - 1]);
    for _ in 0..random.below(4) {
        let worker = WorkerId(random.below(workers) as u16);
        let group = (0..workers as u16).map(WorkerId).filter(|_| random.chance(40)).collect();
        let fault = match random.below(8) {
            0 => PlannedFault::Kill(worker),
            1 | 2 => PlannedFault::Pause(worker, time(random)),
            3 => PlannedFault::Silence(worker),
            4 | 5 => PlannedFault::ShortPartition(group, time(random)),
            6 => PlannedFault::Partition(group),
            _ => PlannedFault::KillBoss,
        };
        faults.events.insert(1 + random.below(1500), fault);
    }
    for _ in 0..random.below(4) {
        let frame_fault = match random.chance(50) {
            true => FrameFault::Delay(time(random)),
            false => FrameFault::Duplicate(time(random)),
        };
        faults.frames.insert(1 + random.below(1000), frame_fault);
    }
    faults
}

/// Draws a run, and the faults of its memberships.
pub fn draw(random: &mut Random, log: Log) -> (MembershipRun, Vec<PlannedFaults>) {
    let graph = models::all().swap_remove(random.below(models::all().len() as u64) as usize);
    let first = Setting::random(random, &graph);
    let fewer = (1..first.workers()).rev().map(|workers| another(random, &graph, &first, workers));
    let fewer: Vec<Setting> = fewer.collect();
    let settings = [vec![first], fewer].concat();
    let snapshots = (1 + random.below(3), random.chance(60).then(|| 1 + random.below(2)));
    let (steps, conditions) = (2 + random.below(5), Conditions::random(random));
    let injected: Vec<PlannedFaults> =
        (0..4).map(|_| faults(random, settings[0].workers() as u64)).collect();
    log.note(|| format!("{}: {:?}, {conditions:?}, {injected:?}", graph.name(), settings[0]));
    let run =
        MembershipRun::new(graph, settings, snapshots, steps).under(conditions, random.next());
    (run, injected)
}

/// One run. Returns how often each kind of fault was injected.
pub fn run(seed: u64, log: Log) -> BTreeMap<&'static str, u64> {
    let (run, injected) = draw(&mut Random::new(seed), log);
    let mut counts = BTreeMap::new();
    for membership in run.play(&injected, log) {
        let faults = membership.injected.planned.iter().map(|fault| match fault {
            PlannedFault::Kill(_) => "killed",
            PlannedFault::Pause(..) => "paused",
            PlannedFault::Silence(_) => "silent",
            PlannedFault::ShortPartition(..) => "held",
            PlannedFault::Partition(_) => "split",
            PlannedFault::KillBoss => "the boss",
            PlannedFault::BreakLink => "a link",
            PlannedFault::Come | PlannedFault::Gone => "another worker",
        });
        let frame_faults =
            membership.injected.frame_faults.iter().map(|frame_fault| match frame_fault {
                FrameFault::Delay(_) => "late",
                FrameFault::Duplicate(_) => "twice",
            });
        faults.chain(frame_faults).for_each(|what| *counts.entry(what).or_default() += 1);
    }
    counts
}

#[test]
fn simulator_everything_strikes_at_random() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut runs = 0;
    each_seed(600, |seed, log| {
        run(seed, log)
            .into_iter()
            .for_each(|(what, times)| *counts.entry(what).or_default() += times);
        runs += 1;
    });
    assert!(
        runs < 300 || counts.len() == 8 && counts.values().all(|times| *times > 20),
        "{counts:?} in {runs} runs"
    );
}
