//! The boss's session under impossible requests and invalid answers.

use super::boss_player::{backward, forward, graph, output, plan, request, run, Boss};
use layerspec::LayerGraph;
use pipeline::boss::{
    BossSession, Instruction, IntoRequest, Measure, MembershipChange, ReportLinks, Request,
    RunRequest, SendState, Setup,
};
use pipeline::effect::{BossEffect, Frame, Message, Micros};
use pipeline::frame::Route;
use pipeline::ids::{MicrobatchKey, Slot, StageId, WorkerId};
use pipeline::message::{
    Command, Failure, FailureKind, LinkReport, Mode, RoundLoss, RoundUpdate, Span, TensorHead,
    ToBoss, ToWorker,
};
use pipeline::peer_snapshot::{SendSnapshot, SnapshotId, StoredTensor};
use pipeline::round_outputs::RoundOutputs;
use pipeline::samples::{DataId, DataSpec};
use pipeline::schedule::{Action, Ending, Placement};
use pipeline::{Cuts, LossSpec, Plan, StateForm};
use std::collections::BTreeMap;

#[test]
fn a_round_that_lacks_something_is_refused_rather_than_waited_for() {
    let mut boss = Boss::ready();
    let x = graph().inputs()[0];
    let loss = || Some(RoundLoss { spec: LossSpec::MSELoss, weights: vec![1.0], likeliest: false });
    let update =
        |max_norm| Some(RoundUpdate { lr: 0.1, scale: 1.0, max_norm, skip_infinite: false });
    let layout = plan(2).layout();
    let cases = [
        ("an input is missing", RunRequest { inputs: Vec::new(), ..forward(1) }),
        (
            "an input is given twice",
            RunRequest { inputs: vec![(0, x, Slot(1)), (0, x, Slot(2))], ..forward(1) },
        ),
        (
            "for a microbatch that does not take it",
            RunRequest { inputs: vec![(1, x, Slot(1))], ..forward(1) },
        ),
        ("a target is missing", RunRequest { loss: loss(), ..forward(1) }),
        ("a target is given twice, or", RunRequest { targets: vec![(0, Slot(3))], ..forward(1) }),
        ("a gradient is missing", RunRequest { grads: Some(Vec::new()), ..backward(1) }),
        (
            "the forward of stage 1 is not worker 0's",
            RunRequest {
                actions: vec![vec![Action::Forward { stage: StageId(1), microbatch: 0 }]],
                ..forward(1)
            },
        ),
        (
            "stage 0, forward, microbatch 0: it is listed twice",
            RunRequest {
                actions: vec![vec![Action::Forward { stage: StageId(0), microbatch: 0 }; 2]],
                ..forward(1)
            },
        ),
        ("without a learning rate", run(layout.ending(Ending::Step))),
        (
            "a limit for the norm",
            RunRequest { update: update(Some(1.0)), ..run(layout.ending(Ending::Step)) },
        ),
        (
            "a limit for the norm",
            RunRequest { update: update(None), ..run(layout.ending(Ending::ClippedStep)) },
        ),
        ("no forward pass of this batch waits", backward(7)),
    ];
    for (what, run) in cases {
        let error = boss.refusal(request(run));
        assert!(error.contains(what), "expected `{what}`, got `{error}`");
    }
}

#[test]
fn a_worker_that_sends_too_much_is_hung_up_on() {
    let first = |boss: &mut Boss| {
        boss.ask(request(forward(1)));
        boss.hear(1, output(), &[10]);
    };
    let mut boss = Boss::ready();
    first(&mut boss);
    boss.hear(1, output(), &[11]);
    assert!(boss.hangup(1).contains("sent an output of microbatch 0 twice"));

    let mut boss = Boss::ready();
    boss.ask(request(forward(1)));
    boss.hear(0, output(), &[10]);
    assert!(boss.hangup(0).contains("or one that it does not make"), "worker 1 makes it");

    let mut boss = Boss::ready();
    first(&mut boss);
    boss.done(1, 2);
    assert!(boss.hangup(1).contains("sent more tensors than it says, or fewer than it can"));

    let mut boss = Boss::ready();
    boss.ask(SendState { stage: None, optimizer: false, form: StateForm::Slices });
    let state = |boss: &Boss| TensorHead::State { id: boss.command, name: "0.weight".into() };
    let head = state(&boss);
    boss.hear(0, head.clone(), &[10]);
    boss.hear(1, head, &[11]);
    assert!(boss.hangup(1).contains("sent the parameter `0.weight` twice"));

    let mut boss = Boss::ready();
    boss.ask(Measure(Vec::new()));
    boss.done(0, 0);
    assert!(boss.hangup(0).contains("answered without what it was asked for"));
}

