//! A run that goes on where something strikes it, as `bossman train` does: with who is left and its last whole copy, which
//! the boss has or the workers. Whatever it computes must be what a run computes that nothing strikes.

use crate::calls::{Answered, Call};
use crate::oracle::Oracle;
use crate::user::{together, User};
use crate::Setting;
use layerspec::LayerGraph;
use pipeline::kept::SnapshotId;
use pipeline::message::Failure;
use std::collections::BTreeMap;
use testkit::Random;

/// The run's number.
const RUN: u64 = 7;

pub type State = BTreeMap<String, u64>;

/// How often what happened.
pub type Counts = BTreeMap<&'static str, u64>;

/// What a run is to come to.
pub struct Reference {
    /// The weights that it begins with are changed by this.
    salt: Option<u64>,
    /// What each step answers, and the whole state after it.
    steps: Vec<(Answered, State)>,
}

impl Reference {
    pub fn new(graph: &LayerGraph, setting: &Setting, salt: Option<u64>, steps: u64) -> Self {
        let mut oracle = Oracle::new(graph, setting);
        let begin = [Call::Distribute].into_iter().chain(salt.map(Call::Load)).chain([Call::Optimizer(1)]);
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

/// A copy on its way: of which step, since when, and the requests that bring it.
struct Travelling {
    step: u64,
    since: u64,
    requests: Vec<u64>,
}

/// A run, over all its memberships.
pub struct Run<'a> {
    reference: &'a Reference,
    pub every: u64,
    /// The last copy that came whole, and of which step it is; nothing at first.
    pub kept: (u64, State),
    travelling: Option<Travelling>,
    /// After every so many steps workers copy their state for each other, if they do.
    pub keeps: Option<u64>,
    /// How many memberships there were.
    pub memberships: u64,
    /// The last such copy that is whole, and one that is on its way.
    whole: Option<SnapshotId>,
    arriving: Option<(SnapshotId, Vec<u64>)>,
    /// The last step that was done.
    pub furthest: u64,
    pub counts: &'a mut Counts,
}

impl<'a> Run<'a> {
    /// A run that has not begun: it has the boss copy its state after every so many steps, and workers, if they do.
    pub fn new(reference: &'a Reference, every: u64, keeps: Option<u64>, counts: &'a mut Counts) -> Self {
        let (kept, travelling, whole, arriving, memberships, furthest) = ((0, State::new()), None, None, None, 0, 0);
        Run { reference, every, kept, travelling, keeps, memberships, whole, arriving, furthest, counts }
    }
}

impl Run<'_> {
    /// Trains to the end, or until something fails, from the beginning or from the last copy.
    pub fn attempt(&mut self, user: &mut User<'_>, random: &mut Random) -> Result<(), Failure> {
        let mut from = self.kept.0;
        self.memberships += 1;
        self.call(user, Call::Distribute, "a loss while stages are assigned")?;
        let found = if self.keeps.is_some() { user.kept_copy(RUN)? } else { None };
        if found.as_ref().is_none_or(|(copy, _)| self.whole.is_some_and(|whole| copy.step < whole.step)) {
            let had = self.whole.take().is_some();
            self.count_if("a copy of workers that was lost with them", had);
        }
        if let Some((copy, tensors)) = found.filter(|(copy, _)| copy.step >= from) {
            from = copy.step;
            self.during(user, "a loss while workers restore a copy", |user| user.restore_kept(copy, tensors))?;
            self.count("a run that went on from what workers keep");
            self.whole = Some(copy);
        } else if from == 0 {
            if let Some(salt) = self.reference.salt {
                self.call(user, Call::Load(salt), "a loss while weights are loaded")?;
            }
            self.call(user, Call::Optimizer(1), "a loss while the optimizer is sent")?;
        } else {
            user.kept.clone_from(&self.kept.1);
            self.call(user, Call::Resume(1), "a loss while state is restored")?;
        }
        for step in from + 1..=self.reference.last() {
            let pause = random.below(3) * random.below(30);
            self.during(user, "a loss between steps", |user| user.world.linger(pause));
            let answered = self.call(user, Call::Train(step), "a loss in a step")?;
            assert_eq!(answered, self.reference.after(step).0, "step {step}");
            self.furthest = self.furthest.max(step);
            if step.is_multiple_of(self.every) || step == self.reference.last() {
                // One travels at a time.
                self.take_note(user);
                self.begin_copy(user, step);
            }
            if self.keeps.is_some_and(|every| step.is_multiple_of(every)) {
                self.note_kept(user);
                self.begin_keeping(user, step, random);
            }
        }
        self.take_note(user);
        self.note_kept(user);
        self.call(user, Call::Digest, "a loss after the last step")?;
        let state = self.call(user, Call::Checkpoint, "a loss after the last step")?.state;
        assert_eq!(state, self.reference.after(self.reference.last()).1, "the state after the last step");
        Ok(())
    }

