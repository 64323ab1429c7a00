//! The messages and effects of sessions whose replicas sum gradients on their compute threads
//! (`collective: nccl`).

use layerspec::LayerGraph;
use pipeline::boss::{Answer, BossSession, Instruction, IntoRequest, MakeIds, Setup};
use pipeline::effect::{BossEffect, Message, Micros, Peer, StageEffect};
use pipeline::ids::{Slot, StageId, Ticket, WorkerId};
use pipeline::message::{
    Assignment, Command, Failure, Mode, Reduction, Round, RoundUpdate, ToBoss, ToWorker,
};
use pipeline::replicas::{BucketBytes, MicrobatchAssignment, ShardId, UniqueId, WorkerGroups};
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::{Action, Order};
use pipeline::stage::StageSession;
use pipeline::task::{Outcome, Task};
use pipeline::watch::Watch;
use pipeline::{Cuts, Determinism, Initialization, Placement, Plan};

const NOW: Micros = Micros(0);
const BATCH: u64 = 9;
const STAGE: StageId = StageId(0);

/// Two stages; the first has `replicas` replicas.
fn plan(replicas: u16) -> Plan {
    let yaml = "{inputs: {x: [batch, 4]}, layers: [Linear: {in_features: 4, out_features: 4}, \
                Linear: {in_features: 4, out_features: 4}]}";
    let graph = LayerGraph::from_yaml(yaml, "two").unwrap();
    Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(&[replicas, 1]), Placement::Plain).unwrap()
}

fn id(byte: u8) -> UniqueId {
    UniqueId::from([byte; UniqueId::BYTES])
}

/// The effects of a session, and its tasks for the compute thread.
type Wanted = (Vec<StageEffect>, Vec<(Ticket, Task<Slot>)>);

/// A worker with its stages.
struct Worker(StageSession);

impl Worker {
    fn new(worker: WorkerId) -> Self {
        let plan = plan(2);
        let mut session = Worker(StageSession::new());
        let assignment = Assignment {
            worker,
            stages: plan.stages_of(worker),
            stage_placement: plan.stage_placement.clone(),
            buckets: BucketBytes::default(),
            sharding: None,
            peers: Vec::new(),
            seed: 0,
            determinism: Determinism::Strict,
            initialization: Initialization::AtOnce,
        };
        let (_, tasks) = session.hear(1, Command::Assign(Box::new(assignment)));
        session.done(tasks, &Outcome::Done);
        session
    }

    fn hear(&mut self, number: u64, body: Command) -> Wanted {
        self.told(ToWorker::Command { id: number, body })
    }

    fn told(&mut self, message: ToWorker) -> Wanted {
        self.0.on_message(NOW, message);
        self.drain()
    }

    fn drain(&mut self) -> Wanted {
        let (mut effects, mut tasks) = (Vec::new(), Vec::new());
        while let Some(effect) = self.0.poll_effect() {
            match effect {
                StageEffect::Compute { ticket, task } => tasks.push((ticket, task)),
                other => effects.push(other),
            }
        }
        (effects, tasks)
    }

    fn done(
        &mut self,
        tasks: Vec<(Ticket, Task<Slot>)>,
        outcome: &Outcome<Slot>,
    ) -> Vec<StageEffect> {
        for (ticket, _) in tasks {
            self.0.on_done(NOW, ticket, Ok(outcome.clone()), (NOW, NOW));
        }
        self.drain().0
    }

    /// Begins a round with these actions, which take part in a sum.
    fn round(&mut self, actions: Vec<Action>) -> Wanted {
        let round = Round {
            batch: BATCH,
            step: 1,
            mode: Mode::Train,
            kv_cache: None,
            actions,
            order: Order::Listed,
            microbatch_assignment: MicrobatchAssignment::even(&plan(2).stage_placement, 2),
            microbatches: 2,
            samples: None,
            reduction: Reduction::Collective,
            loss: None,
            outputs: RoundOutputs::None,
            grads_from_boss: false,
            watch: Watch::default(),
            update: Some(RoundUpdate { lr: 0.1, scale: 1.0, max_norm: None, skip_infinite: false }),
        };
        self.hear(3, Command::Run(Box::new(round)))
    }
}

fn heads(effects: &[StageEffect]) -> Vec<ToBoss> {
    let said = effects.iter().filter_map(|effect| match effect {
        StageEffect::Tell(message) => Some(message.clone()),
        _ => None,
    });
    said.collect()
}

fn boss_heads(effects: &[BossEffect]) -> Vec<ToWorker> {
    let sent = effects.iter().filter_map(|effect| match effect {
        BossEffect::Tell(to) => Some(to),
        _ => None,
    });
    sent.flatten().map(|to: &Message| to.body.clone()).collect()
}

