//! The messages of a stage session in cases that the simulator does not reach.

use layerspec::{LayerGraph, ValueId};
use pipeline::effect::{Destination, Frame, Micros, Peer, StageEffect};
use pipeline::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use pipeline::message::{
    Assignment, ChangeMembership, Command, LinkReport, TensorHead, ToBoss, ToWorker,
};
use pipeline::replicas::{BucketBytes, WorkerGroups};
use pipeline::stage::StageSession;
use pipeline::task::{LoadContent, Outcome, Task};
use pipeline::{Cuts, Determinism, Initialization, Placement, Plan};

const NOW: Micros = Micros(0);

/// The messages to the boss, and the tasks for the compute thread.
fn drain(session: &mut StageSession) -> (Vec<ToBoss>, Vec<Ticket>) {
    let (mut said, mut tickets) = (Vec::new(), Vec::new());
    while let Some(effect) = session.poll_effect() {
        match effect {
            StageEffect::Tell(message) => said.push(message),
            StageEffect::Compute { ticket, .. } => tickets.push(ticket),
            other => panic!("{other:?}"),
        }
    }
    (said, tickets)
}

/// A session whose compute thread has measured while the driver still measures the link to the
/// boss.
fn measuring() -> StageSession {
    let mut session = StageSession::new();
    session.on_measuring(Peer::Boss);
    let head = ToWorker::Command { id: 1, body: Command::Measure(Vec::new()) };
    session.on_message(NOW, head);
    let (said, tickets) = drain(&mut session);
    assert_eq!((said.len(), tickets.len()), (0, 1));
    session.on_done(NOW, tickets[0], Ok(Outcome::Measured { times: Vec::new() }), (NOW, NOW));
    assert_eq!(drain(&mut session).0, [], "the link is not known yet");
    session
}

#[test]
fn a_measurement_waits_for_the_links() {
    let mut session = measuring();
    session.on_link_report(Peer::Boss, Some(LinkReport::default()));
    let (said, _) = drain(&mut session);
    let expected = |head: &ToBoss, place| match place {
        0 => matches!(head, ToBoss::LinkReport { peer: None, .. }),
        1 => matches!(head, ToBoss::Measured { id: 1, .. }),
        _ => matches!(head, ToBoss::Done { id: 1, .. }),
    };
    assert!(
        said.len() == 3 && said.iter().zip(0..).all(|(head, place)| expected(head, place)),
        "{said:?}"
    );
}

#[test]
fn a_link_that_cannot_be_measured_does_not_hold_it_up() {
    let mut session = measuring();
    session.on_link_report(Peer::Boss, None);
    let (said, _) = drain(&mut session);
    assert!(matches!(said.as_slice(), [ToBoss::Measured { .. }, ToBoss::Done { .. }]), "{said:?}");
}

/// Five workers that have the only stage.
fn plan_of_five() -> Plan {
    let text = "inputs: {x: [batch, 4]}\nlayers:\n  - Linear: {in_features: 4, out_features: 4}\n";
    let graph = LayerGraph::from_yaml(text, "model.yaml").expect("a good model");
    Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(&[5]), Placement::Plain).expect("a good cut")
}

/// The second of them.
fn second_of_five() -> StageSession {
    let plan = plan_of_five();
    let worker = WorkerId(1);
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
    let mut session = StageSession::new();
    tell(&mut session, ToWorker::Command { id: 1, body: Command::Assign(Box::new(assignment)) });
    let built = effects(&mut session).into_iter().find_map(|effect| match effect {
        StageEffect::Compute { ticket, .. } => Some(ticket),
        _ => None,
    });
    session.on_done(NOW, built.expect("a stage to build"), Ok(Outcome::Done), (NOW, NOW));
    effects(&mut session);
    session
}

fn tell(session: &mut StageSession, message: ToWorker) {
    session.on_message(NOW, message);
}

fn effects(session: &mut StageSession) -> Vec<StageEffect> {
    std::iter::from_fn(|| session.poll_effect()).collect()
}

fn weight(name: &str, stage: u16) -> TensorHead {
    TensorHead::Weight { id: 2, name: name.into(), stage: StageId(stage) }
}

/// The effects of a weight from this peer.
fn weigh(session: &mut StageSession, from: Peer, head: TensorHead, slot: u64) -> Vec<StageEffect> {
    session.on_frame(NOW, from, Frame { route: None, head, slots: vec![Slot(slot)] });
    effects(session)
}

fn load(session: &mut StageSession, tensors: u32) -> Vec<StageEffect> {
    tell(
        session,
        ToWorker::Command {
            id: 2,
            body: Command::LoadState { tensors, content: LoadContent::Part },
        },
    );
    effects(session)
}

const ME: Peer = Peer::Worker(WorkerId(1));
const GIVER: Peer = Peer::Worker(WorkerId(0));

