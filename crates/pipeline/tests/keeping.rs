//! Copies that a worker keeps: what it takes, what it refuses, and what it gives out again.

#![allow(clippy::expect_used, clippy::panic, reason = "everything here is part of a test")]

use layerspec::LayerGraph;
use pipeline::boss::{BossSession, Keeping, Request, Setup};
use pipeline::effect::{BossEffect, Destination, Frame, Micros, Peer, StageEffect};
use pipeline::frame::Route;
use pipeline::ids::{Slot, StageId, Ticket, WorkerId};
use pipeline::kept::{Give, Keep, PeerSnapshot, Recall, SnapshotId, SnapshotNote};
use pipeline::message::{Assignment, Command, Failure, Head, Mode, Reduction, Round};
use pipeline::replicas::{BucketBytes, MicrobatchAssignment, Sharding, WorkerGroups};
use pipeline::schedule::Order;
use pipeline::stage::StageSession;
use pipeline::task::{Outcome, Task};
use pipeline::watch::Watch;
use pipeline::{Cuts, Placement, Plan};
use std::collections::{BTreeMap, BTreeSet};

const NOW: Micros = Micros(0);
const ME: Peer = Peer::Worker(WorkerId(1));
const OTHER: Peer = Peer::Worker(WorkerId(0));

fn copy(step: u64) -> SnapshotId {
    SnapshotId { run: 5, step, membership: 1 }
}

fn note() -> SnapshotNote {
    SnapshotNote { parts: 3, text: "{}".into() }
}

/// Three layers in a row of so many stages with so many replicas each.
fn plan(columns: &[u16]) -> Plan {
    let linear = "  - Linear: {in_features: 4, out_features: 4}\n";
    let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{linear}{linear}{linear}");
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(columns), Placement::Plain).expect("a good cut")
}

/// The second of three workers in a row, which keeps these.
fn second_of_three(kept: Vec<PeerSnapshot>) -> StageSession {
    assigned(plan(&[1, 1, 1]), WorkerId(1), kept)
}

fn assigned(plan: Plan, worker: WorkerId, kept: Vec<PeerSnapshot>) -> StageSession {
    let (stages, stage_placement, buckets) = (plan.stages_of(worker), plan.stage_placement, BucketBytes::default());
    let assignment =
        Assignment { worker, stages, stage_placement, buckets, sharding: None, peers: Vec::new(), seed: 1 };
    let mut session = StageSession::with_kept(kept);
    let effects = tell(&mut session, 1, Command::Assign(Box::new(assignment)));
    session.on_done(NOW, ticket(&effects), Ok(Outcome::Done), (NOW, NOW));
    drain(&mut session);
    session
}

fn drain(session: &mut StageSession) -> Vec<StageEffect> {
    std::iter::from_fn(|| session.poll_effect()).collect()
}

fn tell(session: &mut StageSession, id: u64, body: Command) -> Vec<StageEffect> {
    hear(session, Peer::Boss, Head::Command { id, body }, &[])
}

fn hear(session: &mut StageSession, from: Peer, head: Head, slots: &[u64]) -> Vec<StageEffect> {
    let slots = slots.iter().map(|slot| Slot(*slot)).collect();
    session.on_frame(NOW, from, Frame { route: None, head, slots });
    drain(session)
}

fn ticket(effects: &[StageEffect]) -> Ticket {
    let found = effects.iter().find_map(|effect| match effect {
        StageEffect::Compute { ticket, .. } => Some(*ticket),
        _ => None,
    });
    found.expect("something to compute")
}

/// This worker's part is number 1, which worker 2 keeps, too; it keeps number 0 of worker 0.
fn keep(step: u64, last: Option<u64>) -> Command {
    let give = Give { part: 1, of: WorkerId(1), to: Some(WorkerId(2)) };
    let (give, take) = (Some(give), BTreeMap::from([(0, WorkerId(0))]));
    Command::Keep(Box::new(Keep { copy: copy(step), note: note(), last: last.map(copy), stage: None, give, take }))
}

