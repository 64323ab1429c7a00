//! Faults at every event of a pool that workers join while it trains. A delay costs no worker, and
//! the pool continues without workers that are given up.

use crate::memberships::MembershipResult;
use crate::network::Conditions;
use crate::planned_faults::{FrameFault, PlannedFault, PlannedFaults, BOSS_GIVES_UP};
use crate::pool::{run, Scenario};
use crate::seeds::{each, each_number, each_seed, Log};
use crate::{models, pool, Setting};
use layerspec::LayerGraph;
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use std::collections::{BTreeMap, BTreeSet};
use testkit::Random;

/// Two stages with two workers each: one of each may go.
fn setting() -> Setting {
    let mut setting =
        Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut Random::new(1));
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![2, 2], Some(500.0), None);
    setting
}

/// One worker joins early, and one late.
fn joins() -> BTreeMap<u64, Option<u64>> {
    BTreeMap::from([(30, None), (300, None)])
}

/// The same run with these faults.
fn play(graph: &LayerGraph, faults: PlannedFaults, log: Log) -> MembershipResult {
    let scenario = Scenario { due: joins(), faults, ..Scenario::default() };
    run(graph, &setting(), 5, Conditions::CALM, scenario, log)
}

#[test]
fn simulator_a_pool_is_struck_at_every_event() {
    const TIMES: [u64; 3] = [500, 20_000, 2_900_000];
    let graph = models::model("skip");
    let quiet = play(&graph, PlannedFaults::default(), Log::default());
    each(each_number(quiet.events), |event, log| {
        let (worker, time) = (WorkerId((event % 5) as u16), TIMES[event as usize % 3]);
        let far: BTreeSet<WorkerId> = [worker, WorkerId((event / 5 % 5) as u16)].into();
        let faults = [
            PlannedFault::Kill(worker),
            PlannedFault::Pause(worker, time),
            PlannedFault::Silence(worker),
            PlannedFault::ShortPartition(far, time),
        ];
        for fault in faults {
            play(&graph, PlannedFaults::at(event, fault), log);
        }
    });
}

#[test]
fn simulator_every_frame_of_a_pool_is_late_or_comes_twice() {
    let graph = models::model("skip");
    let quiet = play(&graph, PlannedFaults::default(), Log::default());
    let (mut frames, mut injected) = (0, 0);
    each(each_number(quiet.frames), |frame, log| {
        frames += u64::from(frame > 100);
        for frame_fault in
            [FrameFault::Delay(30_000), FrameFault::Duplicate(0), FrameFault::Duplicate(1000)]
        {
            let came = play(&graph, PlannedFaults::of(frame, frame_fault), log);
            injected += came.injected.frame_faults.len() as u64;
        }
    });
    // Frames before the pool opens have no faults.
    assert!(injected >= 3 * frames, "{injected} strikes at {frames} frames");
}

/// One run with random faults.
pub fn at_random(seed: u64, log: Log) {
    let models = models::all();
    let mut random = Random::new(seed);
    let graph = random.pick(&models);
    let mut setting = Setting::random(&mut random, graph).with_replicas(&mut random);
    // Three replicas leave one worker of every stage: one is killed or silent, and one is
    // disconnected.
    setting.replicas.fill(3);
    (setting.max_norm, setting.sharding) = (Some(*random.pick(&[0.5, 500.0, 1e9])), None);
    let conditions = Conditions::random(&mut random);
    let due = (0..random.below(5)).map(|_| (1 + random.below(1500), None)).collect();
    let mut faults = PlannedFaults::default();
    let workers = setting.workers() as u64;
    let worker = WorkerId(random.below(workers) as u16);
    let lost =
        if random.chance(50) { PlannedFault::Kill(worker) } else { PlannedFault::Silence(worker) };
    faults.events.insert(1 + random.below(2000), lost);
    for _ in 0..random.below(3) {
        let time = *random.pick(&[1, 1000, 100_000, BOSS_GIVES_UP - 1]);
        let far = (0..workers as u16).map(WorkerId).filter(|_| random.chance(40)).collect();
        let fault = if random.chance(50) {
            PlannedFault::Pause(worker, time)
        } else {
            PlannedFault::ShortPartition(far, time)
        };
        faults.events.insert(1 + random.below(2000), fault);
    }
    for frame_fault in
        [FrameFault::Delay(random.below(100_000)), FrameFault::Duplicate(random.below(100_000))]
    {
        faults.frames.insert(1 + random.below(1500), frame_fault);
    }
    if pool::possible(graph, &setting) {
        log.note(|| format!("{}: {setting:?}, {conditions:?}, {due:?}, {faults:?}", graph.name()));
        let scenario = Scenario { due, faults, ..Scenario::default() };
        run(graph, &setting, random.next(), conditions, scenario, log);
    }
}

#[test]
fn simulator_a_pool_is_struck_at_random() {
    each_seed(400, at_random);
}
