//! Schedules: as pictures, compared with the textbook, and broken on purpose.

use pipeline::ids::{StageId, WorkerId};
use pipeline::message::Reduction;
use pipeline::replicas::{
    MicrobatchAssignment, MicrobatchOrder, Sharding, StagePlacement, WorkerGroups,
};
use pipeline::schedule::{
    check, check_memory, picture, timeline, Action, Costs, Deadlock, DeviceMemory, Ending, Layout,
    Link, Order, Picker, Placement, Process, Schedule, ScheduleError, StageBytes, StageTimes,
    Terms, Timeline,
};
use pipeline::ScheduleKind::{self, GPipe, Interleaved, OneFOneB, Ready, ZbH1, ZbV};
use testkit::assert_golden;

const KINDS: [ScheduleKind; 6] = [GPipe, OneFOneB, Interleaved, ZbH1, ZbV, Ready];

/// A chain of stages, placed as the kind requires; two for each worker if the kind allows any
/// number.
pub(super) fn layout(kind: ScheduleKind, workers: u16) -> Layout {
    Layout::chain(
        Placement::of(kind, None).stage_placement(&WorkerGroups::from(usize::from(workers))),
    )
}

pub(super) fn schedule(kind: ScheduleKind, workers: u16, microbatches: u32) -> Schedule {
    Schedule::new(&layout(kind, workers), &Terms::new(kind, microbatches))
        .expect("a placement that fits")
}

fn unit(schedule: &Schedule) -> Costs {
    Costs::unit(schedule.layout.stages())
}

pub(super) fn played(schedule: &Schedule, costs: &Costs) -> Timeline {
    timeline(schedule, costs).expect("no deadlock")
}

fn drawn(kind: ScheduleKind, workers: u16, microbatches: u32) -> String {
    let schedule = schedule(kind, workers, microbatches);
    picture(&played(&schedule, &unit(&schedule)))
}

fn forward(stage: u16, microbatch: u32) -> Action {
    Action::Forward { stage: StageId(stage), microbatch }
}

fn backward(stage: u16, microbatch: u32) -> Action {
    Action::Backward { stage: StageId(stage), microbatch }
}

#[test]
fn schedules_of_replicas_as_pictures() {
    let mut text = String::new();
    for (kind, replicas, microbatches) in [
        (GPipe, &[2][..], 4),
        (OneFOneB, &[2, 2], 8),
        (ZbH1, &[2, 2], 8),
        (ZbV, &[2, 2], 6),
        (Interleaved, &[2, 2], 8),
        (OneFOneB, &[1, 2], 8),
        (Ready, &[1, 2], 8),
        (ZbH1, &[3, 1], 6),
    ] {
        let layout =
            Layout::chain(Placement::of(kind, None).stage_placement(&WorkerGroups::of(replicas)));
        let schedule =
            Schedule::new(&layout, &Terms::new(kind, microbatches)).expect("a placement that fits");
        check(&schedule).expect("a schedule that ends");
        text += &format!("{kind}, replicas {replicas:?}, {microbatches} microbatches\n");
        text += &picture(&played(&schedule, &unit(&schedule)));
        text += "\n";
    }
    assert_golden!("replicas.txt", &text);
}

#[test]
fn a_slow_replica_takes_less_and_the_step_is_shorter() {
    let layout = Layout::chain(StagePlacement::new(vec![vec![WorkerId(0), WorkerId(1)]]));
    let costs = |slow: u64| {
        let mut costs = Costs::of_stages(vec![StageTimes {
            forward: 100,
            backward: 200,
            ..StageTimes::default()
        }]);
        let times =
            StageTimes { forward: 100 * slow, backward: 200 * slow, ..StageTimes::default() };
        costs.replicas.insert((StageId(0), WorkerId(1)), times);
        costs
    };
    let time = |microbatch_assignment: Option<MicrobatchAssignment>| {
        let terms = Terms { microbatch_assignment, ..Terms::new(GPipe, 12) };
        played(&Schedule::new(&layout, &terms).expect("it fits"), &costs(2)).step_time
    };
    let by_speed = MicrobatchAssignment::by_speed(&layout.stage_placement, 12, |_, worker| {
        1 + u64::from(worker.0)
    });
    assert_eq!((time(None), time(Some(by_speed))), (12 * 300, 8 * 300));
}

