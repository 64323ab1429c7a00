//! Repeats calls by hand after a loss of workers, from a state that the boss stores and a log of
//! the calls since.
//!
//! The result of a call depends on the state before it and on its arguments, and not on the cut
//! (law 1). So the same calls after the same state give the same bits on the remaining workers.

use crate::checkpoint::TrainingState;
use crate::output;
use crate::recovery::policy::{evict_unfit, MAX_ATTEMPTS};
use crate::session::boss::BossMan;
use crate::session::train_step::PreparedBatch;
use crate::tuning::schedule_state::MicrobatchSizes;
use crate::workers::host::RejoinWait;
use crate::workers::local_processes::WorkerProcesses;
use crate::{BossManError, StateDict, StepReport};
use bytes::Bytes;
use layerspec::ValueId;
use link::Payload;
use parking_lot::Mutex;
use pipeline::message::{Failure, Mode};
use pipeline::LossSpec;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::Tensor;
use tensor::TensorError;

/// The most calls in the log, and the most bytes of their arguments, until the next state is
/// stored.
const MAX_LOGGED_CALLS: usize = 1024;
const MAX_LOGGED_BYTES: usize = 1 << 30;

/// Why calls cannot be repeated.
const FUTURE_DROPPED: &str = "the future of a call was dropped before its end";
const STATE_CHANGED: &str = "a call failed, or weights or an optimizer were set";
const LOG_FULL: &str =
    "in more than 1024 calls, or 1 GiB of what they were given, no batch and no gradients were under way at no moment";

/// What the program should do instead.
const ADVICE: &str =
    "build a BossMan on the workers that are left and call restore() with a TrainingState of checkpoint()";

/// A call to the workers, with its arguments.
#[derive(Clone)]
pub(crate) enum TrainingCall {
    /// One batch forward, and whether it is the unnamed batch of [`BossMan::forward`].
    Forward { payloads: Vec<(u32, ValueId, Payload)>, implicit_batch: bool },
    /// A batch backward: the unnamed one, or this one.
    Backward { batch: Option<u64>, grads: Vec<Option<Payload>> },
    /// A batch that gets no backward pass.
    Discard { batch: u64 },
    /// An optimizer step.
    OptimStep,
    /// A whole training step, and the time of its preparation.
    TrainStep { prepared: Arc<PreparedBatch>, preparing: Duration },
}

/// The result of a call.
#[derive(Default)]
pub(crate) struct CallResult {
    /// The outputs of a forward pass.
    pub(crate) outputs: Vec<Tensor>,
    /// The report of a whole step.
    pub(crate) report: Option<StepReport>,
}

impl TrainingCall {
    /// A copy in memory of its own, because the caller may write to its tensors, and the size of
    /// the copy in bytes.
    fn deep_copy(&self) -> (TrainingCall, usize) {
        let mut bytes = 0;
        let mut copied = |payload: &Payload| {
            bytes += payload.bytes.len();
            Payload { meta: payload.meta.clone(), bytes: Bytes::copy_from_slice(&payload.bytes) }
        };
        let call = match self {
            TrainingCall::Forward { payloads, implicit_batch } => {
                let payloads = payloads.iter().map(|(index, value, payload)| (*index, *value, copied(payload)));
                TrainingCall::Forward { payloads: payloads.collect(), implicit_batch: *implicit_batch }
            }
            TrainingCall::Backward { batch, grads } => {
                let grads = grads.iter().map(|grad| grad.as_ref().map(&mut copied)).collect();
                TrainingCall::Backward { batch: *batch, grads }
            }
            TrainingCall::TrainStep { prepared, preparing } => {
                let inputs = prepared.inputs.iter().map(|(index, value, payload)| (*index, *value, copied(payload)));
                let inputs = inputs.collect();
                let targets = prepared.targets.iter().map(|(index, payload)| (*index, copied(payload))).collect();
                let prepared = Arc::new(PreparedBatch { inputs, targets, ..(**prepared).clone() });
                TrainingCall::TrainStep { prepared, preparing: *preparing }
            }
            TrainingCall::Discard { .. } | TrainingCall::OptimStep => self.clone(),
        };
        (call, bytes)
    }
}

