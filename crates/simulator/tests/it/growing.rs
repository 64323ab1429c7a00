//! Takes in workers that come late, while a run goes on with fewer than it began with. The newcomer
//! comes, dies while it waits, or comes again with old snapshots, at any event; and the run that
//! took it in loses workers again, at any event. Growth repeats no step, which `memberships.rs`
//! checks, and the results equal those of a run without faults.

use crate::every_event::{courses_of, Length};
use crate::memberships::{MembershipResult, MembershipRun, UnfitWorkers};
use crate::planned_faults::{PlannedFault, PlannedFaults};
use crate::recovering_run::Counts;
use crate::seeds::{each, each_nth_number, each_seed, Log};
use crate::{mixed_faults, models, Setting};
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use testkit::Random;

/// The steps of a run. A newcomer is taken in after one of the first four.
const STEPS: u64 = 6;

/// One event in 41 is played, because each of these runs has three memberships or more.
/// `BOSSMAN_SIM_SEEDS=41000` plays every event.
const STRIDE: u64 = 41;

/// All that happens at some seed, if there are many.
const ALL: [&str; 7] = [
    "an unfit worker that got no place",
    "an unfit worker that the desk found",
    "a run that grew",
    "a run that had its initial number of workers again",
    "a newcomer that did not come",
    "a loss before the grown run had its state",
    "a loss after the grown run had its state",
];

/// The runs, each with snapshots at the boss only, and at the workers.
fn courses() -> Vec<MembershipRun> {
    let lengths = [None, Some(2)].map(|keeps| Length { steps: STEPS, keeps });
    lengths.into_iter().flat_map(courses_of).map(MembershipRun::growing).collect()
}

/// The faults of a first membership that loses its last worker soon after this step.
fn loss_after(
    run: &MembershipRun,
    step: u64,
    fault: fn(WorkerId) -> PlannedFault,
) -> PlannedFaults {
    let last = WorkerId(run.workers() - 1);
    let quiet = run.play(&[], Log::default());
    let events: Vec<u64> = (1..=64).map(|part| 1 + quiet[0].events * part / 64).collect();
    let is_too_early = |event: &u64| {
        let memberships = run.play(&[PlannedFaults::at(*event, fault(last))], Log::default());
        memberships[0].completed.is_none_or(|steps| steps.until < step)
    };
    let event = events[events.partition_point(is_too_early)];
    PlannedFaults::at(event, fault(last))
}

/// A worker that waits from the beginning of a membership.
fn come() -> PlannedFaults {
    PlannedFaults::at(1, PlannedFault::Come)
}

/// Plays a run that loses a worker, and to which one comes at any event after that. It is taken in
/// unless it comes too late.
fn a_worker_comes_after(run: &MembershipRun, loss: &PlannedFaults) {
    let all = usize::from(run.workers());
    let alone = run.play(std::slice::from_ref(loss), Log::default());
    assert_eq!(alone.len(), 2, "one loss");
    assert_eq!(alone[1].workers, all - 1);
    let (mut grown, mut is_too_late) = (0, false);
    each(each_nth_number(alone[1].events, STRIDE), |event, log| {
        let late = PlannedFaults::at(event, PlannedFault::Come);
        let memberships = run.play(&[loss.clone(), late], log);
        let Some(workers) = memberships[1].grows else {
            is_too_late = true;
            return assert_eq!(memberships.len(), 2);
        };
        assert!(!is_too_late, "a worker that came earlier was not taken in");
        assert_eq!((workers, memberships.len()), (all, 3));
        assert_eq!((memberships[2].workers, memberships[2].grows), (all, None));
        grown += 1;
    });
    assert!(grown > 0);
}

#[test]
fn simulator_a_worker_comes_late_at_any_event() {
    for run in courses() {
        a_worker_comes_after(&run, &loss_after(&run, 1, PlannedFault::Kill));
    }
}

#[test]
fn simulator_a_silent_worker_comes_late_with_old_snapshots_at_any_event() {
    for run in courses() {
        // The workers have made a snapshot, after the second step.
        a_worker_comes_after(&run, &loss_after(&run, 3, PlannedFault::Silence));
    }
}

