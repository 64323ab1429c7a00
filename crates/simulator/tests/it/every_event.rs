//! Injects every fault at every event of a run. A worker is killed, pauses, or is given up and
//! returns. A partition separates two sides. The boss is killed and restarts. Every frame is late
//! or arrives twice. The weights equal those of a run without faults, every run ends, and no tensor
//! leaks.

use crate::memberships::{MembershipResult, MembershipRun};
use crate::network::Conditions;
use crate::planned_faults::{FrameFault, PlannedFault, PlannedFaults};
use crate::seeds::{each, each_number, Log};
use crate::{models, Setting};
use pipeline::ids::WorkerId;
use pipeline::replicas::Sharding;
use pipeline::ScheduleKind;
use std::collections::BTreeSet;
use testkit::Random;

/// The length of a run here, and its snapshots.
#[derive(Copy, Clone)]
pub struct Length {
    pub steps: u64,
    /// The steps between two peer snapshots, if workers make any.
    pub keeps: Option<u64>,
}

/// Three stages one after the other.
fn pipeline(length: Length) -> MembershipRun {
    let way = |cuts: &[&str]| Setting::plain(cuts, ScheduleKind::OneFOneB, 2);
    MembershipRun::new(
        models::model("skip"),
        vec![way(&["2", "4"]), way(&["4"]), way(&[])],
        (2, length.keeps),
        length.steps,
    )
}

/// Two stages. Two workers have the first one.
fn replicas(length: Length, sharding: Option<Sharding>) -> MembershipRun {
    let way = |cuts: &[&str], replicas: &[u16]| {
        let mut way =
            Setting::plain(cuts, ScheduleKind::OneFOneB, 2).with_replicas(&mut Random::new(1));
        (way.replicas, way.max_norm, way.sharding) = (replicas.to_vec(), Some(500.0), sharding);
        way
    };
    MembershipRun::new(
        models::model("skip"),
        vec![way(&["2"], &[2, 1]), way(&[], &[2]), way(&[], &[1])],
        (2, length.keeps),
        length.steps,
    )
}

/// Runs of three workers, each with settings for fewer.
pub fn courses_of(length: Length) -> Vec<MembershipRun> {
    let slow = Conditions { delay: 10_000, ..Conditions::CALM };
    let sharded = replicas(length, Some(Sharding::Parameters)).under(slow, 6);
    vec![pipeline(length), replicas(length, None), sharded]
}

fn courses() -> Vec<MembershipRun> {
    courses_of(Length { steps: 3, keeps: Some(1) })
}

/// Every non-empty set of workers.
fn groups(workers: u16) -> Vec<BTreeSet<WorkerId>> {
    let member = |set: u32, worker: &u16| set >> worker & 1 == 1;
    let set = |set| (0..workers).filter(|worker| member(set, worker)).map(WorkerId).collect();
    (1..1 << workers).map(set).collect()
}

/// The groups for an event: all in the first run. In other runs half of them, and the other half at
/// the next event.
fn of_event<T: Clone>(groups: &[T], (run, event): (usize, u64)) -> Vec<T> {
    let due = |place: usize| run == 0 || (place as u64 + event).is_multiple_of(2);
    groups
        .iter()
        .enumerate()
        .filter(|(place, _)| due(*place))
        .map(|(_, group)| group.clone())
        .collect()
}

/// Plays a run for every event and each of its faults. The last argument checks the memberships of
/// each run.
fn sweep(
    run: &MembershipRun,
    faults: impl Fn(u64) -> Vec<Vec<PlannedFaults>>,
    mut came: impl FnMut(&[MembershipResult]),
) {
    let quiet = run.play(&[], Log::default());
    assert_eq!(quiet.len(), 1);
    let (mut events, mut injected) = (0, 0);
    for event in each_number(quiet[0].events) {
        events += 1;
        for faults in faults(event) {
            each([&faults], |faults, log| {
                let memberships = run.play(faults, log);
                injected += u64::from(!memberships[0].injected.planned.is_empty());
                came(&memberships);
            });
        }
    }
    assert!(injected >= events, "{injected} strikes at {events} events");
}

#[test]
fn simulator_a_worker_is_killed_at_every_event() {
    for run in courses() {
        let workers = (0..run.workers()).map(WorkerId);
        let faults = |event| {
            workers
                .clone()
                .map(|worker| vec![PlannedFaults::at(event, PlannedFault::Kill(worker))])
                .collect()
        };
        sweep(&run, faults, |_| {});
    }
}