/// A copy in memory of its own: tensors from workers may lie in memory that the workers wait for.
fn deep_copy(state: TrainingState) -> Result<TrainingState, BossManError> {
    let copied = |tensor: &Tensor| tensor.f_detach_copy().map_err(TensorError::from);
    let mut weights = StateDict::default();
    for (name, tensor) in state.weights.iter() {
        weights.insert(name, &copied(tensor)?);
    }
    let optimizer = state.optimizer.iter().map(|(name, tensor)| Ok((name.clone(), copied(tensor)?)));
    let optimizer = optimizer.collect::<Result<_, TensorError>>()?;
    Ok(TrainingState { weights, optimizer, counters: state.counters })
}

/// A completed call, and the counters before it.
struct LogEntry {
    call: TrainingCall,
    batch: u64,
    mode: Mode,
    loss: Option<LossSpec>,
}

/// The state and the log from which calls are repeated.
pub(crate) struct Replay {
    /// The number of updates between two stored states.
    every: u64,
    /// Behind a lock, because tensors are not shared between threads.
    state: Mutex<TrainingState>,
    /// The number of updates in that state.
    updates: u64,
    log: Vec<LogEntry>,
    /// The bytes of their arguments.
    bytes: usize,
    /// The last batch that was cut into microbatches. If it decided the stages, it decides them
    /// again.
    work: Option<(MicrobatchSizes, u32)>,
    /// Set while workers are lost and not replaced: the failure, and the number of the last batch
    /// before it.
    interrupted: Option<(BossManError, u64)>,
    /// Why the calls since the state cannot be repeated, if so.
    cannot_replay: Option<&'static str>,
    /// The initial number of workers.
    workers: usize,
}

impl BossMan {
    /// Turns on recovery. When workers are lost, a call waits for the remaining ones and for
    /// spares, and is repeated with them. Results equal those of a run without losses, to the bit.
    /// This holds for [`BossMan::forward`] and [`BossMan::backward`] and their variants,
    /// [`BossMan::optim_step`] and [`BossMan::train_step`]. A call that only reads, for example
    /// [`BossMan::state_dict`], fails, and succeeds after the next of these calls. Results that
    /// depend on the placement differ in the last bits: [`crate::Builder::compress`],
    /// [`crate::Builder::fast_reduction`], NCCL.
    ///
    /// After every `every` updates the boss copies the whole training state to its own memory.
    /// Between copies it logs the arguments of calls. It copies only when no batch waits for its
    /// backward pass. It cannot repeat calls until the next copy after 1024 calls or 1 GiB of
    /// arguments, after a call that failed or whose future was dropped, and after weights or an
    /// optimizer were set. A loss is then an error that states so. If a future is dropped during
    /// recovery, the next call continues the recovery.
    ///
    /// ```no_run
    /// # use bossman::{Batch, BossMan, BossManError, Host, Loss, Model, Optimizer};
    /// # async fn f(model: Model, batches: Vec<Batch>) -> Result<(), BossManError> {
    /// let mut boss = BossMan::builder(model).loss(Loss::MSELoss).build(Host::new(3).wait().await?)?;
    /// boss.distribute_model().await?;
    /// boss.send_optimizer(Optimizer::adam(1e-3)).await?;
    /// boss.enable_recovery(10).await?;
    /// for batch in &batches {
    ///     boss.train_step(batch).await?; // a worker that is lost costs seconds
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No optimizer was sent, a batch waits for its backward pass, accumulated gradients wait for
    /// an update, the run is a pool, which recovers by itself, or a worker failed.
    pub async fn enable_recovery(&mut self, every: u64) -> Result<(), BossManError> {
        self.refuse_in_pool("enable_recovery")?;
        if self.optimizer.is_none() || !self.batches_in_flight.batches.is_empty() {
            let message =
                "enable_recovery: call it once the optimizer is sent, and while no batch waits for its backward pass";
            return Err(BossManError::Usage(message.into()));
        }
        let state = Mutex::new(deep_copy(self.checkpoint().await?)?);
        let (every, workers, updates) = (every.max(1), self.plan.workers(), self.updates);
        let (log, bytes, work, interrupted, cannot_replay) = (Vec::new(), 0, None, None, None);
        self.replay = Some(Replay { every, state, updates, log, bytes, work, interrupted, cannot_replay, workers });
        Ok(())
    }

    /// Records a change that the stored state does not hold.
    pub(crate) fn invalidate_replay(&mut self) {
        if let Some(replay) = &mut self.replay {
            replay.cannot_replay = Some(STATE_CHANGED);
        }
    }

