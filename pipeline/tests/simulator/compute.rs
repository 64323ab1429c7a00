//! A worker's compute thread, with fake tensors. It checks that it is asked for sensible things.

use crate::math::{self, Draw, Fake, Param};
use layerspec::{Layer, ValueId};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::{Failure, Mode};
use pipeline::optimizer::OptimizerSpec;
use pipeline::plan::StageSpec;
use pipeline::task::{LossTask, Outcome, Task};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that a compute thread keeps between tasks.
#[derive(Default)]
pub struct Compute {
    stages: Vec<StageSpec>,
    seed: u64,
    params: BTreeMap<String, Param>,
    optimizer: Option<OptimizerSpec>,
    /// Forward passes that wait for their backward pass.
    saved: BTreeMap<(StageId, MicrobatchKey), Saved>,
    /// The last backward pass of each stage since its last step: gradients are summed in order.
    last_backward: BTreeMap<StageId, MicrobatchKey>,
}

struct Saved {
    step: u64,
    values: BTreeMap<ValueId, Fake>,
    /// The output with the loss, and its gradient.
    loss: Option<(usize, Fake)>,
}

impl Compute {
    /// Whether no forward pass waits for its backward pass.
    pub fn is_clear(&self) -> bool {
        self.saved.is_empty()
    }

    pub fn run(&mut self, task: Task<Fake>) -> Result<Outcome<Fake>, Failure> {
        match task {
            Task::Build { stages, seed } => self.build(stages, seed),
            Task::SetOptimizer(spec) => {
                self.optimizer = Some(spec);
                self.params.values_mut().for_each(|p| p.state = 0);
            }
            Task::Forward { stage, key, step, mode, inputs, export, loss } => {
                return Ok(self.forward(stage, key, step, mode, inputs, &export, loss));
            }
            Task::Backward { stage, key, grads } => return self.backward(stage, key, grads),
            Task::OptimStep { stage } => self.optim_step(stage)?,
            Task::Discard { batch, gradients } => self.discard(batch, gradients),
            Task::Snapshot => {
                let tensors = self.params.iter().map(|(name, p)| (name.clone(), p.value)).collect();
                return Ok(Outcome::State { tensors });
            }
            Task::Load { tensors } => {
                assert_eq!(tensors.len(), self.params.len(), "a state with too few or too many tensors");
                for (name, value) in tensors {
                    self.params.get_mut(&name).expect("a parameter of this worker").value = value;
                }
            }
        }
        Ok(Outcome::Done)
    }

    fn build(&mut self, stages: Vec<StageSpec>, seed: u64) {
        *self = Compute { stages, seed, ..Compute::default() };
        let names = self.stages.iter().flat_map(|s| s.layers.iter().flat_map(|l| weights(s, l)));
        self.params = names.map(|(name, _)| (name.clone(), Param::new(seed, &name))).collect();
    }

    fn stage(&self, stage: StageId) -> StageSpec {
        self.stages.iter().find(|s| s.stage == stage).expect("a stage of this worker").clone()
    }

    fn values_of(&self, spec: &StageSpec, layer: &Layer) -> Vec<Fake> {
        weights(spec, layer).iter().map(|(name, _)| self.params[name].value).collect()
    }