/// The newcomer may die before the decision to take it in, or between that and its place. Another
/// one is taken in after the pause.
#[test]
fn simulator_a_waiting_worker_dies_at_any_event() {
    let (mut died_early, mut died_late, mut grew_later) = (0, 0, 0);
    for run in courses() {
        let all = usize::from(run.workers());
        let loss = loss_after(&run, 1, PlannedFault::Kill);
        let quiet = run.play(&[loss.clone(), come()], Log::default());
        assert_eq!(quiet[1].grows, Some(all));
        // The last event is after the decision.
        let last = quiet[1].events;
        each(each_nth_number(last - 1, STRIDE).chain([last - 1]), |event, log| {
            let dies = come().and(1 + event, PlannedFault::Gone);
            let memberships = run.play(&[loss.clone(), dies, come()], log);
            let Some(workers) = memberships[1].grows else {
                died_early += 1;
                return assert_eq!(memberships.len(), 2);
            };
            died_late += 1;
            assert_eq!((workers, memberships[2].workers), (all, all - 1));
            let tried = memberships[1].completed.expect("it completed a step").until;
            let can_grow = tried + 2 < STEPS - 1;
            assert_eq!(memberships[2].grows, can_grow.then_some(all));
            if can_grow {
                let next = memberships[2].completed.expect("it completed a step").until;
                assert_eq!((next, memberships[3].workers), (tried + 2, all));
                grew_later += 1;
            }
        });
    }
    assert!(died_early > 0 && died_late > 0 && grew_later > 0);
}

#[test]
fn simulator_a_grown_run_loses_a_worker_at_any_event() {
    let mut lost = 0;
    for run in courses() {
        let loss = loss_after(&run, 1, PlannedFault::Kill);
        let quiet = run.play(&[loss.clone(), come()], Log::default());
        assert_eq!(quiet.len(), 3);
        for worker in (0..run.workers()).map(WorkerId) {
            each(each_nth_number(quiet[2].events, 3 * STRIDE), |event, log| {
                let kill = PlannedFaults::at(event, PlannedFault::Kill(worker));
                let memberships = run.play(&[loss.clone(), come(), kill, come()], log);
                assert_eq!(memberships[2].workers, usize::from(run.workers()));
                lost += u64::from(memberships.len() > 3);
            });
        }
    }
    assert!(lost > 0);
}

/// A run of three workers or one. With two, one waits until a third comes.
#[test]
fn simulator_a_run_grows_by_as_many_as_fit() {
    let way = |cuts: &[&str]| Setting::plain(cuts, ScheduleKind::OneFOneB, 2);
    let ways = vec![way(&["2", "4"]), way(&[])];
    let run = MembershipRun::new(models::model("skip"), ways, (2, Some(2)), STEPS).growing();
    let loss = loss_after(&run, 1, PlannedFault::Kill);
    let workers = |memberships: &[MembershipResult]| -> Vec<usize> {
        memberships.iter().map(|membership| membership.workers).collect()
    };
    let alone = run.play(std::slice::from_ref(&loss), Log::default());
    assert_eq!(workers(&alone), [3, 1]);
    let joined = run.play(&[loss, come()], Log::default());
    assert_eq!(workers(&joined), [3, 1, 3]);
}

/// A run with losses and comings.
fn at_random(seed: u64, log: Log, counts: &mut Counts) {
    let mut random = Random::new(seed);
    let (run, mut faults) = mixed_faults::draw(&mut random, log);
    let run = run.growing().unfit_one_in(3);
    for membership in &mut faults {
        for _ in 0..random.below(4) {
            let is_coming = random.chance(70);
            let fault = if is_coming { PlannedFault::Come } else { PlannedFault::Gone };
            membership.events.entry(1 + random.below(600)).or_insert(fault);
        }
    }
    log.note(|| format!("with comings: {faults:?}"));
    let memberships = run.play(&faults, log);
    let initial = memberships[0].workers;
    for UnfitWorkers { refused, found } in memberships.iter().map(|membership| membership.unfit) {
        for (what, times) in [
            ("an unfit worker that got no place", refused),
            ("an unfit worker that the desk found", found),
        ] {
            *counts.entry(what).or_default() += times as u64;
        }
    }
    for (place, pair) in memberships.windows(2).enumerate() {
        let [before, after] = pair else { continue };
        if before.grows.is_none() {
            continue;
        }
        // Only the last membership is done, and a membership that grows does not fail.
        let has_failed = place + 2 < memberships.len() && after.grows.is_none();
        let has_all = before.survivors == before.workers;
        for (what, happened) in [
            ("a run that grew", after.workers > before.workers),
            ("a run that had its initial number of workers again", after.workers == initial),
            ("a newcomer that did not come", has_all && Some(after.workers) < before.grows),
            ("a survivor that did not come", !has_all),
            ("a loss before the grown run had its state", after.completed.is_none()),
            ("a loss after the grown run had its state", has_failed && after.completed.is_some()),
        ] {
            *counts.entry(what).or_default() += u64::from(happened);
        }
    }
}

#[test]
fn simulator_workers_come_and_go_at_random() {
    let (mut counts, mut runs) = (Counts::new(), 0);
    each_seed(60, |seed, log| {
        at_random(seed, log, &mut counts);
        runs += 1;
    });
    let never: Vec<_> =
        ALL.into_iter().filter(|what| counts.get(what).is_none_or(|count| *count == 0)).collect();
    assert!(runs < 2000 || never.is_empty(), "{never:?} never happened: {counts:?}");
}
