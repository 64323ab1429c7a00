//! The key-value cache: the keys and values of earlier positions, so that a sequence continues
//! position by position.

use crate::engine::config::StageConfig;
use crate::engine::error::EngineError;
use layerspec::{Layer, LayerId, ValueId};
use pipeline::kv_cache_step::KvCacheStep;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use tch::{Device, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

/// An op of the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OpKey {
    /// The place of its layer.
    pub(crate) layer: usize,
    /// Its first slot.
    pub(crate) slot: usize,
}

/// The caches of a stage's ops.
#[derive(Debug, Default)]
pub(crate) struct KvCache {
    kept: RefCell<HashMap<OpKey, Vec<Tensor>>>,
    /// The outputs of layers whose inputs do not change, if others need them.
    reusable: RefCell<HashMap<ValueId, Tensor>>,
    now: Option<CachedPass>,
}

/// The pass at work.
#[derive(Debug)]
struct CachedPass {
    past: i64,
    /// The samples that continue. `None` if all do.
    rows: Option<Tensor>,
    /// The layers that receive only new positions.
    layers: HashSet<LayerId>,
    /// The values that those layers or other stages use.
    needed: HashSet<ValueId>,
}

impl KvCache {
    /// Begins a pass that continues the last one, or a new sequence.
    pub(crate) fn begin_pass(
        &mut self,
        cached: Option<&KvCacheStep>,
        stage: &StageConfig,
    ) -> Result<(), EngineError> {
        let begins = cached.is_none_or(|cached| cached.past == 0);
        if begins {
            self.kept.get_mut().clear();
            self.reusable.get_mut().clear();
        }
        self.now = match cached {
            None => None,
            Some(cached) => {
                let rows: Vec<i64> = cached.rows.iter().map(|row| i64::from(*row)).collect();
                let rows = (!rows.is_empty() && !begins)
                    .then(|| rows_on(&rows, stage.device))
                    .transpose()?;
                let past = i64::try_from(cached.past).unwrap_or(i64::MAX);
                let layers: HashSet<LayerId> = cached.layers.iter().copied().collect();
                let growing = stage.layers.iter().filter(|layer| layers.contains(&layer.id));
                let needed = growing
                    .flat_map(|layer| &layer.inputs)
                    .chain(&stage.outputs)
                    .copied()
                    .collect();
                Some(CachedPass { past, rows, layers, needed })
            }
        };
        Ok(())
    }

    /// The outputs of a layer in the previous pass, if its inputs are the same in this pass. Only
    /// those that other stages or layers with new positions need are kept.
    pub(crate) fn reused_outputs(
        &self,
        layer: &Layer,
    ) -> Result<Option<Vec<(ValueId, Tensor)>>, TensorError> {
        let Some(now) =
            self.now.as_ref().filter(|now| now.past > 0 && !now.layers.contains(&layer.id))
        else {
            return Ok(None);
        };
        let mut unchanged = self.reusable.borrow_mut();
        let needed = layer.outputs.iter().filter(|value| now.needed.contains(*value));
        let go_on = |value: &ValueId| {
            let tensor = unchanged.remove(value).ok_or_else(|| cache_mismatch(now.past, 0))?;
            let tensor = match &now.rows {
                Some(rows) => tensor.f_index_select(0, rows)?,
                None => tensor,
            };
            unchanged.insert(*value, tensor.shallow_clone());
            Ok((*value, tensor))
        };
        needed.map(go_on).collect::<Result<_, TensorError>>().map(Some)
    }

    /// Keeps the outputs of a layer for the next pass, if its inputs will be the same.
    pub(crate) fn store_outputs(&self, layer: &Layer, values: &HashMap<ValueId, Tensor>) {
        let Some(now) = self.now.as_ref().filter(|now| !now.layers.contains(&layer.id)) else {
            return;
        };
        for value in layer.outputs.iter().filter(|value| now.needed.contains(*value)) {
            if let Some(tensor) = values.get(value) {
                self.reusable.borrow_mut().insert(*value, tensor.shallow_clone());
            }
        }
    }

    /// The cache of an op, if its layer receives only new positions.
    pub(crate) fn for_op(&self, layer: LayerId, place: OpKey) -> Option<OpCache<'_>> {
        let now = self.now.as_ref().filter(|now| now.layers.contains(&layer))?;
        Some(OpCache { kept: &self.kept, now, place })
    }
}

fn rows_on(rows: &[i64], device: Device) -> Result<Tensor, EngineError> {
    Ok(to_device(&Tensor::f_from_slice(rows).map_err(TensorError::from)?, device)?)
}

/// The cache of one op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpCache<'a> {
    kept: &'a RefCell<HashMap<OpKey, Vec<Tensor>>>,
    now: &'a CachedPass,
    place: OpKey,
}

impl OpCache<'_> {
    /// The number of earlier positions.
    pub(crate) fn past(&self) -> i64 {
        self.now.past
    }

    /// Appends new positions to the cached ones, along dimension `positions`. Samples are dimension
    /// 0. The result is cached for the next pass.
    pub(crate) fn extend(
        &self,
        new: Vec<Tensor>,
        positions: i64,
    ) -> Result<Vec<Tensor>, TensorError> {
        let before = self.kept.borrow_mut().remove(&self.place);
        let all = match (before, self.now.past) {
            (_, 0) => new,
            (None, past) => return Err(cache_mismatch(past, 0)),
            (Some(before), past) => {
                let held = before.first().map_or(0, |tensor| size_at(tensor, positions));
                if held != past || before.len() != new.len() {
                    return Err(cache_mismatch(past, held));
                }
                let join = |(before, new): (Tensor, &Tensor)| -> Result<Tensor, TensorError> {
                    let before = match &self.now.rows {
                        Some(rows) => before.f_index_select(0, rows)?,
                        None => before,
                    };
                    Ok(Tensor::f_cat(&[&before, new], positions)?)
                };
                before.into_iter().zip(&new).map(join).collect::<Result<_, _>>()?
            }
        };
        let kept = all.iter().map(Tensor::shallow_clone).collect();
        self.kept.borrow_mut().insert(self.place, kept);
        Ok(all)
    }
}

fn size_at(tensor: &Tensor, dim: i64) -> i64 {
    usize::try_from(dim).ok().and_then(|dim| tensor.size().get(dim).copied()).unwrap_or(0)
}

fn cache_mismatch(past: i64, held: i64) -> TensorError {
    TensorError::invalid(
        "the layer",
        format!("{past} positions came before, but {held} are remembered; begin anew"),
    )
}
