//! Peer snapshots at a worker: the parts that it stores, refuses, and sends again.

use layerspec::LayerGraph;
use pipeline::boss::{BossSession, Instruction, IntoRequest, Setup, SnapshotRequest};
use pipeline::effect::{BossEffect, Destination, Frame, Message, Micros, Peer, StageEffect};
use pipeline::frame::Route;
use pipeline::ids::{Slot, StageId, Ticket, WorkerId};
use pipeline::message::{
    Assignment, Command, Failure, Mode, Reduction, Round, TensorHead, ToBoss, ToWorker,
};
use pipeline::peer_snapshot::{
    PartToMake, PeerSnapshot, SendSnapshot, SnapshotId, SnapshotNote, StoreSnapshot,
};
use pipeline::replicas::{BucketBytes, MicrobatchAssignment, Sharding, WorkerGroups};
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::Order;
use pipeline::stage::StageSession;
use pipeline::task::{LoadContent, Outcome, Task};
use pipeline::watch::Watch;
use pipeline::StateForm;
use pipeline::{Cuts, Determinism, Initialization, Placement, Plan};
use std::collections::{BTreeMap, BTreeSet};

const NOW: Micros = Micros(0);
const ME: Peer = Peer::Worker(WorkerId(1));
const OTHER: Peer = Peer::Worker(WorkerId(0));

fn snapshot_id(step: u64) -> SnapshotId {
    SnapshotId { run: 5, step, membership: 1 }
}

fn note() -> SnapshotNote {
    SnapshotNote { parts: 3, text: "{}".into() }
}

/// A plan of three layers in a row; each number is the replicas of one stage.
fn plan(columns: &[u16]) -> Plan {
    let linear = "  - Linear: {in_features: 4, out_features: 4}\n";
    let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{linear}{linear}{linear}");
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(columns), Placement::Plain).expect("a good cut")
}

/// The second of three workers in a row, which stores these snapshots.
fn second_of_three(kept: Vec<PeerSnapshot>) -> StageSession {
    assigned(plan(&[1, 1, 1]), WorkerId(1), kept)
}

fn assigned(plan: Plan, worker: WorkerId, kept: Vec<PeerSnapshot>) -> StageSession {
    let (stages, stage_placement, buckets) =
        (plan.stages_of(worker), plan.stage_placement, BucketBytes::default());
    let assignment = Assignment {
        worker,
        stages,
        stage_placement,
        buckets,
        sharding: None,
        peers: Vec::new(),
        seed: 1,
        determinism: Determinism::Strict,
        initialization: Initialization::AtOnce,
    };
    let mut session = StageSession::with_snapshots(kept);
    let effects = tell(&mut session, 1, Command::Assign(Box::new(assignment)));
    session.on_done(NOW, ticket(&effects), Ok(Outcome::Done), (NOW, NOW));
    drain(&mut session);
    session
}

fn drain(session: &mut StageSession) -> Vec<StageEffect> {
    std::iter::from_fn(|| session.poll_effect()).collect()
}

fn tell(session: &mut StageSession, id: u64, body: Command) -> Vec<StageEffect> {
    said_by_boss(session, ToWorker::Command { id, body })
}

fn said_by_boss(session: &mut StageSession, message: ToWorker) -> Vec<StageEffect> {
    session.on_message(NOW, message);
    drain(session)
}

