//! How well the model does on a batch, without training.

use crate::data::batch_inputs::Inputs;
use crate::session::boss::BossMan;
use crate::session::worker_data::merge_samples;
use crate::BossManError;
use crate::{Batch, Variables};
use layerspec::ValueId;
use link::Payload;
use pipeline::boss::RunRequest;
use pipeline::cached::Cached;
use pipeline::effect::Answer;
use pipeline::ids::Slot;
use pipeline::message::{Mode, RoundLoss};
use pipeline::replicas::Speed;
use pipeline::schedule::Action;
use std::future::Future;
use tch::Tensor;

/// Batches that take more than this at the boss are not evaluated at once, however many replicas there are; 256 MiB.
pub(crate) const MAX_EVALUATION_BYTES: u64 = 256 << 20;

/// The result of [`BossMan::evaluate`].
#[derive(Debug)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f32,
    /// The weight over which the mean was taken: samples, or targets by the weight of their class
    /// where some are ignored or weighted.
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
        let payloads = self.input_payloads_in_order(inputs);
        async move {
            let payloads = payloads?;
            self.batch += 1;
            let mut run = self.single_microbatch_round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
            run.mode = Mode::Eval;
            run.cached = cached;
            run.outputs = true;
            run.inputs = self.insert_slots(payloads);
            let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
            let first = self.outputs(answer.outputs, false)?.into_iter().next();
            first.ok_or_else(|| BossManError::Usage("the model has no output".into()))
        }
    }

    fn input_payloads_in_order(&self, inputs: &[Tensor]) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
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
        let evaluations = self.evaluate_batches(std::slice::from_ref(batch), true);
        async move {
            let only = evaluations.await?.pop();
            only.ok_or_else(|| BossManError::Usage("no batch was evaluated; please report it".into()))
        }
    }

    /// The same for several batches, which replicas share: for each what [`BossMan::evaluate`] finds, to the bit.
    /// Without `outputs` they stay where they are, and the lists are empty.
    pub(crate) fn evaluate_batches<'a>(
        &'a mut self,
        batches: &[Batch],
        outputs: bool,
    ) -> impl Future<Output = Result<Vec<Evaluation>, BossManError>> + Send + 'a {
        let prepared = batches.iter().map(|batch| self.prepare(batch, 1)).collect::<Result<Vec<_>, _>>();
        let data = batches.iter().try_for_each(|batch| self.register_data_of(batch));
        async move {
            let (prepared, spec) = (prepared?, self.required_loss()?.clone());
            data?;
            self.open_registered_data().await?;
            let (mut inputs, mut targets, mut counted) = (Vec::new(), Vec::new(), Vec::new());
            let mut samples = Vec::new();
            for batch in prepared {
                samples.push(batch.samples_to_read);
                inputs.push(batch.inputs);
                targets.push(batch.targets);
                counted.push(batch.loss_weights.iter().sum());
            }
            let mut run = self.evaluation_round(inputs);
            run.outputs = outputs;
            // Each is a mean of its own.
            run.loss = Some(RoundLoss { spec, weights: vec![1.0; targets.len()] });
            let targets =
                flatten_with_batch(targets).map(|(index, (_, payload))| (index, self.handle.slots.insert(payload)));
            run.targets = targets.collect();
            run.samples = merge_samples(samples)?;
            let Answer { losses, outputs, .. } = self.run_round(self.with_parameter_gathers(run)?).await?;
            let outputs = self.outputs_of(counted.len(), outputs)?;
            let evaluation = |(index, (counted, outputs)): (u32, (f64, Vec<Tensor>))| {
                let loss = losses.iter().find(|(of, _)| *of == index).map_or(0.0, |(_, loss)| *loss);
                Evaluation { loss, counted, outputs }
            };
            Ok((0..).zip(counted.into_iter().zip(outputs)).map(evaluation).collect())
        }
    }

    /// As [`BossMan::forward_all`] in evaluation mode, for several batches, which replicas share.
    pub(crate) fn forward_batches<'a>(
        &'a mut self,
        batches: &[(Tensor, Variables)],
    ) -> impl Future<Output = Result<Vec<Vec<Tensor>>, BossManError>> + Send + 'a {
        let payloads = batches.iter().map(|(x, variables)| self.payloads(x, variables)).collect::<Result<Vec<_>, _>>();
        async move {
            let payloads = payloads?;
            let batches = payloads.len();
            let mut run = self.evaluation_round(payloads);
            run.outputs = true;
            let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
            self.outputs_of(batches, answer.outputs)
        }
    }

    /// The bytes of a batch at the boss during evaluation: inputs and outputs.
    pub(crate) fn batch_bytes(&self, inputs: &Inputs) -> u64 {
        let graph = self.model.graph();
        let values = graph.inputs().iter().chain(graph.outputs());
        let bytes = values.map(|value| graph.value(*value).ty.bytes(inputs.sizes()).unwrap_or(0));
        bytes.fold(0, u64::saturating_add)
    }

    /// A round in evaluation mode in which each microbatch is a whole batch.
    fn evaluation_round(&mut self, inputs: Vec<Vec<(u32, ValueId, Payload)>>) -> RunRequest {
        self.batch += 1;
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Eval;
        run.microbatches = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let speed = |stage, worker| Speed { each: self.microbatch_time(stage, worker), ..Speed::default() };
        run.microbatch_assignment = self.plan.assign_batches(run.microbatches, speed);
        run.actions = self.plan.forwards(&run.microbatch_assignment, run.microbatches);
        let inputs = flatten_with_batch(inputs).map(|(index, (_, value, payload))| (index, value, payload));
        run.inputs = self.insert_slots(inputs.collect());
        run
    }

    /// The outputs of each of `batches` batches.
    fn outputs_of(&self, batches: usize, outputs: Vec<(u32, ValueId, Slot)>) -> Result<Vec<Vec<Tensor>>, BossManError> {
        let mut of_batches = vec![Vec::new(); batches];
        for output in outputs {
            if let Some(of) = of_batches.get_mut(output.0 as usize) {
                of.push(output);
            }
        }
        of_batches.into_iter().map(|outputs| self.outputs(outputs, false)).collect()
    }
}

/// The tensors of several batches, each with the number of its batch.
fn flatten_with_batch<T>(batches: Vec<Vec<T>>) -> impl Iterator<Item = (u32, T)> {
    (0..).zip(batches).flat_map(|(index, of)| of.into_iter().map(move |thing| (index, thing)))
}
