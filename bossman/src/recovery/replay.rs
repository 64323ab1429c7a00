//! The state and the log from which calls are repeated after a loss of workers.
//!
//! The result of a call depends on the state before it and on its arguments, and not on the cut
//! (law 1). So the same calls after the same state give the same bits on the remaining workers.

use crate::checkpoint::{self, TrainingState};
use crate::session::call::{LoggedCall, TrainingCall};
use crate::session::position::Position;
use crate::session::trainer::Trainer;
use crate::tuning::batch_shape::BatchShape;
use crate::{BossManError, StateDict};
use parking_lot::Mutex;
use pipeline::message::{Failure, Mode};
use pipeline::LossSpec;
use tch::Tensor;
use tensor::TensorError;

/// The most calls in the log, and the most bytes of their arguments, until the next state is
/// stored.
const MAX_LOGGED_CALLS: usize = 1024;
const MAX_LOGGED_BYTES: usize = 1 << 30;

/// Why calls cannot be repeated.
const FUTURE_DROPPED: &str = "the future of a call was dropped before its end";
const STATE_CHANGED: &str = "a call failed, or weights or an optimizer were set";
const LOG_FULL: &str = "during 1024 calls, or 1 GiB of their arguments, a batch or accumulated \
                        gradients were always in flight";

/// The advice for the program instead.
const ADVICE: &str = "build a BossMan on the workers that are left and call restore() with a \
                      TrainingState of checkpoint()";

/// The values that a call depends on besides the training state.
#[derive(Clone)]
pub(crate) struct CallContext {
    batch: u64,
    step: u64,
    mode: Mode,
    loss: Option<LossSpec>,
}

impl CallContext {
    pub(crate) fn of(trainer: &Trainer) -> Self {
        let Position { batch, mode, counters, .. } = &trainer.position;
        CallContext { batch: *batch, step: counters.step, mode: *mode, loss: trainer.loss.clone() }
    }

    /// The context of a later attempt at the call that took this batch number.
    pub(crate) fn with_batch(self, batch: u64) -> Self {
        CallContext { batch, ..self }
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    /// The training step before the call.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Gives a trainer the same values. Its step follows from the state and the repeated calls.
    fn apply(&self, trainer: &mut Trainer) {
        (trainer.position.batch, trainer.position.mode) = (self.batch, self.mode);
        trainer.loss = self.loss.clone();
    }
}

/// A completed call, and its context.
struct LogEntry {
    call: LoggedCall,
    context: CallContext,
}

/// A stored state and the calls since.
pub(crate) struct CallLog {
    /// The number of updates between two stored states.
    every: u64,
    /// Behind a lock, because tensors are not shared between threads.
    state: Mutex<TrainingState>,
    /// The number of updates in that state.
    pub(crate) updates: u64,
    entries: Vec<LogEntry>,
    /// The bytes of their arguments.
    bytes: usize,
    /// The shape of the last batch that may have decided the stages. It decides them again.
    shape: Option<BatchShape>,
    /// Set while workers are lost and not replaced.
    pub(crate) interrupted: Option<Interruption>,
    /// Why the calls since the state cannot be repeated, if so.
    cannot_replay: Option<&'static str>,
    /// The initial number of workers.
    pub(crate) workers: usize,
}

/// A recovery that has not ended.
pub(crate) struct Interruption {
    /// The text of the failure.
    pub(crate) cause: String,
    /// The last batch number before the call that failed.
    pub(crate) batch: u64,
}

impl Interruption {
    pub(crate) fn error(&self) -> BossManError {
        BossManError::Worker(Failure::lost(self.cause.clone()))
    }
}

impl CallLog {
    /// Starts a log after this state of a session with `workers` workers.
    pub(crate) fn new(
        every: u64,
        state: TrainingState,
        workers: usize,
    ) -> Result<Self, BossManError> {
        Ok(CallLog {
            every: every.max(1),
            updates: state.counters.updates,
            state: Mutex::new(deep_copy(state)?),
            entries: Vec::new(),
            bytes: 0,
            shape: None,
            interrupted: None,
            cannot_replay: None,
            workers,
        })
    }

