use super::{of_one, one, pair, size, Back, Call, Gradients, Keeps, Kept, Op, Run};
use layerspec::layers::{Conv2d, Padding};
use tch::Tensor;
use tensor::kernels::{self, Wanted};
use tensor::TensorError;

impl Op for Conv2d {
    fn forward(&self, call: &Call<'_>, inputs: Vec<Tensor>) -> Result<Run, TensorError> {
        let input = widened(self, one(inputs)?)?;
        let (weight, bias) = (call.param("weight")?, call.optional("bias"));
        let (stride, dilation, groups) = (pair(self.stride)?, pair(self.dilation)?, size(self.groups)?);
        let output = input.f_conv2d(weight, bias, stride, padding(self)?, dilation, groups)?;
        Ok(Run::keeping(output, if call.keeps() { vec![input] } else { Vec::new() }))
    }

    /// The input half looks at the input's sizes alone, but takes the input itself.
    fn backward(&self, call: &Call<'_>, kept: Kept, grads: Vec<Option<Tensor>>) -> Result<Back, TensorError> {
        let [input] = kept.tensors()?;
        let grad = of_one(grads)?;
        let of_input = match call.wants(0) {
            true => {
                let wanted = Wanted { input: true, ..Wanted::default() };
                let of_widened = conv(self, call, &input)?.backward(&grad, wanted)?.input;
                of_widened.map(|of_widened| narrowed(self, of_widened)).transpose()?
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
        let found = conv(self, call, &input)?.backward(&grad, wanted)?;
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
        let inputs = inputs.iter().map(|input| widened(self, input.shallow_clone()));
        Ok(Kept { tensors: inputs.collect::<Result<_, _>>()?, sizes: Vec::new() })
    }
}

fn conv<'a>(layer: &Conv2d, call: &Call<'a>, input: &'a Tensor) -> Result<kernels::Conv2d<'a>, TensorError> {
    Ok(kernels::Conv2d {
        input,
        weight: call.param("weight")?,
        stride: pair(layer.stride)?,
        padding: padding(layer)?,
        dilation: pair(layer.dilation)?,
        groups: size(layer.groups)?,
    })
}

/// How many places the kernel reaches over beside its first, by height and width.
fn reach(layer: &Conv2d) -> Result<[i64; 2], TensorError> {
    let ([height, width], [down, across]) = (pair(layer.kernel_size)?, pair(layer.dilation)?);
    Ok([(height - 1) * down, (width - 1) * across])
}

/// The zeros at each side; half of what `same` needs, less the odd one, which [`widened`] adds.
fn padding(layer: &Conv2d) -> Result<[i64; 2], TensorError> {
    match layer.padding {
        Padding::Explicit(padding) => pair(padding),
        Padding::Same => Ok(reach(layer)?.map(|reach| reach / 2)),
    }
}

/// The odd row or column of zeros that `padding: same` adds at the bottom and at the right.
fn odd(layer: &Conv2d) -> Result<[i64; 2], TensorError> {
    match layer.padding {
        Padding::Explicit(_) => Ok([0, 0]),
        Padding::Same => Ok(reach(layer)?.map(|reach| reach % 2)),
    }
}

fn widened(layer: &Conv2d, input: Tensor) -> Result<Tensor, TensorError> {
    match odd(layer)? {
        [0, 0] => Ok(input),
        [bottom, right] => Ok(input.f_constant_pad_nd([0, right, 0, bottom])?),
    }
}

fn narrowed(layer: &Conv2d, grad: Tensor) -> Result<Tensor, TensorError> {
    match odd(layer)? {
        [0, 0] => Ok(grad),
        [bottom, right] => Ok(grad.f_constant_pad_nd([0, -right, 0, -bottom])?),
    }
}
