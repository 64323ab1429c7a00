//! Both sessions under well-formed frames without sense. They must not panic and not send effects
//! without end. They must give back every tensor once, and answer every request.

use super::fuzz;
use super::heads::{self, envelope, head, node, Head, BUCKETS, GRAPH, KINDS, PLAN};
use super::names::{stage, worker};
use super::slots::Slots;
use pipeline::boss::{
    BossSession, Instruction, IntoRequest, ListSnapshots, Measure, ReportLinks, Request,
    RunRequest, SendState, Setup, SnapshotRequest,
};
use pipeline::effect::{BossEffect, Frame, Micros, Peer, StageEffect};
use pipeline::ids::{MicrobatchKey, Slot, StageId, Ticket, WorkerId};
use pipeline::message::{
    Assignment, Command, Failure, Mode, Reduction, RoundLoss, TensorHead, ToBoss, ToWorker,
};
use pipeline::norm::Square;
use pipeline::peer_snapshot::StoredTensor;
use pipeline::plan::StageSpec;
use pipeline::replicas::{Compress, MicrobatchAssignment, Node};
use pipeline::round_outputs::RoundOutputs;
use pipeline::samples::{DataId, DataTask, Reading, Samples};
use pipeline::schedule::{Action, Order};
use pipeline::stage::StageSession;
use pipeline::task::{EarlyOutput, LayerTimes, Outcome, Task};
use pipeline::watch::Watch;
use pipeline::StateForm;
use pipeline::{Determinism, Initialization, LossSpec, OptimizerSpec};
use std::collections::{BTreeMap, BTreeSet};
use testkit::Random;

/// A head of a kind that the session can receive. Commands come more often than anything else:
/// without them nothing happens.
fn random_head(random: &mut Random, fits: impl Fn(&Head) -> bool) -> Head {
    loop {
        let kind = if random.chance(13) { 0 } else { random.below(KINDS) };
        let head = head(random, kind);
        if fits(&head) {
            return head;
        }
    }
}

fn random_frame(random: &mut Random, slots: &mut Slots, head: TensorHead) -> Frame {
    let mut envelope = envelope(random, head);
    // Most frames are not relayed.
    envelope.route = envelope.route.filter(|_| random.chance(30));
    slots.frame(envelope)
}

/// More effects than any event has.
const MOST_EFFECTS: usize = 100;

#[derive(Default)]
struct StageDriver {
    session: StageSession,
    slots: Slots,
    stages: Vec<StageSpec>,
    tasks: Vec<(Ticket, Task<Slot>)>,
    /// The requested sums, each with its number of slices.
    sums: Vec<(Ticket, usize)>,
    /// The reads in progress, each with its number of columns.
    reads: Vec<(Ticket, usize)>,
    /// The number of tensors to load. The session keeps them until the boss ends the load.
    loads: usize,
    passes: u64,
    /// The number of copied tensors. The session keeps those that the boss does not take.
    copied: usize,
    /// The number of parts of snapshots to store.
    kept: u64,
    /// The number of the newest command, and of the newest that stores a snapshot.
    commands: u64,
    keep: u64,
}