    #[allow(clippy::too_many_arguments)] // the fields of the task
    fn forward(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        step: u64,
        mode: Mode,
        inputs: Vec<Fake>,
        export: &[usize],
        loss: Option<LossTask<Fake>>,
    ) -> Outcome<Fake> {
        let spec = self.stage(stage);
        assert_eq!(inputs.len(), spec.inputs.len(), "an input for each of the stage's");
        let draw = Draw { seed: self.seed, step, microbatch: key.index };
        let mut values: BTreeMap<ValueId, Fake> = spec.inputs.iter().map(|i| i.value).zip(inputs).collect();
        for layer in &spec.layers {
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| values[v]).collect();
            let draw = (mode == Mode::Train).then_some(draw);
            let outputs = math::forward(layer, &self.values_of(&spec, layer), &inputs, draw);
            values.extend(layer.outputs.iter().copied().zip(outputs));
        }
        let output = |index: usize| values[&spec.outputs[index].value];
        let outputs = export.iter().map(|index| output(*index)).collect();
        let loss = loss.map(|task| (task.output, math::loss(output(task.output), &task)));
        if mode == Mode::Train {
            let saved = Saved { step, values, loss: loss.map(|(output, (_, grad))| (output, grad)) };
            assert!(self.saved.insert((stage, key), saved).is_none(), "{stage}: {key} forward twice");
        }
        Outcome::Forward { outputs, loss: loss.map(|(_, (loss, _))| loss) }
    }

    fn backward(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        outside: Vec<Vec<Fake>>,
    ) -> Result<Outcome<Fake>, Failure> {
        let spec = self.stage(stage);
        // Gone where the forward pass failed, and this was already waiting behind it.
        let saved = self.saved.remove(&(stage, key));
        let saved = saved.ok_or_else(|| Failure::new(format!("{stage}: {key} backward without its forward pass")))?;
        let last = self.last_backward.insert(stage, key);
        assert!(last.is_none_or(|last| last < key), "{stage}: {key} backward after {last:?}");
        assert_eq!(outside.len(), spec.outputs.len(), "gradients for each of the stage's outputs");

        let needs_grad = needs_grad(&spec);
        let mut grads: BTreeMap<ValueId, Vec<Fake>> = BTreeMap::new();
        for (index, (output, outside)) in spec.outputs.iter().zip(outside).enumerate() {
            assert!(output.needs_grad || outside.is_empty(), "a gradient for a variable that needs none");
            let loss = saved.loss.filter(|(with_loss, _)| *with_loss == index && output.needs_grad);
            grads.entry(output.value).or_default().extend(loss.map(|(_, grad)| grad).into_iter().chain(outside));
        }
        for layer in spec.layers.iter().rev() {
            let of = |value: &ValueId| grads.get(value).and_then(|terms| math::sum(terms.iter().copied()));
            let of_outputs: Vec<Option<Fake>> = layer.outputs.iter().map(of).collect();
            if of_outputs.iter().all(Option::is_none) {
                continue;
            }
            let inputs: Vec<Fake> = layer.inputs.iter().map(|v| saved.values[v]).collect();
            let draw = Draw { seed: self.seed, step: saved.step, microbatch: key.index };
            let own = self.values_of(&spec, layer);
            let (of_inputs, of_weights) = math::backward(layer, &own, &inputs, draw, &of_outputs);
            for ((name, trained), grad) in weights(&spec, layer).into_iter().zip(of_weights) {
                if trained {
                    self.params.get_mut(&name).expect("known").add_grad(grad);
                }
            }
            for (value, grad) in layer.inputs.iter().zip(of_inputs).rev() {
                if needs_grad.contains(value) {
                    grads.entry(*value).or_default().push(grad);
                }
            }
        }
        let of_inputs = spec.inputs.iter().map(|input| {
            let terms = grads.remove(&input.value).unwrap_or_default();
            if input.sum_here {
                math::sum(terms).into_iter().collect()
            } else {
                terms
            }
        });
        Ok(Outcome::Backward { grads: of_inputs.collect() })
    }

    fn optim_step(&mut self, stage: StageId) -> Result<(), Failure> {
        let spec = self.stage(stage);
        let optimizer = self.optimizer.ok_or_else(|| Failure::new("there is no optimizer"))?;
        let names: BTreeSet<String> =
            spec.layers.iter().flat_map(|l| weights(&spec, l)).map(|(name, _)| name).collect();
        for name in names {
            self.params.get_mut(&name).expect("known").step(&optimizer);
        }
        self.last_backward.remove(&stage);
        Ok(())
    }

    fn discard(&mut self, batch: u64, gradients: bool) {
        self.saved.retain(|(_, key), _| key.batch != batch);
        if gradients {
            self.params.values_mut().for_each(|p| p.grad = None);
            self.last_backward.clear();
        }
    }
}

fn weights(spec: &StageSpec, layer: &Layer) -> Vec<(String, bool)> {
    let owner = layer.share.map(|id| spec.layers.iter().find(|l| l.id == id).expect("tied layers in one stage"));
    math::weights(layer, owner)
}

/// The variables of a stage that depend on a trained weight, here or before it.
fn needs_grad(spec: &StageSpec) -> BTreeSet<ValueId> {
    let mut needing: BTreeSet<ValueId> = spec.inputs.iter().filter(|i| i.needs_grad).map(|i| i.value).collect();
    for layer in &spec.layers {
        let trains = weights(spec, layer).iter().any(|(_, trained)| *trained);
        if trains || layer.inputs.iter().any(|v| needing.contains(v)) {
            needing.extend(&layer.outputs);
        }
    }
    needing
}