fn keeping(id: u64, part: u32, name: &str, of: u32) -> Head {
    Head::Keeping { id, part, name: name.into(), of }
}

fn tensor(slot: u64) -> (String, Slot) {
    ("w".into(), Slot(slot))
}

fn refused(effects: &[StageEffect], by: Peer) -> bool {
    effects.iter().any(|effect| matches!(effect, StageEffect::Hangup { peer, .. } if *peer == by))
}

fn said(effects: &[StageEffect]) -> Vec<&Head> {
    let to = effects.iter().filter_map(|effect| match effect {
        StageEffect::Send { to, .. } => Some(to),
        _ => None,
    });
    to.flatten().filter(|to| to.peer == Peer::Boss && to.route.is_none()).map(|to| &to.head).collect()
}

#[test]
fn what_is_copied_here_goes_to_the_neighbour_and_to_this_worker_which_keeps_it() {
    let mut session = second_of_three(Vec::new());
    let effects = tell(&mut session, 2, keep(7, None));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(vec![copy(7)]));
    let copied = Ok(Outcome::State { tensors: vec![tensor(10)] });
    session.on_done(NOW, ticket(&effects), copied, (NOW, NOW));
    let effects = drain(&mut session);
    let head = keeping(2, 1, "w", 1);
    let myself = Destination { peer: ME, route: None, head: head.clone() };
    // Nothing says that this worker has a link to it.
    let route = Some(Route { from: WorkerId(1), to: WorkerId(2) });
    let neighbour = Destination { peer: Peer::Boss, route, head: head.clone() };
    assert_eq!(effects[0], StageEffect::Send { to: vec![myself, neighbour], slots: vec![Slot(10)] });
    assert!(matches!(said(&effects)[..], [Head::Done { id: 2, sent: 0, .. }]), "{effects:?}");
    let effects = hear(&mut session, ME, head, &[11]);
    let kept = StageEffect::StoreSnapshot { copy: copy(7), note: note(), part: 1, tensors: vec![tensor(11)] };
    assert_eq!(effects[0], kept);
    assert_eq!(said(&effects), [&Head::Kept { id: 2, part: 1 }]);
}

#[test]
fn a_replica_makes_the_copy_that_it_keeps_itself() {
    // Of both stages' replicas the second ones.
    let mut session = assigned(plan(&[2, 2]), WorkerId(3), Vec::new());
    let give = Some(Give { part: 1, of: WorkerId(1), to: None });
    let keep = Keep { copy: copy(7), note: note(), last: None, stage: None, give, take: BTreeMap::new() };
    let effects = tell(&mut session, 2, Command::Keep(Box::new(keep)));
    let task = Task::Snapshot { parameters: vec![StageId(1)], optimizer: vec![StageId(1)] };
    assert!(
        effects.iter().any(|e| matches!(e, StageEffect::Compute { task: made, .. } if *made == task)),
        "{effects:?}"
    );
    session.on_done(NOW, ticket(&effects), Ok(Outcome::State { tensors: vec![tensor(10)] }), (NOW, NOW));
    let effects = drain(&mut session);
    let (me, head) = (Peer::Worker(WorkerId(3)), keeping(2, 1, "w", 1));
    let to_itself = vec![Destination { peer: me, route: None, head: head.clone() }];
    assert_eq!(effects[0], StageEffect::Send { to: to_itself, slots: vec![Slot(10)] });
    let effects = hear(&mut session, me, head, &[11]);
    assert_eq!(said(&effects), [&Head::Kept { id: 2, part: 1 }]);
}

/// A boss of two stages with two replicas each that has workers keep copies.
fn keeping_boss(plan: Plan, neighbours: BTreeMap<WorkerId, WorkerId>) -> BossSession {
    let (buckets, addresses) = (BucketBytes::default(), Vec::new());
    let mut boss = BossSession::new(Setup { plan, seed: 1, buckets, addresses, most_waiting: 2 });
    boss.on_request(NOW, 1, Request::Distribute);
    all_done(&mut boss, 1);
    while boss.poll_effect().is_some() {}
    let keeping = Keeping { copy: copy(7), note: note(), last: None, stage: None, before: 0, neighbours };
    boss.on_request(NOW, 2, Request::Keep(Box::new(keeping)));
    boss
}

