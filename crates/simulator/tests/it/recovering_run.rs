//! A run that recovers from faults, like `bossman train`: with the remaining workers and the last
//! complete snapshot of the state, at the boss or at the workers. It may take in workers that come
//! late. Its results must equal those of a run without faults.

use crate::calls::{Answered, Call};
use crate::oracle::Oracle;
use crate::process::{check as check_members, Process};
use crate::user::{together, User};
use crate::Setting;
use layerspec::LayerGraph;
use pipeline::message::Failure;
use pipeline::peer_snapshot::SnapshotId;
use pipeline::recovery::{
    Boundary, Cause, Problem, RecoveryPolicy, Remedy, RunGrowth, Situation, StateSource,
    StopReason, StoredSteps, MAX_ATTEMPTS,
};
use std::collections::BTreeMap;
use testkit::Random;

/// The run's number.
const RUN: u64 = 7;

pub type State = BTreeMap<String, u64>;

/// The number of times that each kind of event happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// The expected results of a run.
pub struct Reference {
    /// The change of the initial weights.
    salt: Option<u64>,
    /// The answer of each step, and the whole state after it.
    steps: Vec<(Answered, State)>,
}

impl Reference {
    pub fn new(graph: &LayerGraph, setting: &Setting, salt: Option<u64>, steps: u64) -> Self {
        let mut oracle = Oracle::new(graph, setting);
        let begin =
            [Call::Distribute].into_iter().chain(salt.map(Call::Load)).chain([Call::Optimizer(1)]);
        begin.for_each(|call| drop(oracle.call(call)));
        let step = |step| (oracle.call(Call::Train(step)), oracle.call(Call::Checkpoint).state);
        Reference { salt, steps: (1..=steps).map(step).collect() }
    }

    pub fn last(&self) -> u64 {
        self.steps.len() as u64
    }

    fn after(&self, step: u64) -> &(Answered, State) {
        &self.steps[step as usize - 1]
    }
}

/// A snapshot in flight: its step, its start, and the requests that bring it.
struct SnapshotInTransit {
    step: u64,
    since: u64,
    requests: Vec<u64>,
}

/// The end of a membership without a failure.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The run is done.
    Done,
    /// The run begins anew with this number of workers, which is larger.
    Grows(usize),
}

/// The steps of a membership.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CompletedSteps {
    /// The last step in the state that it resumed from.
    pub from: u64,
    /// The last step that it completed.
    pub until: u64,
}

/// A run, over all its memberships.
pub struct Run<'a> {
    reference: &'a Reference,
    pub every: u64,
    /// The last complete snapshot, and its step.
    pub kept: (u64, State),
    travelling: Option<SnapshotInTransit>,
    /// Steps between two peer snapshots, if workers make any.
    pub keeps: Option<u64>,
    /// The number of memberships.
    pub memberships: u64,
    /// The last complete peer snapshot, and one in flight.
    whole: Option<SnapshotId>,
    arriving: Option<(SnapshotId, Vec<u64>)>,
    /// Decides after each loss, as in `bossman train`.
    pub policy: RecoveryPolicy,
    /// Decides after each step whether waiting workers are taken in; None if it takes in none.
    pub growth: Option<RunGrowth<Process>>,
    /// The processes of the session, if it may take in some.
    pub members: Vec<Process>,
    /// The processes that were judged unfit since their last session.
    pub judged: Vec<Process>,
    /// The numbers of workers with which it can continue.
    pub sizes: Vec<usize>,
    /// The steps of this membership, once it has its state.
    pub completed: Option<CompletedSteps>,
    pub counts: &'a mut Counts,
}

impl<'a> Run<'a> {
    /// A run before its first step. The arguments are the steps between two snapshots at the boss,
    /// and between two peer snapshots.
    pub fn new(
        reference: &'a Reference,
        every: u64,
        keeps: Option<u64>,
        counts: &'a mut Counts,
    ) -> Self {
        let (kept, travelling, whole, arriving, memberships) =
            ((0, State::new()), None, None, None, 0);
        Run {
            reference,
            every,
            kept,
            travelling,
            keeps,
            memberships,
            whole,
            arriving,
            policy: RecoveryPolicy::default(),
            growth: None,
            members: Vec::new(),
            judged: Vec::new(),
            sizes: Vec::new(),
            completed: None,
            counts,
        }
    }
}