    fn call(&mut self, user: &mut User<'_>, call: Call, moment: &'static str) -> Result<Answered, Failure> {
        self.during(user, moment, |user| user.call(call))
    }

    /// Counts the losses at this moment.
    fn during<T>(&mut self, user: &mut User<'_>, moment: &'static str, act: impl FnOnce(&mut User<'_>) -> T) -> T {
        let (before, updates) = (user.world.perils.losses.len(), user.world.trouble.updates);
        let all: usize = user.plan.stage_placement.iter().map(|(_, replicas)| replicas.len()).sum();
        let result = act(user);
        for loss in &user.world.perils.losses[before..] {
            let updated = (1..all as u64).contains(&(loss.updates - updates));
            self.count(if updated { "a loss between the updates of a step" } else { moment });
        }
        result
    }

    fn begin_keeping(&mut self, user: &mut User<'_>, step: u64, random: &mut Random) {
        let (copy, whole) = (SnapshotId { run: RUN, step, membership: self.memberships }, self.whole);
        let moment = "a loss while workers begin a copy";
        match self.during(user, moment, |user| user.begin_keeping(copy, whole, random)) {
            Ok(requests) => self.arriving = Some((copy, requests)),
            Err(failure) => check(user, &failure),
        }
    }

    /// Waits until all of a copy that workers exchange has arrived, or is lost.
    pub fn note_kept(&mut self, user: &mut User<'_>) {
        let Some((copy, requests)) = self.arriving.take() else { return };
        let replies: Vec<_> = requests.into_iter().map(|request| user.world.reply(request).result).collect();
        match replies.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(_) => self.whole = Some(copy),
            Err(failure) => {
                check(user, &failure);
                self.count("a copy of workers that was lost on its way");
            }
        }
    }

    pub fn count_if(&mut self, what: &'static str, happened: bool) {
        *self.counts.entry(what).or_default() += u64::from(happened);
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn begin_copy(&mut self, user: &mut User<'_>, step: u64) {
        let since = user.world.now();
        // Where none can be made, training goes on without.
        match self.during(user, "a loss while a copy is begun", |user| user.begin_copy()) {
            Ok(requests) => self.travelling = Some(Travelling { step, since, requests }),
            Err(failure) => check(user, &failure),
        }
    }

    /// Waits for the copy that is on its way, and keeps it if all of it comes.
    pub fn take_note(&mut self, user: &mut User<'_>) {
        let Some(Travelling { step, since, requests }) = self.travelling.take() else { return };
        let replies: Vec<_> = requests.into_iter().map(|request| user.world.reply(request)).collect();
        let until = replies.iter().map(|reply| reply.at).max().unwrap_or(since);
        let losses = user.world.perils.losses.iter().filter(|loss| (since..until).contains(&loss.at)).count();
        (0..losses).for_each(|_| self.count("a loss while a copy travels"));
        let parts: Result<Vec<Answered>, Failure> = replies.into_iter().map(|reply| reply.result).collect();
        match parts {
            Ok(parts) => {
                let state = together(parts.into_iter().flat_map(|part| part.state).collect());
                assert_eq!(state, self.reference.after(step).1, "the copy of step {step}");
                self.kept = (step, state);
                if losses > 0 {
                    self.count("a copy that came after a loss");
                }
            }
            Err(failure) => {
                check(user, &failure);
                self.count("a copy that was lost");
            }
        }
    }
}

/// What fails has a cause, and is such that a run goes on after it.
pub fn check(user: &User<'_>, failure: &Failure) {
    let befell = !user.world.perils.losses.is_empty() || user.world.trouble.broken.is_some();
    let befell = befell || user.world.struck.costs();
    assert!(befell, "an error without a cause: {failure}");
    assert!(failure.passing, "a run would not go on after: {failure}");
}