fn all_done(boss: &mut BossSession, id: u64) {
    for worker in 0..4 {
        let (losses, spans) = (Vec::new(), Vec::new());
        let head = Head::Done { id, losses, sent: 0, received: NOW, answered: NOW, spans };
        boss.on_frame(NOW, WorkerId(worker), Frame { route: None, head, slots: Vec::new() });
    }
}

/// What a worker makes, and what it takes.
type Asked = (Option<Give>, Vec<(u32, WorkerId)>);

fn asked(plan: Plan, neighbours: BTreeMap<WorkerId, WorkerId>) -> Vec<Asked> {
    let Some(BossEffect::Send { to, .. }) = keeping_boss(plan, neighbours).poll_effect() else {
        panic!("nothing is asked");
    };
    let keep = |to: Destination| match to.head {
        Head::Command { body: Command::Keep(keep), .. } => (keep.give, keep.take.into_iter().collect()),
        other => panic!("{other:?}"),
    };
    to.into_iter().map(keep).collect()
}

#[test]
fn nothing_is_sent_to_a_neighbour_that_has_the_same_state() {
    let [a, b, c, d] = [0, 1, 2, 3].map(WorkerId);
    let make = |part, of| (Some(Give { part, of, to: None }), Vec::new());
    let replicas = BTreeMap::from([(a, c), (b, d)]);
    assert_eq!(asked(plan(&[2, 2]), replicas.clone()), [make(0, a), make(1, b), make(0, a), make(1, b)]);
    // Another stage's state is something else, and so is a part of what the optimizer keeps.
    let give = |part, of, to| Some(Give { part, of, to: Some(to) });
    let others = BTreeMap::from([(a, d), (b, d)]);
    let expected = [(give(0, a, d), vec![]), make(1, b), (None, vec![]), (make(1, b).0, vec![(0, a)])];
    assert_eq!(asked(plan(&[2, 2]), others), expected);
    let sharded = Plan { sharding: Some(Sharding::Optimizer), ..plan(&[2, 2]) };
    let neighbours = BTreeMap::from([(a, c), (b, d), (c, a), (d, b)]);
    let expected = [(0, a, c), (1, b, d), (2, c, a), (3, d, b)];
    let expected = expected.map(|(part, me, other)| {
        let its = if part < 2 { part + 2 } else { part - 2 };
        (give(part, me, other), vec![(its, other)])
    });
    assert_eq!(asked(sharded, neighbours), expected);
}

/// What a replica makes itself does not depend on whose state it is.
#[test]
fn a_copy_is_whole_where_the_owner_of_a_part_is_lost_that_its_replica_still_makes() {
    let [a, b, c, d] = [0, 1, 2, 3].map(WorkerId);
    for (lost, late, is_whole) in [(a, c, true), (c, a, true), (a, a, false), (c, c, false)] {
        let mut boss = keeping_boss(plan(&[2, 2]), BTreeMap::from([(a, c), (b, d)]));
        all_done(&mut boss, 2);
        let mut kept = |worker: WorkerId| {
            let head = Head::Kept { id: 2, part: u32::from(worker.0 % 2) };
            boss.on_frame(NOW, worker, Frame { route: None, head, slots: Vec::new() });
        };
        [a, b, c, d].into_iter().filter(|worker| *worker != late).for_each(&mut kept);
        boss.on_lost(NOW, lost, "gone");
        if lost != late {
            let head = Head::Kept { id: 2, part: 0 };
            boss.on_frame(NOW, late, Frame { route: None, head, slots: Vec::new() });
        }
        let reply = std::iter::from_fn(|| boss.poll_effect()).find_map(|effect| match effect {
            BossEffect::Reply { request: 2, result } => Some(result),
            _ => None,
        });
        assert_eq!(reply.map(|result| result.is_ok()), Some(is_whole), "{lost} is lost, {late} is late");
    }
}