#[test]
fn replicas_reduce_along_the_tree_and_one_of_them_finds_the_norm() {
    let layout = Layout::chain(StagePlacement::new(vec![vec![WorkerId(0), WorkerId(1)]]));
    let terms = Terms { ending: Ending::ClippedStep, ..Terms::new(GPipe, 2) };
    let schedule = Schedule::new(&layout, &terms).expect("it fits");
    assert_eq!(schedule.reduction, Reduction::Tree);
    let stage = StageId(0);
    let (reduce, norm, step) =
        (Action::Reduce { stage }, Action::GradNorm { stage }, Action::OptimStep { stage });
    assert_eq!(schedule.workers[0], [forward(0, 0), backward(0, 0), reduce, norm, step]);
    assert_eq!(schedule.workers[1], [forward(0, 1), backward(0, 1), reduce, step]);
}

/// Replicas add up the gradients of their microbatches first, unless they shard them.
#[test]
fn sharded_gradients_cross_the_link_with_each_microbatch() {
    let replicas = StagePlacement::new(vec![vec![WorkerId(0), WorkerId(1)]]);
    let mut costs = Costs::unit(1);
    costs.link = Link { latency: 0, per_byte: 1.0 };
    // Each sends the half that the other one sums.
    costs.reduced_bytes.insert(StageId(0), 2000);
    let end = |sharding| {
        let layout = Layout { sharding, ..Layout::chain(replicas.clone()) };
        let schedule = Schedule::new(&layout, &Terms::new(GPipe, 4)).expect("it fits");
        played(&schedule, &costs).end()
    };
    // Each takes two microbatches in 6, and the update takes 1.
    assert_eq!(end(None), 1007);
    assert_eq!(end(Some(Sharding::Optimizer)), 1007);
    // The first leaves after 4.
    assert_eq!(end(Some(Sharding::Gradients)), 2005);
}

#[test]
fn schedules_as_pictures() {
    let mut text = String::new();
    for kind in KINDS {
        for (workers, microbatches) in [(1, 1), (2, 4), (3, 5), (4, 8), (4, 2)] {
            text += &format!("{kind}, {workers} workers, {microbatches} microbatches\n");
            text += &drawn(kind, workers, microbatches);
            text += "\n";
        }
    }
    assert_golden!("schedules.txt", &text);
}