impl StageDriver {
    fn event(&mut self, random: &mut Random, now: Micros) {
        match random.below(27) {
            25.. => {
                let (ticket, columns) = self.reads.pop().unwrap_or((Ticket(random.below(1000)), 1));
                let result = match random.chance(80) {
                    true => Ok((0..columns).map(|_| self.slots.hold()).collect()),
                    false => Err(Failure::new("no such file")),
                };
                self.session.on_data(now, ticket, result);
            }
            22.. => self.bring_input(random, now),
            20 => {
                let handed = handed_out(random, &mut self.slots);
                self.session.on_early_output(now, handed);
            }
            21 => {
                let (ticket, slices) = self.sums.pop().unwrap_or((Ticket(random.below(1000)), 1));
                let result = match random.chance(80) {
                    true => Ok((0..slices).map(|_| self.slots.hold()).collect()),
                    false => Err(Failure::new("sums of another shape")),
                };
                self.session.on_summed(now, ticket, result);
            }
            0 => self.session.on_link_up(now, worker(random)),
            1 => self.session.on_link_down(now, worker(random), "broken"),
            2 => self.session.on_timeout(now),
            3 => self.session.on_done(
                now,
                Ticket(random.below(1000) + 1000),
                Ok(Outcome::Done),
                (now, now),
            ),
            4..8 if !self.tasks.is_empty() => self.finish_task(random, now),
            _ => {
                let from =
                    if random.chance(60) { Peer::Boss } else { Peer::Worker(worker(random)) };
                let fits = |head: &Head| match head {
                    Head::ToWorker(_) => from == Peer::Boss,
                    Head::ToBoss(_) => false,
                    Head::Tensors(_) => true,
                };
                let mut head = random_head(random, fits);
                self.number(random, &mut head);
                match head {
                    Head::ToWorker(message) => self.session.on_message(now, message),
                    Head::Tensors(head) => {
                        let frame = random_frame(random, &mut self.slots, head);
                        self.loads += usize::from(matches!(
                            frame.head,
                            TensorHead::File { .. } | TensorHead::Weight { .. }
                        ));
                        self.session.on_frame(now, from, frame);
                    }
                    Head::ToBoss(_) => {}
                }
            }
        }
        self.drain();
    }

    /// Usually gives a command the next number, as a boss does. Other messages get the newest or
    /// the next number, because older ones are refused without effect.
    fn number(&mut self, random: &mut Random, head: &mut Head) {
        match head {
            Head::ToWorker(ToWorker::Command { id, body }) if random.chance(80) => {
                self.commands += 1;
                *id = self.commands;
                if let Command::StoreSnapshot(_) = body {
                    self.keep = *id;
                }
            }
            // Parts may arrive long after their command.
            Head::Tensors(TensorHead::SnapshotPart { id, .. }) if random.chance(60) => {
                *id = self.keep;
            }
            Head::ToWorker(
                ToWorker::Abort { id, .. }
                | ToWorker::TotalNorm { id, .. }
                | ToWorker::MoreState { id, .. },
            )
            | Head::Tensors(
                TensorHead::File { id, .. }
                | TensorHead::Weight { id, .. }
                | TensorHead::SnapshotPart { id, .. }
                | TensorHead::ReplicaState { id, .. },
            ) if random.chance(50) => {
                *id = self.commands + random.below(2);
            }
            _ => {}
        }
    }

    /// Delivers the tensor that a local stage waits for, from the peer that it expects. Random
    /// tensors alone would hardly ever complete a pass.
    fn bring_input(&mut self, random: &mut Random, now: Micros) {
        let Some(stage) = self.stages.first().cloned() else { return };
        let key = MicrobatchKey { batch: 1 + random.below(4), index: random.below(3) as u32 };
        for input in &stage.inputs {
            let from = input
                .from
                .and_then(|maker| PLAN.stage_placement.first(maker))
                .map_or(Peer::Boss, Peer::Worker);
            let head = TensorHead::Value { key, value: input.value, to: stage.stage };
            let frame = Frame { route: None, head, slots: vec![self.slots.hold()] };
            self.session.on_frame(now, from, frame);
        }
    }