#[test]
fn a_boss_that_asks_for_a_copy_of_what_is_not_here_is_left() {
    for (of, stage) in [(0, None), (2, None), (3, Some(StageId(0)))] {
        let mut session = assigned(plan(&[2, 2]), WorkerId(3), Vec::new());
        let give = Some(Give { part: 0, of: WorkerId(of), to: None });
        let keep = Keep { copy: copy(7), note: note(), last: None, stage, give, take: BTreeMap::new() };
        let effects = tell(&mut session, 2, Command::Keep(Box::new(keep)));
        assert_eq!(refused(&effects, Peer::Boss), of != 3, "{effects:?}");
    }
}

#[test]
fn a_part_that_comes_before_its_command_is_kept_with_it() {
    let mut session = second_of_three(Vec::new());
    assert_eq!(hear(&mut session, OTHER, keeping(2, 0, "w", 2), &[10]), []);
    assert_eq!(hear(&mut session, OTHER, keeping(2, 0, "b", 2), &[11]), []);
    let effects = tell(&mut session, 2, keep(7, None));
    let tensors = vec![tensor(10), ("b".into(), Slot(11))];
    let kept = StageEffect::StoreSnapshot { copy: copy(7), note: note(), part: 0, tensors };
    assert!(effects.contains(&kept), "{effects:?}");
    assert_eq!(said(&effects), [&Head::Kept { id: 2, part: 0 }]);
    // A part of which there is nothing.
    let mut session = second_of_three(Vec::new());
    tell(&mut session, 2, keep(7, None));
    let effects = hear(&mut session, OTHER, keeping(2, 0, "", 0), &[]);
    assert!(
        matches!(&effects[0], StageEffect::StoreSnapshot { part: 0, tensors, .. } if tensors.is_empty()),
        "{effects:?}"
    );
}

#[test]
fn what_others_send_to_be_kept_is_what_the_boss_said() {
    for (from, part) in [(OTHER, 1), (Peer::Worker(WorkerId(2)), 0), (OTHER, 2), (Peer::Boss, 0)] {
        for early in [true, false] {
            let mut session = second_of_three(Vec::new());
            let mut effects = if early { Vec::new() } else { tell(&mut session, 2, keep(7, None)) };
            effects.extend(hear(&mut session, from, keeping(2, part, "w", 1), &[10]));
            if early {
                effects.extend(tell(&mut session, 2, keep(7, None)));
            }
            assert!(refused(&effects, from), "part {part} of {from}: {effects:?}");
            assert!(effects.contains(&StageEffect::Drop(vec![Slot(10)])), "{effects:?}");
        }
    }
    for more in [keeping(2, 0, "v", 1), keeping(2, 0, "v", 3)] {
        let mut session = second_of_three(Vec::new());
        hear(&mut session, OTHER, keeping(2, 0, "w", 2), &[10]);
        hear(&mut session, OTHER, keeping(2, 0, "x", 2), &[11]);
        assert!(refused(&hear(&mut session, OTHER, more, &[12]), OTHER));
    }
}

#[test]
fn what_belongs_to_a_copy_that_was_cancelled_or_is_over_is_let_go() {
    let mut session = second_of_three(Vec::new());
    let effects = tell(&mut session, 2, keep(7, None));
    session.on_done(NOW, ticket(&effects), Ok(Outcome::State { tensors: Vec::new() }), (NOW, NOW));
    hear(&mut session, OTHER, keeping(2, 0, "w", 2), &[10]);
    let abort = Head::Abort { id: 2, batch: None, gradients: false };
    drain(&mut session);
    let effects = hear(&mut session, Peer::Boss, abort, &[]);
    assert!(effects.contains(&StageEffect::Drop(vec![Slot(10)])), "{effects:?}");
    assert_eq!(said(&effects), [&Head::Aborted { id: 2, stepped: false }]);
    assert_eq!(hear(&mut session, OTHER, keeping(2, 0, "x", 2), &[11]), [StageEffect::Drop(vec![Slot(11)])]);
    // The next lets go of whatever came for the one before, and keeps what is whole.
    let effects = tell(&mut session, 4, keep(9, Some(5)));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(vec![copy(5), copy(9)]));
    assert_eq!(hear(&mut session, OTHER, keeping(3, 0, "w", 1), &[12]), [StageEffect::Drop(vec![Slot(12)])]);
}