#[test]
fn the_pictures_in_the_documentation_are_what_is_printed() {
    let sources = [
        (GPipe, include_str!("../../../src/schedule/gpipe.rs")),
        (OneFOneB, include_str!("../../../src/schedule/one_f_one_b.rs")),
        (Interleaved, include_str!("../../../src/schedule/interleaved.rs")),
        (ZbH1, include_str!("../../../src/schedule/zb_h1.rs")),
        (ZbV, include_str!("../../../src/schedule/zb_v.rs")),
        (Ready, include_str!("../../../src/schedule/ready.rs")),
    ];
    for (kind, source) in sources {
        let lines = source.lines().map(|line| line.trim_start_matches("//!").trim_start());
        let shown =
            lines.skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```");
        let shown: String = shown.map(|line| format!("{line}\n")).collect();
        let drawn = drawn(kind, 2, 4);
        assert_eq!(shown, drawn, "the picture of {kind} is\n{drawn}");
    }
}

#[test]
fn several_stages_on_a_worker_are_told_apart_in_a_picture() {
    let layout = Layout::chain(StagePlacement::single([0, 1, 0].map(WorkerId)));
    let schedule = Schedule::new(&layout, &Terms::new(GPipe, 2)).expect("it takes any placement");
    check(&schedule).expect("a good schedule");
    assert_golden!("several-stages.txt", &picture(&played(&schedule, &unit(&schedule))));
}

/// Every kind for up to 6 workers and 17 microbatches. Kinds that allow any number of stages for
/// each worker have several.
pub(super) fn all() -> impl Iterator<Item = Schedule> {
    let chunks = |kind| match kind {
        Interleaved => 2..=4,
        GPipe => 1..=2,
        _ => 1..=1,
    };
    let placements = KINDS
        .into_iter()
        .flat_map(move |kind| chunks(kind).map(move |n| (kind, Placement::of(kind, Some(n)))));
    let sizes =
        (1..=6).flat_map(|workers| (1..=17).map(move |microbatches| (workers, microbatches)));
    placements.flat_map(move |(kind, placement)| {
        sizes.clone().map(move |(workers, microbatches)| {
            let layout = Layout::chain(placement.stage_placement(&WorkerGroups::from(workers)));
            Schedule::new(&layout, &Terms::new(kind, microbatches)).expect("a placement that fits")
        })
    })
}

pub(super) fn name(schedule: &Schedule) -> String {
    let layout = &schedule.layout;
    let (stages, workers) = (layout.stages(), layout.workers());
    format!(
        "{}, {stages} stages, {workers} workers, {} microbatches",
        schedule.kind, schedule.microbatches
    )
}

#[test]
fn every_schedule_is_whole_and_ends() {
    for mut schedule in all() {
        check(&schedule).unwrap_or_else(|error| panic!("{}: {error}", name(&schedule)));
        // Every stage sends to every later one.
        let stages = schedule.layout.stages() as u16;
        let every =
            (0..stages).flat_map(|a| (a + 1..stages).map(move |b| (StageId(a), StageId(b))));
        schedule.layout.edges = every.clone().collect();
        schedule.layout.back = every.collect();
        check(&schedule).unwrap_or_else(|error| panic!("{} with skips: {error}", name(&schedule)));
    }
}

#[test]
fn every_schedule_is_right_for_frozen_and_tied_stages() {
    for kind in KINDS {
        for workers in 1..=4 {
            let mut layout = layout(kind, workers);
            let stages = layout.stages() as u16;
            for (stage, trained) in layout.trained.iter_mut().enumerate() {
                *trained = stage % 2 == 1;
            }
            // The first of two neighbours owns parameters of the second, and the first stage owns
            // some of the last.
            layout.ties = (1..stages)
                .map(|s| (StageId(s - 1), StageId(s)))
                .chain([(StageId(0), StageId(stages - 1))])
                .collect();
            layout.ties.retain(|(owner, user)| owner != user);
            layout.ties.sort();
            layout.ties.dedup();
            for ending in [Ending::Gather, Ending::Step, Ending::ClippedStep] {
                let schedule = Schedule::new(&layout, &Terms { ending, ..Terms::new(kind, 5) })
                    .expect("a good placement");
                check(&schedule).unwrap_or_else(|error| panic!("{}: {error}", name(&schedule)));
                let halves = |a: &&Action| {
                    matches!(
                        a,
                        Action::BackwardWeight { stage, .. } if stage.0 % 2 == 0
                    )
                };
                assert_eq!(
                    schedule.workers.iter().flatten().find(halves),
                    None,
                    "a half for nothing"
                );
            }
        }
    }
}

#[test]
fn memory_is_that_of_the_papers() {
    for schedule in all() {
        let played = played(&schedule, &unit(&schedule));
        let layout = &schedule.layout;
        let (workers, microbatches) = (layout.workers(), schedule.microbatches as usize);
        let of = |stage: StageId| played.peak_held(stage);
        let stages = || (0..layout.stages() as u16).map(StageId);
        match schedule.kind {
            GPipe => stages().for_each(|s| assert_eq!(of(s), microbatches)),
            OneFOneB => {
                stages().for_each(|s| assert_eq!(of(s), microbatches.min(workers - s.0 as usize)))
            }
            ZbH1 => stages().for_each(|s| assert!(of(s) <= workers, "{}", name(&schedule))),
            // Each stage has half a worker's layers, so the bytes equal those of 1F1B.
            ZbV => (0..workers as u16).for_each(|w| {
                let bytes = vec![
                    StageBytes { held: 1, held_between: 1, ..StageBytes::default() };
                    layout.stages()
                ];
                let peak = played.peak_bytes(layout, &bytes)[w as usize];
                assert!(peak <= 2 * workers as u64, "{}: {peak}", name(&schedule));
            }),
            Interleaved => (0..workers as u16).for_each(|w| {
                let bytes = vec![
                    StageBytes { held: 1, held_between: 1, ..StageBytes::default() };
                    layout.stages()
                ];
                let held = played.peak_bytes(layout, &bytes)[w as usize] as usize;
                let chunks = layout.stages() / workers;
                let most = |w: u16| 2 * (workers - 1 - w as usize) + (chunks - 1) * workers + 1;
                assert!(held <= most(0), "{}: {held}", name(&schedule));
                assert!(
                    microbatches % workers > 0 || held <= most(w),
                    "{}: {held}",
                    name(&schedule)
                );
            }),
            Ready => stages().for_each(|s| {
                let Order::Ready { held, .. } = &schedule.order else { panic!("an order") };
                assert!(of(s) <= held[s.0 as usize] as usize, "{}", name(&schedule));
            }),
        }
    }
}

/// ZB-H1 delays half of each backward pass at the last worker, which begins it at once.
#[test]
fn a_split_backward_pass_lets_memory_go_twice() {
    let schedule = schedule(ZbH1, 4, 8);
    let played = played(&schedule, &unit(&schedule));
    let peak = |held_between| {
        let stages = [StageBytes { held: 10, held_between, ..StageBytes::default() }; 4];
        played.peak_bytes(&schedule.layout, &stages)[3]
    };
    let most = played.peak_held(StageId(3)) as u64;
    assert!(most > 1, "{most}");
    assert_eq!((peak(0), peak(10)), (10, 10 * most));
    // Halfway it holds 4 of each but the one that goes forward.
    assert_eq!(peak(4), 10 + 4 * (most - 1));
}

#[test]
fn a_hop_delays_what_crosses_it() {
    let mut costs = Costs::unit(2);
    let schedule = schedule(GPipe, 2, 1);
    assert_eq!(played(&schedule, &costs).end(), 7);
    costs.link.latency = 5;
    assert_eq!(played(&schedule, &costs).end(), 17, "once forward, once backward");
    // 4 bytes, each of which takes 2.
    costs.link.per_byte = 2.0;
    costs.bytes.insert((StageId(0), StageId(1)), 4);
    assert_eq!(played(&schedule, &costs).end(), 33);
    // The way back is faster.
    costs.links.insert((WorkerId(1), WorkerId(0)), Link::default());
    assert_eq!(played(&schedule, &costs).end(), 20);
    costs.per_action = 10;
    costs.boss_link.latency = 100;
    let called = played(&schedule, &costs);
    assert_eq!(
        (called.begin(), called.end(), called.step_time),
        (100, 170, 270),
        "5 actions in a row; a call and an answer"
    );
    let begun = called.from_begin();
    assert_eq!((begun.begin(), begun.end()), (0, 70));
}

#[test]
fn the_batch_shares_the_line_with_the_activations() {
    let mut costs = Costs::unit(2);
    costs.link = Link { latency: 0, per_byte: 1.0 };
    costs.boss_links.insert(WorkerId(1), costs.link);
    costs.bytes.insert((StageId(0), StageId(1)), 10);
    costs.from_boss.insert(StageId(1), 10);
    let schedule = schedule(GPipe, 2, 3);
    let starts = |costs: &Costs| {
        played(&schedule, costs).workers[1].iter().take(3).map(|i| i.start).collect::<Vec<_>>()
    };
    assert_eq!(starts(&costs), [11, 21, 31], "targets have a line of their own");
    // A target is on the line when the first activation is ready; then they take turns.
    costs.machines =
        [(Process::Boss, 0), (Process::Worker(WorkerId(0)), 0), (Process::Worker(WorkerId(1)), 1)]
            .into();
    assert_eq!(starts(&costs), [20, 40, 60]);
}

#[test]
fn a_link_carries_one_tensor_at_a_time() {
    let mut costs = Costs::unit(2);
    costs.link = Link { latency: 0, per_byte: 1.0 };
    costs.bytes.insert((StageId(0), StageId(1)), 10);
    let schedule = schedule(GPipe, 2, 3);
    let starts =
        played(&schedule, &costs).workers[1].iter().take(3).map(|i| i.start).collect::<Vec<_>>();
    assert_eq!(starts, [11, 21, 31]);
}

#[test]
fn ready_keeps_more_in_flight_where_hops_are_slow() {
    let schedule = |latency: u64| {
        let mut costs = Costs::unit(4);
        costs.link.latency = latency;
        let terms = Terms { costs: Some(costs.clone()), ..Terms::new(Ready, 16) };
        let schedule = Schedule::new(&layout(Ready, 4), &terms).expect("a placement that fits");
        (schedule, costs)
    };
    let caps = |latency: u64| match schedule(latency).0.order {
        Order::Ready { in_flight, held } => (in_flight, held),
        Order::Listed => panic!("an order"),
    };
    assert_eq!(caps(0), (vec![4, 3, 2, 1], vec![4; 4]), "as 1F1B");
    assert_eq!(caps(3), (vec![10, 7, 4, 1], vec![10; 4]));
    // A fixed order waits for every hop.
    let (ready, costs) = schedule(1);
    let ready = played(&ready, &costs).end();
    let fixed = played(&self::schedule(OneFOneB, 4, 16), &costs).end();
    assert!(ready * 5 < fixed * 4, "{ready} and {fixed}");
}

#[test]
fn a_long_pipeline_is_predicted_at_once() {
    for kind in [OneFOneB, ZbH1, Ready] {
        let schedule = schedule(kind, 16, 64);
        let started = std::time::Instant::now();
        played(&schedule, &unit(&schedule));
        let took = started.elapsed();
        // It takes about 3 ms; a busy machine may take longer.
        assert!(took.as_millis() < 250, "{kind}: {took:?} for 16 stages and 64 microbatches");
    }
}

#[test]
fn a_kind_wants_its_placement() {
    let layout = layout(Interleaved, 3);
    let error =
        Schedule::new(&layout, &Terms::new(ZbV, 4)).expect_err("stages in turns").to_string();
    let expected = "schedule zb-v wants two stages a worker, down and up again; the plan has 6 \
                    stages on 3 workers, placed otherwise: choose another schedule, or cut the \
                    model for this one";
    assert_eq!(error, expected);
    for (kind, fits) in KINDS.into_iter().zip([true, false, true, false, false, true]) {
        assert_eq!(Schedule::new(&layout, &Terms::new(kind, 4)).is_ok(), fits, "{kind}");
    }
}

#[test]
fn a_schedule_that_outgrows_its_memory_is_refused() {
    let schedule = schedule(GPipe, 2, 8);
    let played = played(&schedule, &unit(&schedule));
    let mib = |n: u64| n << 20;
    let stages = [StageBytes { fixed: mib(10), held: mib(5), ..StageBytes::default() }; 2];
    assert_eq!(played.peak_bytes(&schedule.layout, &stages), [mib(50), mib(50)]);
    let check = |workers: &[u16], bytes: u64| {
        let workers = workers.iter().map(|worker| WorkerId(*worker)).collect();
        let device = DeviceMemory { workers, bytes };
        check_memory(&played, &schedule.layout, &stages, &[device])
    };
    assert_eq!(check(&[1], mib(50)), Ok(()));
    assert_eq!(check(&[0, 1], mib(100)), Ok(()));
    let error = check(&[0, 1], mib(99)).expect_err("too little").to_string();
    let expected = "worker 0, worker 1 together need 100 MiB of memory, and their device has 99 \
                    MiB; take more microbatches, a schedule that holds fewer of them, or more \
                    workers";
    assert_eq!(error, expected);
    let error = check(&[1], mib(49)).expect_err("too little").to_string();
    let expected = "worker 1 needs 50 MiB of memory and has 49 MiB; take more microbatches, a \
                    schedule that holds fewer of them, or more workers";
    assert_eq!(error, expected);
}

#[test]
fn a_broken_schedule_is_refused() {
    let refused = |break_it: &dyn Fn(&mut Schedule)| {
        let mut schedule = schedule(OneFOneB, 3, 4);
        break_it(&mut schedule);
        check(&schedule).expect_err("a broken schedule")
    };
    let errors = [
        refused(&|s| s.workers[1].swap(4, 6)), // backward 1 and 2
        refused(&|s| s.workers[1].push(forward(1, 2))),
        refused(&|s| s.workers[1].retain(|a| *a != backward(1, 2))),
        refused(&|s| s.workers[2].retain(|a| *a != Action::OptimStep { stage: StageId(2) })),
        refused(&|s| {
            let moved = s.workers[1].remove(0);
            s.workers[2].insert(0, moved);
        }),
        refused(&|s| s.workers[0].push(forward(0, 4))), // one more than the batch has
        refused(&|s| s.workers[0].push(forward(7, 0))), // no such stage
        refused(&|s| s.workers[0].push(Action::OptimStep { stage: StageId(0) })),
        refused(&|s| s.workers[2].insert(0, Action::OptimStep { stage: StageId(2) })),
    ];
    use ScheduleError::{Misplaced, Missing, Order};
    let step = |stage| Action::OptimStep { stage: StageId(stage) };
    let expected = [
        Order(StageId(1)),
        Misplaced(forward(1, 2)),
        Missing(backward(1, 2)),
        Missing(step(2)),
        Misplaced(forward(1, 0)),
        Misplaced(forward(0, 4)),
        Misplaced(forward(7, 0)),
        Misplaced(step(0)),
        Misplaced(step(2)),
    ];
    assert_eq!(errors, expected);
}

#[test]
fn a_schedule_that_waits_for_ever_is_refused() {
    // Stage 0 waits for a gradient before it has sent the activation that it depends on.
    let mut backward_first = schedule(OneFOneB, 3, 4);
    backward_first.workers[0].swap(0, 3);
    // Stage 0 takes backward 0 before forward 1, stage 1 takes forward 1 before forward 0.
    let mut crossed = schedule(GPipe, 2, 2);
    crossed.workers[0].swap(1, 2);
    crossed.workers[1].swap(0, 1);
    // Parameters updated before the last backward pass.
    let mut early = schedule(GPipe, 1, 2);
    early.workers[0].swap(3, 4);

    let stuck = |schedule: &Schedule| match check(schedule) {
        Err(ScheduleError::Deadlock(Deadlock { stuck })) => stuck,
        other => panic!("expected a deadlock, got {other:?}"),
    };
    assert_eq!(
        stuck(&backward_first),
        [(WorkerId(0), backward(0, 0)), (WorkerId(1), forward(1, 0)), (WorkerId(2), forward(2, 0))]
    );
    assert_eq!(stuck(&crossed), [(WorkerId(0), backward(0, 0)), (WorkerId(1), forward(1, 1))]);
    assert_eq!(stuck(&early), [(WorkerId(0), Action::OptimStep { stage: StageId(0) })]);

    let error = check(&crossed).expect_err("a deadlock").to_string();
    let expected = "the schedule cannot end: workers wait for each other: worker 0 for the \
                    backward of stage 0, microbatch 0; worker 1 for the forward of stage 1, \
                    microbatch 1;";
    assert_eq!(error, expected);
}

#[test]
fn names_in_run_files() {
    for (name, kind) in ScheduleKind::NAMES {
        assert_eq!(name.to_uppercase().parse(), Ok(kind));
        assert_eq!(kind.to_string(), name);
    }
    let error = "zero-bubble".parse::<ScheduleKind>();
    assert_eq!(
        error,
        Err("unknown schedule `zero-bubble`; expected one of gpipe, 1f1b, interleaved, zb-h1, \
             zb-v, ready"
            .to_string())
    );
}

/// No stage waits for the gradients, so the forward pass comes first as soon as its input is there.
#[test]
fn no_action_is_given_early_that_another_may_still_precede() {
    let backward = |microbatch| Action::Backward { stage: StageId(0), microbatch };
    let actions = [forward(0, 0), forward(0, 1), backward(0), backward(1)];
    let order = Order::Ready { in_flight: vec![2], held: vec![2] };
    let mut picker = Picker::new(&actions, &order, &MicrobatchOrder::default(), |_| false);
    let is_backward = |action: &Action| matches!(action, Action::Backward { .. });
    picker.start(&forward(0, 0));
    assert_eq!(picker.pick(is_backward), Some(backward(0)));
    assert_eq!(picker.pick_early(is_backward), None);
    assert_eq!(picker.pick(|_| true), Some(forward(0, 1)));
    picker.start(&forward(0, 1));
    assert_eq!(picker.pick_early(is_backward), Some(backward(0)));
}
