//! Checks that numbers are finite. An error names the layer.

use crate::engine::error::{in_layer, EngineError, LayerPhase};
use crate::engine::params::stage_params::Param;
use layerspec::{Layer, LayerKind};
use tch::Tensor;

/// Advice for parameters that are not finite.
const RESUME_ADVICE: &str = "an earlier step made it so; resume from a checkpoint before that step";

/// Whether infinities go into a layer, as in masks. They may then come out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputInfinities {
    Absent,
    Present,
}

/// The kinds of numbers in a tensor.
enum Finiteness {
    Finite,
    Infinite,
    Nan,
}

/// Checks the inputs and parameters of a layer.
///
/// # Errors
/// An input or parameter has NaN, or a trained parameter has infinities.
pub(super) fn check_inputs<'a>(
    layer: &Layer,
    inputs: impl Iterator<Item = &'a Tensor>,
    params: impl Iterator<Item = &'a Param>,
) -> Result<InputInfinities, EngineError> {
    let mut infinities = InputInfinities::Absent;
    for tensor in inputs {
        match finiteness(layer, tensor)? {
            Finiteness::Nan => return Err(not_finite(layer, "its input has NaN")),
            Finiteness::Infinite => infinities = InputInfinities::Present,
            Finiteness::Finite => {}
        }
    }
    for param in params {
        let what = match finiteness(layer, &param.tensor)? {
            Finiteness::Nan => "NaN",
            Finiteness::Infinite if param.trained => "infinities",
            Finiteness::Infinite => {
                infinities = InputInfinities::Present;
                continue;
            }
            Finiteness::Finite => continue,
        };
        let problem = format!("`{}` has {what}; {RESUME_ADVICE}", param.name);
        return Err(not_finite(layer, problem));
    }
    Ok(infinities)
}

/// Checks an output of a layer. Infinities may come from the input, as in a mask, or be the
/// layer's purpose.
pub(super) fn check_output(
    layer: &Layer,
    output: &Tensor,
    infinities: InputInfinities,
) -> Result<(), EngineError> {
    let present = infinities == InputInfinities::Present;
    let has_infinities = match &layer.kind {
        LayerKind::MaskedFill(_) | LayerKind::Constant(_) => true,
        LayerKind::Pad(pad) => pad.value.is_infinite(),
        _ => false,
    };
    let on_purpose = present || has_infinities;
    let what = match finiteness(layer, output)? {
        Finiteness::Nan if present => "its output has NaN; its input has infinities",
        Finiteness::Nan => "its output has NaN; its input is finite",
        Finiteness::Infinite if !on_purpose => "its output has infinities; its input is finite",
        Finiteness::Infinite | Finiteness::Finite => return Ok(()),
    };
    Err(not_finite(layer, what))
}

fn finiteness(layer: &Layer, tensor: &Tensor) -> Result<Finiteness, EngineError> {
    let find = || -> Result<Finiteness, tch::TchError> {
        let any = |found: Tensor| Ok::<_, tch::TchError>(found.f_any()?.f_int64_value(&[])? != 0);
        let tensor = tensor.f_detach()?;
        Ok(match tensor.f_is_floating_point()? {
            true if any(tensor.f_isnan()?)? => Finiteness::Nan,
            true if any(tensor.f_isinf()?)? => Finiteness::Infinite,
            _ => Finiteness::Finite,
        })
    };
    find().map_err(|e| in_layer(layer, LayerPhase::Forward)(e.into()))
}

fn not_finite(layer: &Layer, what: impl Into<String>) -> EngineError {
    EngineError::NotFinite { layer: layer.name.clone(), kind: layer.kind.name(), what: what.into() }
}
