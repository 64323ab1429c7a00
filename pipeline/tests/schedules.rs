//! Schedules: as pictures, against the textbook, and broken on purpose.

#![allow(clippy::expect_used, clippy::panic, reason = "everything here is part of a test")]

#[path = "support/golden.rs"]
mod golden;

use golden::assert_golden;
use pipeline::ids::{StageId, WorkerId};
use pipeline::schedule::{check, picture, timeline, Action, Costs, Deadlock, Schedule, ScheduleError};
use pipeline::ScheduleKind::{self, GPipe, OneFOneB};

fn schedule(kind: ScheduleKind, stages: u16, microbatches: u32) -> Schedule {
    let homes: Vec<WorkerId> = (0..stages).map(WorkerId).collect();
    Schedule::new(kind, &homes, microbatches)
}

/// A chain: every stage gives to the next.
fn chain(stages: u16) -> Vec<(StageId, StageId)> {
    (1..stages).map(|user| (StageId(user - 1), StageId(user))).collect()
}

fn drawn(kind: ScheduleKind, stages: u16, microbatches: u32) -> String {
    let schedule = schedule(kind, stages, microbatches);
    let timeline = timeline(&schedule, &chain(stages), &Costs::unit(stages.into())).expect("no deadlock");
    picture(&timeline)
}

fn forward(stage: u16, microbatch: u32) -> Action {
    Action::Forward { stage: StageId(stage), microbatch }
}

fn backward(stage: u16, microbatch: u32) -> Action {
    Action::Backward { stage: StageId(stage), microbatch }
}

#[test]
fn schedules_as_pictures() {
    let mut text = String::new();
    for kind in [GPipe, OneFOneB] {
        for (stages, microbatches) in [(1, 1), (2, 4), (3, 5), (4, 8), (4, 2)] {
            text += &format!("{kind}, {stages} stages, {microbatches} microbatches\n");
            text += &drawn(kind, stages, microbatches);
            text += "\n";
        }
    }
    assert_golden("schedules.txt", &text);
}

