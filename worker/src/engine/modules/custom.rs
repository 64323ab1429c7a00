//! Layers with the user's code. Autograd computes their backward pass, and their outputs are
//! checked against the model file.

use crate::engine::error::layer_error;
use crate::engine::layers::custom_layers::{CustomLayer, ForwardContext};
use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use layerspec::layers::{DeclaredOutput, Size};
use parking_lot::Mutex;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use tch::Tensor;
use tensor::aten::Outline;
use tensor::script::Script;
use tensor::TensorError;

/// A layer in Rust.
pub(crate) struct RustLayer {
    pub(crate) layer: Box<dyn CustomLayer>,
    pub(crate) out: Option<Vec<DeclaredOutput>>,
}

/// A TorchScript module.
#[derive(Debug)]
pub(crate) struct TorchScriptLayer {
    pub(crate) script: Mutex<Script>,
    pub(crate) out: Option<Vec<DeclaredOutput>>,
}

impl fmt::Debug for RustLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RustLayer")
    }
}

impl Differentiable for RustLayer {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        // Most of tch's functions panic if libtorch refuses something.
        let forward = || self.layer.forward(&ForwardContext { ctx, inputs });
        let outputs = catch_unwind(AssertUnwindSafe(forward)).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
            Err(layer_error(format!(
                "its code panicked: {}",
                said.lines().next().unwrap_or_default()
            )))
        })?;
        checked(outputs, self.out.as_deref(), inputs)
    }

    /// It may, because its code is unknown here.
    fn depends_on_graph(&self) -> bool {
        true
    }
}

impl Differentiable for TorchScriptLayer {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let mut script = self.script.lock();
        let params: Vec<&Tensor> =
            script.param_names().iter().map(|name| ctx.param(name)).collect::<Result<_, _>>()?;
        let inputs_of_it: Vec<&Tensor> = inputs.iter().collect();
        let outputs =
            script.run(&params, &inputs_of_it, ctx.training(), &ctx.random.key("torchscript"))?;
        checked(outputs, self.out.as_deref(), inputs)
    }

    fn depends_on_graph(&self) -> bool {
        true
    }
}

/// Checks that the outputs are those of the model file. Otherwise another shape could cause an
/// error elsewhere, or none at all.
pub(crate) fn checked(
    outputs: Vec<Tensor>,
    out: Option<&[DeclaredOutput]>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, TensorError> {
    let made: Vec<Outline> = outputs.iter().map(outline).collect::<Result<_, _>>()?;
    check(&made, out, inputs)?;
    Ok(outputs)
}

/// Dtype and shape.
pub(crate) fn outline(tensor: &Tensor) -> Result<Outline, TensorError> {
    Ok((tensor::dtype_of(tensor)?, tensor.size()))
}

/// Checks dtypes and shapes of outputs.
pub(crate) fn check(
    outputs: &[Outline],
    out: Option<&[DeclaredOutput]>,
    inputs: &[Tensor],
) -> Result<(), TensorError> {
    let text = |(dtype, shape): &Outline| format!("{dtype} {shape:?}");
    let Some(out) = out else {
        let ([output], Some(input)) = (outputs, inputs.first()) else {
            return Err(layer_error(format!(
                "the model file says that it has one output, it made {}",
                outputs.len()
            )));
        };
        let input = outline(input)?;
        if *output != input {
            let (output, input) = (text(output), text(&input));
            return Err(layer_error(format!(
                "made {output} of {input}; declare the output in the model file under `out`"
            )));
        }
        return Ok(());
    };
    if outputs.len() != out.len() {
        let problem = format!(
            "the model file says that it has {} outputs, it made {}",
            out.len(),
            outputs.len()
        );
        return Err(layer_error(problem));
    }
    // The size that a word stands for; `None` if no input has that size.
    let here = |of: Option<(usize, usize)>| {
        let (port, dim) = of?;
        inputs.get(port)?.size().get(dim).copied()
    };
    for (output, declared) in outputs.iter().zip(out) {
        let (dtype, shape) = output;
        let fits = |(size, declared): (&i64, &Size)| match declared {
            Size::Number(number) => u64::try_from(*size) == Ok(*number),
            Size::Symbol { of, .. } => here(*of).is_none_or(|expected| expected == *size),
        };
        let same =
            shape.len() == declared.shape.len() && shape.iter().zip(&declared.shape).all(fits);
        if !same || *dtype != declared.dtype {
            let (mut sizes, mut words) = (Vec::new(), String::new());
            for size in &declared.shape {
                match size {
                    Size::Number(number) => sizes.push(number.to_string()),
                    Size::Symbol { symbol: word, of } => {
                        if let Some(size) = here(*of).filter(|_| !sizes.contains(word)) {
                            words.push_str(&format!(", {word} is {size} here"));
                        }
                        sizes.push(word.clone());
                    }
                }
            }
            let (found, dtype, sizes) = (text(output), declared.dtype, sizes.join(", "));
            return Err(layer_error(format!(
                "made {found}, the model file says {dtype} [{sizes}]{words}"
            )));
        }
    }
    Ok(())
}
