//! Progress, as the simulator of TigerBeetle checks it. Faults strike a run until the last one. A
//! core of workers stays that suffices for the plan, and all others may be killed with the last
//! fault. From then on the run must be done within a bounded number of events and a bounded time,
//! and its results are those of a quiet run. A run that hangs, or goes on for ever, fails.

use crate::failing::recover;
use crate::faults::Faults;
use crate::last_fault::{LastFault, Spent};
use crate::memberships::MembershipRun;
use crate::network::Conditions;
use crate::oracle::Oracle;
use crate::planned_faults::{FrameFault, PlannedFault, PlannedFaults, BOSS_GIVES_UP};
use crate::pool::{self, Scenario};
use crate::seeds::{each_seed, Log};
use crate::{mixed_faults, models, user, Setting};
use pipeline::ids::WorkerId;
use pipeline::ScheduleKind;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use testkit::Random;

/// The changes of members after the last fault of a run without a pool: it loses workers and
/// begins again, and each may also wait for a link.
const CHANGES: u64 = 4;

/// The steps of a run whose calls are repeated by hand.
const STEPS: u64 = 3;

/// What happened at all seeds.
#[derive(Default, Debug)]
struct Tally {
    runs: u64,
    /// Runs that were not done before the last fault.
    struck: u64,
    /// Those that began again after it.
    began_again: u64,
}

impl Tally {
    fn add(&mut self, last: &LastFault) {
        self.runs += 1;
        self.struck += u64::from(last.is_over());
        self.began_again += u64::from(last.memberships > 0);
    }

    /// Checks that the last fault does not come after the end of most runs.
    fn check(&self) {
        assert!(self.runs < 50 || 4 * self.struck > self.runs, "{self:?}");
    }
}

/// A run with recovery from its state at the boss, and at most seeds from peer snapshots.
fn fixed(seed: u64, log: Log) -> LastFault {
    let mut random = Random::new(seed);
    let (run, mut faults) = mixed_faults::draw(&mut random, log);
    let quiet = run.quiet();
    for membership in &mut faults {
        let (breaks, event) = (random.chance(30), 1 + random.below(quiet.events));
        if breaks {
            membership.events.entry(event).or_insert(PlannedFault::BreakLink);
        }
    }
    let last = LastFault {
        run: format!("seed {seed}"),
        ahead: 1 + random.below(quiet.events),
        core: 1 + random.below(run.workers().into()) as usize,
        only_core: random.chance(50),
        most: quiet.bound(CHANGES),
        ..LastFault::default()
    };
    log.note(|| format!("{last:?}, {faults:?}"));
    run.play_until(&faults, last, log)
}

#[test]
fn simulator_a_run_is_done_soon_after_the_last_fault() {
    let mut tally = Tally::default();
    each_seed(3000, |seed, log| tally.add(&fixed(seed, log)));
    tally.check();
    assert!(tally.runs < 50 || tally.began_again > 0, "{tally:?}");
}

/// Draws the faults of a pool of `workers` workers, as far as it goes on without a new session.
fn pool_faults(random: &mut Random, workers: u64, events: u64) -> PlannedFaults {
    let mut faults = PlannedFaults::default();
    for _ in 0..random.below(6) {
        let worker = WorkerId(random.below(workers) as u16);
        let far: BTreeSet<WorkerId> =
            (0..workers as u16).map(WorkerId).filter(|_| random.chance(40)).collect();
        let time = *random.pick(&[1, 1000, 100_000, BOSS_GIVES_UP - 1]);
        let fault = match random.below(7) {
            0 | 1 => PlannedFault::Kill(worker),
            2 | 3 => PlannedFault::Silence(worker),
            4 => PlannedFault::Pause(worker, time),
            5 => PlannedFault::ShortPartition(far, time),
            _ => PlannedFault::BreakLink,
        };
        faults.events.insert(1 + random.below(events), fault);
    }
    let frame_faults =
        [FrameFault::Delay(random.below(100_000)), FrameFault::Duplicate(random.below(100_000))];
    for frame_fault in frame_faults {
        if random.chance(40) {
            faults.frames.insert(1 + random.below(1500), frame_fault);
        }
    }
    faults
}

/// A pool that workers join and leave. None if the model cannot be trained by one.
fn open_pool(seed: u64, log: Log) -> Option<LastFault> {
    let models = models::all();
    let mut random = Random::new(seed);
    let graph = random.pick(&models);
    let mut setting = Setting::random(&mut random, graph).with_replicas(&mut random);
    setting.replicas.fill(3);
    (setting.max_norm, setting.sharding) = (Some(*random.pick(&[0.5, 500.0, 1e9])), None);
    if !pool::possible(graph, &setting) {
        return None;
    }
    let (conditions, network) = (Conditions::random(&mut random), random.next());
    let joins: BTreeMap<u64, Option<u64>> =
        (0..random.below(4)).map(|_| (1 + random.below(1500), None)).collect();
    let workers = setting.workers() as u64 + joins.len() as u64;
    // New workers take part in the quiet run, so that it sends as many frames.
    let quiet = Scenario { due: joins.clone(), ..Scenario::default() };
    let quiet = pool::run(graph, &setting, network, conditions, quiet, Log::default());
    let quiet = Spent { events: quiet.events, time: quiet.time };
    let faults = pool_faults(&mut random, workers, quiet.events);
    let mut due = joins;
    for _ in 0..random.below(6) {
        let leave = random.next();
        due.entry(1 + random.below(quiet.events)).or_insert(Some(leave));
    }
    // A frame that comes twice may cost one worker.
    let duplicates =
        faults.frames.values().filter(|fault| matches!(fault, FrameFault::Duplicate(_))).count();
    let last = LastFault {
        run: format!("seed {seed}"),
        ahead: 1 + random.below(quiet.events),
        core: 1 + duplicates,
        only_core: random.chance(50),
        // The others learn of each worker that comes or goes, and wait for a link to it.
        most: quiet.bound(CHANGES + workers),
        ..LastFault::default()
    };
    let scenario = Scenario { due, faults, last_fault: Some(last), ..Scenario::default() };
    log.note(|| format!("{}: {setting:?}, {conditions:?}, {scenario:?}", graph.name()));
    pool::run(graph, &setting, network, conditions, scenario, log).last_fault
}