    fn finish_task(&mut self, random: &mut Random, now: Micros) {
        let (ticket, task) = self.tasks.remove(0);
        let slots = &mut self.slots;
        self.passes += u64::from(matches!(task, Task::Forward { .. } | Task::Backward { .. }));
        let outcome = match &task {
            Task::Build { stages, .. } => {
                self.stages.clone_from(stages);
                Outcome::Done
            }
            Task::Forward { export, loss, .. } => Outcome::Forward {
                outputs: export.iter().map(|_| slots.hold()).collect(),
                loss: loss.as_ref().map(|_| 0.5),
            },
            Task::Backward { stage, .. } => {
                let spec = self.stages.iter().find(|s| s.stage == *stage);
                let inputs = spec.map_or(&[][..], |spec| &spec.inputs);
                let grads = inputs
                    .iter()
                    .map(|i| (0..u64::from(i.needs_grad)).map(|_| slots.hold()).collect());
                Outcome::Backward { grads: grads.collect() }
            }
            Task::Snapshot { .. } => {
                let names = ["0.weight", "0.bias", "optimizer/0.weight.m"];
                let tensors = names.map(|name| (name.to_string(), slots.hold()));
                self.copied += tensors.len();
                Outcome::State { heads: Vec::new(), tensors: tensors.into() }
            }
            Task::TiedGrads { .. } | Task::OptimStep { .. } => Outcome::Tied {
                tensors: vec![(StageId(random.below(4) as u16), vec![slots.hold()])],
            },
            Task::GradNorm { .. } => Outcome::Norms { squares: vec![square()] },
            Task::Measure { probes } => {
                Outcome::Measured { times: probes.iter().map(|_| LayerTimes::default()).collect() }
            }
            _ => Outcome::Done,
        };
        let result = if random.chance(20) {
            self.slots.give_up(&outcome.into_tensors());
            Err(Failure::new("out of memory").into())
        } else {
            Ok(outcome)
        };
        self.session.on_done(now, ticket, result, (now, now));
    }

    fn drain(&mut self) {
        for count in 0.. {
            let Some(effect) = self.session.poll_effect() else { break };
            assert!(count < MOST_EFFECTS, "effects without end: {effect:?}");
            match effect {
                StageEffect::Send { slots, .. } | StageEffect::Drop(slots) => {
                    self.slots.give_up(&slots)
                }
                StageEffect::Compute { ticket, task } => {
                    let taken = task.try_map(|slot| {
                        self.slots.give_up(&[slot]);
                        Ok::<_, std::convert::Infallible>(slot)
                    });
                    let Ok(task) = taken;
                    self.tasks.push((ticket, task));
                }
                StageEffect::Sum { ticket, sums, .. } => {
                    sums.iter().for_each(|(_, slots)| self.slots.give_up(slots));
                    self.sums.push((ticket, sums.first().map_or(0, |(_, slots)| slots.len())));
                }
                StageEffect::Data { ticket, task } => {
                    let columns = match task {
                        DataTask::Open(_) => 0,
                        DataTask::Read(reading) => {
                            assert!(
                                !reading.part.is_empty() && reading.part.end <= reading.batch.len(),
                                "{reading:?}"
                            );
                            reading.columns.len()
                        }
                    };
                    self.reads.push((ticket, columns));
                }
                StageEffect::ReadAhead(readings) => {
                    let whole = |reading: &Reading| reading.part.end <= reading.batch.len();
                    assert!(readings.iter().all(whole), "{readings:?}");
                }
                StageEffect::StoreSnapshot { tensors, .. } => {
                    self.kept += 1;
                    tensors.iter().for_each(|(_, slot)| self.slots.give_up(&[*slot]));
                }
                StageEffect::Tell(_)
                | StageEffect::Residuals(_)
                | StageEffect::SendSnapshot { .. }
                | StageEffect::RetainSnapshots(_)
                | StageEffect::Interrupt
                | StageEffect::Dial { .. }
                | StageEffect::PunchHole { .. }
                | StageEffect::Hangup { .. }
                | StageEffect::Progress(_)
                | StageEffect::Finish
                | StageEffect::Leave => {}
            }
        }
        // A tensor that the driver holds and the session does not is lost.
        assert_eq!(self.slots.held.len(), self.session.held_slots());
    }
}

fn square() -> Square {
    Square { layer: layerspec::LayerId(0), number: 0, blocks: 1, node: Node::leaf(0), sum: 1.0 }
}

