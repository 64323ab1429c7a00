//! Recovery around the trainer: repeats a call with the members of a pool, or in a new session.

use super::boss_man::BossMan;
use crate::checkpoint;
use crate::events::{Completed, Event, Remark};
use crate::recovery::call_log::{CallContext, CallLog, Interruption};
use crate::recovery::policy::{ban, FailedSessionFacts, Recovery};
use crate::recovery::rejoin;
use crate::session::call::TrainingCall;
use crate::session::replica_check::{self, compare_replicas};
use crate::session::train_step::TrainedStep;
use crate::session::trainer::Trainer;
use crate::BossManError;
use pipeline::recovery::{Cause, KeptPlaces, LastSession, Remedy, ResumeReport, StateSource};
use pipeline::StateForm;
use std::time::Instant;
use tracing::{info, Instrument};

impl BossMan {
    /// Runs a call. If workers are lost, repeats it with the remaining members of a pool, or in a
    /// new session if recovery is on.
    pub(super) async fn with_recovery<C: TrainingCall>(
        &mut self,
        call: C,
    ) -> Result<C::Answer, BossManError> {
        let mut recovery = Recovery::default();
        // An earlier call left the recovery unfinished.
        if let Some(interruption) = self.log.as_mut().and_then(|log| log.interrupted.take()) {
            let context = CallContext::of(&self.trainer).with_batch(interruption.batch);
            self.rebuild_session(&mut recovery, interruption.error(), &context).await?;
        }
        loop {
            if C::FOLLOWS_MEMBERS {
                self.update_membership().await?;
            }
            let context = CallContext::of(&self.trainer);
            let mark = self.log.as_mut().map(|log| log.begin_call(&call));
            let result = call.run(&mut self.trainer).await;
            if let (Some(log), Some(mark)) = (&mut self.log, mark) {
                log.end_call(mark);
            }
            match result {
                Ok(answer) => {
                    self.record(&call, context).await;
                    return Ok(answer);
                }
                Err(error) if C::FOLLOWS_MEMBERS && self.recover(&error) => {}
                Err(error) => self.rebuild_session(&mut recovery, error, &context).await?,
            }
        }
    }

    /// Follows up a completed step: the shares of a pool's members, and the comparison of replicas.
    ///
    /// # Errors
    /// Replicas differ, or a worker failed and nothing recovers from it.
    pub(super) async fn after_step(&mut self, step: &TrainedStep) -> Result<(), BossManError> {
        if let Some(pool) = &mut self.pool {
            pool.record_step(&mut self.trainer, step);
        }
        if !step.updated || !replica_check::is_due(&self.trainer) {
            return Ok(());
        }
        match compare_replicas(&self.trainer).await {
            // A worker that left in the meantime is removed before the next step.
            Err(error) if self.recover(&error) || self.can_rebuild(&error) => Ok(()),
            other => other,
        }
    }

    /// Applies the joins and leaves of a pool.
    pub(crate) async fn update_membership(&mut self) -> Result<(), BossManError> {
        match &mut self.pool {
            Some(pool) => pool.update_membership(&mut self.trainer).await,
            None => Ok(()),
        }
    }

    /// Whether the same may succeed with the remaining members of a pool, so that it should be
    /// repeated. Removes a member that fails where others do not.
    pub(crate) fn recover(&mut self, error: &BossManError) -> bool {
        self.pool.as_mut().is_some_and(|pool| pool.recover(&mut self.trainer, error))
    }