#[test]
fn batches_wait_for_their_backward_pass_but_not_without_end() {
    let mut boss = Boss::ready();
    for batch in [1, 2] {
        boss.ask(request(RunRequest { outputs: RoundOutputs::None, ..forward(batch) }));
        boss.both_done();
        boss.reply().expect("it is carried out");
    }
    let error = boss.refusal(request(forward(3)));
    assert!(
        error.starts_with("2 batches wait for their backward pass, which is as many as may"),
        "{error}"
    );
    // Evaluation stores nothing.
    boss.ask(request(RunRequest { outputs: RoundOutputs::None, mode: Mode::Eval, ..forward(3) }));
    boss.both_done();
    boss.reply().expect("it is carried out");
    for freed in [request(backward(1)), Instruction::Discard { batch: 2 }.into_request()] {
        boss.ask(freed);
        boss.both_done();
        boss.reply().expect("it is carried out");
        boss.ask(request(RunRequest { outputs: RoundOutputs::None, ..forward(4 + boss.requests) }));
        boss.both_done();
        boss.reply().expect("one has gone");
    }
    boss.ask(Instruction::Distribute);
    boss.both_done();
    boss.reply().expect("it is carried out");
    let error = boss.refusal(request(backward(4)));
    assert!(error.contains("no forward pass of this batch waits"), "{error}");
}

#[test]
fn the_norm_is_that_of_all_stages_and_reaches_all_workers() {
    let mut boss = Boss::ready();
    let update = RoundUpdate { lr: 0.1, scale: 0.5, max_norm: Some(1.0), skip_infinite: false };
    let actions = plan(2).layout().ending(Ending::ClippedStep);
    boss.ask(request(RunRequest { update: Some(update), ..run(actions) }));
    let norms = |id, layer, square| ToBoss::Norms {
        id,
        squares: vec![pipeline::norm::Square {
            layer: layerspec::LayerId(layer),
            number: 0,
            blocks: 1,
            node: pipeline::replicas::Node::leaf(0),
            sum: square,
        }],
        losses: Vec::new(),
    };
    let id = boss.command;
    boss.hear(1, norms(id, 1, 64.0), &[]);
    boss.hear(0, norms(id, 0, 36.0), &[]);
    let told = boss.effects.iter().find_map(|e| match e {
        BossEffect::Tell(to) => {
            to.iter().any(|to| matches!(to.body, ToWorker::TotalNorm { .. })).then(|| to.clone())
        }
        _ => None,
    });
    let told = told.expect("the norm");
    assert!(
        told.len() == 2 && told.iter().all(|to| to.body == ToWorker::TotalNorm { id, norm: 5.0 }),
        "{told:?}"
    );
    assert!(
        (update.clip(5.0) - 0.2).abs() < 1e-6
            && update.clip(0.5) == 1.0
            && update.clip(f64::NAN).is_nan()
    );
    boss.both_done();
    assert_eq!(boss.results().grad_norm, Some(5.0));
}

#[test]
fn spans_are_placed_on_the_boss_s_clock() {
    let mut boss = Boss::ready();
    boss.now = 1000;
    boss.ask(request(RunRequest { outputs: RoundOutputs::None, ..forward(1) }));
    // The worker's clock is a million ahead, a message takes 50, and the work takes 100.
    let action = Action::Forward { stage: StageId(0), microbatch: 0 };
    let span = Span { action, start: Micros(1_001_060), end: Micros(1_001_140) };
    let (received, answered) = (Micros(1_001_050), Micros(1_001_150));
    boss.now = 1200;
    let head = ToBoss::Done {
        id: boss.command,
        losses: Vec::new(),
        sent: 0,
        received,
        answered,
        spans: vec![span],
    };
    boss.hear(0, head, &[]);
    boss.done(1, 0);
    let spans = boss.results().spans;
    assert_eq!(
        (spans[0].worker, spans[0].start, spans[0].end),
        (WorkerId(0), Micros(1060), Micros(1140))
    );
}

