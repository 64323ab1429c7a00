//! The state and the log from which calls are repeated after a loss of workers.
//!
//! The result of a call depends on the state before it and on its arguments, and not on the cut
//! (law 1). So the same calls after the same state give the same bits on the remaining workers.

use crate::checkpoint::{self, TrainingState};
use crate::session::call::{LoggedCall, TrainingCall};
use crate::session::position::Position;
use crate::session::trainer::Trainer;
use crate::tuning::batch_shape::BatchShape;
use crate::BossManError;
use parking_lot::Mutex;
use pipeline::message::{Failure, Mode};
use pipeline::LossSpec;

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
    mode: Mode,
    loss: Option<LossSpec>,
}

impl CallContext {
    pub(crate) fn of(trainer: &Trainer) -> Self {
        let Position { batch, mode, .. } = &trainer.position;
        CallContext { batch: *batch, mode: *mode, loss: trainer.loss.clone() }
    }

    /// The context of a later attempt at the call that took this batch number.
    pub(crate) fn with_batch(self, batch: u64) -> Self {
        CallContext { batch, ..self }
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
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
    pub(crate) fn new(every: u64, state: TrainingState, workers: usize) -> Self {
        CallLog {
            every: every.max(1),
            updates: state.counters.updates,
            state: Mutex::new(state),
            entries: Vec::new(),
            bytes: 0,
            shape: None,
            interrupted: None,
            cannot_replay: None,
            workers,
        }
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
    pub(crate) fn refresh(&mut self, state: TrainingState) {
        (self.updates, self.cannot_replay) = (state.counters.updates, None);
        self.state = Mutex::new(state);
        self.clear();
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Restores the stored state in a new session. Stages are placed before they load it.
    pub(crate) async fn restore(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        if let Some(shape) = &self.shape {
            let plan = trainer.choose_schedule(shape).await?;
            trainer.report(plan);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::position::Counters;
    use crate::StateDict;
    use tch::Tensor;

    /// A call whose arguments have this number of bytes.
    struct Call {
        bytes: usize,
        changes: bool,
    }

    const SMALL: Call = Call { bytes: 8, changes: true };

    impl TrainingCall for Call {
        type Answer = ();

        async fn run(&self, _: &mut Trainer) -> Result<(), BossManError> {
            Ok(())
        }

        fn logged(&self) -> LoggedCall {
            let call = Call { bytes: self.bytes, changes: self.changes };
            LoggedCall { call: Box::new(call), bytes: self.bytes }
        }

        fn changes_state(&self, _: Mode) -> bool {
            self.changes
        }
    }

    fn context(step: u64) -> CallContext {
        CallContext { batch: step, mode: Mode::Train, loss: None }
    }

    /// A log that stores a state every 3 updates, after a state with this number of updates.
    fn log(updates: u64) -> CallLog {
        CallLog::new(3, state(updates), 2)
    }

    fn state(updates: u64) -> TrainingState {
        let counters = Counters { step: updates, updates, loss_scale: None };
        let mut weights = StateDict::default();
        weights.insert("0.weight", &Tensor::from(updates as i64));
        TrainingState { weights, optimizer: [].into(), counters }
    }

    fn position(updates: u64) -> Position {
        let mut position = Position::new(None);
        position.counters.updates = updates;
        position
    }

    #[test]
    fn a_log_keeps_calls_that_change_the_state() {
        let mut log = log(0);
        log.record(&SMALL, context(0));
        log.record(&Call { changes: false, ..SMALL }, context(1));
        assert_eq!((log.len(), log.bytes), (1, 8));
        log.refresh(state(1));
        assert_eq!((log.len(), log.bytes, log.updates), (0, 0, 1));
    }

    #[test]
    fn the_call_after_the_1024th_is_too_many() {
        let mut log = log(0);
        for step in 0..1024 {
            log.record(&SMALL, context(step));
        }
        assert!(log.can_replay());
        assert_eq!(log.len(), 1024);
        log.record(&SMALL, context(1024));
        assert!(!log.can_replay() && log.len() == 0 && log.bytes == 0);
        assert!(CallLog::advice(Some(&log)).contains("because during 1024 calls"));
        // A state makes up for it.
        log.refresh(state(1));
        assert!(log.can_replay());
    }

    #[test]
    fn more_than_a_gibibyte_of_arguments_is_too_much() {
        let mut log = log(0);
        log.record(&Call { bytes: 1 << 29, ..SMALL }, context(0));
        log.record(&Call { bytes: 1 << 29, ..SMALL }, context(1));
        assert!(log.can_replay());
        log.record(&Call { bytes: 1, ..SMALL }, context(2));
        assert!(!log.can_replay() && log.bytes == 0);
    }

    #[test]
    fn a_call_whose_future_is_dropped_cannot_be_repeated() {
        let mut log = log(0);
        let before = log.begin_call(&SMALL);
        // Dropped here.
        assert!(!log.can_replay());
        assert!(CallLog::advice(Some(&log)).contains("the future of a call was dropped"));
        log.end_call(before);
        assert!(log.can_replay());
        // A call that ends leaves an earlier mark.
        log.invalidate();
        let before = log.begin_call(&SMALL);
        log.end_call(before);
        assert!(CallLog::advice(Some(&log)).contains("weights or an optimizer were set"));
    }

    #[test]
    fn a_state_is_due_after_its_updates_and_while_nothing_is_in_flight() {
        let mut log = log(10);
        assert!(!log.is_refresh_due(&position(12)));
        assert!(log.is_refresh_due(&position(13)));
        let mut busy = position(13);
        busy.in_flight.batches.insert(7);
        assert!(!log.is_refresh_due(&busy));
        let mut accumulating = position(13);
        accumulating.accumulated.steps = 1;
        assert!(!log.is_refresh_due(&accumulating));
        // Without calls to repeat, a state is due at once.
        log.invalidate();
        assert!(log.is_refresh_due(&position(10)));
        // `every: 0` is every update.
        let each = CallLog::new(0, state(10), 2);
        assert!(!each.is_refresh_due(&position(10)) && each.is_refresh_due(&position(11)));
    }
}
