//! Checks ids and classes on the host, before a device looks them up.
//!
//! A GPU finds an index outside its range only when it computes, some time later. The error then
//! has no place, and the process can no longer use the GPU.

use crate::engine::config::StageConfig;
use crate::engine::error::{in_layer, layer_error, EngineError, LayerPhase};
use crate::engine::layer_files::LayerFiles;
use layerspec::{Layer, LayerKind, ValueId};
use pipeline::loss::Classes;
use std::collections::HashMap;
use tch::{Device, Tensor};
use tensor::TensorError;

/// The layers that look up values which come from outside or are constants, by value.
#[derive(Debug, Default)]
pub(crate) struct Lookups(HashMap<ValueId, Vec<Lookup>>);

/// A layer that looks up rows.
#[derive(Debug)]
struct Lookup {
    /// Its place among the stage's layers.
    place: usize,
    /// The number of rows of its table, and what tells it.
    rows: i64,
    told_by: &'static str,
}

impl Lookups {
    /// Finds the layers. Between the border of the stage and a lookup, layers may arrange values
    /// in another way.
    pub(crate) fn of(config: &StageConfig) -> Self {
        let mut origins: HashMap<ValueId, Vec<ValueId>> =
            config.inputs.iter().map(|input| (input.value, vec![input.value])).collect();
        // The sizes of tables that are parameters or constants of the stage.
        let mut tables: HashMap<ValueId, &[u64]> = HashMap::new();
        let mut lookups = Lookups::default();
        for (place, layer) in config.layers.iter().enumerate() {
            let from: Vec<ValueId> = layer
                .inputs
                .iter()
                .filter_map(|value| origins.get(value))
                .flatten()
                .copied()
                .collect();
            match &layer.kind {
                LayerKind::Embedding(embedding) => {
                    let rows = i64::try_from(embedding.num_embeddings).unwrap_or(i64::MAX);
                    lookups.add(&from, || Lookup { place, rows, told_by: "`num_embeddings`" });
                }
                LayerKind::Parameter(parameter) if !parameter.expand => {
                    let shape = &parameter.shape[..];
                    tables.extend(layer.outputs.iter().map(|value| (*value, shape)));
                }
                LayerKind::Constant(constant) => {
                    origins.extend(layer.outputs.iter().map(|value| (*value, vec![*value])));
                    if !constant.expand {
                        let shape = &constant.shape[..];
                        tables.extend(layer.outputs.iter().map(|value| (*value, shape)));
                    }
                }
                LayerKind::Index(index) => {
                    let table = layer.inputs.first().and_then(|value| tables.get(value));
                    let rows = table.and_then(|table| size_along(table, index.dim));
                    let from = layer.inputs.get(1).and_then(|value| origins.get(value));
                    if let (Some(rows), Some(from)) = (rows, from) {
                        lookups.add(from, || Lookup { place, rows, told_by: "the dimension" });
                    }
                }
                kind if arranges(kind) => {
                    origins.extend(layer.outputs.iter().map(|value| (*value, from.clone())));
                }
                _ => {}
            }
        }
        lookups
    }

    fn add(&mut self, values: &[ValueId], lookup: impl Fn() -> Lookup) {
        for value in values {
            self.0.entry(*value).or_default().push(lookup());
        }
    }

    /// Checks the ids that are constants of the stage.
    ///
    /// # Errors
    /// An id is outside the table of a layer, or a constant is missing.
    pub(crate) fn check_constants(
        &self,
        layers: &[Layer],
        files: &LayerFiles,
    ) -> Result<(), EngineError> {
        for layer in layers {
            let LayerKind::Constant(constant) = &layer.kind else { continue };
            for value in layer.outputs.iter().filter(|value| self.0.contains_key(*value)) {
                let ids = files.constant(constant);
                let ids = ids.map_err(in_layer(layer, LayerPhase::Initialisation))?;
                self.check(layers, *value, &ids)?;
            }
        }
        Ok(())
    }

    /// Checks a value that arrives, if it is on the host.
    ///
    /// # Errors
    /// An id is outside the table of a layer.
    pub(crate) fn check(
        &self,
        layers: &[Layer],
        value: ValueId,
        ids: &Tensor,
    ) -> Result<(), EngineError> {
        for Lookup { place, rows, told_by } in self.0.get(&value).into_iter().flatten() {
            let layer = &layers[*place];
            let failed = || in_layer(layer, LayerPhase::Forward);
            let Some([least, most]) = range(ids).map_err(failed())? else { return Ok(()) };
            if let Some(wrong) = outside(least, most, *rows) {
                let problem =
                    format!("id {wrong}, but {told_by} is {rows}: ids are 0 to {}", rows - 1);
                return Err(failed()(layer_error(problem)));
            }
        }
        Ok(())
    }
}

/// Checks classes, if they are on the host.
///
/// # Errors
/// A class that is not ignored has no output.
pub(super) fn check_classes(
    target: &Tensor,
    classes: &Classes,
    outputs: i64,
) -> Result<(), TensorError> {
    if target.device() != Device::Cpu {
        return Ok(());
    }
    let counted = target.f_masked_select(&target.f_ne(classes.ignore_index)?)?;
    let Some([least, most]) = range(&counted)? else { return Ok(()) };
    match outside(least, most, outputs) {
        Some(wrong) => Err(TensorError::invalid(
            "the target",
            format!("class {wrong}, but the output has {outputs} (0 to {})", outputs - 1),
        )),
        None => Ok(()),
    }
}

/// The size of a dimension. A negative one counts from the last.
fn size_along(shape: &[u64], dim: i64) -> Option<i64> {
    let rank = i64::try_from(shape.len()).ok()?;
    let index = if dim < 0 { dim.checked_add(rank)? } else { dim };
    i64::try_from(*shape.get(usize::try_from(index).ok()?)?).ok()
}

/// Whether a layer gives all numbers that it takes, in another arrangement.
fn arranges(kind: &LayerKind) -> bool {
    matches!(
        kind,
        LayerKind::Identity(_)
            | LayerKind::Flatten(_)
            | LayerKind::Unflatten(_)
            | LayerKind::Reshape(_)
            | LayerKind::Transpose(_)
            | LayerKind::Permute(_)
            | LayerKind::Squeeze(_)
            | LayerKind::Unsqueeze(_)
            | LayerKind::Roll(_)
            | LayerKind::Flip(_)
            | LayerKind::Expand(_)
            | LayerKind::Concat(_)
            | LayerKind::Stack(_)
    )
}

/// The least and the greatest number. `None` if there are none, or they are on a device.
fn range(numbers: &Tensor) -> Result<Option<[i64; 2]>, TensorError> {
    if numbers.device() != Device::Cpu || numbers.numel() == 0 {
        return Ok(None);
    }
    Ok(Some([numbers.f_min()?.f_int64_value(&[])?, numbers.f_max()?.f_int64_value(&[])?]))
}

fn outside(least: i64, most: i64, count: i64) -> Option<i64> {
    [least, most].into_iter().find(|index| !(0..count).contains(index))
}
