//! The health of layers in an optimizer step: whether they have gradients, and whether they change.

use crate::engine::params::stage_params::Params;
use crate::engine::update::optimizer::ParamUpdate;
use layerspec::LayerId;
use pipeline::watch::LayerHealth;
use tch::Tensor;
use tensor::TensorError;

/// A parameter before its update. Only the number with the largest gradient is watched, so that no
/// copy is needed.
pub(crate) struct ParamProbe {
    layer: LayerId,
    param: Tensor,
    at: i64,
    value: f64,
    largest: f64,
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
        let at = sizes.f_argmax(None, false)?.f_int64_value(&[])?;
        let (param, layer) = (due.tensor.shallow_clone(), params.all[due.index].owner);
        Ok(ParamProbe {
            layer,
            at,
            value: number(&param, at)?,
            largest: number(&sizes, at)?,
            param,
        })
    })
    .collect()
}

/// The health of the layers after the update. Those in `without` have parameters without a
/// gradient.
pub(crate) fn layer_health(
    before: Vec<ParamProbe>,
    without: Vec<LayerId>,
) -> Result<Vec<LayerHealth>, TensorError> {
    let seen = before.into_iter().map(|ParamProbe { layer, param, at, value, largest }| {
        let changed = number(&param, at)?.to_bits() != value.to_bits();
        Ok(LayerHealth {
            layer,
            finite: largest.is_finite(),
            has_gradient: largest != 0.0,
            changed,
        })
    });
    let seen = seen.collect::<Result<Vec<_>, TensorError>>()?;
    let none = |layer| LayerHealth { layer, finite: true, has_gradient: false, changed: false };
    Ok(LayerHealth::together(seen.into_iter().chain(without.into_iter().map(none))))
}

/// An element, by its place in the order of rows.
fn number(tensor: &Tensor, at: i64) -> Result<f64, TensorError> {
    Ok(tensor.f_detach()?.f_reshape([-1])?.f_double_value(&[at])?)
}