#[test]
fn the_pictures_in_the_documentation_are_what_is_printed() {
    let sources =
        [(GPipe, include_str!("../src/schedule/gpipe.rs")), (OneFOneB, include_str!("../src/schedule/one_f_one_b.rs"))];
    for (kind, source) in sources {
        let lines = source.lines().map(|line| line.trim_start_matches("//!").trim_start());
        let shown = lines.skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```");
        let shown: String = shown.map(|line| format!("{line}\n")).collect();
        assert_eq!(shown, drawn(kind, 2, 4), "the picture of {kind}");
    }
}

#[test]
fn several_stages_on_a_worker_are_told_apart_in_a_picture() {
    let homes = [WorkerId(0), WorkerId(1), WorkerId(0)];
    let mut schedule = Schedule::new(GPipe, &homes, 2);
    // All forward, then all backward from the last stage, so that no stage waits for ever.
    schedule.workers[0].sort_by_key(|action| match *action {
        Action::Forward { stage, .. } => (0, i32::from(stage.0)),
        Action::Backward { stage, .. } => (1, -i32::from(stage.0)),
        Action::OptimStep { .. } => (2, 0),
    });
    assert_eq!(check(&schedule, &chain(3)), Ok(()));
    let text = picture(&timeline(&schedule, &chain(3), &Costs::unit(3)).expect("no deadlock"));
    assert_golden("several-stages.txt", &text);
}

#[test]
fn every_schedule_is_whole_and_ends() {
    for (kind, stages, microbatches) in all() {
        let schedule = schedule(kind, stages, microbatches);
        assert_eq!(check(&schedule, &chain(stages)), Ok(()), "{kind}, {stages} stages, {microbatches} microbatches");
        // Every stage gives to every later one.
        let every = (0..stages).flat_map(|a| (a + 1..stages).map(move |b| (StageId(a), StageId(b))));
        assert_eq!(check(&schedule, &every.collect::<Vec<_>>()), Ok(()));
    }
}

#[test]
fn one_f_one_b_holds_no_more_microbatches_than_stages_are_left() {
    for (kind, stages, microbatches) in all() {
        let schedule = schedule(kind, stages, microbatches);
        for stage in 0..stages {
            let most = match kind {
                GPipe => microbatches as usize,
                OneFOneB => (microbatches as usize).min((stages - stage).into()),
            };
            assert_eq!(schedule.peak_in_flight(StageId(stage)), most, "{kind}, stage {stage} of {stages}");
        }
    }
}

#[test]
fn the_bubble_is_the_textbooks() {
    let costs = |stages: u16| Costs { optim_step: vec![0; stages.into()], ..Costs::unit(stages.into()) };
    for (kind, stages, microbatches) in all() {
        let timeline = timeline(&schedule(kind, stages, microbatches), &chain(stages), &costs(stages));
        let (forward, backward) = (1, 2);
        let work = u64::from(microbatches) * (forward + backward);
        let bubble = u64::from(stages - 1) * (forward + backward);
        assert_eq!(
            timeline.map(|t| t.end()),
            Ok(work + bubble),
            "{kind}, {stages} stages, {microbatches} microbatches"
        );
    }
}

#[test]
fn a_hop_delays_what_crosses_it() {
    let hop = |hop| Costs { hop, ..Costs::unit(2) };
    let end = |costs: &Costs| timeline(&schedule(GPipe, 2, 1), &chain(2), costs).map(|t| t.end());
    assert_eq!(end(&hop(0)), Ok(7));
    assert_eq!(end(&hop(5)), Ok(17), "once forward, once backward");
}

#[test]
fn a_broken_schedule_is_refused() {
    let refused = |break_it: &dyn Fn(&mut Schedule)| {
        let mut schedule = schedule(OneFOneB, 3, 4);
        break_it(&mut schedule);
        check(&schedule, &chain(3)).expect_err("a broken schedule")
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
    // Stage 0 wants a gradient before it has sent what that gradient comes from.
    let mut backward_first = schedule(OneFOneB, 3, 4);
    backward_first.workers[0].swap(0, 3);
    // Stage 0 takes backward 0 before forward 1, stage 1 takes forward 1 before forward 0.
    let mut crossed = schedule(GPipe, 2, 2);
    crossed.workers[0].swap(1, 2);
    crossed.workers[1].swap(0, 1);
    // Parameters updated before the last backward pass.
    let mut early = schedule(GPipe, 1, 2);
    early.workers[0].swap(3, 4);

    let stuck = |schedule: &Schedule| match check(schedule, &chain(schedule.homes.len() as u16)) {
        Err(ScheduleError::Deadlock(Deadlock { stuck })) => stuck,
        other => panic!("expected a deadlock, got {other:?}"),
    };
    assert_eq!(
        stuck(&backward_first),
        [(WorkerId(0), backward(0, 0)), (WorkerId(1), forward(1, 0)), (WorkerId(2), forward(2, 0))]
    );
    assert_eq!(stuck(&crossed), [(WorkerId(0), backward(0, 0)), (WorkerId(1), forward(1, 1))]);
    assert_eq!(stuck(&early), [(WorkerId(0), Action::OptimStep { stage: StageId(0) })]);

    let error = check(&crossed, &chain(2)).expect_err("a deadlock").to_string();
    let expected = "the schedule cannot end: workers wait for each other: worker 0 for the backward of stage 0, \
                    microbatch 0; worker 1 for the forward of stage 1, microbatch 1;";
    assert_eq!(error, expected);
}

#[test]
fn names_in_run_files() {
    for (name, kind) in ScheduleKind::NAMES {
        assert_eq!(name.to_uppercase().parse(), Ok(kind));
        assert_eq!(kind.to_string(), name);
    }
    let error = "zero-bubble".parse::<ScheduleKind>();
    assert_eq!(error, Err("unknown schedule `zero-bubble`; expected one of gpipe, 1f1b".to_string()));
}

fn all() -> impl Iterator<Item = (ScheduleKind, u16, u32)> {
    let stages = |kind| (1..=6).flat_map(move |stages| (1..=12).map(move |microbatches| (kind, stages, microbatches)));
    [GPipe, OneFOneB].into_iter().flat_map(stages)
}