    /// Records a change that the stored state does not hold.
    pub(super) fn invalidate_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.invalidate();
        }
    }

    /// Logs a completed call, and stores the state anew if that is due and possible.
    async fn record<C: TrainingCall>(&mut self, call: &C, context: CallContext) {
        let Some(log) = &mut self.log else { return };
        log.record(call, context);
        if !log.is_refresh_due(&self.trainer.position) {
            return;
        }
        let error = match copy_state(&mut self.trainer, log).await {
            Ok(()) => return,
            Err(error) => error,
        };
        // The call itself is complete. The next call notices a loss, and the older state suffices
        // until then.
        if !matches!(error.cause(), Cause::Lost | Cause::Unfit | Cause::OutOfMemory) {
            self.log = None;
            let text = "calls are not repeated any more: the state could not be copied";
            let remark = Remark::from(format!("{text} ({error})")).of_error(&error);
            self.trainer.events.warn(remark);
        }
    }

    fn facts(&self) -> FailedSessionFacts {
        FailedSessionFacts {
            can_restore: self.log.as_ref().is_some_and(CallLog::can_replay),
            has_substitute: self.trainer.plan.workers() > 1 || self.host.starts_workers(),
            // The program chose what is recomputed, and where the model is cut.
            can_save_memory: false,
            newcomers: None,
        }
    }

    /// Whether the next call would recover from this error.
    fn can_rebuild(&self, error: &BossManError) -> bool {
        Recovery::default().decide(error, Instant::now(), &self.facts()).begins_again()
    }

    /// The error of a call that cannot be repeated, with advice.
    fn with_advice(&self, error: BossManError) -> BossManError {
        match self.builder.settings().is_called_by_program && self.pool.is_none() {
            true => error.with_advice_if_lost(|| CallLog::advice(self.log.as_ref())),
            false => error,
        }
    }

    /// Restores the state before the call with this context, in a session with the remaining
    /// workers.
    ///
    /// # Errors
    /// The call cannot be repeated, or too many attempts failed.
    async fn rebuild_session(
        &mut self,
        recovery: &mut Recovery,
        mut error: BossManError,
        context: &CallContext,
    ) -> Result<(), BossManError> {
        loop {
            let remedy = recovery.decide(&error, Instant::now(), &self.facts());
            let (Remedy::Rebuild { .. }, Some(log)) = (remedy, &mut self.log) else {
                if !recovery.is_recovering() && !error.was_refused() {
                    self.invalidate_log();
                }
                return Err(self.with_advice(error));
            };
            let cause = error.to_string();
            info!(attempts = recovery.attempts(), reason = cause, "recovery of a call");
            log.interrupted = Some(Interruption { cause, batch: context.batch() });
            ban(remedy, &error, &self.trainer.handle);
            self.trainer.disconnect();
            let done = Completed::Updates(self.trainer.position.counters.updates);
            self.trainer.events.report(&Event::workers_lost(done, &error));
            let span = recovery.session_span(self.trainer.position.counters.updates);
            match self.build_and_replay(recovery, context).instrument(span).await {
                Ok(()) => return Ok(()),
                Err(next) => error = next,
            }
        }
    }

    /// Starts a session with the remaining workers, repeats the log there, and continues in it.
    async fn build_and_replay(
        &mut self,
        recovery: &mut Recovery,
        context: &CallContext,
    ) -> Result<(), BossManError> {
        let Some(log) = &mut self.log else {
            return Err(BossManError::Usage("no state is stored".into()));
        };
        let last = LastSession {
            workers: self.trainer.plan.workers(),
            lost: recovery.lost(),
            newcomers: Vec::new(),
            // The boss has the state.
            kept: KeptPlaces::None,
            // They are fit, because the session could start on them.
            known: self.trainer.handle.workers().to_vec(),
            unfit: Vec::new(),
        };
        let workers = rejoin::wait(self.host.clone(), &self.builder, 1, last).await?;
        recovery.workers_rejoined();
        let mut trainer = self.builder.start(workers)?;
        // If this session fails, one of its workers may be at fault.
        self.trainer.handle = trainer.handle.clone();
        trainer.data = self.trainer.data.clone();
        trainer.distribute().await?;
        if let Some(optimizer) = self.trainer.optimizer {
            trainer.send_optimizer(optimizer).await?;
        }
        log.restore(&mut trainer).await?;
        recovery.state_restored();
        log.replay(&mut trainer, context).await?;
        let cost = recovery.calls_repeated(log.len());
        log.interrupted = None;
        self.trainer = trainer;
        let events = &self.trainer.events;
        events.report(&Event::Resuming(ResumeReport {
            workers: self.trainer.plan.workers(),
            initial_workers: log.workers,
            source: StateSource::BossCopy { updates: log.updates },
        }));
        if let Some(cost) = cost {
            events.report(&Event::Recovered(cost));
        }
        Ok(())
    }
}

async fn copy_state(trainer: &mut Trainer, log: &mut CallLog) -> Result<(), BossManError> {
    log.refresh(checkpoint::begin_snapshot(trainer, StateForm::Slices).await?.finish().await?);
    Ok(())
}