fn hear(
    session: &mut StageSession,
    from: Peer,
    head: TensorHead,
    slots: &[u64],
) -> Vec<StageEffect> {
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

/// This worker makes part 1, which worker 2 stores, too. It stores part 0 of worker 0.
fn keep(step: u64, last: Option<u64>) -> Command {
    let make = PartToMake { part: 1, of: WorkerId(1), to: Some(WorkerId(2)) };
    let (make, take) = (Some(make), BTreeMap::from([(0, WorkerId(0))]));
    Command::StoreSnapshot(Box::new(StoreSnapshot {
        snapshot: snapshot_id(step),
        note: note(),
        last_complete: last.map(snapshot_id),
        stage: None,
        make,
        receive: take,
    }))
}

fn keeping(id: u64, part: u32, name: &str, of: u32) -> TensorHead {
    TensorHead::SnapshotPart { id, part, name: name.into(), of }
}

fn tensor(slot: u64) -> (String, Slot) {
    ("w".into(), Slot(slot))
}

fn refused(effects: &[StageEffect], by: Peer) -> bool {
    effects.iter().any(|effect| matches!(effect, StageEffect::Hangup { peer, .. } if *peer == by))
}

fn said(effects: &[StageEffect]) -> Vec<&ToBoss> {
    let said = effects.iter().filter_map(|effect| match effect {
        StageEffect::Tell(message) => Some(message),
        _ => None,
    });
    said.collect()
}

#[test]
fn what_is_copied_here_goes_to_the_neighbour_and_to_this_worker_which_keeps_it() {
    let mut session = second_of_three(Vec::new());
    let effects = tell(&mut session, 2, keep(7, None));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(vec![snapshot_id(7)]));
    let copied = Ok(Outcome::State { heads: Vec::new(), tensors: vec![tensor(10)] });
    session.on_done(NOW, ticket(&effects), copied, (NOW, NOW));
    let effects = drain(&mut session);
    let head = keeping(2, 1, "w", 1);
    let myself = Destination { peer: ME, route: None, head: head.clone() };
    // This worker may have no link to it.
    let route = Some(Route { from: WorkerId(1), to: WorkerId(2) });
    let neighbour = Destination { peer: Peer::Boss, route, head: head.clone() };
    assert_eq!(
        effects[0],
        StageEffect::Send { to: vec![myself, neighbour], slots: vec![Slot(10)] }
    );
    assert!(matches!(said(&effects)[..], [ToBoss::Done { id: 2, sent: 0, .. }]), "{effects:?}");
    let effects = hear(&mut session, ME, head, &[11]);
    let kept = StageEffect::StoreSnapshot {
        snapshot: snapshot_id(7),
        note: note(),
        part: 1,
        tensors: vec![tensor(11)],
    };
    assert_eq!(effects[0], kept);
    assert_eq!(said(&effects), [&ToBoss::SnapshotStored { id: 2, part: 1 }]);
}

#[test]
fn a_replica_makes_the_copy_that_it_keeps_itself() {
    // The second replica of the second stage; the first replica is worker 1.
    let mut session = assigned(plan(&[2, 2]), WorkerId(3), Vec::new());
    let make = Some(PartToMake { part: 1, of: WorkerId(1), to: None });
    let keep = StoreSnapshot {
        snapshot: snapshot_id(7),
        note: note(),
        last_complete: None,
        stage: None,
        make,
        receive: BTreeMap::new(),
    };
    let effects = tell(&mut session, 2, Command::StoreSnapshot(Box::new(keep)));
    let of = vec![StageId(1)];
    let task = Task::Snapshot { parameters: of.clone(), optimizer: of, form: StateForm::Tensors };
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, StageEffect::Compute { task: made, .. } if *made == task)),
        "{effects:?}"
    );
    session.on_done(
        NOW,
        ticket(&effects),
        Ok(Outcome::State { heads: Vec::new(), tensors: vec![tensor(10)] }),
        (NOW, NOW),
    );
    let effects = drain(&mut session);
    let (me, head) = (Peer::Worker(WorkerId(3)), keeping(2, 1, "w", 1));
    let to_itself = vec![Destination { peer: me, route: None, head: head.clone() }];
    assert_eq!(effects[0], StageEffect::Send { to: to_itself, slots: vec![Slot(10)] });
    let effects = hear(&mut session, me, head, &[11]);
    assert_eq!(said(&effects), [&ToBoss::SnapshotStored { id: 2, part: 1 }]);
}

