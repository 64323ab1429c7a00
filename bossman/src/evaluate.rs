//! How well the model does on a batch, without training.

use crate::batch::{Batch, Variables};
use crate::boss::BossMan;
use crate::inputs::Inputs;
use crate::BossManError;
use layerspec::ValueId;
use link::Payload;
use pipeline::cached::Cached;
use pipeline::message::{Mode, RoundLoss};
use pipeline::schedule::Action;
use std::future::Future;
use tch::Tensor;

/// What [`BossMan::evaluate`] found.
#[derive(Debug)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f32,
    /// What the mean was taken over: samples, or targets by the weight of their class where some are ignored or weighted.
    pub counted: f64,
    /// The model's outputs in their order, on the CPU.
    pub outputs: Vec<Tensor>,
}

impl BossMan {
    /// A batch through all stages in evaluation mode, going on from the positions of the call before (see [`Cached`]): the
    /// model's first output. `inputs` are in the model's order.
    pub(crate) fn forward_cached<'a>(
        &'a mut self,
        inputs: &[Tensor],
        cached: Option<Cached>,
    ) -> impl Future<Output = Result<Tensor, BossManError>> + Send + 'a {
        let payloads = self.in_order(inputs);
        async move {
            let payloads = payloads?;
            self.batch += 1;
            let mut run = self.round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
            run.mode = Mode::Eval;
            run.cached = cached;
            run.outputs = true;
            run.inputs = self.hold_all(payloads);
            let answer = self.run(run).await?;
            let first = self.outputs(answer, false)?.into_iter().next();
            first.ok_or_else(|| BossManError::Usage("the model has no output".into()))
        }
    }

    fn in_order(&self, inputs: &[Tensor]) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
        let graph = self.model.graph();
        let names = graph.inputs().iter().map(|id| graph.value(*id).name.as_str());
        let none = || BossManError::Usage("the model has no input".into());
        let (first, others) = inputs.split_first().ok_or_else(none)?;
        let variables = names.skip(1).zip(others).fold(Variables::new(), |all, (name, input)| all.with(name, input));
        let inputs = Inputs::check(graph, first, &variables)?;
        inputs.payloads(&inputs.microbatches(1)?)
    }

    /// The batch through all stages in evaluation mode, in one piece; the loss is computed where the last layer is.
    ///
    /// # Errors
    /// No loss was set, a tensor does not fit the model, or a worker failed.
    pub fn evaluate<'a>(
        &'a mut self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Evaluation, BossManError>> + Send + 'a {
        self.evaluate_with(batch, true)
    }

    /// The same; without `outputs` they stay where they are, and the list is empty.
    pub(crate) fn evaluate_with<'a>(
        &'a mut self,
        batch: &Batch,
        outputs: bool,
    ) -> impl Future<Output = Result<Evaluation, BossManError>> + Send + 'a {
        let prepared = self.prepare(batch, 1);
        async move {
            let prepared = prepared?;
            let spec = self.loss()?.clone();
            self.batch += 1;
            let mut run = self.round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
            run.mode = Mode::Eval;
            run.outputs = outputs;
            run.loss = Some(RoundLoss { spec, weights: vec![1.0] });
            run.inputs = self.hold_all(prepared.inputs);
            run.targets = prepared.targets.into_iter().map(|(index, p)| (index, self.handle.slots.put(p))).collect();
            let answer = self.run(run).await?;
            let loss = answer.losses.first().map_or(0.0, |(_, loss)| *loss);
            Ok(Evaluation { loss, counted: prepared.counts.iter().sum(), outputs: self.outputs(answer, false)? })
        }
    }
}