#[test]
fn weights_are_passed_on_once_their_command_is_here_and_loaded_when_all_are() {
    let mut session = second_of_five();
    let passed_on = |name, slot| {
        let to = [3, 4, 1].map(|worker| {
            let peer = Peer::Worker(WorkerId(worker));
            Destination { peer, route: None, head: weight(name, 0) }
        });
        StageEffect::Send { to: to.to_vec(), slots: vec![Slot(slot)] }
    };
    assert_eq!(
        weigh(&mut session, GIVER, weight("0.weight", 0), 10),
        [],
        "a link may have broken before"
    );
    assert_eq!(load(&mut session, 2), [passed_on("0.weight", 10)]);
    assert_eq!(weigh(&mut session, GIVER, weight("0.bias", 0), 20), [passed_on("0.bias", 20)]);
    assert_eq!(
        weigh(&mut session, ME, weight("0.bias", 0), 21),
        [],
        "one is still on its way from this worker to itself"
    );
    let loads = weigh(&mut session, ME, weight("0.weight", 0), 11);
    let [StageEffect::Compute { task: Task::Load { tensors, content: LoadContent::Part }, .. }] =
        loads.as_slice()
    else {
        panic!("{loads:?}")
    };
    assert_eq!(tensors.as_slice(), [("0.bias".into(), Slot(21)), ("0.weight".into(), Slot(11))]);
    let more = weigh(&mut session, GIVER, weight("0.weight", 0), 12);
    assert!(
        matches!(&more[..], [StageEffect::Drop(_), StageEffect::Hangup { peer: GIVER, .. }]),
        "{more:?}"
    );
}

#[test]
fn weights_come_from_one_replica_alone() {
    let mut session = second_of_five();
    let cases = [
        (Peer::Boss, 0, "sent weights of stage 0, which worker 0 sends"),
        (Peer::Worker(WorkerId(3)), 0, "sent weights of stage 0, which worker 0 sends"),
        (GIVER, 1, "sent weights of stage 1, which is not here"),
    ];
    for (from, stage, why) in cases {
        let hangup = StageEffect::Hangup { peer: from, reason: why.into() };
        assert_eq!(
            weigh(&mut session, from, weight("0.weight", stage), 10),
            [StageEffect::Drop(vec![Slot(10)]), hangup]
        );
    }
    // Weights without a command are not stored without end.
    for command in 2..100 {
        let head = TensorHead::Weight { id: command, name: "0.weight".into(), stage: StageId(0) };
        let of = weigh(&mut session, GIVER, head, 10);
        assert_eq!(of.is_empty(), command < 6, "{of:?}");
    }
}

#[test]
fn more_weights_than_there_are_fail_the_command_and_are_let_go() {
    let mut session = second_of_five();
    for (name, slot) in [("0.weight", 10), ("0.bias", 20)] {
        assert_eq!(weigh(&mut session, GIVER, weight(name, 0), slot), []);
    }
    let said = load(&mut session, 1);
    assert!(matches!(
        &said[..],
        [StageEffect::Tell(ToBoss::Failed { id: 2, failure })]
            if failure.message.contains("2 tensors came")
    ));
    tell(&mut session, ToWorker::Abort { id: 2, batch: None, gradients: false });
    let cleared = effects(&mut session);
    assert_eq!(cleared[0], StageEffect::Drop(vec![Slot(10), Slot(20)]));
    // Late messages are discarded.
    assert_eq!(
        weigh(&mut session, GIVER, weight("0.bias", 0), 30),
        [StageEffect::Drop(vec![Slot(30)])]
    );
}

#[test]
fn what_comes_twice_counts_once() {
    let mut session = second_of_five();
    assert_eq!(weigh(&mut session, GIVER, weight("0.weight", 0), 10), []);
    let twice = "sent the same tensor to be loaded twice".to_string();
    let refused =
        [StageEffect::Drop(vec![Slot(20)]), StageEffect::Hangup { peer: GIVER, reason: twice }];
    assert_eq!(weigh(&mut session, GIVER, weight("0.weight", 0), 20), refused);
    let command = ToWorker::Command { id: 2, body: Command::Digest };
    tell(&mut session, command.clone());
    assert!(matches!(effects(&mut session).as_slice(), [StageEffect::Compute { .. }]));
    tell(&mut session, command);
    let reason = "sent a command twice, or out of order".to_string();
    assert_eq!(effects(&mut session), [StageEffect::Hangup { peer: Peer::Boss, reason }]);
    // It is cleaned up once, so the next message is not taken for the second answer.
    let abort = ToWorker::Abort { id: 2, batch: None, gradients: false };
    tell(&mut session, abort.clone());
    let cleared = effects(&mut session);
    let clears = |effect: &&StageEffect| {
        matches!(effect, StageEffect::Compute { task: Task::Discard { .. }, .. })
    };
    assert_eq!(cleared.iter().filter(clears).count(), 1);
    tell(&mut session, abort);
    assert_eq!(effects(&mut session), []);
}

