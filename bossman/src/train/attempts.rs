//! The attempts of a run: sessions one after the other, each from the state that the last one left.

use crate::checkpoint::{Checkpoints, DueTimer, RunRecord};
use crate::events::{Completed, Event, Events, Remark};
use crate::recovery::policy::{self, FailedSessionFacts, Recovery};
use crate::recovery::rejoin;
use crate::recovery::resume::{self, ResumeState};
use crate::status::StatusBoard;
use crate::train::attempt::{Attempt, Observers};
use crate::train::epochs::best_path;
use crate::train::growth_warnings::GrowthWarnings;
use crate::train::memory_saving::{MeansLeft, MemorySaving};
use crate::train::outcome::{Interruption, Outcome};
use crate::train::prepared::{Prepared, Start, NO_CHECKPOINT};
use crate::train::settings::TrainOptions;
use crate::train::start_patience::patience_with_start;
use crate::workers::host::{Host, Workers};
use crate::{BossMan, BossManError, RecoverySource, StepReport};
use link::WorkerInfo;
use pipeline::ids::WorkerId;
use pipeline::recovery::{
    Boundary, Cause, LastSession, RecoveryCost, Remedy, ResumeReport, RunGrowth, StateSource,
};
use pipeline::Initialization;
use runtime::Handle;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{info, Instrument};

/// How training ended.
enum Training {
    Done,
    /// The user ended it after this step.
    Stopped {
        step: u64,
    },
    /// It goes on in a session with more workers.
    Grows,
}

/// How an attempt without a failure ended.
pub(super) enum AttemptEnd {
    /// The run is over.
    Done(Box<Outcome>),
    /// The run goes on in a session with more workers.
    Grows,
}

/// The state of a run that outlives its attempts.
pub(super) struct Attempts {
    record: RunRecord,
    observers: Observers,
    /// The status for callers that ask. It is among the observers.
    status: StatusBoard,
    /// The state to resume from, once it is found.
    state: Option<ResumeState>,
    recovery: Recovery,
    growth: RunGrowth<WorkerInfo>,
    growth_warnings: GrowthWarnings,
    /// The step of the state that sessions resume from, while one of them loads it.
    resumes_after: u64,
    /// The step after which this process goes on with the run.
    resumed_after: u64,
    /// The step of the weights that the run saved last.
    saved: Option<u64>,
    /// Counts towards the next checkpoint over all sessions, if the run has checkpoints.
    due: Option<DueTimer>,
    /// How sessions save memory. Once workers were out of it, by more means.
    saving: MemorySaving,
    /// The number of workers in the last session.
    workers: usize,
    /// The host at which workers join again, once they have joined.
    host: Option<Host>,
    /// The time at which a step failed.
    failed_at: Option<Instant>,
    /// The workers' connections, until recovery decides how the run continues.
    pub(super) handle: Option<Handle>,
    /// Whether this is a pool that changes its members without a new session.
    pool_is_open: bool,
    time: Duration,
}

impl Attempts {
    /// # Errors
    /// A file of an observer cannot be written.
    pub(super) fn new(prepared: &Prepared<'_>, start: Start) -> Result<Self, BossManError> {
        let status = StatusBoard::default();
        let Observers { events, metrics } =
            Observers::open(prepared.options, start.state.as_ref())?;
        let resumed_after = start.state.as_ref().map_or(0, |state| state.counters().step);
        Ok(Attempts {
            observers: Observers { events: status.before(events), metrics },
            status,
            record: start.record,
            resumes_after: resumed_after,
            resumed_after,
            state: start.state,
            recovery: Recovery::default(),
            growth: RunGrowth::new(prepared.workers),
            growth_warnings: GrowthWarnings::default(),
            saved: None,
            due: prepared.checkpoints.as_ref().map(|(_, policy)| DueTimer::start(policy.every)),
            saving: MemorySaving::of(prepared.file.recompute),
            workers: prepared.workers,
            host: None,
            failed_at: None,
            handle: None,
            pool_is_open: false,
            time: Duration::ZERO,
        })
    }

    /// The events of the run.
    pub(super) fn events(&self) -> &Events {
        &self.observers.events
    }

    /// The last step that is done, by this process or by those before it.
    pub(super) fn furthest_step(&self) -> u64 {
        self.recovery.furthest().max(self.resumes_after)
    }