fn handed_out(random: &mut Random, slots: &mut Slots) -> EarlyOutput<Slot> {
    let stage = StageId(random.below(4) as u16);
    let mut some =
        |random: &mut Random| -> Vec<Slot> { (0..random.below(3)).map(|_| slots.hold()).collect() };
    match random.below(10) {
        0..2 => EarlyOutput::Statistics { stage, tensors: some(random) },
        2 => EarlyOutput::Health(Vec::new()),
        3..5 => {
            EarlyOutput::Updated { stage, bucket: random.below(3) as u32, slices: some(random) }
        }
        _ => EarlyOutput::Sums {
            stage,
            bucket: random.below(3) as u32,
            shards: (0..1 + random.below(3)).map(|_| vec![(node(random), some(random))]).collect(),
        },
    }
}

#[test]
fn fuzz_stage_session() {
    let (mut passes, mut kept) = (0, 0);
    fuzz(|random| {
        let mut driver = StageDriver::default();
        for time in 0..1000 {
            driver.event(random, Micros(time * 100_000));
            if driver.tasks.len() > 8 {
                driver.finish_task(random, Micros(time * 100_000));
                driver.drain();
            }
        }
        passes += driver.passes;
        kept += driver.kept;
        // The same few tensors arrived repeatedly. Each is stored at most once, and a gradient has
        // up to three. A sum is stored for each node of each bucket, with up to three slices. Some
        // nodes are drawn from all numbers.
        let (batches, microbatches, items) = (7, 3, 3 * (6 + 1 + 6 * 5 * 3) + 3 * 3 * 200);
        // Snapshots have up to three parts of up to three tensors, for four commands.
        let most = batches * microbatches * items + driver.loads + driver.copied + 4 * 3 * 3;
        assert!(driver.slots.held.len() <= most, "{} tensors are held", driver.slots.held.len());
    });
    assert!(passes > 0, "no forward or backward pass was ever made");
    assert!(kept > 0, "no part of a snapshot was ever kept");
}

#[test]
fn a_peer_cannot_fill_a_worker_with_batches() {
    let mut driver = StageDriver::default();
    let me = WorkerId(1);
    let (stages, stage_placement) = (PLAN.stages_of(me), PLAN.stage_placement.clone());
    let input = *stages[0].inputs.iter().find(|i| i.from.is_some()).expect("an input from stage 0");
    let assignment = Assignment {
        worker: me,
        stages,
        stage_placement,
        buckets: BUCKETS,
        sharding: None,
        peers: Vec::new(),
        seed: 1,
        determinism: Determinism::Strict,
        initialization: Initialization::AtOnce,
    };
    let head = ToWorker::Command { id: 1, body: Command::Assign(Box::new(assignment)) };
    driver.session.on_message(Micros(0), head);
    for batch in 1..1000 {
        let key = MicrobatchKey { batch, index: 0 };
        let head = TensorHead::Value { key, value: input.value, to: StageId(1) };
        let frame = Frame { route: None, head, slots: vec![driver.slots.hold()] };
        driver.session.on_frame(Micros(0), Peer::Worker(WorkerId(0)), frame);
        driver.drain();
    }
    assert_eq!(driver.slots.held.len(), 64);
}

struct BossDriver {
    session: BossSession,
    slots: Slots,
    requests: u64,
    replied: BTreeSet<u64>,
    succeeded: u64,
    /// The number of the last command to the workers.
    command: u64,
}