    /// Runs a call. If workers are lost and recovery is on, repeats it with the remaining ones.
    pub(crate) async fn with_recovery(&mut self, call: TrainingCall) -> Result<CallResult, BossManError> {
        // An earlier call left the recovery unfinished.
        if let Some((error, batch)) = self.replay.as_mut().and_then(|replay| replay.interrupted.take()) {
            self.rebuild_session(error, batch).await?;
        }
        let mut attempts = 0;
        loop {
            let (batch, mode, loss) = (self.batch, self.mode, self.settings.loss.clone());
            if let (Some(replay), TrainingCall::TrainStep { prepared, .. }) = (&mut self.replay, &call) {
                replay.work = Some((prepared.sizes_of_microbatch(), prepared.microbatches));
            }
            // Set until the result of the call is known.
            let before = self.replay.as_mut().map(|replay| replay.cannot_replay.replace(FUTURE_DROPPED));
            let result = self.run_call(call.clone()).await;
            if let (Some(replay), Some(before)) = (&mut self.replay, before) {
                replay.cannot_replay = before;
            }
            match result {
                Ok(done) => {
                    self.record_call(&call, (batch, mode, loss));
                    self.refresh_saved_state().await?;
                    return Ok(done);
                }
                Err(error) if attempts < MAX_ATTEMPTS && self.can_replay(&error) => {
                    attempts += 1;
                    self.rebuild_session(error, batch).await?;
                }
                Err(error) => {
                    if !error.was_refused() {
                        self.invalidate_replay();
                    }
                    return Err(self.with_advice(error));
                }
            }
        }
    }

    async fn run_call(&mut self, call: TrainingCall) -> Result<CallResult, BossManError> {
        let nothing = |()| CallResult::default();
        match call {
            TrainingCall::Forward { payloads, implicit_batch } => {
                let outputs = self.forward_once(payloads, implicit_batch).await?;
                Ok(CallResult { outputs, report: None })
            }
            TrainingCall::Backward { batch, grads } => self.backward_once(batch, grads).await.map(nothing),
            TrainingCall::Discard { batch } => self.discard(batch).await.map(nothing),
            TrainingCall::OptimStep => self.update_once().await.map(nothing),
            TrainingCall::TrainStep { prepared, preparing } => {
                let report = self.train_step_once(&prepared, preparing).await?;
                Ok(CallResult { report: Some(report), ..CallResult::default() })
            }
        }
    }

    fn record_call(&mut self, call: &TrainingCall, (batch, mode, loss): (u64, Mode, Option<LossSpec>)) {
        let Some(replay) = &mut self.replay else { return };
        if matches!(call, TrainingCall::Forward { .. }) && mode == Mode::Eval {
            return;
        }
        let (call, bytes) = call.deep_copy();
        replay.log.push(LogEntry { call, batch, mode, loss });
        replay.bytes += bytes;
        if replay.log.len() > MAX_LOGGED_CALLS || replay.bytes > MAX_LOGGED_BYTES {
            replay.log.clear();
            (replay.bytes, replay.cannot_replay) = (0, Some(LOG_FULL));
        }
    }

    /// Copies the state to the boss, if it is due and possible.
    async fn refresh_saved_state(&mut self) -> Result<(), BossManError> {
        let Some(replay) = &self.replay else { return Ok(()) };
        let due = self.updates.saturating_sub(replay.updates) >= replay.every;
        let still = !self.accumulated.is_pending() && self.batches_in_flight.batches.is_empty();
        if !still || !(due || replay.cannot_replay.is_some()) {
            return Ok(());
        }
        let kept = self.checkpoint().await;
        let state = match kept.and_then(deep_copy) {
            Ok(state) => state,
            // The call itself is complete. The next call notices the loss, and the older state
            // suffices until then.
            Err(BossManError::Worker(failure)) if failure.passing || failure.unfit => return Ok(()),
            Err(error) => {
                self.replay = None;
                if !self.quiet {
                    output::warn(&format!(
                        "warning: calls are not done again any more: no state could be kept ({error})"
                    ));
                }
                return Ok(());
            }
        };
        if let Some(replay) = &mut self.replay {
            (replay.updates, replay.cannot_replay) = (state.counters.updates, None);
            replay.state = Mutex::new(state);
            replay.log.clear();
            replay.bytes = 0;
        }
        Ok(())
    }

    fn can_replay(&self, error: &BossManError) -> bool {
        let BossManError::Worker(failure) = error else { return false };
        let others = self.plan.workers() > 1 || self.host.starts_workers();
        let passes = failure.passing || (failure.unfit && others);
        passes && self.replay.as_ref().is_some_and(|replay| replay.cannot_replay.is_none())
    }