fn refused(effects: &[StageEffect]) -> &str {
    match effects {
        [StageEffect::Hangup { peer: Peer::Boss, reason }] => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_replica_makes_the_id_and_each_knows_its_rank() {
    let mut first = Worker::new(WorkerId(0));
    let (_, tasks) = first.hear(2, Command::MakeIds);
    assert_eq!(tasks[0].1, Task::MakeIds { stages: vec![STAGE] });
    let made = Outcome::UniqueIds { ids: vec![(STAGE, id(1))] };
    let told = heads(&first.done(tasks, &made));
    assert!(matches!(
        &told[..],
        [ToBoss::UniqueIds { id: 2, ids }, ToBoss::Done { id: 2, .. }] if *ids == [(STAGE, id(1))]
    ));

    let mut second = Worker::new(WorkerId(2));
    let (_, tasks) = second.hear(2, Command::Communicate(vec![(STAGE, id(1))]));
    let rank = ShardId { replica: 1, replicas: 2 };
    assert_eq!(tasks[0].1, Task::Communicate { stages: vec![(STAGE, rank, id(1))] });
    assert!(matches!(heads(&second.done(tasks, &Outcome::Done))[..], [ToBoss::Done { id: 2, .. }]));

    assert_eq!(id(3).bytes(), &[3; UniqueId::BYTES]);

    // The only worker of its stage.
    let mut alone = Worker::new(WorkerId(1));
    assert_eq!(alone.hear(2, Command::MakeIds).1[0].1, Task::MakeIds { stages: Vec::new() });
    let mut alone = Worker::new(WorkerId(1));
    let (effects, _) = alone.hear(2, Command::Communicate(vec![(StageId(1), id(1))]));
    assert!(refused(&effects).contains("needs none"));
}

#[test]
fn gradients_do_not_travel_in_frames_and_who_waits_is_called_off() {
    let mut worker = Worker::new(WorkerId(0));
    let (effects, tasks) =
        worker.round(vec![Action::Reduce { stage: STAGE }, Action::OptimStep { stage: STAGE }]);
    assert_eq!(effects, []);
    let sum = Task::AllReduce { stage: STAGE, batch: BATCH, statistics: Vec::new() };
    assert_eq!(tasks[0].1, sum, "it waits for no frame, though it took no microbatch");
    let (effects, cleared) =
        worker.told(ToWorker::Abort { id: 3, batch: Some(BATCH), gradients: true });
    assert!(effects.contains(&StageEffect::Interrupt), "{effects:?}");
    assert_eq!(cleared[0].1, Task::Discard { batch: BATCH, gradients: true });
    for (ticket, _) in tasks {
        worker.0.on_done(NOW, ticket, Err(Failure::new("called off").into()), (NOW, NOW));
    }
    assert_eq!(worker.drain().0, [], "nobody wants to know");
    assert!(matches!(
        heads(&worker.done(cleared, &Outcome::Done))[..],
        [ToBoss::Aborted { id: 3, stepped: false }]
    ));
}

#[test]
fn nothing_is_called_off_where_nobody_waits() {
    let mut worker = Worker::new(WorkerId(0));
    worker.hear(2, Command::Digest);
    let (effects, _) = worker.told(ToWorker::Abort { id: 2, batch: None, gradients: false });
    assert!(!effects.contains(&StageEffect::Interrupt), "{effects:?}");
    let mut worker = Worker::new(WorkerId(0));
    worker.hear(2, Command::Communicate(vec![(STAGE, id(1))]));
    let (effects, _) = worker.told(ToWorker::Abort { id: 2, batch: None, gradients: false });
    assert!(effects.contains(&StageEffect::Interrupt), "{effects:?}");
}

#[test]
fn a_round_in_which_compute_threads_could_wait_for_each_other_for_ever_is_refused() {
    let mut worker = Worker::new(WorkerId(0));
    let actions =
        vec![Action::Reduce { stage: STAGE }, Action::Forward { stage: STAGE, microbatch: 0 }];
    let (effects, tasks) = worker.round(actions);
    assert!(refused(&effects).contains("before its passes are through") && tasks.is_empty());
}

#[test]
fn the_boss_brings_ids_to_whom_they_are_for_and_takes_none_from_others() {
    let boss = || {
        let setup = Setup { max_pending_batches: 2, ..Setup::new(plan(2)) };
        let mut session = BossSession::new(setup);
        session.on_request(NOW, 1, Instruction::Distribute.into_request());
        (0..3).for_each(|worker| answer(&mut session, worker, 1));
        while session.poll_effect().is_some() {}
        session.on_request(NOW, 2, MakeIds.into_request());
        session
    };
    let ids = |session: &mut BossSession, worker: u16, ids: Vec<(StageId, UniqueId)>| {
        let head = ToBoss::UniqueIds { id: 2, ids };
        session.on_message(NOW, WorkerId(worker), head);
    };
    let mut session = boss();
    let sent = boss_heads(&effects(&mut session));
    assert!(
        matches!(sent[..], [ToWorker::Command { id: 2, body: Command::MakeIds }]),
        "only the first replica is asked"
    );
    ids(&mut session, 0, vec![(STAGE, id(5))]);
    answer(&mut session, 0, 2);
    let replied = effects(&mut session);
    let [BossEffect::Reply { request: 2, result: Ok(Answer::MakeIds(made)) }] = &replied[..] else {
        panic!("{replied:?}")
    };
    assert_eq!(*made, [(STAGE, id(5))]);
    session.on_request(NOW, 3, Instruction::Communicate(made.clone()).into_request());
    let sent: Vec<usize> = boss_heads(&effects(&mut session))
        .into_iter()
        .map(|head| match head {
            ToWorker::Command { body: Command::Communicate(ids), .. } => ids.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sent, [1, 0, 1], "worker 1 has no replica");

    for (worker, wrong) in [(0, vec![]), (0, vec![(StageId(1), id(5))]), (2, vec![(STAGE, id(5))])]
    {
        let mut session = boss();
        effects(&mut session);
        ids(&mut session, worker, wrong);
        let hangup = |effect: &BossEffect| {
            matches!(
                effect,
                BossEffect::Hangup { reason, .. } if reason.contains("nobody asked")
            )
        };
        assert!(effects(&mut session).iter().any(hangup));
    }
}

fn answer(session: &mut BossSession, worker: u16, id: u64) {
    let head = ToBoss::Done {
        id,
        losses: Vec::new(),
        sent: 0,
        received: NOW,
        answered: NOW,
        spans: Vec::new(),
    };
    session.on_message(NOW, WorkerId(worker), head);
}

fn effects(session: &mut BossSession) -> Vec<BossEffect> {
    std::iter::from_fn(|| session.poll_effect()).collect()
}