    /// The number of calls since the state.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn can_replay(&self) -> bool {
        self.cannot_replay.is_none()
    }

    /// Records a change that neither the state nor the log holds.
    pub(crate) fn invalidate(&mut self) {
        self.cannot_replay = Some(STATE_CHANGED);
    }

    /// Marks that a call runs. If its future is dropped, the mark stays. Returns the mark before.
    pub(crate) fn begin_call<C: TrainingCall>(&mut self, call: &C) -> Option<&'static str> {
        self.shape = call.batch_shape().or(self.shape.take());
        self.cannot_replay.replace(FUTURE_DROPPED)
    }

    /// Ends the mark of [`CallLog::begin_call`].
    pub(crate) fn end_call(&mut self, mark_before: Option<&'static str>) {
        self.cannot_replay = mark_before;
    }

    /// Adds a completed call.
    pub(crate) fn record<C: TrainingCall>(&mut self, call: &C, context: CallContext) {
        if !call.changes_state(context.mode) {
            return;
        }
        let call = call.logged();
        self.bytes += call.bytes;
        self.entries.push(LogEntry { call, context });
        if self.entries.len() > MAX_LOGGED_CALLS || self.bytes > MAX_LOGGED_BYTES {
            self.clear();
            self.cannot_replay = Some(LOG_FULL);
        }
    }

    /// Whether the state should be stored anew, and the workers hold nothing else.
    pub(crate) fn is_refresh_due(&self, position: &Position) -> bool {
        let due = position.counters.updates.saturating_sub(self.updates) >= self.every;
        position.is_idle() && (due || !self.can_replay())
    }

    /// Stores a state, from which the log begins anew.
    pub(crate) fn refresh(&mut self, state: TrainingState) -> Result<(), BossManError> {
        let state = deep_copy(state)?;
        (self.updates, self.cannot_replay) = (state.counters.updates, None);
        self.state = Mutex::new(state);
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Restores the stored state in a new session. Stages are placed before they load it.
    pub(crate) async fn restore(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        if let Some(shape) = &self.shape {
            trainer.choose_schedule(shape).await?;
        }
        let (tensors, counters) = {
            let state = self.state.lock();
            (checkpoint::state_by_stage(trainer, &state)?, state.counters)
        };
        checkpoint::restore(trainer, tensors, counters).await
    }

    /// Repeats the calls, up to the call with this context.
    pub(crate) async fn replay(
        &self,
        trainer: &mut Trainer,
        until: &CallContext,
    ) -> Result<(), BossManError> {
        for LogEntry { call, context } in &self.entries {
            context.apply(trainer);
            call.call.repeat(trainer).await?;
        }
        until.apply(trainer);
        Ok(())
    }

    /// The advice for the program after a loss.
    pub(crate) fn advice(log: Option<&CallLog>) -> String {
        let why = match log.map(|log| log.cannot_replay) {
            None => "enable_recovery() repeats calls automatically; else".to_string(),
            Some(None) => "workers were lost again and again;".to_string(),
            Some(Some(why)) => {
                format!("the calls since the last state cannot be repeated, because {why};")
            }
        };
        format!("{why} {ADVICE}")
    }
}

/// A copy in memory of its own: tensors from workers may lie in memory that the workers wait for.
fn deep_copy(state: TrainingState) -> Result<TrainingState, BossManError> {
    let copied = |tensor: &Tensor| tensor.f_detach_copy().map_err(TensorError::from);
    let mut weights = StateDict::default();
    for (name, tensor) in state.weights.iter() {
        weights.insert(name, &copied(tensor)?);
    }
    let optimizer =
        state.optimizer.iter().map(|(name, tensor)| Ok((name.clone(), copied(tensor)?)));
    let optimizer = optimizer.collect::<Result<_, TensorError>>()?;
    Ok(TrainingState { weights, optimizer, counters: state.counters })
}
