//! A boss and its workers in one thread, without sockets. Both sessions and the compute are real.
//! Frames arrive in an order drawn from a seed.

use crate::device::device_of;
use crate::TestCluster;
use link::{Payload, Slots};
use pipeline::boss::{Answer, BossSession, IntoRequest, Request, SendState, Setup};
use pipeline::effect::{
    BossEffect, Destination, Frame, Message, Micros, Peer, Residuals, StageEffect, Summing,
};
use pipeline::frame::Route;
use pipeline::ids::{Slot, Ticket, WorkerId};
use pipeline::message::{Failure, TensorHead, ToBoss, ToWorker};
use pipeline::replicas::{BucketBytes, Node};
use pipeline::stage::StageSession;
use pipeline::task::Task;
use pipeline::{Plan, TensorMeta};
use runtime::testing::{run_to_end, Reducer};
use runtime::TaskTensor;
use std::collections::VecDeque;
use worker::StageCompute;

/// The time of every event. Sessions use time only if a peer is silent, and no peer is silent here.
const NOW: Micros = Micros(0);

/// Workers in memory.
pub struct InMemoryCluster {
    boss: BossSession,
    workers: Vec<Worker>,
    slots: Slots,
    /// Frames in flight, oldest first.
    frames: Vec<InFlightFrame>,
    /// What workers announced of their state, and the tensors that came.
    heads: Vec<(WorkerId, String, TensorMeta)>,
    state: Vec<(String, Payload)>,
    next_request: u64,
    /// The number of sums so far.
    summed: u64,
    random: u64,
}

struct Worker {
    session: StageSession,
    compute: StageCompute,
    /// The tensors of this worker, in the form of its tasks.
    slots: Slots<TaskTensor>,
    tasks: VecDeque<(Ticket, Task<TaskTensor>)>,
    todo: VecDeque<Job>,
    sums: Reducer,
}

/// A request to a sum thread.
enum Job {
    Sum(Ticket, Summing, Vec<(Node, Vec<Payload>)>),
    Settle(Residuals),
}

struct InFlightFrame {
    from: Peer,
    to: Peer,
    body: Body,
}

/// The content of a frame in flight.
#[derive(Debug)]
enum Body {
    ToWorker(ToWorker),
    ToBoss(ToBoss),
    Tensors { route: Option<Route>, head: TensorHead, tensors: Vec<TaskTensor> },
}

impl Body {
    fn is_data(&self) -> bool {
        matches!(self, Body::Tensors { .. })
    }
}

/// The next event.
enum NextEvent {
    /// The frame at this place arrives.
    Arrives(usize),
    /// This worker's oldest task is done.
    Computed(usize),
    /// This worker's sum thread does its oldest job.
    Summed(usize),
}

impl InMemoryCluster {
    /// Makes workers for a plan. Frames and results arrive in an order drawn from `order`.
    pub fn new(plan: Plan, seed: u64, order: u64) -> Self {
        let count = plan.workers();
        let somewhere = ([127, 0, 0, 1], 1).into();
        let worker = |number| Worker {
            session: StageSession::new(),
            compute: StageCompute::new(device_of(number)),
            slots: Slots::default(),
            tasks: VecDeque::new(),
            todo: VecDeque::new(),
            sums: Reducer::default(),
        };
        InMemoryCluster {
            boss: BossSession::new(Setup {
                seed,
                // So small that the models here have several buckets.
                buckets: BucketBytes { first: 1 << 10, other: 8 << 10 },
                addresses: vec![Some(somewhere); count],
                ..Setup::new(plan)
            }),
            workers: (0..count).map(worker).collect(),
            slots: Slots::default(),
            frames: Vec::new(),
            heads: Vec::new(),
            state: Vec::new(),
            next_request: 0,
            summed: 0,
            random: order,
        }
    }

    /// Returns the number of sums so far.
    pub fn summed(&self) -> u64 {
        self.summed
    }