#[test]
fn a_copy_that_fails_is_cleared_up_at_the_compute_thread() {
    let mut session = second_of_three(Vec::new());
    let effects = tell(&mut session, 2, keep(7, None));
    session.on_done(NOW, ticket(&effects), Err(Failure::new("out of memory")), (NOW, NOW));
    assert!(matches!(said(&drain(&mut session))[..], [Head::Failed { id: 2, .. }]));
    let effects = hear(&mut session, Peer::Boss, Head::Abort { id: 2, batch: None, gradients: false }, &[]);
    assert!(matches!(&effects[..], [StageEffect::Compute { task: Task::Discard { .. }, .. }]), "{effects:?}");
}

#[test]
fn a_part_that_comes_from_elsewhere_or_twice_costs_its_sender_alone() {
    let mut session = second_of_three(Vec::new());
    let stranger = Peer::Worker(WorkerId(2));
    assert_eq!(hear(&mut session, stranger, keeping(2, 0, "w", 1), &[10]), []);
    assert_eq!(hear(&mut session, OTHER, keeping(2, 0, "w", 1), &[11]), []);
    let effects = tell(&mut session, 2, keep(7, None));
    assert!(refused(&effects, stranger) && !refused(&effects, OTHER), "{effects:?}");
    assert_eq!(said(&effects), [&Head::Kept { id: 2, part: 0 }]);
    let effects = hear(&mut session, OTHER, keeping(2, 0, "w", 1), &[12]);
    assert!(refused(&effects, OTHER) && said(&effects).is_empty(), "{effects:?}");
    // What nobody has asked for yet is little.
    let mut session = second_of_three(Vec::new());
    let refusals = (0..1000).filter(|n| refused(&hear(&mut session, OTHER, keeping(2 + n, 0, "w", 0), &[]), OTHER));
    assert_eq!(refusals.count(), 1000 - 64);
    let refusals = (0..1000).filter(|n| refused(&hear(&mut session, OTHER, keeping(2, 1 + n, "w", 0), &[]), OTHER));
    assert_eq!(refusals.count(), 1000 - 64);
    assert_eq!(
        hear(&mut session, OTHER, keeping(1, 0, "w", 1), &[9]),
        [StageEffect::Drop(vec![Slot(9)])],
        "long answered"
    );
}

fn kept(run: u64, parts: &[(u32, &str)]) -> PeerSnapshot {
    let parts = parts.iter().map(|(part, name)| (*part, BTreeSet::from([name.to_string()])));
    PeerSnapshot { copy: SnapshotId { run, ..copy(7) }, note: note(), parts: parts.collect() }
}

#[test]
fn what_is_kept_is_told_and_given_out() {
    let mine = kept(5, &[(0, "0.weight"), (1, "1.weight")]);
    let mut session = second_of_three(vec![mine.clone(), kept(6, &[(0, "0.weight")])]);
    let effects = tell(&mut session, 2, Command::Copies { run: 5 });
    assert_eq!(said(&effects)[0], &Head::Copies { id: 2, copies: vec![mine] });

    let tensors = vec![(0, "0.weight".into(), StageId(0)), (1, "1.weight".into(), StageId(1))];
    let recall = Box::new(Recall { copy: copy(7), tensors });
    let effects =
        tell(&mut session, 3, Command::Restore { tensors: 2, keepers: vec![WorkerId(1), WorkerId(2)], recall });
    let weight = |name: &str, stage| Head::Weight { id: 3, name: name.into(), stage: StageId(stage) };
    let route = Some(Route { from: WorkerId(1), to: WorkerId(0) });
    let away = Destination { peer: Peer::Boss, route, head: weight("0.weight", 0) };
    let here = Destination { peer: ME, route: None, head: weight("1.weight", 1) };
    let given = |to: Destination, part, name: &str| StageEffect::SendSnapshot {
        to: vec![to],
        copy: copy(7),
        part,
        name: name.into(),
    };
    assert_eq!(effects, [given(away, 0, "0.weight"), given(here, 1, "1.weight")]);
    assert_eq!(hear(&mut session, ME, weight("1.weight", 1), &[10]), []);
    let effects = hear(&mut session, Peer::Worker(WorkerId(2)), weight("1.bias", 1), &[11]);
    assert!(
        matches!(&effects[..], [StageEffect::Compute { task: Task::Load { optimizer: true, .. }, .. }]),
        "{effects:?}"
    );
}