    /// Trains to the end, to the first failure or until workers are taken in, from the beginning or
    /// from the state to resume from.
    pub(super) async fn attempt(
        &mut self,
        prepared: &Prepared<'_>,
        on_step: &mut impl FnMut(&StepReport),
    ) -> Result<AttemptEnd, BossManError> {
        let span = self.recovery.session_span(self.furthest_step());
        let Some(mut attempt) = self.start_unless_stopped(prepared).instrument(span).await? else {
            let done = self.furthest_step();
            let outcome = self.interrupted(prepared, done, None).await;
            return Ok(AttemptEnd::Done(Box::new(outcome)));
        };
        self.pool_is_open = prepared.options.pool;
        self.recovery.state_restored();
        let cost = self.recovery.caught_up(attempt.done);
        self.report_cost(cost);
        let (workers, from_step) = (self.workers, attempt.done);
        info!(workers, from_step, steps = prepared.steps, "training begins");
        let trained = self.train(&mut attempt, prepared, on_step).await;
        self.failed_at = trained.is_err().then(Instant::now);
        // Not the latest step: a run that repeats an epoch saves its weights again.
        self.saved = attempt.epochs.saved.or(self.saved);
        self.time += match trained {
            Ok(Training::Done) => attempt.end().await,
            Ok(Training::Stopped { .. }) => attempt.time(),
            Ok(Training::Grows) | Err(_) => attempt.abandon().await,
        };
        match trained? {
            Training::Done => self.finish(prepared, attempt).await,
            Training::Stopped { step } => {
                let weights = attempt.interrupt(step, self.saved).await;
                let outcome = self.interrupted(prepared, step, weights).await;
                let outcome = Outcome { best: attempt.epochs.best, ..outcome };
                Ok(AttemptEnd::Done(Box::new(outcome)))
            }
            Training::Grows => Ok(AttemptEnd::Grows),
        }
    }

    /// All steps are done: tests the model, and ends the session.
    async fn finish(
        &self,
        prepared: &Prepared<'_>,
        mut attempt: Attempt<'_>,
    ) -> Result<AttemptEnd, BossManError> {
        // A run that resumed from its last step has saved nothing yet.
        if self.saved.is_none() {
            let events = &self.observers.events;
            attempt.epochs.save_weights(&mut attempt.boss, prepared.steps, events).await?;
        }
        let test = match attempt.test().await {
            // All that is missing is this score. A pool would wait for all its workers.
            Err(error)
                if error.cause() == Cause::Lost
                    && (prepared.options.pool || !prepared.may_recover()) =>
            {
                let advice = "`bossman eval` scores the saved weights";
                let text = format!("the test was not completed: {error}; {advice}");
                self.observers.events.warn(Remark::from(text).of_error(&error));
                None
            }
            test => test?,
        };
        self.report_end(prepared.steps, None)?;
        attempt.boss.shutdown().await;
        // After `--resume` the best epoch may be one of before, with its weights elsewhere.
        let best_weights = prepared.options.save.as_deref().map(best_path);
        let best_weights = best_weights.filter(|_| attempt.epochs.best.is_some());
        Ok(AttemptEnd::Done(Box::new(Outcome {
            steps: prepared.steps,
            resumed_after: self.resumed_after,
            time: self.time,
            best: attempt.epochs.best,
            test,
            weights: prepared.options.save.clone(),
            best_weights: best_weights.filter(|path| path.is_file()),
            interrupted: None,
        })))
    }

    /// The outcome of a run that the user ended after this step. Its workers wait for the next
    /// boss.
    async fn interrupted(
        &self,
        prepared: &Prepared<'_>,
        step: u64,
        weights: Option<PathBuf>,
    ) -> Outcome {
        let events = &self.observers.events;
        let checkpoint = match &prepared.checkpoints {
            Some((checkpoints, _)) => checkpoints.newest_step().await.unwrap_or_else(|error| {
                events.warn(format!("whether there is a checkpoint is not known: {error}"));
                None
            }),
            None => None,
        };
        let interruption = Interruption { step, weights: weights.clone(), checkpoint };
        let event = Event::Interrupted { step: Some(step), weights: weights.clone(), checkpoint };
        events.report(&event);
        Outcome {
            steps: step.min(prepared.steps),
            resumed_after: self.resumed_after,
            time: self.time,
            best: None,
            test: None,
            weights,
            best_weights: None,
            interrupted: Some(interruption),
        }
    }