#[test]
fn simulator_a_pool_is_done_soon_after_the_last_fault() {
    let mut tally = Tally::default();
    each_seed(2200, |seed, log| open_pool(seed, log).iter().for_each(|last| tally.add(last)));
    tally.check();
}

/// A user who repeats a call that failed: a task fails or a direct link breaks, and all workers
/// stay.
fn repeated(seed: u64, log: Log) -> LastFault {
    let models = models::all();
    let mut random = Random::new(seed);
    let graph = random.pick(&models);
    let setting = Setting::random(&mut random, graph);
    let (conditions, network) = (Conditions::random(&mut random), random.next());
    let play = |faults: Faults, last_fault: Option<LastFault>, log: Log| {
        let mut user = user(graph, &setting, network, conditions, faults, log);
        user.world.last_fault = last_fault;
        let errors = recover(&mut user, &mut Oracle::new(graph, &setting), STEPS);
        assert!(errors.len() <= 1, "one fault: {errors:?}");
        let spent = Spent { events: user.world.events, time: user.world.now() };
        (spent, user.world.last_fault.take())
    };
    let (quiet, _) = play(Faults::default(), None, Log::default());
    let faults = match random.chance(50) {
        true => Faults { fail_task: Some(1 + random.below(250)), ..Faults::default() },
        false => Faults { break_link: Some(random.below(300)), ..Faults::default() },
    };
    let last = LastFault {
        run: format!("seed {seed}"),
        ahead: 1 + random.below(quiet.events),
        most: quiet.bound(CHANGES),
        ..LastFault::default()
    };
    log.note(|| format!("{}: {setting:?}, {conditions:?}, {last:?}", graph.name()));
    play(faults, Some(last), log).1.expect("what was given")
}

#[test]
fn simulator_calls_are_done_soon_after_the_last_fault() {
    let mut tally = Tally::default();
    each_seed(2200, |seed, log| tally.add(&repeated(seed, log)));
    tally.check();
}

/// A run of three or two workers. No plan is for one.
fn of_two_or_more() -> MembershipRun {
    let way = |cuts: &[&str]| Setting::plain(cuts, ScheduleKind::OneFOneB, 2);
    let ways = vec![way(&["2", "4"]), way(&["4"])];
    MembershipRun::new(models::model("skip"), ways, (2, Some(1)), 3)
}

/// The failure of a run that must not be done after its last fault.
fn not_done(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("this run cannot be done");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("not done") && text.contains("after the last fault"), "{text}");
    text
}

#[test]
fn simulator_a_core_that_does_not_suffice_is_found() {
    let run = of_two_or_more();
    let quiet = run.quiet();
    let play = |core: usize| {
        let last = LastFault {
            run: format!("a core of {core}"),
            ahead: quiet.events / 3,
            core,
            only_core: true,
            most: quiet.bound(CHANGES),
            ..LastFault::default()
        };
        run.play_until(&[], last, Log::default())
    };
    assert_eq!(play(2).memberships, 1, "two workers go on");
    assert!(not_done(|| drop(play(1))).contains("a core of 1"));
    // In a pool the state of a stage is lost with its last worker.
    let graph = models::model("skip");
    let mut setting =
        Setting::plain(&["2"], ScheduleKind::OneFOneB, 4).with_replicas(&mut Random::new(1));
    (setting.replicas, setting.max_norm, setting.sharding) = (vec![2, 1], Some(500.0), None);
    let play = |core: usize| {
        let last = LastFault {
            run: format!("a core of {core} of each stage"),
            ahead: 100,
            core,
            only_core: true,
            most: Spent { events: u64::MAX, time: u64::MAX },
            ..LastFault::default()
        };
        let scenario = Scenario { last_fault: Some(last), ..Scenario::default() };
        pool::run(&graph, &setting, 5, Conditions::CALM, scenario, Log::default()).last_fault
    };
    assert!(play(1).is_some_and(|last| last.is_over()));
    assert!(not_done(|| drop(play(0))).contains("a core of 0 of each stage"));
}

#[test]
fn simulator_a_run_that_goes_on_too_long_is_found() {
    let run = of_two_or_more();
    let many_events = Spent { events: 50, time: u64::MAX };
    let long_time = Spent { events: u64::MAX, time: 1000 };
    for most in [many_events, long_time] {
        let run_name = format!("at most {most:?}");
        let last = LastFault { run: run_name, ahead: 10, core: 3, most, ..LastFault::default() };
        let text = not_done(|| drop(run.play_until(&[], last, Log::default())));
        assert!(text.contains("worker 2") && text.contains("the boss owes replies to"), "{text}");
    }
}