#[test]
fn what_is_not_kept_cannot_be_given_out() {
    for (step, part, name) in [(8, 0, "0.weight"), (7, 1, "0.weight"), (7, 0, "0.bias")] {
        let mut session = second_of_three(vec![kept(5, &[(0, "0.weight")])]);
        let tensors = vec![(part, name.to_string(), StageId(0))];
        let recall = Box::new(Recall { copy: copy(step), tensors });
        let effects = tell(&mut session, 2, Command::Restore { tensors: 0, keepers: Vec::new(), recall });
        let [Head::Failed { failure, .. }] = &said(&effects)[..] else { panic!("{effects:?}") };
        assert_eq!(failure.message, format!("`{name}` of step {step} is not kept here"));
    }
    // Weights that the boss sends come from nobody else.
    let weight = || Head::Weight { id: 2, name: "1.bias".into(), stage: StageId(1) };
    let load = Command::LoadState { tensors: 2, optimizer: false };
    let mut session = second_of_three(Vec::new());
    tell(&mut session, 2, load.clone());
    assert!(refused(&hear(&mut session, OTHER, weight(), &[10]), OTHER));
    let mut session = second_of_three(Vec::new());
    assert_eq!(hear(&mut session, OTHER, weight(), &[10]), []);
    assert!(refused(&tell(&mut session, 2, load), OTHER));
    // It costs only whoever sent it.
    assert_eq!(hear(&mut session, Peer::Boss, weight(), &[11]), []);
    let bias = Head::Weight { id: 2, name: "1.weight".into(), stage: StageId(1) };
    let effects = hear(&mut session, Peer::Boss, bias, &[12]);
    let [StageEffect::Compute { task: Task::Load { tensors, .. }, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(tensors.iter().map(|(_, slot)| slot.0).collect::<Vec<_>>(), [11, 12]);
    // Nor does a copy come from any but who keeps it.
    let mut session = second_of_three(Vec::new());
    let recall = Box::new(Recall { copy: copy(7), tensors: Vec::new() });
    tell(&mut session, 2, Command::Restore { tensors: 1, keepers: vec![WorkerId(2)], recall });
    assert!(refused(&hear(&mut session, OTHER, weight(), &[10]), OTHER));
}

#[test]
fn a_run_that_trains_lets_go_of_what_others_left() {
    let round = Round {
        batch: 1,
        step: 1,
        mode: Mode::Eval,
        cached: None,
        actions: Vec::new(),
        order: Order::Listed,
        microbatch_assignment: MicrobatchAssignment::default(),
        microbatches: 1,
        samples: None,
        reduction: Reduction::Sequential,
        loss: None,
        outputs: false,
        grads_from_boss: false,
        update: None,
        watch: Watch::default(),
    };
    let both = || vec![kept(5, &[(0, "w")]), kept(6, &[(0, "w")])];
    let mut session = second_of_three(both());
    let effects = tell(&mut session, 2, Command::Run(Box::new(round.clone())));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(Vec::new()));
    let mut session = second_of_three(both());
    tell(&mut session, 2, Command::Copies { run: 6 });
    let effects = tell(&mut session, 3, Command::Run(Box::new(round)));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(vec![SnapshotId { run: 6, ..copy(7) }]));
}
