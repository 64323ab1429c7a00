//! Recovery around the trainer: repeats a call with the members of a pool, or in a new session.

use super::boss_man::BossMan;
use crate::checkpoint;
use crate::events::{Completed, Event};
use crate::recovery::call_log::{CallContext, CallLog, Interruption};
use crate::recovery::policy::ban;
use crate::session::call::TrainingCall;
use crate::session::replica_check::{self, compare_replicas};
use crate::session::train_step::TrainedStep;
use crate::session::trainer::Trainer;
use crate::workers::host::Host;
use crate::BossManError;
use link::WorkerInfo;
use pipeline::recovery::{
    Cause, FitsBeside, KeptPlaces, LastSession, RecoveryCost, RecoveryPolicy, Remedy, Repeated,
    ResumeReport, Situation, StateSource,
};
use pipeline::StateForm;
use std::time::Instant;
use tracing::info;

impl BossMan {
    /// Runs a call. If workers are lost, repeats it with the remaining members of a pool, or in a
    /// new session if recovery is on.
    pub(super) async fn with_recovery<C: TrainingCall>(
        &mut self,
        call: C,
    ) -> Result<C::Answer, BossManError> {
        let mut policy = RecoveryPolicy::default();
        // An earlier call left the recovery unfinished.
        if let Some(interruption) = self.recovery.as_mut().and_then(|log| log.interrupted.take()) {
            let context = CallContext::of(&self.trainer).with_batch(interruption.batch);
            self.rebuild_session(&mut policy, interruption.error(), &context).await?;
        }
        loop {
            if C::FOLLOWS_MEMBERS {
                self.update_membership().await?;
            }
            let context = CallContext::of(&self.trainer);
            let mark = self.recovery.as_mut().map(|log| log.begin_call(&call));
            let result = call.run(&mut self.trainer).await;
            if let (Some(log), Some(mark)) = (&mut self.recovery, mark) {
                log.end_call(mark);
            }
            match result {
                Ok(answer) => {
                    self.record(&call, context).await;
                    return Ok(answer);
                }
                Err(error) if C::FOLLOWS_MEMBERS && self.recover(&error) => {
                    self.trainer.position.counters.step = context.step();
                }
                Err(error) => self.rebuild_session(&mut policy, error, &context).await?,
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
        if let Some(log) = &mut self.recovery {
            log.invalidate();
        }
    }

    /// Logs a completed call, and stores the state anew if that is due and possible.
    async fn record<C: TrainingCall>(&mut self, call: &C, context: CallContext) {
        let Some(log) = &mut self.recovery else { return };
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
            self.recovery = None;
            self.trainer.events.warn(format!(
                "calls are not repeated any more: the state could not be copied ({error})"
            ));
        }
    }

    fn situation(&self) -> Situation {
        Situation::Fixed {
            can_restore: self.recovery.as_ref().is_some_and(CallLog::can_replay),
            has_substitute: self.trainer.plan.workers() > 1 || self.host.starts_workers(),
            // The program chose what is recomputed, and where the model is cut.
            can_save_memory: false,
            has_grown: false,
        }
    }

    /// Whether the next call would recover from this error.
    fn can_rebuild(&self, error: &BossManError) -> bool {
        let remedy = error.remedy(&mut RecoveryPolicy::default(), self.situation());
        remedy.begins_again()
    }

    /// The error of a call that cannot be repeated, with advice.
    fn with_advice(&self, error: BossManError) -> BossManError {
        match self.builder.settings().is_called_by_program && self.pool.is_none() {
            true => error.with_advice_if_lost(|| CallLog::advice(self.recovery.as_ref())),
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
        policy: &mut RecoveryPolicy,
        mut error: BossManError,
        context: &CallContext,
    ) -> Result<(), BossManError> {
        let failed = Instant::now();
        let mut is_first = true;
        loop {
            let remedy = error.remedy(policy, self.situation());
            let (Remedy::Rebuild { .. }, Some(log)) = (remedy, &mut self.recovery) else {
                if is_first && !error.was_refused() {
                    self.invalidate_log();
                }
                return Err(self.with_advice(error));
            };
            is_first = false;
            let cause = error.to_string();
            info!(attempts = policy.attempts(), reason = cause, "recovery of a call");
            log.interrupted = Some(Interruption { cause, batch: context.batch() });
            ban(remedy, &error, &self.trainer.handle);
            self.trainer.disconnect();
            let done = Completed::Updates(self.trainer.position.counters.updates);
            self.trainer.events.report(&Event::workers_lost(done, &error));
            match self.build_and_replay(context, failed).await {
                Ok(rebuilt) => {
                    self.adopt(rebuilt);
                    return Ok(());
                }
                Err(next) => error = next,
            }
        }
    }

    /// Continues in the new session.
    fn adopt(&mut self, Rebuilt { trainer, host, cost }: Rebuilt) {
        (self.trainer, self.host) = (trainer, host);
        let Some(log) = &mut self.recovery else { return };
        log.interrupted = None;
        let report = ResumeReport {
            workers: self.trainer.plan.workers(),
            initial_workers: log.workers,
            source: StateSource::BossCopy { updates: log.updates },
        };
        self.trainer.events.report(&Event::Resuming(report));
        self.trainer.events.report(&Event::Recovered(cost));
    }

    /// Starts a session with the remaining workers, and repeats the log there.
    async fn build_and_replay(
        &mut self,
        context: &CallContext,
        failed: Instant,
    ) -> Result<Rebuilt, BossManError> {
        let Some(log) = &self.recovery else {
            return Err(BossManError::Usage("no state is stored".into()));
        };
        let fits = |workers| self.builder.check(workers).is_ok();
        let before = LastSession {
            workers: self.trainer.plan.workers(),
            lost: 1,
            newcomers: Vec::new(),
            // The boss has the state.
            kept: KeptPlaces::None,
            known: Vec::new(),
            unfit: Vec::new(),
        };
        // Every worker counts as fit, because its device is not checked before a session.
        let fits_beside: FitsBeside<WorkerInfo> = Box::new(|_, _| true);
        let workers = self.host.clone().wait_for_rejoin(before, fits, fits_beside).await?;
        let rejoined = Instant::now();
        let (mut trainer, host) = self.builder.start(workers)?;
        // If this session fails, one of its workers may be at fault.
        self.trainer.handle = trainer.handle.clone();
        trainer.data = self.trainer.data.clone();
        trainer.distribute().await?;
        if let Some(optimizer) = self.trainer.optimizer {
            trainer.send_optimizer(optimizer).await?;
        }
        log.restore(&mut trainer).await?;
        let restored = Instant::now();
        log.replay(&mut trainer, context).await?;
        let cost = RecoveryCost {
            repeated: Repeated::Calls(log.len() as u64),
            rejoin: rejoined - failed,
            restore: restored - rejoined,
            recompute: restored.elapsed(),
        };
        Ok(Rebuilt { trainer, host, cost })
    }
}

/// A session with the remaining workers, in the state before the call that failed.
struct Rebuilt {
    trainer: Trainer,
    host: Host,
    cost: RecoveryCost,
}

async fn copy_state(trainer: &mut Trainer, log: &mut CallLog) -> Result<(), BossManError> {
    log.refresh(checkpoint::begin_snapshot(trainer, StateForm::Slices).await?.finish().await?)
}