/// A relayed message can arrive after a command, when its sender has no part in the stages any
/// more.
#[test]
fn tensors_of_a_cancelled_batch_are_nobody_s_fault() {
    let (mut session, left) = (second_of_five(), Peer::Worker(WorkerId(9)));
    let key = |batch| MicrobatchKey { batch, index: 0 };
    let gradient = |batch| TensorHead::Gradient {
        key: key(batch),
        value: ValueId(1),
        from: None,
        to: StageId(0),
    };
    tell(&mut session, ToWorker::Abort { id: 2, batch: Some(7), gradients: true });
    let cleared = effects(&mut session);
    let clears = |effect: &StageEffect| {
        matches!(effect, StageEffect::Compute { task: Task::Discard { batch: 7, .. }, .. })
    };
    assert!(cleared.iter().any(clears), "{cleared:?}");
    assert_eq!(weigh(&mut session, left, gradient(7), 10), [StageEffect::Drop(vec![Slot(10)])]);
    let of_another = weigh(&mut session, left, gradient(8), 20);
    assert!(
        matches!(&of_another[..], [.., StageEffect::Hangup { peer, .. }] if *peer == left),
        "{of_another:?}"
    );
}

/// An unknown worker sends many early frames. An expected worker sends one.
#[test]
fn who_sends_ahead_without_end_takes_no_room_from_others() {
    let (hostile, honest) = (Peer::Worker(WorkerId(9)), GIVER);
    let mut session = second_of_five();
    let hung_up = |effects: &[StageEffect], on: Peer| {
        let of = |effect: &StageEffect| {
            matches!(
                effect,
                StageEffect::Hangup { peer, .. } if *peer == on
            )
        };
        effects.iter().any(of)
    };
    let sums = |batch| TensorHead::Reduced { batch, stage: StageId(0), bucket: 0 };
    let first = (1..1000)
        .find(|batch| hung_up(&weigh(&mut session, hostile, sums(1000 + batch), *batch), hostile));
    assert!(first.is_some(), "it may go on for ever");
    assert_eq!(weigh(&mut session, honest, sums(1), 2000), []);

    let state = |id, of| TensorHead::ReplicaState { id, name: "0.weight".into(), of };
    let first = (2..100)
        .find(|id| hung_up(&weigh(&mut session, hostile, state(*id, 2), 3000 + id), hostile));
    assert!(first.is_some(), "it may go on for ever");
    // The expected worker's frame is for the same command and arrives first.
    assert_eq!(weigh(&mut session, honest, state(2, 1), 4000), []);
    let change_membership = ChangeMembership {
        stage_placement: plan_of_five().stage_placement,
        followers: Vec::new(),
        peers: Vec::new(),
        give: Vec::new(),
        take: Some(WorkerId(0)),
    };
    tell(
        &mut session,
        ToWorker::Command { id: 2, body: Command::ChangeMembership(Box::new(change_membership)) },
    );
    let effects = effects(&mut session);
    assert!(hung_up(&effects, hostile) && !hung_up(&effects, honest), "{effects:?}");
    let takes = |effect: &StageEffect| {
        let StageEffect::Compute { task: Task::Load { tensors, .. }, .. } = effect else {
            return false;
        };
        tensors.iter().map(|(_, slot)| *slot).eq([Slot(4000)])
    };
    assert!(effects.iter().any(takes), "{effects:?}");
}

#[test]
fn a_worker_leaves_at_once_before_its_work_and_asks_the_boss_later() {
    let mut session = StageSession::new();
    session.on_leave();
    assert_eq!(effects(&mut session), [StageEffect::Leave]);
    let mut session = second_of_five();
    session.on_leave();
    assert_eq!(effects(&mut session), [StageEffect::Tell(ToBoss::Leaving)]);
}

#[test]
fn files_of_layers_come_from_the_boss_before_or_after_their_command() {
    let file = |name: &str| TensorHead::File { id: 2, name: name.into() };
    let mut session = second_of_five();
    assert_eq!(weigh(&mut session, Peer::Boss, file("ab"), 10), []);
    tell(&mut session, ToWorker::Command { id: 2, body: Command::TakeFiles { files: 2 } });
    assert_eq!(effects(&mut session), []);
    let taken = weigh(&mut session, Peer::Boss, file("cd"), 20);
    let [StageEffect::Compute { task: Task::Files { files }, .. }] = &taken[..] else {
        panic!("{taken:?}")
    };
    assert_eq!(*files, [("ab".to_string(), Slot(10)), ("cd".to_string(), Slot(20))]);
}

#[test]
fn a_state_that_arrived_for_a_cancelled_command_is_let_go() {
    let mut session = second_of_five();
    let head = TensorHead::ReplicaState { id: 2, name: "0.weight".into(), of: 2 };
    assert_eq!(weigh(&mut session, GIVER, head, 10), []);
    tell(&mut session, ToWorker::Abort { id: 2, batch: None, gradients: false });
    assert_eq!(effects(&mut session)[0], StageEffect::Drop(vec![Slot(10)]));
}
