use crate::engine::layers::lowered_layer::{LoweredLayer, LoweredOp};
use crate::engine::layers::op::{BackwardOutput, ForwardOutput, Op, SavePolicy, SavedForBackward};
use crate::engine::layers::op_context::OpContext;
use crate::engine::layers::op_gradients::OpGradients;
use crate::engine::modules::by_autograd::AutogradOp;
use crate::engine::modules::helpers::{single_grad, single_input};
use layerspec::layers::{
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Pad, PadMode,
    Padding,
};
use tch::Tensor;
use tensor::kernels::{self, GradMask};
use tensor::TensorError;

/// A convolution over any number of dimensions. Sizes are by dimension.
#[derive(Debug, Clone)]
pub(crate) struct Conv {
    stride: Vec<i64>,
    /// The zeros at each side. For `same`, half of the needed zeros, rounded down.
    padding: Vec<i64>,
    /// The odd row of zeros that `padding: same` adds at the end.
    odd_padding: Vec<i64>,
    dilation: Vec<i64>,
    /// For a transposed convolution, the size to add to the output.
    transposed: Option<Vec<i64>>,
    groups: i64,
}

/// A layer as ops: the convolution, and before it a padding other than zeros.
pub(crate) trait Convolution {
    fn lower(&self) -> LoweredLayer;
}

macro_rules! convolutions {
    ($($Name:ident),*) => {$(
        impl Convolution for $Name {
            fn lower(&self) -> LoweredLayer {
                let (kernel, dilation) = (sizes(&self.kernel_size), sizes(&self.dilation));
                let reach = kernel
                    .iter()
                    .zip(&dilation)
                    .map(|(kernel, step)| (kernel - 1).saturating_mul(*step));
                let (padding, odd_padding) = match self.padding {
                    Padding::Explicit(padding) => (sizes(&padding), vec![0; kernel.len()]),
                    Padding::Same => reach.map(|reach| (reach / 2, reach % 2)).unzip(),
                };
                let (stride, groups) = (sizes(&self.stride), size(self.groups));
                let conv =
                    Conv { stride, padding, odd_padding, dilation, transposed: None, groups };
                conv.lowered(self.padding_mode, self.bias)
            }
        }
    )*};
}

macro_rules! transposed {
    ($($Name:ident),*) => {$(
        impl Convolution for $Name {
            fn lower(&self) -> LoweredLayer {
                let conv = Conv {
                    stride: sizes(&self.stride),
                    padding: sizes(&self.padding),
                    odd_padding: vec![0; self.stride.len()],
                    dilation: sizes(&self.dilation),
                    transposed: Some(sizes(&self.output_padding)),
                    groups: size(self.groups),
                };
                conv.lowered(PadMode::Constant, self.bias)
            }
        }
    )*};
}

convolutions! { Conv1d, Conv2d, Conv3d }
transposed! { ConvTranspose1d, ConvTranspose2d, ConvTranspose3d }

/// libtorch refuses sizes out of range.
fn size(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn sizes(sizes: &[u64]) -> Vec<i64> {
    sizes.iter().map(|one| size(*one)).collect()
}

impl Conv {
    fn lowered(self, mode: PadMode, bias: bool) -> LoweredLayer {
        let names = if bias { &["weight", "bias"][..] } else { &["weight"][..] };
        let params = names.iter().map(|name| (*name, *name)).collect();
        if mode == PadMode::Constant {
            let conv = LoweredOp { op: Box::new(self), inputs: vec![0], outputs: 1, params };
            return LoweredLayer { nodes: vec![conv], outputs: vec![1] };
        }
        let ends = self
            .padding
            .iter()
            .zip(&self.odd_padding)
            .rev()
            .flat_map(|(padding, odd_padding)| [*padding, padding + odd_padding]);
        let pad = Pad { pad: ends.collect(), mode, value: 0.0 };
        let none = vec![0; self.padding.len()];
        let conv = Conv { padding: none.clone(), odd_padding: none, ..self };
        let pad = LoweredOp {
            op: Box::new(AutogradOp(pad)),
            inputs: vec![0],
            outputs: 1,
            params: Vec::new(),
        };
        let conv = LoweredOp { op: Box::new(conv), inputs: vec![1], outputs: 1, params };
        LoweredLayer { nodes: vec![pad, conv], outputs: vec![2] }
    }

    fn kernel<'a>(
        &'a self,
        ctx: &OpContext<'a>,
        input: &'a Tensor,
    ) -> Result<kernels::Conv<'a>, TensorError> {
        Ok(kernels::Conv {
            input,
            weight: ctx.param("weight")?,
            stride: &self.stride,
            padding: &self.padding,
            dilation: &self.dilation,
            transposed: self.transposed.as_deref(),
            groups: self.groups,
        })
    }

    /// The input with the odd rows, or with `sign` -1 a gradient without them.
    fn with_odd_padding(&self, input: Tensor, sign: i64) -> Result<Tensor, TensorError> {
        if self.odd_padding.iter().all(|odd_padding| *odd_padding == 0) {
            return Ok(input);
        }
        let ends: Vec<i64> =
            self.odd_padding.iter().rev().flat_map(|odd_padding| [0, sign * odd_padding]).collect();
        Ok(input.f_constant_pad_nd(ends)?)
    }
}

