//! Calls that change the state of training, so that recovery can repeat them.

use super::trainer::Trainer;
use crate::tuning::batch_shape::BatchShape;
use crate::BossManError;
use bytes::Bytes;
use link::Payload;
use pipeline::message::Mode;
use std::future::Future;
use std::pin::Pin;

/// A call to the workers with its arguments. One run is one attempt.
pub(crate) trait TrainingCall: Send + Sync + Sized + 'static {
    type Answer: Send;

    /// Runs the call once.
    fn run(
        &self,
        trainer: &mut Trainer,
    ) -> impl Future<Output = Result<Self::Answer, BossManError>> + Send;

    /// A copy with memory of its own, because the caller may write to its tensors.
    fn logged(&self) -> LoggedCall;

    /// Whether the call changes the state of training in this mode.
    fn changes_state(&self, _mode: Mode) -> bool {
        true
    }

    /// The shape of the call's batch, if it may decide the schedule.
    fn batch_shape(&self) -> Option<BatchShape> {
        None
    }

    /// Whether the members of a pool change before the call, and a call that fails because members
    /// left is repeated.
    const FOLLOWS_MEMBERS: bool = false;
}

/// A call in the log.
pub(crate) struct LoggedCall {
    pub(crate) call: Box<dyn RepeatedCall>,
    /// The bytes of its arguments.
    pub(crate) bytes: usize,
}

/// A [`TrainingCall`] of any type.
pub(crate) trait RepeatedCall: Send + Sync {
    fn repeat<'a>(
        &'a self,
        trainer: &'a mut Trainer,
    ) -> Pin<Box<dyn Future<Output = Result<(), BossManError>> + Send + 'a>>;
}

impl<C: TrainingCall> RepeatedCall for C {
    fn repeat<'a>(
        &'a self,
        trainer: &'a mut Trainer,
    ) -> Pin<Box<dyn Future<Output = Result<(), BossManError>> + Send + 'a>> {
        Box::pin(async move { self.run(trainer).await.map(drop) })
    }
}

/// Copies payloads, and counts their bytes.
#[derive(Default)]
pub(crate) struct PayloadCopier {
    pub(crate) bytes: usize,
}

impl PayloadCopier {
    pub(crate) fn copy(&mut self, payload: &Payload) -> Payload {
        self.bytes += payload.bytes.len();
        Payload { meta: payload.meta.clone(), bytes: Bytes::copy_from_slice(&payload.bytes) }
    }
}
