//! The passes of a microbatch: tensors in, the engine at work, tensors out.

use crate::compute::device_tensor::to_task_tensor;
use crate::compute::failures::{engine_failure, tensor_failure};
use crate::compute::late_result::{not_finite, LateLoss, LateResult};
use crate::compute::stage_compute::StageCompute;
use crate::compute::task_args::{ForwardArgs, GradientRoute};
use crate::compute::task_location::TaskLocation;
use crate::compute::task_tensors::{to_task_output, to_task_tensors, to_tensor, to_tensors};
use crate::engine::{LossInputs, Mode, Pass, TreeTarget};
use pipeline::ids::{MicrobatchKey, StageId};
use pipeline::message::Failure;
use pipeline::round_outputs::LastPosition;
use pipeline::task::Outcome;
use runtime::TaskTensor;
use std::sync::Arc;
use tch::Tensor;
use tensor::TensorError;

impl StageCompute {
    pub(super) fn forward(
        &mut self,
        stage: StageId,
        pass: &Pass,
        args: ForwardArgs,
    ) -> Result<Outcome<TaskTensor>, Failure> {
        let (inputs, location) = (to_tensors(&args.inputs)?, self.location);
        let engine = self.stage(stage)?;
        let outputs = engine.forward(pass, inputs).map_err(engine_failure)?;
        let classes = args.loss.as_ref().filter(|task| task.likeliest).and_then(|task| {
            task.spec.classes().map(|classes| (task.output, classes.class_dim.dim()))
        });
        let last_position = args.last_position;
        let loss = match args.loss {
            Some(task) => {
                let prediction = outputs
                    .get(task.output)
                    .ok_or_else(|| Failure::new("the loss names no output"))?;
                let target = to_tensor(&task.target).map_err(tensor_failure)?;
                let inputs = LossInputs {
                    output: task.output,
                    prediction,
                    target: &target,
                    loss: &task.spec,
                    weight: task.weight,
                };
                let loss = engine.loss(pass.key, &inputs, pass.mode).map_err(engine_failure)?;
                self.hand_out_loss(LateLoss::new(loss, args.finite), pass, &inputs)?
            }
            None => None,
        };
        let exported = args.export.iter().filter_map(|index| Some((*index, outputs.get(*index)?)));
        let outputs = exported.map(|(index, output)| match classes {
            Some((of, dim)) if of == index => {
                to_task_tensor(&output.f_argmax(dim, false)?, location)
            }
            _ => match last_position.filter(|(of, _)| *of == index) {
                Some((_, last)) => to_task_tensor(&last_position_of(output, last)?, location),
                None => to_task_tensor(output, location),
            },
        });
        let outputs = outputs.collect::<Result<_, _>>();
        let outputs = outputs.map_err(tensor_failure)?;
        Ok(Outcome::Forward { outputs, loss })
    }

    /// Returns the loss if it is known, or need be at once. Else it comes when the device has
    /// computed it.
    fn hand_out_loss(
        &mut self,
        loss: LateLoss,
        pass: &Pass,
        inputs: &LossInputs<'_>,
    ) -> Result<Option<f32>, Failure> {
        if pass.check_finite {
            let loss = loss.read()?;
            return match loss.is_finite() {
                true => Ok(Some(loss)),
                false => Err(not_finite(loss, cause(inputs)?)),
            };
        }
        if loss.is_known() {
            return loss.check().map(Some);
        }
        let loss = Arc::new(loss);
        if pass.mode == Mode::Train {
            self.losses.push(loss.clone());
        }
        self.late = Some(LateResult::Loss(loss));
        Ok(None)
    }

    /// Both halves of the backward pass.
    pub(super) fn backward(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        grads: &[Vec<TaskTensor>],
        route: GradientRoute<'_>,
    ) -> Result<Outcome<TaskTensor>, Failure> {
        let grads = grads.iter().map(|list| to_tensors(list)).collect::<Result<_, _>>()?;
        let location = self.location;
        let engine = self.stage(stage)?;
        let grads = match route.branch {
            None => engine.backward(key, grads),
            Some(branch) => {
                let emit = &mut |sums| to_task_output(sums, location).map(&mut *route.emit);
                engine.backward_into_tree(key, grads, TreeTarget { stage, branch, emit })
            }
        };
        input_grads(&grads.map_err(engine_failure)?, self.location)
    }

    /// The first half of the backward pass.
    pub(super) fn backward_input(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        grads: &[Vec<TaskTensor>],
    ) -> Result<Outcome<TaskTensor>, Failure> {
        let grads = grads.iter().map(|list| to_tensors(list)).collect::<Result<_, _>>()?;
        let grads = self.stage(stage)?.backward_input(key, grads);
        input_grads(&grads.map_err(engine_failure)?, self.location)
    }

    /// The second half of the backward pass.
    pub(super) fn backward_weight(
        &mut self,
        stage: StageId,
        key: MicrobatchKey,
        route: GradientRoute<'_>,
    ) -> Result<(), Failure> {
        let location = self.location;
        let engine = self.stage(stage)?;
        let done = match route.branch {
            None => engine.backward_weight(key),
            Some(branch) => {
                let emit = &mut |sums| to_task_output(sums, location).map(&mut *route.emit);
                engine.backward_weight_into_tree(key, TreeTarget { stage, branch, emit })
            }
        };
        done.map_err(engine_failure)
    }
}

fn input_grads(grads: &[Vec<Tensor>], maker: TaskLocation) -> Result<Outcome<TaskTensor>, Failure> {
    let grads = grads.iter().map(|list| to_task_tensors(list, maker)).collect::<Result<_, _>>()?;
    Ok(Outcome::Backward { grads })
}

/// The last position of an output that has these positions, or the whole output.
fn last_position_of(output: &Tensor, last: LastPosition) -> Result<Tensor, TensorError> {
    let Some(index) = last.index(&output.size()) else { return Ok(output.shallow_clone()) };
    Ok(output.f_narrow(i64::from(last.dim), index, 1)?)
}

/// Why a loss is not finite.
fn cause(task: &LossInputs<'_>) -> Result<&'static str, Failure> {
    let is_finite = |tensor: &Tensor| -> Result<bool, Failure> {
        let all = || tensor.f_detach()?.f_isfinite()?.f_all()?.f_int64_value(&[]);
        all().map(|all| all != 0).map_err(|e| Failure::new(e.to_string()))
    };
    Ok(if !is_finite(task.target)? {
        ": the target has numbers that are not finite"
    } else if !is_finite(task.prediction)? {
        ": the model's output has infinities"
    } else {
        ", but the output and the target are finite"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn an_output_with_other_positions_leaves_whole() {
        let output = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([2, 3, 4]);
        let of = |dim, positions| {
            last_position_of(&output, LastPosition { dim, positions }).expect("a part of it")
        };
        assert_eq!(of(2, 4), output.narrow(2, 3, 1));
        assert_eq!(of(1, 3), output.narrow(1, 2, 1));
        assert_eq!(of(1, 4), output);
    }
}