/// A boss that lets workers store snapshots, with this plan.
fn keeping_boss(plan: Plan, neighbours: BTreeMap<WorkerId, WorkerId>) -> BossSession {
    let mut boss = BossSession::new(Setup { max_pending_batches: 2, ..Setup::new(plan) });
    boss.on_request(NOW, 1, Instruction::Distribute.into_request());
    all_done(&mut boss, 1);
    while boss.poll_effect().is_some() {}
    let keeping = SnapshotRequest {
        snapshot: snapshot_id(7),
        text: "{}".into(),
        last_complete: None,
        stage: None,
        neighbours,
    };
    boss.on_request(NOW, 2, Instruction::StoreSnapshot(Box::new(keeping)).into_request());
    boss
}

fn all_done(boss: &mut BossSession, id: u64) {
    for worker in 0..4 {
        let (losses, spans) = (Vec::new(), Vec::new());
        let head = ToBoss::Done { id, losses, sent: 0, received: NOW, answered: NOW, spans };
        boss.on_message(NOW, WorkerId(worker), head);
    }
}

/// The snapshot that a worker makes, and those that it stores.
type Asked = (Option<PartToMake>, Vec<(u32, WorkerId)>);

fn asked(plan: Plan, neighbours: BTreeMap<WorkerId, WorkerId>) -> Vec<Asked> {
    let Some(BossEffect::Tell(to)) = keeping_boss(plan, neighbours).poll_effect() else {
        panic!("nothing is asked");
    };
    let keep = |to: Message| match to.body {
        ToWorker::Command { body: Command::StoreSnapshot(keep), .. } => {
            (keep.make, keep.receive.into_iter().collect())
        }
        other => panic!("{other:?}"),
    };
    to.into_iter().map(keep).collect()
}

#[test]
fn nothing_is_sent_to_a_neighbour_that_has_the_same_state() {
    let [a, b, c, d] = [0, 1, 2, 3].map(WorkerId);
    let make = |part, of| (Some(PartToMake { part, of, to: None }), Vec::new());
    let replicas = BTreeMap::from([(a, c), (b, d)]);
    assert_eq!(
        asked(plan(&[2, 2]), replicas.clone()),
        [make(0, a), make(1, b), make(0, a), make(1, b)]
    );
    // The state of another stage differs, and so does another shard of the optimizer state.
    let sends = |part, of, to| Some(PartToMake { part, of, to: Some(to) });
    let others = BTreeMap::from([(a, d), (b, d)]);
    let expected =
        [(sends(0, a, d), vec![]), make(1, b), (None, vec![]), (make(1, b).0, vec![(0, a)])];
    assert_eq!(asked(plan(&[2, 2]), others), expected);
    let sharded = Plan { sharding: Some(Sharding::Optimizer), ..plan(&[2, 2]) };
    let neighbours = BTreeMap::from([(a, c), (b, d), (c, a), (d, b)]);
    let expected = [(0, a, c), (1, b, d), (2, c, a), (3, d, b)];
    let expected = expected.map(|(part, me, other)| {
        let its = if part < 2 { part + 2 } else { part - 2 };
        (sends(part, me, other), vec![(its, other)])
    });
    assert_eq!(asked(sharded, neighbours), expected);
}