impl Run<'_> {
    /// Trains to the end, or until something fails or the run grows, from the beginning or from the
    /// last snapshot.
    pub fn attempt(&mut self, user: &mut User<'_>, random: &mut Random) -> Result<End, Failure> {
        self.memberships += 1;
        self.completed = None;
        self.call(user, Call::Distribute, "a loss while stages are assigned")?;
        let from = self.restore(user)?;
        self.completed = Some(CompletedSteps { from, until: from });
        for step in from + 1..=self.reference.last() {
            let pause = random.below(3) * random.below(30);
            self.during(user, "a loss between steps", |user| user.world.linger(pause));
            let answered = self.call(user, Call::Train(step), "a loss in a step")?;
            assert_eq!(answered, self.reference.after(step).0, "step {step}");
            self.policy.completed(step);
            if let Some(growth) = &mut self.growth {
                growth.step_done(&self.members);
            }
            self.completed = Some(CompletedSteps { from, until: step });
            if step.is_multiple_of(self.every) || step == self.reference.last() {
                // One travels at a time.
                self.record_snapshots(user);
                self.begin_snapshot(user, step);
            }
            if self.keeps.is_some_and(|every| step.is_multiple_of(every)) {
                self.note_kept(user);
                self.begin_keeping(user, step, random);
            }
            if let Some(workers) = self.larger_size(user, step) {
                if self.hold_state(user, step, random) {
                    self.growth.iter_mut().for_each(RunGrowth::begin);
                    return Ok(End::Grows(workers));
                }
            }
        }
        self.record_snapshots(user);
        self.note_kept(user);
        self.call(user, Call::Digest, "a loss after the last step")?;
        // Every step of this membership succeeded, so no forward pass waits for its backward pass.
        user.world.assert_clear();
        let state = self.call(user, Call::Checkpoint, "a loss after the last step")?.state;
        assert_eq!(
            state,
            self.reference.after(self.reference.last()).1,
            "the state after the last step"
        );
        Ok(End::Done)
    }

    /// The number of workers with which the run begins anew after this step, if it takes in some.
    fn larger_size(&mut self, user: &User<'_>, step: u64) -> Option<usize> {
        let boundary = Boundary {
            step,
            steps: self.reference.last(),
            workers: user.plan.workers(),
            waiting: user.world.injected.waiting.len(),
            // No lost step is still to be repeated.
            can_hold_state: step == self.policy.furthest(),
        };
        let check = |members: &[Process]| check_members(&self.sizes, members);
        let decision = self.growth.as_mut()?.decide(boundary, &user.world.injected.waiting, check);
        for problem in decision.problems {
            if let Problem::Unfit { worker, .. } = problem {
                self.judged.push(worker);
            }
        }
        decision.workers
    }

    /// Waits for a snapshot of this step, at the workers if they make any. Begins one if this step
    /// has none. Returns whether it is complete.
    fn hold_state(&mut self, user: &mut User<'_>, step: u64, random: &mut Random) -> bool {
        let Some(every) = self.keeps else {
            self.record_snapshots(user);
            if !step.is_multiple_of(self.every) {
                self.begin_snapshot(user, step);
                self.record_snapshots(user);
            }
            return self.kept.0 == step;
        };
        self.note_kept(user);
        if !step.is_multiple_of(every) {
            self.begin_keeping(user, step, random);
            self.note_kept(user);
        }
        self.whole.is_some_and(|whole| whole.step == step)
    }

    /// Gives the workers the newest state. Returns the last step in it.
    fn restore(&mut self, user: &mut User<'_>) -> Result<u64, Failure> {
        let found = if self.keeps.is_some() { user.kept_copy(RUN)? } else { None };
        let peer_snapshot = found.as_ref().map(|found| found.id.step);
        if peer_snapshot.is_none_or(|step| self.whole.is_some_and(|whole| step < whole.step)) {
            let had = self.whole.take().is_some();
            self.count_if("a snapshot of workers that was lost with them", had);
        }
        let checkpoint = (self.kept.0 > 0).then_some(self.kept.0);
        let source = StoredSteps { peer_snapshot, checkpoint }.newest();
        match (source, found) {
            (StateSource::PeerSnapshot { .. }, Some(found)) => {
                let moment = "a loss while workers restore a snapshot";
                self.during(user, moment, |user| user.restore_kept(&found))?;
                self.count("a run that went on from what workers keep");
                self.whole = Some(found.id);
            }
            (StateSource::Checkpoint { .. }, _) => {
                user.kept.clone_from(&self.kept.1);
                self.call(user, Call::Resume(1), "a loss while state is restored")?;
            }
            (StateSource::Beginning, _) => {
                if let Some(salt) = self.reference.salt {
                    self.call(user, Call::Load(salt), "a loss while weights are loaded")?;
                }
                self.call(user, Call::Optimizer(1), "a loss while the optimizer is sent")?;
            }
            (other, _) => panic!("{other} is not here"),
        }
        Ok(source.position())
    }

    fn call(
        &mut self,
        user: &mut User<'_>,
        call: Call,
        moment: &'static str,
    ) -> Result<Answered, Failure> {
        self.during(user, moment, |user| user.call(call))
    }

    /// Counts the losses at this moment.
    fn during<T>(
        &mut self,
        user: &mut User<'_>,
        moment: &'static str,
        act: impl FnOnce(&mut User<'_>) -> T,
    ) -> T {
        let (before, updates) = (user.world.random_faults.losses.len(), user.world.trouble.updates);
        let all: usize = user.plan.stage_placement.iter().map(|(_, replicas)| replicas.len()).sum();
        let result = act(user);
        for loss in &user.world.random_faults.losses[before..] {
            let updated = (1..all as u64).contains(&(loss.updates - updates));
            self.count(if updated { "a loss between the updates of a step" } else { moment });
        }
        result
    }

    fn begin_keeping(&mut self, user: &mut User<'_>, step: u64, random: &mut Random) {
        let (snapshot, whole) =
            (SnapshotId { run: RUN, step, membership: self.memberships }, self.whole);
        let moment = "a loss while workers begin a snapshot";
        match self.during(user, moment, |user| user.begin_keeping(snapshot, whole, random)) {
            Ok(requests) => self.arriving = Some((snapshot, requests)),
            Err(failure) => check(user, &failure),
        }
    }

    /// Waits until a peer snapshot has arrived or is lost.
    pub fn note_kept(&mut self, user: &mut User<'_>) {
        let Some((snapshot, requests)) = self.arriving.take() else { return };
        let replies: Vec<_> =
            requests.into_iter().map(|request| user.world.reply(request).result).collect();
        match replies.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(_) => self.whole = Some(snapshot),
            Err(failure) => {
                check(user, &failure);
                self.count("a snapshot of workers that was lost on its way");
            }
        }
    }

    pub fn count_if(&mut self, what: &'static str, happened: bool) {
        *self.counts.entry(what).or_default() += u64::from(happened);
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn begin_snapshot(&mut self, user: &mut User<'_>, step: u64) {
        let since = user.world.now();
        // If no snapshot can be made, training continues without one.
        match self.during(user, "a loss while a snapshot is begun", |user| user.begin_snapshot()) {
            Ok(requests) => self.travelling = Some(SnapshotInTransit { step, since, requests }),
            Err(failure) => check(user, &failure),
        }
    }

    /// Waits for the snapshot in flight, and keeps it if it is complete.
    pub fn record_snapshots(&mut self, user: &mut User<'_>) {
        let Some(SnapshotInTransit { step, since, requests }) = self.travelling.take() else {
            return;
        };
        let replies: Vec<_> =
            requests.into_iter().map(|request| user.world.reply(request)).collect();
        let until = replies.iter().map(|reply| reply.at).max().unwrap_or(since);
        let losses = user
            .world
            .random_faults
            .losses
            .iter()
            .filter(|loss| (since..until).contains(&loss.at))
            .count();
        (0..losses).for_each(|_| self.count("a loss while a snapshot travels"));
        let parts: Result<Vec<Answered>, Failure> =
            replies.into_iter().map(|reply| reply.result).collect();
        match parts {
            Ok(parts) => {
                let state = together(parts.into_iter().flat_map(|part| part.state).collect());
                assert_eq!(state, self.reference.after(step).1, "the snapshot of step {step}");
                self.kept = (step, state);
                if losses > 0 {
                    self.count("a snapshot that came after a loss");
                }
            }
            Err(failure) => {
                check(user, &failure);
                self.count("a snapshot that was lost");
            }
        }
    }
}