impl BossDriver {
    fn event(&mut self, random: &mut Random, now: Micros) {
        match random.below(40) {
            0..4 => {
                self.requests += 1;
                let request = self.request(random);
                self.session.on_request(now, self.requests, request);
            }
            // A worker that obeys its commands.
            5..14 => {
                let (received, answered, spans) = (now, now, Vec::new());
                let head = ToBoss::Done {
                    id: self.command,
                    losses: Vec::new(),
                    sent: 0,
                    received,
                    answered,
                    spans,
                };
                self.session.on_message(now, worker(random), head);
            }
            14..20 => {
                let head = ToBoss::Aborted { id: self.command, stepped: random.chance(10) };
                self.session.on_message(now, worker(random), head);
            }
            // Includes workers outside the fleet.
            4 if random.chance(5) => self.session.on_lost(now, worker(random), "gone"),
            _ => match random_head(random, |head| !matches!(head, Head::ToWorker(_))) {
                Head::ToBoss(message) => {
                    self.session.on_message(now, worker(random), message);
                }
                Head::Tensors(head) => {
                    let frame = random_frame(random, &mut self.slots, head);
                    self.session.on_frame(now, worker(random), frame);
                }
                Head::ToWorker(_) => {}
            },
        }
        self.drain();
    }

    fn request(&mut self, random: &mut Random) -> Request {
        match random.below(16) {
            0 | 1 => Instruction::Distribute.into_request(),
            13 => ListSnapshots { run: random.below(2) }.into_request(),
            14 => Instruction::StoreSnapshot(Box::new(SnapshotRequest {
                snapshot: heads::snapshot_id(random),
                text: heads::note(random).text,
                last_complete: None,
                stage: None,
                neighbours: BTreeMap::new(),
            }))
            .into_request(),
            15 => {
                let (holder, stage) = (worker(random), stage(random));
                let tensors =
                    vec![StoredTensor { holder, part: 0, name: "0.weight".into(), stage }];
                Instruction::RestoreSnapshot { snapshot: heads::snapshot_id(random), tensors }
                    .into_request()
            }
            2 => Instruction::SetOptimizer(OptimizerSpec::sgd(0.1)).into_request(),
            3 => Instruction::Discard { batch: 1 + random.below(4) }.into_request(),
            4 => SendState {
                stage: None,
                optimizer: random.chance(50),
                form: *random.pick(&[StateForm::Slices, StateForm::Hashes]),
            }
            .into_request(),
            5 => {
                let tensors = vec![(stage(random), "0.weight".into(), self.slots.hold())];
                let content = heads::content(random);
                let more = random.chance(50);
                Instruction::LoadState { tensors, content, more }.into_request()
            }
            6 => Measure(Vec::new()).into_request(),
            7 => ReportLinks.into_request(),
            9 => Instruction::SendFiles(vec![("hash".into(), self.slots.hold())]).into_request(),
            8 => Instruction::Use(Box::new(PLAN.clone())).into_request(),
            _ => self.run(random),
        }
    }