impl Op for Conv {
    fn forward(
        &self,
        ctx: &OpContext<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<ForwardOutput, TensorError> {
        let input = self.with_odd_padding(single_input(inputs)?, 1)?;
        let (weight, bias) = (ctx.param("weight")?, ctx.optional_param("bias"));
        let none = vec![0; self.stride.len()];
        let (transposed, more) =
            (self.transposed.is_some(), self.transposed.as_ref().unwrap_or(&none));
        let (stride, padding, dilation) = (&self.stride[..], &self.padding[..], &self.dilation[..]);
        let output = input.f_convolution(
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            &more[..],
            self.groups,
        )?;
        Ok(ForwardOutput::with_tensors(
            output,
            if ctx.saves_for_backward() { vec![input] } else { Vec::new() },
        ))
    }

    /// The half for inputs needs only the input's sizes, but libtorch requires the input itself.
    fn backward(
        &self,
        ctx: &OpContext<'_>,
        saved: SavedForBackward,
        grads: Vec<Option<Tensor>>,
    ) -> Result<BackwardOutput, TensorError> {
        let [input] = saved.tensors()?;
        let grad = single_grad(grads)?;
        let of_input = match ctx.needs_input_grad(0) {
            true => {
                let wanted = GradMask { input: true, ..GradMask::default() };
                let of_widened = self.kernel(ctx, &input)?.backward(&grad, wanted)?.input;
                of_widened.map(|of_widened| self.with_odd_padding(of_widened, -1)).transpose()?
            }
            false => None,
        };
        Ok(BackwardOutput {
            inputs: vec![of_input],
            weight_inputs: if ctx.trains() { vec![input, grad] } else { Vec::new() },
        })
    }

    fn backward_weight(
        &self,
        ctx: &OpContext<'_>,
        weight_inputs: Vec<Tensor>,
        grads: &mut OpGradients<'_>,
    ) -> Result<(), TensorError> {
        let [input, grad] =
            SavedForBackward { tensors: weight_inputs, sizes: Vec::new() }.tensors()?;
        let wanted = GradMask {
            input: false,
            weight: grads.buffer("weight").is_some(),
            bias: grads.buffer("bias").is_some(),
        };
        let found = self.kernel(ctx, &input)?.backward(&grad, wanted)?;
        for (role, grad) in [("weight", found.weight), ("bias", found.bias)] {
            if let (Some(sum), Some(grad)) = (grads.buffer(role), grad) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn save_policy(&self) -> SavePolicy {
        SavePolicy::FromInputs
    }

    fn save_inputs(
        &self,
        _: &OpContext<'_>,
        inputs: &[Tensor],
    ) -> Result<SavedForBackward, TensorError> {
        let inputs = inputs.iter().map(|input| self.with_odd_padding(input.shallow_clone(), 1));
        Ok(SavedForBackward { tensors: inputs.collect::<Result<_, _>>()?, sizes: Vec::new() })
    }

    fn runs_in_autocast(&self) -> bool {
        true
    }
}
