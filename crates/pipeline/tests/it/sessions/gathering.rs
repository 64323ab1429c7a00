//! The actions that all-gather and release parameters in schedules with `shard: parameters`.

use pipeline::ids::{StageId, WorkerId};
use pipeline::replicas::{MicrobatchAssignment, Sharding, WorkerGroups};
use pipeline::schedule::{
    check, timeline, Action, Costs, Layout, Placement, Schedule, ScheduleError, StageBytes, Terms,
};
use pipeline::ScheduleKind::{self, GPipe, Interleaved, OneFOneB, Ready};

fn layout(kind: ScheduleKind, chunks: u16, replicas: &[u16]) -> Layout {
    let stage_placement =
        Placement::of(kind, Some(chunks)).stage_placement(&WorkerGroups::of(replicas));
    Layout { sharding: Some(Sharding::Parameters), ..Layout::chain(stage_placement) }
}

fn schedule(
    kind: ScheduleKind,
    chunks: u16,
    replicas: &[u16],
    microbatch_assignment: Option<MicrobatchAssignment>,
) -> Result<Schedule, ScheduleError> {
    Schedule::new(
        &layout(kind, chunks, replicas),
        &Terms { microbatch_assignment, ..Terms::new(kind, 4) },
    )
}

/// A worker's list in short: `P` shares, `G` gathers, `L` frees, `F` and `B` are passes, `A` sums
/// gradients. Each has its stage.
fn short(list: &[Action]) -> String {
    let letter = |action: &Action| match action {
        Action::Share { .. } => "P",
        Action::AllGather { .. } => "G",
        Action::Reshard { .. } => "L",
        Action::Forward { .. } => "F",
        Action::Backward { .. } => "B",
        Action::Reduce { .. } => "A",
        _ => "",
    };
    let words = list.iter().filter(|action| !letter(action).is_empty());
    words
        .map(|action| format!("{}{}", letter(action), action.stage().0))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_stage_is_gathered_for_all_microbatches_at_once_and_the_next_one_shared_meanwhile() {
    let schedule = schedule(GPipe, 3, &[2], None).expect("a schedule");
    check(&schedule).expect("a good one");
    let wanted =
        "P0 G0 P1 F0 F0 L0 G1 P2 F1 F1 L1 G2 P1 F2 F2 B2 B2 L2 G1 P0 B1 B1 A2 L1 G0 B0 B0 L0 A0 A1";
    assert_eq!(
        schedule.workers.iter().map(|list| short(list)).collect::<Vec<_>>(),
        [wanted, wanted]
    );
}

#[test]
fn a_worker_with_one_stage_gathers_it_once() {
    for kind in [GPipe, OneFOneB] {
        let schedule = schedule(kind, 1, &[2, 2], None).expect("a schedule");
        check(&schedule).expect("a good one");
        for (worker, list) in schedule.workers.iter().enumerate() {
            let (text, stage) = (short(list), worker % 2);
            assert!(text.starts_with(&format!("P{stage} G{stage} F{stage}")), "{text}");
            assert!(
                text.ends_with(&format!("B{stage} L{stage} A{stage}"))
                    && text.matches('G').count() == 1,
                "{text}"
            );
        }
    }
}

#[test]
fn a_replica_without_microbatches_gathers_as_the_others_do() {
    let stage_placement = layout(GPipe, 4, &[2]).stage_placement;
    let microbatch_assignment = MicrobatchAssignment::by_speed(&stage_placement, 1, |_, worker| {
        1 + u64::from(worker.0) * 100
    });
    let terms =
        Terms { microbatch_assignment: Some(microbatch_assignment), ..Terms::new(GPipe, 1) };
    let schedule = Schedule::new(&layout(GPipe, 4, &[2]), &terms).expect("a schedule");
    // It can be played, too: no worker waits for the replica that sums at the end.
    check(&schedule).expect("a good one");
    let without_passes = |list: &[Action]| {
        let text = short(list);
        let (sums, others): (Vec<_>, Vec<_>) = text
            .split(' ')
            .filter(|word| !word.starts_with(['F', 'B']))
            .partition(|word| word.starts_with('A'));
        assert_eq!(sums.len(), 4);
        others.join(" ")
    };
    assert!(!short(&schedule.workers[1]).contains(['F', 'B']));
    assert_eq!(without_passes(&schedule.workers[1]), without_passes(&schedule.workers[0]));
}

#[test]
fn replicas_that_would_wait_for_each_other_are_refused() {
    assert_eq!(schedule(Ready, 1, &[2], None), Err(ScheduleError::Unlisted(Ready)));
    // Three microbatches and one: the first replica comes back to its first stage earlier.
    let stage_placement = layout(Interleaved, 2, &[2, 2]).stage_placement;
    let microbatch_assignment =
        MicrobatchAssignment::by_speed(
            &stage_placement,
            4,
            |_, worker| if worker.0 < 2 { 1 } else { 3 },
        );
    let refused = schedule(Interleaved, 2, &[2, 2], Some(microbatch_assignment));
    assert!(matches!(refused, Err(ScheduleError::Visits(_))), "{refused:?}");
}

#[test]
fn a_schedule_that_does_not_gather_what_it_uses_is_refused() {
    let whole = schedule(GPipe, 2, &[2], None).expect("a schedule");
    for place in 0..whole.workers[1].len() {
        let mut broken = whole.clone();
        if !matches!(
            broken.workers[1].remove(place),
            Action::Share { .. } | Action::AllGather { .. } | Action::Reshard { .. }
        ) {
            continue;
        }
        assert_eq!(check(&broken), Err(ScheduleError::Gathering(WorkerId(1))));
    }
}

#[test]
fn memory_is_counted_for_two_stages_at_most() {
    let schedule = schedule(GPipe, 4, &[2], None).expect("a schedule");
    let played = timeline(&schedule, &Costs::unit(4)).expect("no deadlock");
    let bytes = [StageBytes { fixed: 10, gathered: 100, ..StageBytes::default() }; 4];
    assert_eq!(played.peak_bytes(&schedule.layout, &bytes), [240, 240]);
}

#[test]
fn what_is_done_by_hand_is_gathered_for_likewise() {
    let layout = layout(GPipe, 2, &[2]);
    let forward = |stage| Action::Forward { stage: StageId(stage), microbatch: 0 };
    let lists = layout.gathered(vec![vec![forward(0), forward(1)], Vec::new()]).expect("one order");
    assert_eq!(
        lists.iter().map(|list| short(list)).collect::<Vec<_>>(),
        ["P0 G0 P1 F0 L0 G1 F1 L1", "P0 G0 P1 L0 G1 L1"]
    );
    let nothing = vec![vec![Action::OptimStep { stage: StageId(0) }], Vec::new()];
    assert_eq!(layout.gathered(nothing.clone()), Ok(nothing));
}

/// Replicas of a stage gather its parameters, and free them. Worker 1 has another stage.
#[test]
fn whole_parameters_are_gathered_by_the_replicas_of_their_stage() {
    let layout = layout(GPipe, 1, &[2, 1]);
    let [gather, free] = layout.whole(StageId(0)).expect("a sharded stage");
    let stage = StageId(0);
    let gathers = vec![Action::Share { stage }, Action::AllGather { stage }];
    assert_eq!(gather, [gathers.clone(), Vec::new(), gathers]);
    let frees = vec![Action::Reshard { stage }];
    assert_eq!(free, [frees.clone(), Vec::new(), frees]);
    assert_eq!(layout.whole(StageId(1)), None, "its only replica has all");
}
