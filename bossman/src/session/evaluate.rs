//! Runs batches without training.

use super::evaluation::{BatchBytes, Evaluation, EvaluationRoom, Outputs};
use super::prepared_batch::PreparedBatch;
use super::trainer::Trainer;
use crate::data::batch_inputs::Inputs;
use crate::data::loss_weights::expect_counted;
use crate::data::worker_data_sets::merge_samples;
use crate::BossManError;
use crate::{Batch, Variables};
use layerspec::ValueId;
use link::Payload;
use pipeline::boss::{RoundResults, RunRequest};
use pipeline::ids::Slot;
use pipeline::kv_cache_step::KvCacheStep;
use pipeline::message::{Mode, RoundLoss};
use pipeline::replicas::Speed;
use pipeline::round_outputs::{LastPosition, RoundOutputs};
use pipeline::schedule::Action;
use std::future::Future;
use tch::Tensor;

impl Trainer {
    /// Runs a batch through all stages in evaluation mode, and continues from the positions of the
    /// previous call (see [`KvCacheStep`]): the model's first output. Only its last position comes
    /// back if it has these positions and no other stage uses it. `inputs` are in the model's
    /// order.
    pub(crate) fn forward_cached<'a>(
        &'a mut self,
        inputs: &[Tensor],
        cached: Option<KvCacheStep>,
        last: LastPosition,
    ) -> impl Future<Output = Result<Tensor, BossManError>> + Send + 'a {
        let payloads = self.input_payloads_in_order(inputs);
        async move {
            let payloads = payloads?;
            self.position.next_batch();
            let mut run = self
                .single_microbatch_round(|stage| Some(Action::Forward { stage, microbatch: 0 }));
            run.mode = Mode::Eval;
            run.kv_cache = cached;
            run.outputs = RoundOutputs::First(last);
            run.inputs = self.insert_slots(payloads);
            let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
            let first = self.outputs(answer.outputs, Mode::Eval)?.into_iter().next();
            first.ok_or_else(|| BossManError::Usage("the model has no output".into()))
        }
    }

    fn input_payloads_in_order(
        &self,
        inputs: &[Tensor],
    ) -> Result<Vec<(u32, ValueId, Payload)>, BossManError> {
        let graph = self.model.graph();
        let names = graph.inputs().iter().map(|id| graph.value(*id).name.as_str());
        let none = || BossManError::Usage("the model has no input".into());
        let (first, others) = inputs.split_first().ok_or_else(none)?;
        let variables = names
            .skip(1)
            .zip(others)
            .fold(Variables::new(), |all, (name, input)| all.with(name, input));
        let inputs = Inputs::check(graph, first, &variables)?;
        inputs.payloads(&inputs.microbatches(1)?)
    }

    /// Evaluates several batches, which replicas share. Each result is that of
    /// [`crate::BossMan::evaluate`], to the bit. Without `outputs` the model's outputs stay on the
    /// workers, and the lists are empty.
    pub(crate) fn evaluate_batches<'a>(
        &'a mut self,
        batches: &[Batch],
        outputs: Outputs,
    ) -> impl Future<Output = Result<Vec<Evaluation>, BossManError>> + Send + 'a {
        let prepared = batches
            .iter()
            .map(|batch| PreparedBatch::new(self, batch, 1))
            .collect::<Result<Vec<_>, _>>();
        let data = batches.iter().try_for_each(|batch| self.register_data_of(batch));
        async move {
            let (prepared, spec) = (prepared?, self.required_loss()?.clone());
            data?;
            self.data.open(&self.handle).await?;
            let (mut inputs, mut targets, mut counted) = (Vec::new(), Vec::new(), Vec::new());
            let mut samples = Vec::new();
            for batch in prepared {
                samples.push(batch.samples_to_read);
                inputs.push(batch.inputs);
                targets.push(batch.targets);
                let of_batch: f64 = batch.loss_weights.iter().sum();
                expect_counted(of_batch)?;
                counted.push(of_batch);
            }
            let mut run = self.evaluation_round(inputs);
            run.outputs = match outputs {
                Outputs::Discard => RoundOutputs::None,
                Outputs::Fetch | Outputs::Likeliest => RoundOutputs::All,
            };
            // Each batch has a mean of its own.
            let (weights, likeliest) = (vec![1.0; targets.len()], outputs == Outputs::Likeliest);
            run.loss = Some(RoundLoss { spec, weights, likeliest });
            let targets = flatten_with_batch(targets)
                .map(|(index, (_, payload))| (index, self.handle.slots.insert(payload)));
            run.targets = targets.collect();
            run.samples = merge_samples(samples)?;
            let RoundResults { losses, outputs, .. } =
                self.run_round(self.with_parameter_gathers(run)?).await?;
            let outputs = self.outputs_of(counted.len(), outputs)?;
            let evaluation = |(index, (counted, outputs)): (u32, (f64, Vec<Tensor>))| {
                let loss =
                    losses.iter().find(|(of, _)| *of == index).map_or(0.0, |(_, loss)| *loss);
                Evaluation { loss, counted, outputs }
            };
            Ok((0..).zip(counted.into_iter().zip(outputs)).map(evaluation).collect())
        }
    }

    /// As [`crate::BossMan::forward_all`] in evaluation mode, for several batches, which replicas
    /// share.
    pub(crate) fn forward_batches<'a>(
        &'a mut self,
        batches: &[(Tensor, Variables)],
    ) -> impl Future<Output = Result<Vec<Vec<Tensor>>, BossManError>> + Send + 'a {
        let payloads = batches
            .iter()
            .map(|(x, variables)| self.payloads(x, variables))
            .collect::<Result<Vec<_>, _>>();
        async move {
            let payloads = payloads?;
            let batches = payloads.len();
            let mut run = self.evaluation_round(payloads);
            run.outputs = RoundOutputs::All;
            let answer = self.run_round(self.with_parameter_gathers(run)?).await?;
            self.outputs_of(batches, answer.outputs)
        }
    }

    /// Room for batches that are evaluated together.
    pub(crate) fn evaluation_room(&self) -> EvaluationRoom {
        EvaluationRoom::new(self.plan.most_replicas(), self.plan.batches_at_once())
    }

    /// The bytes of a batch during evaluation: at the boss its inputs, and the outputs that it
    /// fetches whole; and at a worker what it receives from other stages.
    pub(crate) fn batch_bytes(&self, inputs: &Inputs, outputs: Outputs) -> BatchBytes {
        let graph = self.model.graph();
        let whole = if outputs == Outputs::Fetch { graph.outputs() } else { &[] };
        let value = |value: ValueId| graph.value(value).ty.bytes(inputs.sizes()).unwrap_or(0);
        let values = graph.inputs().iter().chain(whole).map(|id| value(*id));
        let at_boss = values.fold(0, u64::saturating_add);
        BatchBytes { at_boss, at_worker: self.plan.received(value) }
    }

    /// A round in evaluation mode in which each microbatch is a whole batch.
    fn evaluation_round(&mut self, inputs: Vec<Vec<(u32, ValueId, Payload)>>) -> RunRequest {
        self.position.next_batch();
        let mut run = self.single_microbatch_round(|_| None);
        run.mode = Mode::Eval;
        run.microbatches = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let speed = |stage, worker| Speed {
            each: self.schedules.microbatch_time(&self.plan, stage, worker),
            ..Speed::default()
        };
        run.microbatch_assignment = self.plan.assign_batches(run.microbatches, speed);
        run.actions = self.plan.forwards(&run.microbatch_assignment, run.microbatches);
        let inputs =
            flatten_with_batch(inputs).map(|(index, (_, value, payload))| (index, value, payload));
        run.inputs = self.insert_slots(inputs.collect());
        run
    }

    /// The outputs of each of `batches` batches.
    fn outputs_of(
        &self,
        batches: usize,
        outputs: Vec<(u32, ValueId, Slot)>,
    ) -> Result<Vec<Vec<Tensor>>, BossManError> {
        let mut of_batches = vec![Vec::new(); batches];
        for output in outputs {
            if let Some(of) = of_batches.get_mut(output.0 as usize) {
                of.push(output);
            }
        }
        of_batches.into_iter().map(|outputs| self.outputs(outputs, Mode::Eval)).collect()
    }
}

/// The tensors of several batches, each with the number of its batch.
fn flatten_with_batch<T>(batches: Vec<Vec<T>>) -> impl Iterator<Item = (u32, T)> {
    (0..).zip(batches).flat_map(|(index, of)| of.into_iter().map(move |thing| (index, thing)))
}