    /// Carries out the effects of the sessions until none is left. Returns the boss's answer, if
    /// any.
    fn execute_effects(&mut self) -> Option<Result<Answer, Failure>> {
        let mut answer = None;
        while let Some(effect) = self.boss.poll_effect() {
            match effect {
                BossEffect::Reply { result, .. } => answer = Some(result),
                BossEffect::Tell(messages) => {
                    self.frames.extend(messages.into_iter().map(|Message { to, body }| {
                        let (from, to, body) = (Peer::Boss, Peer::Worker(to), Body::ToWorker(body));
                        InFlightFrame { from, to, body }
                    }));
                }
                BossEffect::Send { to, slots } => {
                    let tensors = self.slots.take(&slots).unwrap();
                    self.send(Peer::Boss, to, tensors.into_iter().map(TaskTensor::from).collect())
                }
                BossEffect::Drop(slots) => {
                    slots.into_iter().for_each(|slot| drop(self.slots.remove(slot)))
                }
                BossEffect::StateHeads { heads, .. } => self.heads = heads,
                BossEffect::State { request, worker, name, slot } => {
                    let payload = self.slots.remove(slot).unwrap();
                    let head = (worker, name.clone(), payload.meta.clone());
                    assert!(self.heads.contains(&head), "{head:?} was not announced");
                    self.state.push((name, payload));
                    self.boss.on_state_taken(request, worker);
                }
                other => panic!("the boss wants {other:?}"),
            }
        }
        for number in 0..self.workers.len() {
            let me = WorkerId(number as u16);
            while let Some(effect) = self.workers[number].session.poll_effect() {
                match effect {
                    StageEffect::Compute { ticket, task } => {
                        let worker = &mut self.workers[number];
                        let task = task.try_map(|slot| worker.slots.remove(slot).ok_or(slot));
                        worker.tasks.push_back((ticket, task.unwrap()));
                    }
                    StageEffect::Sum { ticket, summing, sums } => {
                        let worker = &mut self.workers[number];
                        let take = |slots: Vec<Slot>| -> Vec<Payload> {
                            let tensors = worker.slots.take(&slots).unwrap();
                            tensors.iter().map(|tensor| tensor.to_host().unwrap()).collect()
                        };
                        let sums =
                            sums.into_iter().map(|(node, slots)| (node, take(slots))).collect();
                        worker.todo.push_back(Job::Sum(ticket, summing, sums));
                    }
                    StageEffect::Residuals(what) => {
                        self.workers[number].todo.push_back(Job::Settle(what))
                    }
                    StageEffect::Dial { peer, .. } => {
                        self.workers[number].session.on_link_up(NOW, peer);
                        self.workers[peer.0 as usize].session.on_link_up(NOW, me);
                    }
                    StageEffect::PunchHole { .. } => {}
                    StageEffect::Tell(message) => {
                        let (from, to) = (Peer::Worker(me), Peer::Boss);
                        let body = Body::ToBoss(message);
                        self.frames.push(InFlightFrame { from, to, body });
                    }
                    StageEffect::Send { to, slots } => {
                        let tensors = self.workers[number].slots.take(&slots).unwrap();
                        self.send(Peer::Worker(me), to, tensors)
                    }
                    StageEffect::Drop(slots) => slots
                        .into_iter()
                        .for_each(|slot| drop(self.workers[number].slots.remove(slot))),
                    other => panic!("{me} wants {other:?}"),
                }
            }
        }
        answer
    }

    fn send(&mut self, from: Peer, to: Vec<Destination>, tensors: Vec<TaskTensor>) {
        for Destination { peer: to, route, head } in to {
            let carry = |tensor: &TaskTensor| match to == from {
                true => tensor.clone(),
                false => tensor.to_host().unwrap().into(),
            };
            let tensors = tensors.iter().map(carry).collect();
            self.frames.push(InFlightFrame {
                from,
                to,
                body: Body::Tensors { route, head, tensors },
            });
        }
    }

