//! The health of layers in an optimizer step: whether they have gradients, and whether they change.

use crate::engine::params::stage_params::Params;
use crate::engine::update::optimizer::ParamUpdate;
use layerspec::LayerId;
use pipeline::watch::LayerHealth;
use tch::{Kind, Tensor};
use tensor::transfer::HostCopy;
use tensor::TensorError;

/// A parameter before its update. Only the number with the largest gradient is watched, so that no
/// copy is needed. Everything stays on the device.
pub(crate) struct ParamProbe {
    layer: LayerId,
    param: Tensor,
    /// The place of the number in the order of rows.
    at: Tensor,
    /// The number, and its gradient's size.
    before: [Tensor; 2],
}

/// The parameters before the update.
pub(crate) fn probe(
    due: &[ParamUpdate<'_>],
    params: &Params,
) -> Result<Vec<ParamProbe>, TensorError> {
    let some = due.iter().filter(|due| due.grad.numel() > 0);
    some.map(|due| {
        let sizes = due.grad.f_abs()?;
        // The first number that is not finite.
        let at = sizes.f_argmax(None, false)?.f_reshape([1])?;
        let (param, layer) = (due.tensor.shallow_clone(), params.all[due.index].owner);
        let before = [number(&param, &at)?, number(&sizes, &at)?];
        Ok(ParamProbe { layer, at, before, param })
    })
    .collect()
}

/// The health of the layers after the update. Those in `without` have parameters without a
/// gradient. Waits for the device.
pub(crate) fn layer_health(
    before: Vec<ParamProbe>,
    without: Vec<LayerId>,
) -> Result<Vec<LayerHealth>, TensorError> {
    let mut numbers = Vec::new();
    for ParamProbe { param, at, before: [value, size], .. } in &before {
        numbers.extend([value.shallow_clone(), size.shallow_clone(), number(param, at)?]);
    }
    let numbers = match numbers.as_slice() {
        [] => Vec::new(),
        all => HostCopy::begin(&Tensor::f_cat(all, 0)?)?.numbers()?,
    };
    let seen = before.iter().zip(numbers.chunks_exact(3)).map(|(probe, numbers)| LayerHealth {
        layer: probe.layer,
        finite: numbers[1].is_finite(),
        has_gradient: numbers[1] != 0.0,
        changed: numbers[2].to_bits() != numbers[0].to_bits(),
    });
    let none = |layer| LayerHealth { layer, finite: true, has_gradient: false, changed: false };
    Ok(LayerHealth::together(seen.chain(without.into_iter().map(none))))
}

/// An element in float64, by its place in the order of rows.
fn number(tensor: &Tensor, at: &Tensor) -> Result<Tensor, TensorError> {
    let chosen = tensor.f_detach()?.f_reshape([-1])?.f_index_select(0, at)?;
    Ok(chosen.f_to_kind(Kind::Double)?)
}
