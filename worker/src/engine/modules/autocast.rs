//! Ops whose products are computed in a 16-bit type, as under PyTorch's `torch.autocast`.
//!
//! Inputs and parameters are rounded, and outputs are float32 again. So nothing outside the layer
//! has another type: neither values between layers and machines, nor parameters and the sums of
//! their gradients. Inside a layer, a value that goes from one such op to another one alone keeps
//! the 16-bit type: it would be rounded to the same bits again. On GPUs so does one that goes to an
//! op that widens it itself.

use crate::engine::layers::lowered_layer::{LoweredLayer, LoweredOp};
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::params::stage_params::Param;
use layerspec::Precision;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// Makes the products of a layer compute in this type. The layer has this number of inputs.
pub(crate) fn in_precision(
    layer: LoweredLayer,
    inputs: usize,
    precision: Precision,
    device: Device,
) -> LoweredLayer {
    let kind = match precision {
        Precision::F32 => return layer,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Fp16 => Kind::Half,
    };
    let stays = rounded_slots(&layer, inputs, device);
    let stays = |slot: usize| stays.get(slot).copied().unwrap_or(false);
    let mut first_output = inputs;
    let nodes = layer.nodes.into_iter().map(|node| {
        let outputs = first_output..first_output + node.outputs;
        first_output = outputs.end;
        if !node.op.runs_in_autocast() {
            return node;
        }
        let rounded_inputs = node.inputs.iter().map(|&slot| stays(slot)).collect();
        let rounded_outputs = outputs.map(stays).collect();
        LoweredOp {
            op: Box::new(AutocastOp { op: node.op, kind, rounded_inputs, rounded_outputs }),
            ..node
        }
    });
    LoweredLayer { nodes: nodes.collect(), outputs: layer.outputs }
}

/// Whether this is a type of mixed precision.
pub(crate) fn is_rounded(kind: Kind) -> bool {
    matches!(kind, Kind::BFloat16 | Kind::Half)
}

/// For each slot, whether its value keeps the 16-bit type: a product makes it, and only one op
/// takes it, which is a product, too. On GPUs, an element-wise op may stand between the products,
/// and the reader may be an op that widens.
fn rounded_slots(layer: &LoweredLayer, inputs: usize, device: Device) -> Vec<bool> {
    let on_gpu = matches!(device, Device::Cuda(_));
    let is_product = |node: &LoweredOp| node.op.runs_in_autocast();
    let mut makers: Vec<Option<&LoweredOp>> = vec![None; inputs];
    for node in &layer.nodes {
        makers.extend(std::iter::repeat_n(Some(node), node.outputs));
    }
    let only_reader = |slot: usize| {
        let all = layer.nodes.iter().flat_map(|node| node.inputs.iter().map(move |&to| (to, node)));
        let mut readers = all.filter(|(to, _)| *to == slot).map(|(_, node)| node);
        let only = readers.next().filter(|_| readers.next().is_none());
        only.filter(|_| !layer.outputs.contains(&slot))
    };
    let takes = |node: &LoweredOp| is_product(node) || (on_gpu && node.op.widens_inputs());
    let mut stays: Vec<bool> = (0..makers.len())
        .map(|slot| {
            let both = makers[slot].zip(only_reader(slot));
            both.is_some_and(|(maker, reader)| is_product(maker) && takes(reader))
        })
        .collect();
    for (output, maker) in makers.iter().enumerate() {
        let Some(node) = maker.filter(|node| node.op.is_elementwise()) else { continue };
        let [input] = node.inputs[..] else { continue };
        let is_between = makers[input].is_some_and(is_product)
            && only_reader(input).is_some()
            && only_reader(output).is_some_and(is_product);
        if is_between && on_gpu {
            stays[input] = true;
            stays[output] = true;
        }
    }
    stays
}

/// An op that computes in `kind`.
#[derive(Debug)]
struct AutocastOp {
    op: Box<dyn Op>,
    kind: Kind,
    /// By port: whether the value has this type outside the op, too.
    rounded_inputs: Vec<bool>,
    rounded_outputs: Vec<bool>,
}

impl AutocastOp {
    /// Only float32 is rounded. Masks and indices do not change.
    fn cast_down(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == Kind::Float { tensor.f_to_kind(self.kind)? } else { tensor })
    }

    fn cast_up(&self, tensor: Tensor) -> Result<Tensor, TensorError> {
        Ok(if tensor.f_kind()? == self.kind { tensor.f_to_kind(Kind::Float)? } else { tensor })
    }

    fn cast_all_down(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>, TensorError> {
        tensors.into_iter().map(|tensor| self.cast_down(tensor)).collect()
    }

    /// The op's parameters, rounded once for all microbatches.
    fn params(&self, ctx: &OpContext<'_>) -> Result<Vec<(&'static str, Tensor)>, TensorError> {
        let keeps = ctx.training();
        ctx.all_params().map(|(role, param)| Ok((role, self.rounded(param, keeps)?))).collect()
    }

    /// Outside of training a plan counts no memory for copies.
    fn rounded(&self, param: &Param, keeps: bool) -> Result<Tensor, TensorError> {
        if let Some(kept) = param.rounded.get() {
            // Another layer that shares it may compute in another type.
            if kept.f_kind()? == self.kind {
                return Ok(kept.shallow_clone());
            }
        }
        let rounded = self.cast_down(param.tensor.shallow_clone())?;
        if keeps && rounded.f_kind()? == self.kind {
            let _taken = param.rounded.set(rounded.shallow_clone());
        }
        Ok(rounded)
    }
}

