use super::by_autograd::ByAutograd;
use super::{of_one, one, Back, Call, Gradients, Keeps, Kept, Lower, Lowered, Op, Run};
use layerspec::layers::{
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Pad, PadMode, Padding,
};
use tch::Tensor;
use tensor::kernels::{self, Wanted};
use tensor::TensorError;

/// A convolution over any number of dimensions. Sizes are by dimension.
#[derive(Debug, Clone)]
pub(super) struct Conv {
    stride: Vec<i64>,
    /// The zeros at each side; half of what `same` needs, less the odd one.
    padding: Vec<i64>,
    /// The odd row of zeros that `padding: same` adds at the end.
    odd: Vec<i64>,
    dilation: Vec<i64>,
    /// Where the convolution is transposed, what is added to the output's size.
    transposed: Option<Vec<i64>>,
    groups: i64,
}

/// What a layer is as ops: the convolution, and before it the padding where that does not hold zeros.
pub(super) trait Convolution {
    fn lower(&self) -> Lowered;
}

macro_rules! convolutions {
    ($($Name:ident),*) => {$(
        impl Convolution for $Name {
            fn lower(&self) -> Lowered {
                let (kernel, dilation) = (sizes(&self.kernel_size), sizes(&self.dilation));
                let reach = kernel.iter().zip(&dilation).map(|(kernel, step)| (kernel - 1).saturating_mul(*step));
                let (padding, odd) = match self.padding {
                    Padding::Explicit(padding) => (sizes(&padding), vec![0; kernel.len()]),
                    Padding::Same => reach.map(|reach| (reach / 2, reach % 2)).unzip(),
                };
                let (stride, groups) = (sizes(&self.stride), size(self.groups));
                let conv = Conv { stride, padding, odd, dilation, transposed: None, groups };
                conv.lowered(self.padding_mode, self.bias)
            }
        }
    )*};
}

macro_rules! transposed {
    ($($Name:ident),*) => {$(
        impl Convolution for $Name {
            fn lower(&self) -> Lowered {
                let conv = Conv {
                    stride: sizes(&self.stride),
                    padding: sizes(&self.padding),
                    odd: vec![0; self.stride.len()],
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

/// libtorch refuses what is out of range.
fn size(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn sizes(sizes: &[u64]) -> Vec<i64> {
    sizes.iter().map(|one| size(*one)).collect()
}

impl Conv {
    fn lowered(self, mode: PadMode, bias: bool) -> Lowered {
        let names = if bias { &["weight", "bias"][..] } else { &["weight"][..] };
        let params = names.iter().map(|name| (*name, *name)).collect();
        if mode == PadMode::Constant {
            let conv = Lower { op: Box::new(self), inputs: vec![0], outputs: 1, params };
            return Lowered { nodes: vec![conv], outputs: vec![1] };
        }
        let ends = self.padding.iter().zip(&self.odd).rev().flat_map(|(padding, odd)| [*padding, padding + odd]);
        let pad = Pad { pad: ends.collect(), mode, value: 0.0 };
        let none = vec![0; self.padding.len()];
        let conv = Conv { padding: none.clone(), odd: none, ..self };
        let pad = Lower { op: Box::new(ByAutograd(pad)), inputs: vec![0], outputs: 1, params: Vec::new() };
        let conv = Lower { op: Box::new(conv), inputs: vec![1], outputs: 1, params };
        Lowered { nodes: vec![pad, conv], outputs: vec![2] }
    }

    fn kernel<'a>(&'a self, call: &Call<'a>, input: &'a Tensor) -> Result<kernels::Conv<'a>, TensorError> {
        Ok(kernels::Conv {
            input,
            weight: call.param("weight")?,
            stride: &self.stride,
            padding: &self.padding,
            dilation: &self.dilation,
            transposed: self.transposed.as_deref(),
            groups: self.groups,
        })
    }

    /// The input with the odd rows, or with `sign` -1 a gradient without them.
    fn widened(&self, input: Tensor, sign: i64) -> Result<Tensor, TensorError> {
        if self.odd.iter().all(|odd| *odd == 0) {
            return Ok(input);
        }
        let ends: Vec<i64> = self.odd.iter().rev().flat_map(|odd| [0, sign * odd]).collect();
        Ok(input.f_constant_pad_nd(ends)?)
    }
}

impl Op for Conv {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = self.widened(one(inputs)?, 1)?;
        let (weight, bias) = (call.param("weight")?, call.optional("bias"));
        let none = vec![0; self.stride.len()];
        let (transposed, more) = (self.transposed.is_some(), self.transposed.as_ref().unwrap_or(&none));
        let (stride, padding, dilation) = (&self.stride[..], &self.padding[..], &self.dilation[..]);
        let output =
            input.f_convolution(weight, bias, stride, padding, dilation, transposed, &more[..], self.groups)?;
        Ok(Run::keeping(output, if call.keeps() { vec![input] } else { Vec::new() }))
    }

    /// The input half looks at the input's sizes alone, but takes the input itself.
    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [input] = kept.tensors()?;
        let grad = of_one(grads)?;
        let of_input = match call.wants(0) {
            true => {
                let wanted = Wanted { input: true, ..Wanted::default() };
                let of_widened = self.kernel(call, &input)?.backward(&grad, wanted)?.input;
                of_widened.map(|of_widened| self.widened(of_widened, -1)).transpose()?
            }
            false => None,
        };
        Ok(Back { inputs: vec![of_input], rest: if call.trains() { vec![input, grad] } else { Vec::new() } })
    }

    fn backward_weight(
        &self,
        call: &Call<'_>,
        rest: Vec<Tensor>,
        grads: &mut Gradients<'_>,
    ) -> Result<(), TensorError> {
        let [input, grad] = Kept { tensors: rest, sizes: Vec::new() }.tensors()?;
        let wanted = Wanted { input: false, weight: grads.of("weight").is_some(), bias: grads.of("bias").is_some() };
        let found = self.kernel(call, &input)?.backward(&grad, wanted)?;
        for (role, grad) in [("weight", found.weight), ("bias", found.bias)] {
            if let (Some(sum), Some(grad)) = (grads.of(role), grad) {
                sum.add(grad)?;
            }
        }
        Ok(())
    }

    fn keeps(&self) -> Keeps {
        Keeps::Inputs
    }

    fn keep(&self, _: &Call<'_>, inputs: &[Tensor]) -> Result<Kept, TensorError> {
        let inputs = inputs.iter().map(|input| self.widened(input.shallow_clone(), 1));
        Ok(Kept { tensors: inputs.collect::<Result<_, _>>()?, sizes: Vec::new() })
    }

    fn reduces(&self) -> bool {
        true
    }
}