    /// A round with the tensors that it needs, and sometimes with more or fewer.
    fn run(&mut self, random: &mut Random) -> Request {
        let backward = random.chance(30);
        let pass = |stage: StageId| match backward {
            true => Action::Backward { stage, microbatch: 0 },
            false => Action::Forward { stage, microbatch: 0 },
        };
        let of_worker =
            |w: u16| PLAN.stages_of(WorkerId(w)).iter().map(|s| pass(s.stage)).collect();
        let mut inputs: Vec<_> =
            GRAPH.inputs().iter().map(|value| (0, *value, self.slots.hold())).collect();
        let mut targets = vec![(0, self.slots.hold())];
        let mut grads: Vec<_> =
            GRAPH.outputs().iter().map(|value| (0, *value, vec![self.slots.hold()])).collect();
        if backward {
            let slots: Vec<Slot> = inputs
                .drain(..)
                .map(|(.., s)| s)
                .chain(targets.drain(..).map(|(_, s)| s))
                .collect();
            self.slots.give_up(&slots);
        } else {
            let slots: Vec<Slot> = grads.drain(..).flat_map(|(.., slots)| slots).collect();
            self.slots.give_up(&slots);
        }
        if random.chance(20) {
            inputs.push((
                random.below(2) as u32,
                random.pick(GRAPH.values()).id,
                self.slots.hold(),
            ));
        }
        let samples = random.chance(20).then(|| {
            let given = inputs
                .drain(..)
                .map(|(.., slot)| slot)
                .chain(targets.drain(..).map(|(_, slot)| slot));
            self.slots.give_up(&given.collect::<Vec<_>>());
            let batches =
                (0..random.below(3)).map(|_| (0..random.below(3) as i64).collect()).collect();
            Samples { data: DataId([7; 32]), batches, next: (0..random.below(3) as i64).collect() }
        });
        let loss = RoundLoss { spec: LossSpec::MSELoss, weights: vec![1.0], likeliest: false };
        Request::Run(Box::new(RunRequest {
            batch: 1 + random.below(4),
            step: 1,
            mode: *random.pick(&[Mode::Train, Mode::Eval]),
            kv_cache: None,
            actions: (0..PLAN.workers() as u16).map(of_worker).collect(),
            order: Order::Listed,
            microbatch_assignment: MicrobatchAssignment::default(),
            microbatches: 1,
            reduction: *random.pick(&[
                Reduction::Tree,
                Reduction::Fast,
                Reduction::Compressed(Compress::Int8),
            ]),
            update: None,
            watch: Watch { health: random.chance(50), ..Watch::default() },
            loss: (!backward).then_some(loss),
            outputs: match random.chance(20) {
                true => RoundOutputs::All,
                false => RoundOutputs::None,
            },
            samples,
            inputs,
            targets,
            grads: backward.then_some(grads),
        }))
    }

    fn drain(&mut self) {
        for count in 0.. {
            let Some(effect) = self.session.poll_effect() else { break };
            assert!(
                count < MOST_EFFECTS + self.requests as usize,
                "effects without end: {effect:?}"
            );
            match effect {
                BossEffect::Tell(to) => {
                    if let Some(ToWorker::Command { id, .. }) = to.first().map(|to| &to.body) {
                        self.command = *id;
                    }
                }
                BossEffect::Send { slots, .. } => self.slots.give_up(&slots),
                BossEffect::Drop(slots) => self.slots.give_up(&slots),
                BossEffect::Reply { request, result } => {
                    assert!(
                        request <= self.requests && self.replied.insert(request),
                        "a second reply to {request}"
                    );
                    if let Ok(answer) = result {
                        self.succeeded += 1;
                        self.slots.give_up(&answer.into_slots());
                    }
                }
                BossEffect::State { request, worker, slot, .. } => {
                    self.slots.give_up(&[slot]);
                    self.session.on_state_taken(request, worker);
                }
                BossEffect::StateHeads { .. } => {}
                BossEffect::Notice(_)
                | BossEffect::Leaving(_)
                | BossEffect::Hangup { .. }
                | BossEffect::Dismiss { .. } => {}
            }
        }
        // A tensor that the driver holds and the session does not is lost.
        assert_eq!(self.slots.held.len(), self.session.held_slots());
    }
}

#[test]
fn fuzz_boss_session() {
    let mut succeeded = 0;
    fuzz(|random| {
        let workers = PLAN.workers() as u16;
        let session = BossSession::new(Setup {
            buckets: BUCKETS,
            max_pending_batches: 2,
            ..Setup::new(PLAN.clone())
        });
        let (slots, replied) = (Slots::default(), BTreeSet::new());
        let mut driver =
            BossDriver { session, slots, requests: 0, replied, succeeded: 0, command: 0 };
        for time in 0..1000 {
            driver.event(random, Micros(time));
        }
        for worker in 0..workers {
            driver.session.on_lost(Micros(1000), WorkerId(worker), "gone");
            driver.drain();
        }
        assert_eq!(driver.replied.len() as u64, driver.requests, "every request has its reply");
        assert!(driver.slots.held.is_empty(), "{:?} are held for nothing", driver.slots.held);
        succeeded += driver.succeeded;
    });
    assert!(succeeded > 0, "no request ever succeeded");
}