#[test]
fn links_are_kept_and_a_plan_for_other_workers_is_refused() {
    let mut boss = Boss::ready();
    let report = |rtt| LinkReport {
        rtt: Micros(rtt),
        bytes_per_second: 1 << 30,
        packet_bytes: 65_000,
        shared_memory: false,
        same_machine: true,
    };
    for rtt in [90, u64::MAX, 80] {
        boss.hear(0, ToBoss::LinkReport { peer: Some(WorkerId(1)), report: report(rtt) }, &[]);
    }
    boss.ask(ReportLinks);
    let links = ReportLinks::read(boss.reply().expect("it is known")).expect("links");
    assert_eq!(links, [(WorkerId(0), Some(WorkerId(1)), report(80))]);

    assert_eq!(
        boss.refusal(Instruction::Use(Box::new(plan(1)))),
        "a plan for 1 workers; there are 2"
    );
    boss.ask(Instruction::Use(Box::new(plan(2))));
    boss.reply().expect("as many workers");
    let error = boss.refusal(request(forward(1)));
    assert!(error.contains("call distribute_model() first"), "{error}");
}

/// A link of a pool breaks while nothing runs. Its ends then send through the boss, which expects
/// that no more than they expect direct frames: a step over it would never end.
#[test]
fn no_step_of_a_pool_runs_over_a_link_that_broke_before() {
    let mut boss = Boss::ready();
    boss.session.open();
    let peer = WorkerId(1);
    boss.hear(0, ToBoss::LinkFailed { peer, reason: "broken".into(), was_up: true }, &[]);
    for batch in [1, 2] {
        boss.ask(request(forward(batch)));
        let failure = boss.reply().expect_err("its members must be told again");
        assert!(failure.message.contains("direct link to worker 1 broke"), "{failure}");
        assert_eq!(failure.kind, FailureKind::WorkerMissing);
    }
    let same = MembershipChange { plan: plan(2), followers: BTreeMap::new() };
    boss.ask(Request::ChangeMembership(Box::new(same)));
    boss.both_done();
    boss.reply().expect("links are open again");
    boss.ask(request(forward(3)));
    assert!(boss.answered().is_none(), "it runs");
}

/// A text of a worker is repeated in the log, the events and the console.
#[test]
fn a_long_text_of_a_worker_is_cut_off() {
    let mut boss = Boss::ready();
    boss.ask(request(forward(1)));
    let text = "é".repeat(1 << 20);
    let failure = Failure { layer: Some(text.clone()), ..Failure::new(text.as_str()) };
    let failed = ToBoss::Failed { id: boss.command, failure };
    boss.hear(1, failed, &[]);
    let reply = boss.reply().expect_err("it failed");
    for cut_off in [&reply.message, reply.layer.as_ref().expect("a layer")] {
        assert!(cut_off.len() < 20_000, "{}", cut_off.len());
        assert!(cut_off.starts_with("éé") && cut_off.ends_with('…'));
    }
}

/// A worker without stages, which has joined a pool.
#[test]
fn who_takes_no_part_cannot_end_spoil_or_flood_what_others_do() {
    let joined = || {
        let mut boss = Boss::ready();
        boss.session.open();
        assert_eq!(boss.session.on_joined(None), WorkerId(2));
        boss
    };
    let failed =
        |boss: &Boss| ToBoss::Failed { id: boss.command, failure: Failure::new("out of spite") };

    // The boss ignores its messages about a round, whether the round continues or was given up.
    let mut boss = joined();
    boss.ask(request(forward(1)));
    let head = failed(&boss);
    boss.hear(2, head, &[]);
    boss.hear(2, output(), &[10]);
    boss.hear(
        2,
        ToBoss::LinkFailed { peer: WorkerId(0), reason: "broken".into(), was_up: true },
        &[],
    );
    assert!(boss.answered().is_none(), "the round goes on");
    let head = ToBoss::Failed { id: boss.command, failure: Failure::new("out of memory") };
    boss.hear(1, head, &[]);
    assert_eq!(boss.reply().expect_err("it failed").worker, Some(WorkerId(1)));
    let id = boss.command;
    boss.hear(2, ToBoss::Aborted { id, stepped: true }, &[]);
    boss.hear(0, ToBoss::Aborted { id, stepped: false }, &[]);
    boss.hear(1, ToBoss::Aborted { id, stepped: false }, &[]);
    boss.ask(request(forward(2)));
    assert!(boss.answered().is_none(), "no stage is taken for a step ahead");

    // Its weights are not taken for another worker's.
    let mut boss = joined();
    boss.ask(SendState { stage: None, optimizer: false, form: StateForm::Slices });
    let head = TensorHead::State { id: boss.command, name: "0.weight".into() };
    boss.hear(2, head.clone(), &[11]);
    let unasked = |e: &BossEffect| {
        matches!(
            e,
            BossEffect::Hangup { worker: WorkerId(2), reason } if reason.contains("unasked")
        )
    };
    assert!(boss.effects.iter().any(unasked), "{:?}", boss.effects);
    boss.hear(0, head, &[12]);
    let honest = |e: &BossEffect| matches!(e, BossEffect::Hangup { worker: WorkerId(0), .. });
    assert!(!boss.effects.iter().any(honest), "{:?}", boss.effects);

    // The boss relays nothing to workers that do not wait for it: neither to others, nor to itself.
    let mut boss = joined();
    for to in [0, 2] {
        boss.hear(
            2,
            ToBoss::LinkFailed { peer: WorkerId(to), reason: "none".into(), was_up: false },
            &[],
        );
        let route = Some(Route { from: WorkerId(2), to: WorkerId(to) });
        let head = TensorHead::Value {
            key: MicrobatchKey { batch: 1, index: 0 },
            value: graph().outputs()[0],
            to: StageId(0),
        };
        boss.effects.clear();
        boss.session.on_frame(Micros(0), WorkerId(2), Frame { route, head, slots: vec![Slot(13)] });
        boss.drain();
        assert_eq!(boss.effects, [BossEffect::Drop(vec![Slot(13)])]);
    }
}