    /// The error of a call that cannot be repeated, with the remedy.
    fn with_advice(&self, error: BossManError) -> BossManError {
        match error {
            BossManError::Worker(failure)
                if failure.passing && self.settings.is_called_by_program && self.pool.is_none() =>
            {
                let why = match self.replay.as_ref().map(|replay| replay.cannot_replay) {
                    None => "enable_recovery() has calls done again by themselves; else".to_string(),
                    Some(None) => "workers were lost again and again;".to_string(),
                    Some(Some(why)) => format!("the calls since the last state cannot be done again, for {why};"),
                };
                BossManError::Worker(Failure { message: format!("{}; {why} {ADVICE}", failure.message), ..failure })
            }
            other => other,
        }
    }

    /// Restores the state before this call on the remaining workers.
    async fn rebuild_session(&mut self, error: BossManError, batch: u64) -> Result<(), BossManError> {
        let began = Instant::now();
        let mut error = error;
        for _ in 0..MAX_ATTEMPTS {
            self.disconnect_workers(&error, batch);
            if !self.quiet {
                output::warn(&format!("warning: workers were lost, with {} updates done: {error}", self.updates));
            }
            match self.build_and_replay(batch).await {
                Ok(boss) => {
                    let Some(replay) = self.replay.take() else { return Err(error) };
                    *self = boss;
                    if !self.quiet {
                        output::warn(&format!(
                            "recovery: going on with {} of {} workers, from the state after {} updates; {} calls were done \
                             again; {:.2} s lost",
                            self.plan.workers(),
                            replay.workers,
                            replay.updates,
                            replay.log.len(),
                            began.elapsed().as_secs_f64()
                        ));
                    }
                    self.replay = Some(Replay { interrupted: None, ..replay });
                    return Ok(());
                }
                Err(BossManError::Worker(failure)) if failure.passing || failure.unfit => {
                    error = BossManError::Worker(failure);
                }
                // A worker that was started in place of another one.
                Err(ended @ BossManError::LocalWorkers(_)) => error = ended,
                Err(other) => return Err(other),
            }
        }
        Err(self.with_advice(error))
    }

    /// Closes the connections. A worker that is unfit for its part is told not to join again.
    fn disconnect_workers(&mut self, error: &BossManError, batch: u64) {
        evict_unfit(error, &self.handle);
        self.handle.disconnect_all();
        self.local = WorkerProcesses::default();
        if let Some(replay) = &mut self.replay {
            let lost = Failure { passing: true, ..Failure::new(error.to_string()) };
            replay.interrupted = Some((BossManError::Worker(lost), batch));
        }
    }

    /// Repeats the log on the remaining workers.
    async fn build_and_replay(&self, batch: u64) -> Result<BossMan, BossManError> {
        let Some(replay) = &self.replay else { return Err(BossManError::Usage("nothing is kept".into())) };
        let builder = self.builder.with_current(self.model.clone(), self.settings.clone());
        let again = RejoinWait::new(&builder, replay.workers, self.host.survivors_of(self.plan.workers()));
        let mut boss = builder.build(self.host.clone().wait_for_rejoin(again).await?)?;
        let restored = self.replay_on(&mut boss, replay, batch).await;
        if let Err(error) = &restored {
            evict_unfit(error, &boss.handle);
        }
        restored.map(|()| boss)
    }

    async fn replay_on(&self, boss: &mut BossMan, replay: &Replay, batch: u64) -> Result<(), BossManError> {
        (boss.mode, boss.open_data) = (self.mode, self.open_data.clone());
        boss.distribute_model().await?;
        if let Some(optimizer) = self.optimizer {
            boss.send_optimizer(optimizer).await?;
        }
        // Stages are placed before they load the state.
        if let Some((work, microbatches)) = &replay.work {
            boss.choose_schedule(work, *microbatches).await?;
        }
        let restored = boss.restore(&replay.state.lock());
        restored.await?;
        let loss = boss.settings.loss.take();
        for logged in &replay.log {
            (boss.batch, boss.mode, boss.settings.loss) = (logged.batch, logged.mode, logged.loss.clone());
            boss.run_call(logged.call.clone()).await?;
        }
        (boss.batch, boss.mode, boss.settings.loss) = (batch, self.mode, loss);
        Ok(())
    }
}