/// A replica's own snapshot does not depend on its owner.
#[test]
fn a_copy_is_whole_where_the_owner_of_a_part_is_lost_that_its_replica_still_makes() {
    let [a, b, c, d] = [0, 1, 2, 3].map(WorkerId);
    for (lost, late, is_whole) in [(a, c, true), (c, a, true), (a, a, false), (c, c, false)] {
        let mut boss = keeping_boss(plan(&[2, 2]), BTreeMap::from([(a, c), (b, d)]));
        all_done(&mut boss, 2);
        let mut kept = |worker: WorkerId| {
            let head = ToBoss::SnapshotStored { id: 2, part: u32::from(worker.0 % 2) };
            boss.on_message(NOW, worker, head);
        };
        [a, b, c, d].into_iter().filter(|worker| *worker != late).for_each(&mut kept);
        boss.on_lost(NOW, lost, "gone");
        if lost != late {
            let head = ToBoss::SnapshotStored { id: 2, part: 0 };
            boss.on_message(NOW, late, head);
        }
        let reply = std::iter::from_fn(|| boss.poll_effect()).find_map(|effect| match effect {
            BossEffect::Reply { request: 2, result } => Some(result),
            _ => None,
        });
        assert_eq!(
            reply.map(|result| result.is_ok()),
            Some(is_whole),
            "{lost} is lost, {late} is late"
        );
    }
}

