//! Repeats calls by hand after a loss of workers, from a state that the boss stores and a log of
//! the calls since.
//!
//! The result of a call depends on the state before it and on its arguments, and not on the cut
//! (law 1). So the same calls after the same state give the same bits on the remaining workers.

use crate::checkpoint::State;
use crate::output;
use crate::recovery::policy::{evict_unfit, MAX_ATTEMPTS};
use crate::session::boss::BossMan;
use crate::session::train_step::Prepared;
use crate::tuning::schedule_state::Work;
use crate::workers::host::Again;
use crate::workers::local_processes::Processes;
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
const MOST_CALLS: usize = 1024;
const MOST_BYTES: usize = 1 << 30;

/// Why calls cannot be repeated.
const DROPPED: &str = "the future of a call was dropped before its end";
const FAILED: &str = "a call failed, or weights or an optimizer were set";
const TOO_MANY: &str =
    "in more than 1024 calls, or 1 GiB of what they were given, no batch and no gradients were under way at no moment";

/// What the program should do instead.
const ADVICE: &str = "build a BossMan on the workers that are left and call restore() with a State of checkpoint()";

/// A call to the workers, with its arguments.
#[derive(Clone)]
pub(crate) enum Call {
    /// One batch forward, and whether it is the unnamed batch of [`BossMan::forward`].
    Forward { payloads: Vec<(u32, ValueId, Payload)>, unnamed: bool },
    /// A batch backward: the unnamed one, or this one.
    Backward { batch: Option<u64>, grads: Vec<Option<Payload>> },
    /// A batch that gets no backward pass.
    Forget { batch: u64 },
    /// An optimizer step.
    OptimStep,
    /// A whole training step, and the time of its preparation.
    TrainStep { prepared: Arc<Prepared>, preparing: Duration },
}

/// The result of a call.
#[derive(Default)]
pub(crate) struct Done {
    /// The outputs of a forward pass.
    pub(crate) outputs: Vec<Tensor>,
    /// The report of a whole step.
    pub(crate) report: Option<StepReport>,
}

impl Call {
    /// A copy in memory of its own, because the caller may write to its tensors, and the size of
    /// the copy in bytes.
    fn own(&self) -> (Call, usize) {
        let mut bytes = 0;
        let mut copied = |payload: &Payload| {
            bytes += payload.bytes.len();
            Payload { meta: payload.meta.clone(), bytes: Bytes::copy_from_slice(&payload.bytes) }
        };
        let call = match self {
            Call::Forward { payloads, unnamed } => {
                let payloads = payloads.iter().map(|(index, value, payload)| (*index, *value, copied(payload)));
                Call::Forward { payloads: payloads.collect(), unnamed: *unnamed }
            }
            Call::Backward { batch, grads } => {
                let grads = grads.iter().map(|grad| grad.as_ref().map(&mut copied)).collect();
                Call::Backward { batch: *batch, grads }
            }
            Call::TrainStep { prepared, preparing } => {
                let inputs = prepared.inputs.iter().map(|(index, value, payload)| (*index, *value, copied(payload)));
                let inputs = inputs.collect();
                let targets = prepared.targets.iter().map(|(index, payload)| (*index, copied(payload))).collect();
                let prepared = Arc::new(Prepared { inputs, targets, ..(**prepared).clone() });
                Call::TrainStep { prepared, preparing: *preparing }
            }
            Call::Forget { .. } | Call::OptimStep => self.clone(),
        };
        (call, bytes)
    }
}

/// A copy in memory of its own: tensors from workers may lie in memory that the workers wait for.
fn own(state: State) -> Result<State, BossManError> {
    let copied = |tensor: &Tensor| tensor.f_detach_copy().map_err(TensorError::from);
    let mut weights = StateDict::default();
    for (name, tensor) in state.weights.iter() {
        weights.insert(name, &copied(tensor)?);
    }
    let optimizer = state.optimizer.iter().map(|(name, tensor)| Ok((name.clone(), copied(tensor)?)));
    let optimizer = optimizer.collect::<Result<_, TensorError>>()?;
    Ok(State { weights, optimizer, counters: state.counters })
}