/// Decides how the run continues after the end of a membership.
pub fn recover(run: &mut Run<'_>, user: &User<'_>, failure: &Failure) {
    check(user, failure);
    let situation = Situation::Fixed {
        can_restore: true,
        has_substitute: true,
        can_save_memory: false,
        // All causes here are losses, after which a newcomer makes no difference.
        has_grown: run.growth.as_ref().is_some_and(|growth| growth.newcomers().is_some()),
    };
    let remedy = run.policy.decide(Cause::of(failure), failure.worker, situation);
    run.growth.iter_mut().for_each(RunGrowth::failed);
    match remedy {
        Remedy::Rebuild { ban: None } => {}
        Remedy::Stop(StopReason::TooManyAttempts) => {
            assert_eq!(run.policy.attempts(), MAX_ATTEMPTS);
            run.count("a run that gave up and was resumed by its user");
            let furthest = run.policy.furthest();
            run.policy = RecoveryPolicy::default();
            run.policy.completed(furthest);
        }
        other => panic!("{other:?} after a loss: {failure}"),
    }
}

/// Checks that a failure has a cause after which a run resumes.
pub fn check(user: &User<'_>, failure: &Failure) {
    let expected =
        !user.world.random_faults.losses.is_empty() || user.world.trouble.broken.is_some();
    let expected = expected || user.world.injected.needs_recovery();
    assert!(expected, "an error without a cause: {failure}");
    assert_eq!(Cause::of(failure), Cause::Lost, "a run would not resume after: {failure}");
}