#[test]
fn a_boss_that_asks_for_a_copy_of_what_is_not_here_is_left() {
    for (of, stage) in [(0, None), (2, None), (3, Some(StageId(0)))] {
        let mut session = assigned(plan(&[2, 2]), WorkerId(3), Vec::new());
        let make = Some(PartToMake { part: 0, of: WorkerId(of), to: None });
        let keep = StoreSnapshot {
            snapshot: snapshot_id(7),
            note: note(),
            last_complete: None,
            stage,
            make,
            receive: BTreeMap::new(),
        };
        let effects = tell(&mut session, 2, Command::StoreSnapshot(Box::new(keep)));
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
    let kept =
        StageEffect::StoreSnapshot { snapshot: snapshot_id(7), note: note(), part: 0, tensors };
    assert!(effects.contains(&kept), "{effects:?}");
    assert_eq!(said(&effects), [&ToBoss::SnapshotStored { id: 2, part: 0 }]);
    // An empty part.
    let mut session = second_of_three(Vec::new());
    tell(&mut session, 2, keep(7, None));
    let effects = hear(&mut session, OTHER, keeping(2, 0, "", 0), &[]);
    assert!(
        matches!(
            &effects[0],
            StageEffect::StoreSnapshot { part: 0, tensors, .. } if tensors.is_empty()
        ),
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
    session.on_done(
        NOW,
        ticket(&effects),
        Ok(Outcome::State { heads: Vec::new(), tensors: Vec::new() }),
        (NOW, NOW),
    );
    hear(&mut session, OTHER, keeping(2, 0, "w", 2), &[10]);
    let abort = ToWorker::Abort { id: 2, batch: None, gradients: false };
    drain(&mut session);
    let effects = said_by_boss(&mut session, abort);
    assert!(effects.contains(&StageEffect::Drop(vec![Slot(10)])), "{effects:?}");
    assert_eq!(said(&effects), [&ToBoss::Aborted { id: 2, stepped: false }]);
    assert_eq!(
        hear(&mut session, OTHER, keeping(2, 0, "x", 2), &[11]),
        [StageEffect::Drop(vec![Slot(11)])]
    );
    // The next snapshot drops the arrivals for the one before, and keeps the complete one.
    let effects = tell(&mut session, 4, keep(9, Some(5)));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(vec![snapshot_id(5), snapshot_id(9)]));
    assert_eq!(
        hear(&mut session, OTHER, keeping(3, 0, "w", 1), &[12]),
        [StageEffect::Drop(vec![Slot(12)])]
    );
}

#[test]
fn a_copy_that_fails_is_cleared_up_at_the_compute_thread() {
    let mut session = second_of_three(Vec::new());
    let effects = tell(&mut session, 2, keep(7, None));
    session.on_done(NOW, ticket(&effects), Err(Failure::new("out of memory").into()), (NOW, NOW));
    assert!(matches!(said(&drain(&mut session))[..], [ToBoss::Failed { id: 2, .. }]));
    let effects =
        said_by_boss(&mut session, ToWorker::Abort { id: 2, batch: None, gradients: false });
    assert!(
        matches!(&effects[..], [StageEffect::Compute { task: Task::Discard { .. }, .. }]),
        "{effects:?}"
    );
}

#[test]
fn a_part_that_comes_from_elsewhere_or_twice_costs_its_sender_alone() {
    let mut session = second_of_three(Vec::new());
    let stranger = Peer::Worker(WorkerId(2));
    assert_eq!(hear(&mut session, stranger, keeping(2, 0, "w", 1), &[10]), []);
    assert_eq!(hear(&mut session, OTHER, keeping(2, 0, "w", 1), &[11]), []);
    let effects = tell(&mut session, 2, keep(7, None));
    assert!(refused(&effects, stranger) && !refused(&effects, OTHER), "{effects:?}");
    assert_eq!(said(&effects), [&ToBoss::SnapshotStored { id: 2, part: 0 }]);
    let effects = hear(&mut session, OTHER, keeping(2, 0, "w", 1), &[12]);
    assert!(refused(&effects, OTHER) && said(&effects).is_empty(), "{effects:?}");
    // Few early parts are stored before their command.
    let mut session = second_of_three(Vec::new());
    let refusals = (0..1000)
        .filter(|n| refused(&hear(&mut session, OTHER, keeping(2 + n, 0, "w", 0), &[]), OTHER));
    assert_eq!(refusals.count(), 1000 - 64);
    let refusals = (0..1000)
        .filter(|n| refused(&hear(&mut session, OTHER, keeping(2, 1 + n, "w", 0), &[]), OTHER));
    assert_eq!(refusals.count(), 1000 - 64);
    assert_eq!(
        hear(&mut session, OTHER, keeping(1, 0, "w", 1), &[9]),
        [StageEffect::Drop(vec![Slot(9)])],
        "long answered"
    );
}

fn kept(run: u64, parts: &[(u32, &str)]) -> PeerSnapshot {
    let parts = parts.iter().map(|(part, name)| (*part, BTreeSet::from([name.to_string()])));
    PeerSnapshot {
        snapshot: SnapshotId { run, ..snapshot_id(7) },
        note: note(),
        parts: parts.collect(),
    }
}

#[test]
fn what_is_kept_is_told_and_given_out() {
    let mine = kept(5, &[(0, "0.weight"), (1, "1.weight")]);
    let mut session = second_of_three(vec![mine.clone(), kept(6, &[(0, "0.weight")])]);
    let effects = tell(&mut session, 2, Command::ListSnapshots { run: 5 });
    assert_eq!(said(&effects)[0], &ToBoss::Snapshots { id: 2, snapshots: vec![mine] });

    let tensors = vec![(0, "0.weight".into(), StageId(0)), (1, "1.weight".into(), StageId(1))];
    let recall = Box::new(SendSnapshot { snapshot: snapshot_id(7), tensors });
    let effects = tell(
        &mut session,
        3,
        Command::RestoreSnapshot {
            tensors: 2,
            senders: vec![WorkerId(1), WorkerId(2)],
            send: recall,
        },
    );
    let weight =
        |name: &str, stage| TensorHead::Weight { id: 3, name: name.into(), stage: StageId(stage) };
    let route = Some(Route { from: WorkerId(1), to: WorkerId(0) });
    let away = Destination { peer: Peer::Boss, route, head: weight("0.weight", 0) };
    let here = Destination { peer: ME, route: None, head: weight("1.weight", 1) };
    let given = |to: Destination, part, name: &str| StageEffect::SendSnapshot {
        to: vec![to],
        snapshot: snapshot_id(7),
        part,
        name: name.into(),
    };
    assert_eq!(effects, [given(away, 0, "0.weight"), given(here, 1, "1.weight")]);
    assert_eq!(hear(&mut session, ME, weight("1.weight", 1), &[10]), []);
    let effects = hear(&mut session, Peer::Worker(WorkerId(2)), weight("1.bias", 1), &[11]);
    assert!(
        matches!(
            &effects[..],
            [StageEffect::Compute {
                task: Task::Load { content: LoadContent::WholeState, .. },
                ..
            }]
        ),
        "{effects:?}"
    );
}

#[test]
fn what_is_not_kept_cannot_be_given_out() {
    for (step, part, name) in [(8, 0, "0.weight"), (7, 1, "0.weight"), (7, 0, "0.bias")] {
        let mut session = second_of_three(vec![kept(5, &[(0, "0.weight")])]);
        let tensors = vec![(part, name.to_string(), StageId(0))];
        let recall = Box::new(SendSnapshot { snapshot: snapshot_id(step), tensors });
        let effects = tell(
            &mut session,
            2,
            Command::RestoreSnapshot { tensors: 0, senders: Vec::new(), send: recall },
        );
        let [ToBoss::Failed { failure, .. }] = &said(&effects)[..] else { panic!("{effects:?}") };
        assert_eq!(failure.message, format!("`{name}` of step {step} is not stored here"));
    }
    // Weights that the boss sends come from no worker.
    let weight = || TensorHead::Weight { id: 2, name: "1.bias".into(), stage: StageId(1) };
    let load = Command::LoadState { tensors: 2, content: LoadContent::Part };
    let mut session = second_of_three(Vec::new());
    tell(&mut session, 2, load.clone());
    assert!(refused(&hear(&mut session, OTHER, weight(), &[10]), OTHER));
    let mut session = second_of_three(Vec::new());
    assert_eq!(hear(&mut session, OTHER, weight(), &[10]), []);
    assert!(refused(&tell(&mut session, 2, load), OTHER));
    // Only the sender is affected.
    assert_eq!(hear(&mut session, Peer::Boss, weight(), &[11]), []);
    let bias = TensorHead::Weight { id: 2, name: "1.weight".into(), stage: StageId(1) };
    let effects = hear(&mut session, Peer::Boss, bias, &[12]);
    let [StageEffect::Compute { task: Task::Load { tensors, .. }, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(tensors.iter().map(|(_, slot)| slot.0).collect::<Vec<_>>(), [11, 12]);
    // Stored tensors come only from the worker that stores them.
    let mut session = second_of_three(Vec::new());
    let recall = Box::new(SendSnapshot { snapshot: snapshot_id(7), tensors: Vec::new() });
    tell(
        &mut session,
        2,
        Command::RestoreSnapshot { tensors: 1, senders: vec![WorkerId(2)], send: recall },
    );
    assert!(refused(&hear(&mut session, OTHER, weight(), &[10]), OTHER));
}

#[test]
fn a_run_that_trains_lets_go_of_what_others_left() {
    let round = Round {
        batch: 1,
        step: 1,
        mode: Mode::Eval,
        kv_cache: None,
        actions: Vec::new(),
        order: Order::Listed,
        microbatch_assignment: MicrobatchAssignment::default(),
        microbatches: 1,
        samples: None,
        reduction: Reduction::Sequential,
        loss: None,
        outputs: RoundOutputs::None,
        grads_from_boss: false,
        update: None,
        watch: Watch::default(),
    };
    let both = || vec![kept(5, &[(0, "w")]), kept(6, &[(0, "w")])];
    let mut session = second_of_three(both());
    let effects = tell(&mut session, 2, Command::Run(Box::new(round.clone())));
    assert_eq!(effects[0], StageEffect::RetainSnapshots(Vec::new()));
    let mut session = second_of_three(both());
    tell(&mut session, 2, Command::ListSnapshots { run: 6 });
    let effects = tell(&mut session, 3, Command::Run(Box::new(round)));
    assert_eq!(
        effects[0],
        StageEffect::RetainSnapshots(vec![SnapshotId { run: 6, ..snapshot_id(7) }])
    );
}