    /// Starts a session. `None` if the user ends the run before it has started: then nothing can be
    /// saved.
    async fn start_unless_stopped<'a>(
        &mut self,
        prepared: &'a Prepared<'a>,
    ) -> Result<Option<Attempt<'a>>, BossManError> {
        let (stop, events) = (&prepared.options.stop, self.observers.events.clone());
        let done = self.recovery.furthest();
        // The workers of a resumed run may have state of the earlier process.
        let is_of_earlier = prepared.is_resumed && self.recovery.is_recovering();
        let has_state = is_of_earlier || self.recovery.left_trained_state();
        let patience = patience_with_start(has_state, prepared.file.redundancy);
        let problem = tokio::select! {
            started = self.start(prepared) => match started {
                // The run would begin anew, which the user does not want any more.
                Err(error) if stop.is_set() && !patience.is_zero() => error.to_string(),
                started => return started.map(Some),
            },
            () = stop.wait_and_then(patience) => {
                format!("they are not ready within {} s", patience.as_secs())
            }
        };
        if !patience.is_zero() {
            let state = match done {
                0 => "the state of the resumed run".to_string(),
                _ => format!("the state after {done} steps"),
            };
            let text = format!("{state}, which only the workers have, is not saved: {problem}");
            events.warn_at(done, text);
        }
        Ok(None)
    }

    /// Starts a session, in the state to resume from.
    async fn start<'a>(&mut self, prepared: &'a Prepared<'a>) -> Result<Attempt<'a>, BossManError> {
        let (ahead, events) = (self.source_of_state(prepared), self.events().clone());
        // A checkpoint is compared with its hashes beside all that needs no state.
        let mut found = None;
        let read = async {
            found = resume::read_ahead(ahead, &events).await?;
            Ok(())
        };
        let distributed = tokio::try_join!(self.distribute(prepared), read);
        // If no session starts, the next one need not compare it again.
        self.state = self.state.take().or(found);
        let (mut boss, ()) = distributed?;
        let unread = prepared.checkpoints.as_ref().filter(|_| ahead.is_none()).map(|(all, _)| all);
        self.find_state(prepared, &mut boss, unread).await?;
        let (record, observers) = (self.record.clone(), self.observers.clone());
        let due = self.due.clone();
        Attempt::start(prepared, boss, record, observers, self.state.take(), due).await
    }

    /// Waits for workers, and gives them their stages.
    async fn distribute(&mut self, prepared: &Prepared<'_>) -> Result<BossMan, BossManError> {
        let workers = self.wait_for_workers(prepared).await?;
        let loads =
            prepared.weights.is_some() || self.state.is_some() || self.recovery.is_recovering();
        let initialization = match loads {
            true => Initialization::Deferred,
            false => Initialization::AtOnce,
        };
        let builder = prepared.builder(self.record.microbatches, self.saving);
        let mut boss = builder.initialization(initialization).build(workers)?;
        let handle = boss.trainer.handle.clone();
        self.growth.session_begins(handle.workers());
        if prepared.may_grow() {
            handle.offer_places(prepared.workers.saturating_sub(self.workers));
        }
        self.handle = Some(handle);
        // The default depends on the number of workers of the first session. A batch has no more
        // microbatches than samples.
        let most = u32::try_from(prepared.file.batch_size).unwrap_or(u32::MAX);
        self.record.microbatches = boss.trainer.strategy.microbatches.min(most);
        boss.distribute_model().await?;
        Ok(boss)
    }

    async fn train(
        &mut self,
        attempt: &mut Attempt<'_>,
        prepared: &Prepared<'_>,
        on_step: &mut impl FnMut(&StepReport),
    ) -> Result<Training, BossManError> {
        for step in attempt.done + 1..=prepared.steps {
            if prepared.options.stop.is_set() {
                return Ok(Training::Stopped { step: step - 1 });
            }
            let report = attempt.train_step().await?;
            let cost = self.recovery.step_done(step);
            self.report_cost(cost);
            self.growth.step_done(attempt.boss.trainer.handle.workers());
            on_step(&report);
            attempt.after_step(&report).await?;
            let Some(workers) = self.grown_number(attempt, prepared, step) else { continue };
            // Without the state of this step the session goes on. If the user ends the run, its
            // workers are still needed for what it saves.
            if attempt.hold_state(step).await && !prepared.options.stop.is_set() {
                self.begin_growth(prepared, step, workers);
                return Ok(Training::Grows);
            }
        }
        Ok(Training::Done)
    }

    /// Decides after a step whether waiting workers are taken in, and returns the number of workers
    /// with them.
    fn grown_number(
        &mut self,
        attempt: &Attempt<'_>,
        prepared: &Prepared<'_>,
        step: u64,
    ) -> Option<usize> {
        if !prepared.may_grow() {
            return None;
        }
        let trainer = &attempt.boss.trainer;
        let waiting = trainer.handle.waiting();
        let at = Boundary {
            step,
            steps: prepared.steps,
            workers: self.workers,
            waiting: waiting.len(),
            can_hold_state: trainer.position.is_between_updates()
                && !self.recovery.is_recovering()
                && !attempt.is_writing_checkpoint()
                && !prepared.options.stop.is_set(),
        };
        let builder = || prepared.builder(self.record.microbatches, self.saving);
        let check = |members: &[WorkerInfo]| rejoin::check(&builder(), members);
        let decision = self.growth.decide(at, &waiting, check);
        self.growth_warnings.tell(&decision.problems, &self.observers.events);
        decision.workers
    }

    /// The state of this step is stored: the next session has this number of workers.
    fn begin_growth(&mut self, prepared: &Prepared<'_>, step: u64, workers: usize) {
        let newcomers = workers.saturating_sub(self.workers);
        self.growth.begin();
        self.recovery.begin_growth(Instant::now());
        self.observers.events.report(&Event::Growing {
            after: step,
            workers: self.workers,
            waiting: newcomers,
            initial_workers: prepared.workers,
        });
        // While there is a handle, the session keeps its connections and the port.
        self.handle = None;
    }

    /// Decides what to do after a failure.
    ///
    /// # Errors
    /// The run cannot continue.
    pub(super) fn recover(
        &mut self,
        prepared: &Prepared<'_>,
        error: BossManError,
    ) -> Result<(), BossManError> {
        let failed_at = self.failed_at.take();
        // A session that fails before its first step has stored no activations. What is predicted
        // counts them, and all of the memory.
        let workers = self.handle.as_ref().map(Handle::workers).unwrap_or_default();
        let left = prepared.means_left(self.saving, workers);
        let is_predicted = matches!(error, BossManError::NoSchedule(_));
        let left = MeansLeft {
            recompute: left.recompute && (failed_at.is_some() || is_predicted),
            plan: left.plan && !is_predicted,
        };
        let saving = self.saving.next(left);
        let with_advice = |error| {
            let error = match self.pool_is_open {
                true => policy::with_pool_advice(error, prepared.checkpoints.is_some()),
                false => error,
            };
            policy::with_memory_advice(error, left.recompute)
        };
        if prepared.options.pool && !self.pool_begins_again(prepared, &error, saving.is_some()) {
            return Err(with_advice(error));
        }
        let done = self.furthest_step();
        // A process that has trained nothing loses nothing if it begins again.
        let may_save_memory =
            saving.is_some() && error.is_of_memory() && self.recovery.furthest() == 0;
        let is_starting_pool = prepared.options.pool && !self.pool_is_open;
        let may_begin_again = is_starting_pool || may_save_memory;
        if prepared.file.redundancy == RecoverySource::None && !may_begin_again {
            let error = policy::with_resume_advice(error, prepared.checkpoints.is_some());
            return Err(with_advice(error));
        }
        let at = failed_at.unwrap_or_else(Instant::now);
        // A pool waits for others.
        let has_substitute =
            prepared.options.pool || self.workers > 1 || prepared.options.fleet.local > 0;
        let facts = FailedSessionFacts {
            can_restore: true,
            has_substitute,
            can_save_memory: saving.is_some(),
            newcomers: self.growth.newcomers().map(<[WorkerId]>::to_vec),
        };
        let remedy = self.recovery.decide(&error, at, &facts);
        self.growth.failed();
        if !remedy.begins_again() {
            return Err(with_advice(error));
        }
        match saving.filter(|_| remedy == Remedy::SaveMemory) {
            Some(saving) => {
                self.saving = saving;
                let warning = match left.recompute {
                    _ if is_predicted => policy::prediction_warning(&error),
                    true => policy::recompute_warning(&error, done),
                    false => policy::plan_warning(&error, done),
                };
                self.observers.events.warn(Remark::from(warning).of_error(&error));
            }
            None => {
                let done = Completed::Steps(done);
                self.observers.events.report(&Event::workers_lost(done, &error));
            }
        }
        if let Some(handle) = self.handle.take() {
            policy::ban(remedy, &error, &handle);
            // Requests that prepare workers of a pool hold clones of the handle.
            handle.disconnect_all();
        }
        Ok(())
    }

    /// Whether a pool goes on in a new session. An open one changes its members without that, as
    /// long as others can continue. One that starts has no state to lose.
    fn pool_begins_again(
        &self,
        prepared: &Prepared<'_>,
        error: &BossManError,
        can_save_memory: bool,
    ) -> bool {
        let may_resume = self.pool_is_open && prepared.may_recover();
        match error.cause() {
            Cause::Lost | Cause::LocalWorkerEnded => !self.pool_is_open || may_resume,
            Cause::Unfit => may_resume,
            _ if error.is_of_memory() => can_save_memory || may_resume,
            _ => false,
        }
    }

    /// Waits for workers. After a loss, waits for the remaining ones, and during a growth for those
    /// that are taken in, too.
    async fn wait_for_workers(&mut self, prepared: &Prepared<'_>) -> Result<Workers, BossManError> {
        let Some(host) = self.host.clone() else {
            let TrainOptions { fleet, pool, .. } = prepared.options;
            let weights = prepared.weights.as_ref();
            let host = fleet.host_with_files(prepared.workers, prepared.file, weights);
            let host = host.observed_by(self.observers.events.clone(), self.status.clone());
            let host = if *pool { host.open_to_joins() } else { host };
            let workers = host.wait().await?;
            if prepared.ends_with_a_remote_worker() {
                self.observers.events.warn(NO_CHECKPOINT);
            }
            self.host = Some(workers.host.clone());
            return Ok(workers);
        };
        let builder = prepared.builder(self.record.microbatches, self.saving);
        let last = match self.pool_is_open {
            true => LastSession::without_state(self.workers, self.growth.known().to_vec()),
            false => self.growth.last_session(self.workers, self.recovery.lost()),
        };
        // A pool is not cut anew for those that come later.
        let least = if prepared.options.pool { prepared.workers } else { 1 };
        let workers = rejoin::wait(host, &builder, least, last).await?;
        self.recovery.workers_rejoined();
        self.growth.workers_rejoined(workers.newcomers(self.growth.known()));
        self.workers = workers.count;
        Ok(workers)
    }

    /// The checkpoints whose last one the next session is going to load, if that is known before it
    /// begins.
    fn source_of_state<'a>(&self, prepared: &'a Prepared<'_>) -> Option<&'a Checkpoints> {
        let is_from_checkpoint = self.recovery.is_recovering()
            && self.state.is_none()
            && !self.growth.is_under_way()
            && prepared.file.redundancy == RecoverySource::Checkpoint;
        prepared.checkpoints.as_ref().filter(|_| is_from_checkpoint).map(|(all, _)| all)
    }

    /// Finds the state to resume from after a loss of workers or of the boss. `checkpoints` are
    /// those that were not read ahead.
    async fn find_state(
        &mut self,
        prepared: &Prepared<'_>,
        boss: &mut BossMan,
        checkpoints: Option<&Checkpoints>,
    ) -> Result<(), BossManError> {
        if !self.recovery.is_recovering() && self.state.is_none() {
            return Ok(());
        }
        // A worker that comes late may hold snapshots of steps that the run has taken back.
        let steps = match self.growth.is_under_way() {
            true => self.recovery.furthest(),
            false => prepared.steps,
        };
        let search = resume::Search {
            run: &self.record,
            steps,
            checkpoints,
            metrics: prepared.options.metrics.as_deref(),
            events: &self.observers.events,
        };
        self.state = search.newest(boss, self.state.take()).await?;
        self.resumes_after = self.state.as_ref().map_or(0, |state| state.counters().step);
        if self.state.is_none() && prepared.is_resumed {
            // The initial weights are not stored.
            return Err(BossManError::Usage(
                "recovery: there is no whole checkpoint left to resume from".into(),
            ));
        }
        if self.recovery.is_recovering() {
            let source = self.state.as_ref().map_or(StateSource::Beginning, ResumeState::source);
            let (workers, initial_workers) = (self.workers, prepared.workers);
            let report = ResumeReport { workers, initial_workers, source };
            self.recovery.resumes(&report);
            self.observers.events.report(&Event::Resuming(report));
        }
        Ok(())
    }

    fn report_cost(&self, cost: Option<RecoveryCost>) {
        if let Some(cost) = cost {
            self.observers.events.report(&Event::Recovered(cost));
        }
    }

    /// Reports that training ended.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub(super) fn report_end(
        &self,
        steps: u64,
        error: Option<&BossManError>,
    ) -> Result<(), BossManError> {
        let error = error.map(ToString::to_string);
        self.observers.events.emit(&Event::Ended { steps, time: self.time, error })
    }
}
