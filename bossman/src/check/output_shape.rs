//! The loss against the model's first output and the shape of a target.

use crate::data::Dataset;
use layerspec::{Bindings, LayerGraph};
use pipeline::loss::{ClassDim, Classes};
use pipeline::LossSpec;

/// Checks that the output has a number for each class, where the loss expects it, and that a target
/// has the other dimensions. The other losses take a target of the output's shape, which
/// [`Dataset::open`] checks.
///
/// # Errors
/// The problem, without the place of the loss. A shape that is not known yet is no error.
pub(super) fn check(loss: &LossSpec, graph: &LayerGraph, data: &Dataset) -> Result<(), String> {
    check_pos_weight(loss, graph)?;
    let Some(classes) = loss.classes() else { return Ok(()) };
    if let Some(outputs) = class_count(classes, graph) {
        let weights = classes.weight.len();
        if weights > 0 && weights as u64 != outputs {
            return Err(format!(
                "the model has {outputs} outputs, but `weight` of `{loss}` has {weights} numbers; \
                 give one for each class"
            ));
        }
    }
    // A sample that cannot be read is an error of the data, which names its place.
    let Some((sizes, target)) = sample_shapes(data) else { return Ok(()) };
    let Some(output) = graph.outputs().first().map(|id| &graph.value(*id).ty) else {
        return Ok(());
    };
    let bindings = bindings(graph, &sizes);
    let dims: Vec<Option<u64>> = output.dims().iter().map(|dim| dim.eval(&bindings)).collect();
    let fits = |class_dim| fits(&dims, &target, class_dim);
    if fits(classes.class_dim) {
        return Ok(());
    }
    let sizes: Vec<String> = target.iter().map(u64::to_string).collect();
    let target: Vec<String> = ["batch".into()].into_iter().chain(sizes).collect();
    let found = format!("the output is {output}, a target [{}]", target.join(", "));
    Err(match classes.class_dim {
        ClassDim::Second if fits(ClassDim::Last) => format!(
            "{found}: the classes are in the last dimension, but `{loss}` takes [batch, classes, \
             ...]; add `class_dim: -1` to the loss"
        ),
        ClassDim::Last if fits(ClassDim::Second) => format!(
            "{found}: the classes are in dimension 1, but `class_dim: -1` takes [batch, ..., \
             classes]; leave `class_dim` out"
        ),
        ClassDim::Second => format!(
            "{found}, but `{loss}` takes an output [batch, classes, ...] and a target [batch, \
             ...]; change the model's last layers or the data"
        ),
        ClassDim::Last => format!(
            "{found}, but `{loss}` with `class_dim: -1` takes an output [batch, ..., classes] and \
             a target [batch, ...]; change the model's last layers or the data"
        ),
    })
}

/// Checks that `pos_weight` has one number, or as many as the output's last dimension.
fn check_pos_weight(loss: &LossSpec, graph: &LayerGraph) -> Result<(), String> {
    let LossSpec::BCEWithLogitsLoss { pos_weight } = loss else { return Ok(()) };
    let output = graph.outputs().first().map(|id| graph.value(*id).ty.dims());
    let last = output.and_then(|dims| dims.last()?.as_fixed());
    let numbers = pos_weight.len();
    match last.filter(|last| numbers > 1 && *last != numbers as u64) {
        None => Ok(()),
        Some(last) => Err(format!(
            "the output's last dimension is {last}, but `pos_weight` of `{loss}` has {numbers} \
             numbers; give one for each of its elements, or one for all"
        )),
    }
}

/// The number of classes that the model gives, if the model file fixes it.
pub(super) fn class_count(classes: &Classes, graph: &LayerGraph) -> Option<u64> {
    let dims = graph.value(*graph.outputs().first()?).ty.dims();
    dims.get(classes.class_dim.position(dims.len())?)?.as_fixed()
}

/// The sizes of the first sample's inputs, each with the batch in front, and of its target without
/// the batch.
fn sample_shapes(data: &Dataset) -> Option<(Vec<Vec<u64>>, Vec<u64>)> {
    let first = [data.number(0)?];
    let target = data.target(&first, 0..1).ok()?;
    let target = target.size().iter().skip(1).map(|size| size.unsigned_abs()).collect();
    Some((data.sizes(&first).ok()?, target))
}

fn bindings(graph: &LayerGraph, sizes: &[Vec<u64>]) -> Bindings {
    let mut bindings = Bindings::new();
    for (id, sizes) in graph.inputs().iter().zip(sizes) {
        for (dim, size) in graph.value(*id).ty.dims().iter().zip(sizes) {
            if let Some(symbol) = dim.as_symbol().filter(|symbol| bindings.get(symbol).is_none()) {
                bindings.set(symbol, *size);
            }
        }
    }
    bindings
}

/// Whether an output has the target's dimensions and one for the classes. The batch is not
/// compared, because a model may fix its size.
fn fits(output: &[Option<u64>], target: &[u64], class_dim: ClassDim) -> bool {
    let Some(classes) = class_dim.position(output.len()) else { return false };
    let others = output.iter().enumerate().skip(1).filter(|(position, _)| *position != classes);
    let others: Vec<Option<u64>> = others.map(|(_, size)| *size).collect();
    others.len() == target.len()
        && others.iter().zip(target).all(|(size, target)| size.is_none_or(|size| size == *target))
}