/// A completed call, and the counters before it.
struct Logged {
    call: Call,
    batch: u64,
    mode: Mode,
    loss: Option<LossSpec>,
}

/// The state and the log from which calls are repeated.
pub(crate) struct Replay {
    /// The number of updates between two stored states.
    every: u64,
    /// Behind a lock, because tensors are not shared between threads.
    state: Mutex<State>,
    /// The number of updates in that state.
    updates: u64,
    log: Vec<Logged>,
    /// The bytes of their arguments.
    bytes: usize,
    /// The last batch that was cut into microbatches. If it decided the stages, it decides them
    /// again.
    work: Option<(Work, u32)>,
    /// Set while workers are lost and not replaced: the failure, and the number of the last batch
    /// before it.
    lost: Option<(BossManError, u64)>,
    /// Why the calls since the state cannot be repeated, if so.
    lost_track: Option<&'static str>,
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
        if self.optimizer.is_none() || !self.under_way.batches.is_empty() {
            let message =
                "enable_recovery: call it once the optimizer is sent, and while no batch waits for its backward pass";
            return Err(BossManError::Usage(message.into()));
        }
        let state = Mutex::new(own(self.checkpoint().await?)?);
        let (every, workers, updates) = (every.max(1), self.plan.workers(), self.updates);
        let (log, bytes, work, lost, lost_track) = (Vec::new(), 0, None, None, None);
        self.replay = Some(Replay { every, state, updates, log, bytes, work, lost, lost_track, workers });
        Ok(())
    }

    /// Records a change that the stored state does not hold.
    pub(crate) fn lose_track(&mut self) {
        if let Some(replay) = &mut self.replay {
            replay.lost_track = Some(FAILED);
        }
    }

    /// Runs a call. If workers are lost and recovery is on, repeats it with the remaining ones.
    pub(crate) async fn with_recovery(&mut self, call: Call) -> Result<Done, BossManError> {
        // An earlier call left the recovery unfinished.
        if let Some((error, batch)) = self.replay.as_mut().and_then(|replay| replay.lost.take()) {
            self.come_again(error, batch).await?;
        }
        let mut attempts = 0;
        loop {
            let (batch, mode, loss) = (self.batch, self.mode, self.settings.loss.clone());
            if let (Some(replay), Call::TrainStep { prepared, .. }) = (&mut self.replay, &call) {
                replay.work = Some((prepared.work(), prepared.microbatches));
            }
            // Set until the result of the call is known.
            let before = self.replay.as_mut().map(|replay| replay.lost_track.replace(DROPPED));
            let result = self.carry(call.clone()).await;
            if let (Some(replay), Some(before)) = (&mut self.replay, before) {
                replay.lost_track = before;
            }
            match result {
                Ok(done) => {
                    self.log(&call, (batch, mode, loss));
                    self.keep_state().await?;
                    return Ok(done);
                }
                Err(error) if attempts < MAX_ATTEMPTS && self.can_replay(&error) => {
                    attempts += 1;
                    self.come_again(error, batch).await?;
                }
                Err(error) => {
                    if !error.was_refused() {
                        self.lose_track();
                    }
                    return Err(self.told(error));
                }
            }
        }
    }

    async fn carry(&mut self, call: Call) -> Result<Done, BossManError> {
        let nothing = |()| Done::default();
        match call {
            Call::Forward { payloads, unnamed } => {
                let outputs = self.forward_once(payloads, unnamed).await?;
                Ok(Done { outputs, report: None })
            }
            Call::Backward { batch, grads } => self.backward_once(batch, grads).await.map(nothing),
            Call::Forget { batch } => self.forget(batch).await.map(nothing),
            Call::OptimStep => self.update_once().await.map(nothing),
            Call::TrainStep { prepared, preparing } => {
                let report = self.train_step_once(&prepared, preparing).await?;
                Ok(Done { report: Some(report), ..Done::default() })
            }
        }
    }

    fn log(&mut self, call: &Call, (batch, mode, loss): (u64, Mode, Option<LossSpec>)) {
        let Some(replay) = &mut self.replay else { return };
        if matches!(call, Call::Forward { .. }) && mode == Mode::Eval {
            return;
        }
        let (call, bytes) = call.own();
        replay.log.push(Logged { call, batch, mode, loss });
        replay.bytes += bytes;
        if replay.log.len() > MOST_CALLS || replay.bytes > MOST_BYTES {
            replay.log.clear();
            (replay.bytes, replay.lost_track) = (0, Some(TOO_MANY));
        }
    }

    /// Copies the state to the boss, if it is due and possible.
    async fn keep_state(&mut self) -> Result<(), BossManError> {
        let Some(replay) = &self.replay else { return Ok(()) };
        let due = self.updates.saturating_sub(replay.updates) >= replay.every;
        let still = !self.gathered.wait() && self.under_way.batches.is_empty();
        if !still || !(due || replay.lost_track.is_some()) {
            return Ok(());
        }
        let kept = self.checkpoint().await;
        let state = match kept.and_then(own) {
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
            (replay.updates, replay.lost_track) = (state.counters.updates, None);
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
        passes && self.replay.as_ref().is_some_and(|replay| replay.lost_track.is_none())
    }

    /// The error of a call that cannot be repeated, with the remedy.
    fn told(&self, error: BossManError) -> BossManError {
        match error {
            BossManError::Worker(failure) if failure.passing && self.settings.by_hand && self.pool.is_none() => {
                let why = match self.replay.as_ref().map(|replay| replay.lost_track) {
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
    async fn come_again(&mut self, error: BossManError, batch: u64) -> Result<(), BossManError> {
        let began = Instant::now();
        let mut error = error;
        for _ in 0..MAX_ATTEMPTS {
            self.leave(&error, batch);
            if !self.quiet {
                output::warn(&format!("warning: workers were lost, with {} updates done: {error}", self.updates));
            }
            match self.rebuilt(batch).await {
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
                    self.replay = Some(Replay { lost: None, ..replay });
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
        Err(self.told(error))
    }

    /// Closes the connections. A worker that is unfit for its part is told not to join again.
    fn leave(&mut self, error: &BossManError, batch: u64) {
        evict_unfit(error, &self.handle);
        self.handle.disconnect_all();
        self.local = Processes::default();
        if let Some(replay) = &mut self.replay {
            let lost = Failure { passing: true, ..Failure::new(error.to_string()) };
            replay.lost = Some((BossManError::Worker(lost), batch));
        }
    }

    /// Repeats the log on the remaining workers.
    async fn rebuilt(&self, batch: u64) -> Result<BossMan, BossManError> {
        let Some(replay) = &self.replay else { return Err(BossManError::Usage("nothing is kept".into())) };
        let builder = self.origin.settled(self.model.clone(), self.settings.clone());
        let again = Again::new(&builder, replay.workers, self.host.left_of(self.plan.workers()));
        let mut boss = builder.build(self.host.clone().wait_again(again).await?)?;
        let restored = self.restored(&mut boss, replay, batch).await;
        if let Err(error) = &restored {
            evict_unfit(error, &boss.handle);
        }
        restored.map(|()| boss)
    }

    async fn restored(&self, boss: &mut BossMan, replay: &Replay, batch: u64) -> Result<(), BossManError> {
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
            boss.carry(logged.call.clone()).await?;
        }
        (boss.batch, boss.mode, boss.settings.loss) = (batch, self.mode, loss);
        Ok(())
    }
}