    /// Lists the possible next events. Frames with tensors may overtake each other. Control frames
    /// between two ends keep their order.
    fn possible(&self) -> Vec<NextEvent> {
        let first_of_its_lane = |place: &usize| {
            let it = &self.frames[*place];
            let same = |other: &InFlightFrame| {
                !other.body.is_data() && (other.from, other.to) == (it.from, it.to)
            };
            it.body.is_data() || !self.frames[..*place].iter().any(same)
        };
        let arrivals = (0..self.frames.len()).filter(first_of_its_lane).map(NextEvent::Arrives);
        let busy = (0..self.workers.len()).filter(|w| !self.workers[*w].tasks.is_empty());
        let summing = (0..self.workers.len()).filter(|w| !self.workers[*w].todo.is_empty());
        arrivals
            .chain(busy.map(NextEvent::Computed))
            .chain(summing.map(NextEvent::Summed))
            .collect()
    }

    fn apply_event(&mut self, next: NextEvent) {
        match next {
            NextEvent::Arrives(place) => {
                let InFlightFrame { from, to, body } = self.frames.remove(place);
                match (to, from, body) {
                    (Peer::Worker(to), _, Body::ToWorker(message)) => {
                        self.workers[to.0 as usize].session.on_message(NOW, message);
                    }
                    (Peer::Worker(to), _, Body::Tensors { route, head, tensors }) => {
                        let worker = &mut self.workers[to.0 as usize];
                        let slots = tensors.into_iter().map(|tensor| worker.slots.insert(tensor));
                        let slots = slots.collect();
                        worker.session.on_frame(NOW, from, Frame { route, head, slots });
                    }
                    (Peer::Boss, Peer::Worker(from), Body::ToBoss(message)) => {
                        self.boss.on_message(NOW, from, message);
                    }
                    (Peer::Boss, Peer::Worker(from), Body::Tensors { route, head, tensors }) => {
                        let slots = tensors.iter().map(|t| self.slots.insert(t.to_host().unwrap()));
                        let slots = slots.collect();
                        self.boss.on_frame(NOW, from, Frame { route, head, slots });
                    }
                    (to, from, body) => panic!("{from} sent {to} {body:?}"),
                }
            }
            NextEvent::Computed(number) => {
                let worker = &mut self.workers[number];
                let (ticket, task) = worker.tasks.pop_front().unwrap();
                let mut handed = Vec::new();
                let result = run_to_end(&mut worker.compute, task, &mut |sums| handed.push(sums));
                let slots = &worker.slots;
                let result = result.map(|outcome| outcome.map(|tensor| slots.insert(tensor)));
                for sums in handed {
                    let sums = sums.map(|tensor| worker.slots.insert(tensor));
                    worker.session.on_early_output(NOW, sums);
                }
                worker.session.on_done(NOW, ticket, result, (NOW, NOW));
            }
            NextEvent::Summed(number) => {
                let worker = &mut self.workers[number];
                match worker.todo.pop_front().unwrap() {
                    Job::Settle(what) => worker.sums.settle(what),
                    Job::Sum(ticket, summing, sums) => {
                        self.summed += 1;
                        let result = worker.sums.reduce(summing, &sums);
                        let result = result.map(|sums| {
                            sums.into_iter().map(|sum| worker.slots.insert(sum.into())).collect()
                        });
                        worker.session.on_summed(NOW, ticket, result);
                    }
                }
            }
        }
    }

    /// Draws a number below `count` (Knuth's MMIX generator).
    fn draw(&mut self, count: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % count
    }
}

impl TestCluster for InMemoryCluster {
    fn answer(&mut self, request: Request) -> Result<Answer, Failure> {
        self.next_request += 1;
        self.boss.on_request(NOW, self.next_request, request);
        loop {
            if let Some(answer) = self.execute_effects() {
                return answer;
            }
            let mut possible = self.possible();
            assert!(!possible.is_empty(), "everybody waits: a deadlock");
            let next = possible.swap_remove(self.draw(possible.len()));
            self.apply_event(next);
        }
    }

    fn fetch(&mut self, request: SendState) -> Result<Vec<(String, Payload)>, Failure> {
        self.answer(request.into_request())?;
        Ok(std::mem::take(&mut self.state))
    }

    fn slots(&self) -> &Slots {
        &self.slots
    }
}