/// Each stage's state is stored by the other's worker.
#[test]
fn a_stored_snapshot_comes_from_its_holders_and_each_worker_knows_from_whom() {
    let snapshot = SnapshotId { run: 5, step: 7, membership: 1 };
    let stored = |holder, part, name: &str, stage| StoredTensor {
        holder: WorkerId(holder),
        part,
        name: name.into(),
        stage: StageId(stage),
    };
    let tensors =
        vec![stored(1, 0, "0.weight", 0), stored(1, 0, "0.bias", 0), stored(0, 1, "1.weight", 1)];
    let mut boss = Boss::ready();
    boss.effects.clear();
    boss.ask(Instruction::RestoreSnapshot { snapshot, tensors });
    let [BossEffect::Tell(told)] = &boss.effects[..] else { panic!("{:?}", boss.effects) };
    let restore = |tensors, from, sends: &[(u32, &str, u16)]| {
        let sends = sends.iter().map(|(part, name, to)| (*part, name.to_string(), StageId(*to)));
        let send = Box::new(SendSnapshot { snapshot, tensors: sends.collect() });
        Command::RestoreSnapshot { tensors, senders: vec![WorkerId(from)], send }
    };
    let body = |to: &Message| match &to.body {
        ToWorker::Command { body, .. } => body.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        told.iter().map(body).collect::<Vec<_>>(),
        [
            restore(2, 1, &[(1, "1.weight", 1)]),
            restore(1, 0, &[(0, "0.weight", 0), (0, "0.bias", 0)]),
        ]
    );
}

#[test]
fn a_session_is_at_rest_between_two_requests() {
    let mut boss = Boss::ready();
    assert!(boss.session.is_at_rest());
    boss.ask(Instruction::Distribute);
    assert!(!boss.session.is_at_rest());
    boss.both_done();
    assert!(boss.session.is_at_rest());
}

#[test]
fn only_workers_that_take_samples_open_the_data() {
    let layer = "  - Linear: {in_features: 4, out_features: 4}\n";
    let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{}", layer.repeat(3));
    let graph = LayerGraph::from_yaml(&text, "model.yaml").expect("a good model");
    let plan = Plan::new(&graph, &Cuts::Auto, 3, Placement::Plain).expect("a good cut");
    let session = BossSession::new(Setup::new(plan));
    let mut boss = Boss { session, effects: Vec::new(), requests: 0, command: 0, now: 0 };
    boss.ask(Instruction::Distribute);
    [0, 1, 2].into_iter().for_each(|worker| boss.done(worker, 0));
    boss.reply().expect("it is carried out");
    boss.effects.clear();

    let inputs = graph.inputs().to_vec();
    let spec = DataSpec { id: DataId([7; 32]), description: b"some".to_vec(), inputs };
    boss.ask(Instruction::OpenData(Box::new(spec)));
    let [BossEffect::Tell(told)] = &boss.effects[..] else { panic!("{:?}", boss.effects) };
    // The first stage reads inputs, and the last one targets.
    let workers: Vec<_> = told.iter().map(|told| told.to).collect();
    assert_eq!(workers, [WorkerId(0), WorkerId(2)]);
    [0, 2].into_iter().for_each(|worker| boss.done(worker, 0));
    boss.reply().expect("nobody else is waited for");
}
