//! Activation functions whose backward pass is autograd's. They take little time, and their inputs
//! are saved.

use crate::engine::layers::op_context::OpContext;
use crate::engine::modules::by_autograd::Differentiable;
use crate::engine::modules::helpers::single_input_ref;
use layerspec::layers::{
    Abs, Clamp, Exp, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, Mish,
    PReLU, ReLU6, Rsqrt, Softmin, Softplus, Softshrink, Softsign, Sqrt, Tanhshrink, Threshold,
    CELU, ELU, GLU, SELU,
};
use tch::{Kind, Tensor};
use tensor::activation::Activation;
use tensor::TensorError;

/// Functions of a layer's arguments and its input.
macro_rules! functions {
    ($($Name:ident: $function:expr;)*) => {$(
        impl Differentiable for $Name {
            fn compute(
                &self,
                _: &OpContext<'_>,
                inputs: &[Tensor],
            ) -> Result<Vec<Tensor>, TensorError> {
                let function: fn(&$Name, &Tensor) -> Result<Tensor, TensorError> = $function;
                Ok(vec![function(self, single_input_ref(inputs)?)?])
            }

            fn is_cheap(&self) -> bool {
                true
            }
        }
    )*};
}

functions! {
    LeakyReLU: |layer, x| Activation::LeakyRelu { negative_slope: layer.negative_slope }.apply(x);
    ELU: |layer, x| Activation::Elu { alpha: layer.alpha }.apply(x);
    CELU: |layer, x| Activation::Celu { alpha: layer.alpha }.apply(x);
    SELU: |_, x| Ok(x.f_selu()?);
    Mish: |_, x| Ok(x.f_mish()?);
    Softplus: |layer, x| {
        Activation::Softplus { beta: layer.beta, threshold: layer.threshold }.apply(x)
    };
    LogSigmoid: |_, x| Ok(x.f_log_sigmoid()?);
    Softsign: |_, x| Ok(x.f_div(&x.f_abs()?.f_add_scalar(1)?)?);
    ReLU6: |_, x| Ok(x.f_relu6()?);
    Hardtanh: |layer, x| {
        Activation::Hardtanh { min_val: layer.min_val, max_val: layer.max_val }.apply(x)
    };
    Hardsigmoid: |_, x| Ok(x.f_hardsigmoid()?);
    Hardswish: |_, x| Ok(x.f_hardswish()?);
    Hardshrink: |layer, x| Activation::Hardshrink { lambd: layer.lambd }.apply(x);
    Softshrink: |layer, x| Activation::Softshrink { lambd: layer.lambd }.apply(x);
    Tanhshrink: |_, x| Ok(x.f_sub(&x.f_tanh()?)?);
    Threshold: |layer, x| Ok(x.f_threshold(layer.threshold, layer.value)?);
    GLU: |layer, x| Ok(x.f_glu(layer.dim)?);
    Rsqrt: |_, x| Ok(x.f_rsqrt()?);
    Sqrt: |_, x| Ok(x.f_sqrt()?);
    Exp: |_, x| Ok(x.f_exp()?);
    Abs: |_, x| Ok(x.f_abs()?);
    Clamp: |layer, x| {
        Ok(match (layer.min, layer.max) {
            (Some(min), Some(max)) => x.f_clamp(min, max)?,
            (Some(min), None) => x.f_clamp_min(min)?,
            (None, Some(max)) => x.f_clamp_max(max)?,
            (None, None) => x.shallow_clone(),
        })
    };
    Softmin: |layer, x| Ok(x.f_neg()?.f_softmax(layer.dim, None::<Kind>)?);
}

impl Differentiable for PReLU {
    fn compute(&self, ctx: &OpContext<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![single_input_ref(inputs)?.f_prelu(ctx.param("weight")?)?])
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