#[test]
fn simulator_a_worker_does_nothing_for_a_while_at_every_event() {
    const PAUSES: [u64; 3] = [500, 20_000, 2_900_000];
    for run in courses() {
        let workers = (0..run.workers()).map(WorkerId);
        let pause = |event, worker: WorkerId| {
            let time = PAUSES[(event as usize + usize::from(worker.0)) % PAUSES.len()];
            vec![PlannedFaults::at(event, PlannedFault::Pause(worker, time))]
        };
        let faults = |event| workers.clone().map(|worker| pause(event, worker)).collect();
        sweep(&run, faults, |memberships| assert_eq!(memberships.len(), 1, "nobody is lost"));
    }
}

#[test]
fn simulator_a_worker_is_given_up_and_comes_again_at_every_event() {
    for run in courses() {
        let workers = (0..run.workers()).map(WorkerId);
        let faults = |event| {
            workers
                .clone()
                .map(|worker| vec![PlannedFaults::at(event, PlannedFault::Silence(worker))])
                .collect()
        };
        sweep(&run, faults, |_| {});
    }
}

#[test]
fn simulator_two_sides_hear_nothing_of_each_other_for_a_while_at_every_event() {
    const TIMES: [u64; 3] = [500, 20_000, 2_900_000];
    for (number, run) in courses().into_iter().enumerate() {
        let groups = groups(run.workers());
        let hold = |event: u64, far: BTreeSet<WorkerId>| {
            let time = TIMES[(event as usize + far.len()) % TIMES.len()];
            vec![PlannedFaults::at(event, PlannedFault::ShortPartition(far, time))]
        };
        let faults = |event| {
            of_event(&groups, (number, event)).into_iter().map(|far| hold(event, far)).collect()
        };
        sweep(&run, faults, |memberships| assert_eq!(memberships.len(), 1, "nobody is lost"));
    }
}

#[test]
fn simulator_two_sides_give_each_other_up_at_every_event() {
    for (number, run) in courses().into_iter().enumerate() {
        let groups = groups(run.workers());
        // The remaining workers continue until the others return.
        let split = |event: u64, far: BTreeSet<WorkerId>| {
            vec![
                PlannedFaults::at(event, PlannedFault::Partition(far)),
                PlannedFaults::at(1 + event * 7 % 200, PlannedFault::KillBoss),
            ]
        };
        let faults = |event| {
            of_event(&groups, (number, event)).into_iter().map(|far| split(event, far)).collect()
        };
        sweep(&run, faults, |_| {});
    }
}

#[test]
fn simulator_the_boss_is_killed_at_every_event() {
    for run in courses() {
        let kill = |event| PlannedFaults::at(event, PlannedFault::KillBoss);
        let faults =
            |event: u64| vec![vec![kill(event)], vec![kill(event), kill(1 + event * 7 % 200)]];
        sweep(&run, faults, |memberships| assert!(memberships.len() <= 3));
    }
}

/// Plays a run for every frame and each of these faults.
fn sweep_frames(
    run: &MembershipRun,
    frame_faults: &[FrameFault],
    came: impl Fn(&[MembershipResult]),
) {
    let frames = run.play(&[], Log::default())[0].frames;
    for frame in each_number(frames) {
        each(frame_faults, |frame_fault, log| {
            let memberships = run.play(&[PlannedFaults::of(frame, *frame_fault)], log);
            assert_eq!(memberships[0].injected.frame_faults, [*frame_fault]);
            came(&memberships);
        });
    }
}

#[test]
fn simulator_every_frame_is_late() {
    for run in courses() {
        sweep_frames(&run, &[700, 30_000, 2_900_000].map(FrameFault::Delay), |memberships| {
            assert_eq!(memberships.len(), 1, "nobody is lost");
        });
    }
}

#[test]
fn simulator_every_frame_comes_twice() {
    for run in courses() {
        sweep_frames(
            &run,
            &[0, 300, 20_000, 1_000_000].map(FrameFault::Duplicate),
            |memberships| {
                assert!(
                    memberships.len() <= 2,
                    "one frame cost {} memberships",
                    memberships.len() - 1
                );
            },
        );
    }
}