fn stays_rounded(ports: &[bool], port: usize) -> bool {
    ports.get(port).copied().unwrap_or(false)
}

impl Op for AutocastOp {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let (params, inputs) = (self.params(ctx)?, self.cast_all_down(inputs)?);
        let ForwardOutput { outputs, saved } =
            self.op.forward(&ctx.with_substitute_params(&params), inputs)?;
        let outputs = outputs.into_iter().enumerate().map(|(port, output)| {
            match stays_rounded(&self.rounded_outputs, port) {
                true => Ok(output),
                false => self.cast_up(output),
            }
        });
        Ok(ForwardOutput { outputs: outputs.collect::<Result<_, TensorError>>()?, saved })
    }

    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let params = self.params(ctx)?;
        let grads = grads.into_iter().map(|grad| grad.map(|grad| self.cast_down(grad)).transpose());
        let grads = grads.collect::<Result<_, _>>()?;
        let BackwardOutput { inputs, weight_inputs } =
            self.op.backward(&ctx.with_substitute_params(&params), saved, grads)?;
        let inputs = inputs.into_iter().enumerate().map(|(port, grad)| match grad {
            Some(grad) if !stays_rounded(&self.rounded_inputs, port) => {
                self.cast_up(grad).map(Some)
            }
            grad => Ok(grad),
        });
        Ok(BackwardOutput { inputs: inputs.collect::<Result<_, _>>()?, weight_inputs })
    }

    /// A microbatch's gradient is computed in the 16-bit type and added to the sum in float32.
    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        let params = self.params(ctx)?;
        let ctx = ctx.with_substitute_params(&params);
        grads.add_rounded(|apart| self.op.backward_weight(&ctx, weight_inputs, apart))
    }

    fn save_policy(&self) -> SavePolicy {
        self.op.save_policy()
    }

    fn save_inputs(
        &self,
        ctx: &OpContext<'_>,
        inputs: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        let inputs = self.cast_all_down(inputs.iter().map(Tensor::shallow_clone).collect())?;
        let params = self.params(ctx)?;
        self.op.save_inputs(&ctx.with_substitute_params(&params), &inputs)
    }

    fn is_cheap(&self) -> bool {
        self.op.is_cheap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::modules::builder::LayerBuilder;
    use crate::engine::modules::shape::join::Residual;
    use layerspec::layers::{Add, ReLU, Sigmoid};

    /// A chain of products whose second one has two readers, an activation, and a last product.
    #[test]
    fn only_values_between_two_products_stay_rounded() {
        let mut ops = LayerBuilder::new(1, true);
        let linear = |ops: &mut LayerBuilder, input| ops.linear(input, [4, 4], ["w", "b"]);
        let first = linear(&mut ops, 0);
        let second = linear(&mut ops, first);
        let third = linear(&mut ops, second);
        let sum = ops.add(Add { number: None }, vec![second, third], Vec::new());
        let active = ops.add(ReLU {}, vec![sum], Vec::new());
        let last = linear(&mut ops, active);
        let layer = ops.finish(last);
        assert_eq!(kept(&layer, Device::Cpu), [first]);
    }

    #[test]
    fn on_gpus_a_sum_widens_its_terms_itself() {
        let mut ops = LayerBuilder::new(1, true);
        let linear = |ops: &mut LayerBuilder, input| ops.linear(input, [4, 4], ["w", "b"]);
        let made = linear(&mut ops, 0);
        let sum = ops.add(Residual, vec![0, made], Vec::new());
        let last = linear(&mut ops, sum);
        let layer = ops.finish(last);
        assert_eq!(kept(&layer, Device::Cuda(0)), [made]);
        assert!(kept(&layer, Device::Cpu).is_empty());
    }

    fn kept(layer: &LoweredLayer, device: Device) -> Vec<usize> {
        let stays = rounded_slots(layer, 1, device);
        (0..stays.len()).filter(|&slot| stays[slot]).collect()
    }

    #[test]
    fn on_gpus_an_activation_between_two_products_is_rounded_too() {
        let mut ops = LayerBuilder::new(1, true);
        let linear = |ops: &mut LayerBuilder, input| ops.linear(input, [4, 4], ["w", "b"]);
        let up = linear(&mut ops, 0);
        let active = ops.add(ReLU {}, vec![up], Vec::new());
        let down = linear(&mut ops, active);
        let gate = ops.add(Sigmoid {}, vec![down], Vec::new());
        let last = linear(&mut ops, gate);
        let layer = ops.finish(last);
        assert_eq!(kept(&layer, Device::Cuda(0)), [up, active]);
        assert!(kept(&layer, Device::Cpu).is_empty());
    }
}
