//! Steps by separate calls: forward, backward and the optimizer step, with one batch or several at
//! a time.

use super::call::{LoggedCall, PayloadCopier, TrainingCall};
use super::trainer::Trainer;
use crate::data::tensor_payload::to_payload;
use crate::{BossManError, Variables};
use layerspec::ValueId;
use link::Payload;
use pipeline::message::Mode;
use tch::Tensor;

/// One batch forward.
pub(crate) struct Forward {
    pub(crate) inputs: Vec<(u32, ValueId, Payload)>,
    pub(crate) name: BatchName,
}

/// Whether the caller names a batch.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum BatchName {
    /// The batch of [`crate::BossMan::forward`]. The next one replaces it.
    Implicit,
    /// A batch of [`crate::BossMan::forward_batch`].
    Explicit,
}

/// A batch backward. `batch: None` is the implicit one.
pub(crate) struct Backward {
    pub(crate) batch: Option<u64>,
    pub(crate) grads: Vec<Option<Payload>>,
}

/// A batch that gets no backward pass.
#[derive(Clone)]
pub(crate) struct DiscardBatch {
    pub(crate) batch: u64,
}

/// An optimizer step over the accumulated gradients.
#[derive(Clone)]
pub(crate) struct OptimStep;

impl Forward {
    pub(crate) fn prepare(
        trainer: &Trainer,
        x: &Tensor,
        variables: &Variables,
        name: BatchName,
    ) -> Result<Self, BossManError> {
        Ok(Forward { inputs: trainer.payloads(x, variables)?, name })
    }
}

impl TrainingCall for Forward {
    type Answer = Vec<Tensor>;

    async fn run(&self, trainer: &mut Trainer) -> Result<Vec<Tensor>, BossManError> {
        let is_training = trainer.position.mode == Mode::Train;
        let is_implicit = is_training && self.name == BatchName::Implicit;
        trainer.discard_unclaimed_batch().await?;
        if is_implicit {
            trainer.discard_implicit_batch().await?;
        }
        let outputs = trainer.forward(self.inputs.clone()).await?;
        if is_implicit {
            trainer.position.in_flight.implicit_batch = Some(trainer.position.batch);
        }
        Ok(outputs)
    }

    fn logged(&self) -> LoggedCall {
        let mut copier = PayloadCopier::default();
        let inputs = self.inputs.iter();
        let inputs =
            inputs.map(|(index, value, payload)| (*index, *value, copier.copy(payload))).collect();
        let call = Box::new(Forward { inputs, name: self.name });
        LoggedCall { call, bytes: copier.bytes }
    }

    fn changes_state(&self, mode: Mode) -> bool {
        mode == Mode::Train
    }
}

impl Backward {
    /// Takes a gradient for each output of the model. A missing or undefined one counts as zero.
    pub(crate) fn prepare(
        trainer: &Trainer,
        batch: Option<u64>,
        grads: &[Tensor],
    ) -> Result<Self, BossManError> {
        let payloads =
            grads.iter().map(|grad| grad.defined().then(|| to_payload(grad)).transpose());
        let mut payloads: Vec<Option<Payload>> = payloads.collect::<Result<_, _>>()?;
        let outputs = trainer.model.graph().outputs().len();
        if payloads.len() > outputs {
            return Err(BossManError::Usage(format!(
                "{} gradients for {outputs} outputs",
                payloads.len()
            )));
        }
        if payloads.iter().all(Option::is_none) {
            let message = "backward needs the gradient of the output: call loss.backward() first, \
                           then prediction.grad()";
            return Err(BossManError::Usage(message.into()));
        }
        payloads.resize_with(outputs, || None);
        Ok(Backward { batch, grads: payloads })
    }
}

impl TrainingCall for Backward {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        let batch = self.batch.or(trainer.position.in_flight.implicit_batch).ok_or_else(|| {
            BossManError::Usage(
                "backward without a forward in training mode; call forward() first".into(),
            )
        })?;
        trainer.backward(batch, self.grads.clone()).await
    }

    fn logged(&self) -> LoggedCall {
        let mut copier = PayloadCopier::default();
        let grads = self.grads.iter().map(|grad| grad.as_ref().map(|grad| copier.copy(grad)));
        let call = Box::new(Backward { batch: self.batch, grads: grads.collect() });
        LoggedCall { call, bytes: copier.bytes }
    }
}

impl TrainingCall for DiscardBatch {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        trainer.discard(self.batch).await
    }

    fn logged(&self) -> LoggedCall {
        LoggedCall { call: Box::new(self.clone()), bytes: 0 }
    }
}

impl TrainingCall for OptimStep {
    type Answer = ();

    async fn run(&self, trainer: &mut Trainer) -> Result<(), BossManError> {
        trainer.optim_step().await
    }

    fn logged(&self) -> LoggedCall {
        LoggedCall { call: Box::new(self.clone()), bytes: 0 }
    }
}
