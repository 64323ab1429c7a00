//! Running statistics of norms, with the statistics of each microbatch kept apart.
//!
//! Running statistics depend on the order of microbatches, and each replica sees only some of
//! these. So each replica hands out its statistics. At the end of the round every replica applies
//! all of them in the order of microbatches. So all replicas have the same running statistics.

use crate::engine::config::{Mode, Pass, StageConfig};
use crate::engine::error::{EngineError, PeerDataError, SequenceError};
use crate::engine::layout::deep_copy;
use crate::engine::params::stage_params::Params;
use layerspec::LayerKind;
use pipeline::ids::MicrobatchKey;
use std::collections::BTreeMap;
use tch::{Kind, Tensor};
use tensor::transfer::to_device;
use tensor::TensorError;

/// Mean and unbiased variance of each channel.
pub(crate) type BatchStatistics = [Tensor; 2];

/// The statistics of microbatches that the norms of a stage have not applied yet.
#[derive(Debug, Default)]
pub(crate) struct RunningStatistics {
    norms: Vec<NormLayer>,
    /// The statistics of each norm, by microbatch.
    seen: BTreeMap<MicrobatchKey, Vec<BatchStatistics>>,
    /// The last batch whose statistics were applied, and the running statistics before it. Its step
    /// may still be cancelled and repeated.
    before: Option<(u64, Values)>,
    /// Their values before the first batch since the last update of the parameters, or skipped
    /// update.
    before_update: Option<Values>,
}

/// Tensors by their place among the stage's parameters and buffers.
type Values = Vec<(usize, Tensor)>;

/// A layer that keeps running statistics.
#[derive(Debug)]
struct NormLayer {
    layer: usize,
    /// Places among the stage's parameters and buffers.
    running: [usize; 2],
    /// The number of batches, if it is counted.
    count: Option<usize>,
    /// The share of the newest batch. `None` for averages over all batches.
    momentum: Option<f64>,
}

impl RunningStatistics {
    pub(crate) fn new(stage: &StageConfig, params: &Params) -> Self {
        let norm = |(layer, spec): (usize, &layerspec::Layer)| {
            let of = |name: &str| {
                params.bindings[layer].iter().find(|b| b.name == name).map(|b| b.index)
            };
            let count = of("num_batches_tracked");
            let (momentum, count) = match &spec.kind {
                LayerKind::BatchNorm1d(norm) => (norm.momentum, count),
                LayerKind::BatchNorm2d(norm) => (norm.momentum, count),
                LayerKind::BatchNorm3d(norm) => (norm.momentum, count),
                // As in its op: it never counts batches, and does not change without momentum.
                LayerKind::InstanceNorm2d(norm) => (Some(norm.momentum.unwrap_or(0.0)), None),
                _ => return None,
            };
            Some(NormLayer {
                layer,
                running: [of("running_mean")?, of("running_var")?],
                count,
                momentum,
            })
        };
        let norms = stage.layers.iter().enumerate().filter_map(norm).collect();
        RunningStatistics { norms, seen: BTreeMap::new(), before: None, before_update: None }
    }

    /// Reserves memory for the statistics of a microbatch.
    fn reserve(&mut self, key: MicrobatchKey, params: &Params) -> Result<(), EngineError> {
        if self.norms.is_empty() {
            return Ok(());
        }
        let room = |norm: &NormLayer| -> Result<BatchStatistics, TensorError> {
            let zeros =
                |index: usize| Ok::<_, TensorError>(params.all[index].tensor.f_zeros_like()?);
            Ok([zeros(norm.running[0])?, zeros(norm.running[1])?])
        };
        let room = self.norms.iter().map(room).collect::<Result<_, _>>()?;
        match self.seen.insert(key, room) {
            None => Ok(()),
            Some(_) => Err(SequenceError::AlreadyForwarded { key }.into()),
        }
    }

    /// The place for a norm's statistics of a microbatch.
    pub(crate) fn for_layer(&self, key: MicrobatchKey, layer: usize) -> Option<&BatchStatistics> {
        let place = self.norms.iter().position(|norm| norm.layer == layer)?;
        self.seen.get(&key)?.get(place)
    }

    pub(crate) fn clear(&mut self) {
        self.seen.clear();
    }

    /// Forgets the statistics of a batch.
    pub(crate) fn discard(&mut self, batch: u64) {
        self.seen.retain(|key, _| key.batch != batch);
    }

    /// Begins a batch whose statistics are applied microbatch by microbatch.
    fn begin_batch(&mut self, batch: u64, params: &Params) -> Result<(), TensorError> {
        match &self.before {
            Some((of, _)) if *of == batch => Ok(()),
            _ if self.norms.is_empty() => Ok(()),
            _ => self.save_restore_point(batch, params),
        }
    }

    /// Restores the running statistics before this batch, if it was the last.
    pub(crate) fn undo(&mut self, batch: u64, params: &Params) {
        if let Some((_, before)) = self.before.take_if(|(of, _)| *of == batch) {
            restore(before, params);
        }
    }

    /// The parameters were updated: earlier running statistics are no longer needed.
    pub(crate) fn on_update(&mut self) {
        self.before_update = None;
    }

    /// The update was skipped: restores the running statistics of the update before.
    pub(crate) fn on_skipped_update(&mut self, params: &Params) {
        if let Some(before) = self.before_update.take() {
            restore(before, params);
        }
    }

    /// The running statistics were replaced, so earlier ones are no longer needed.
    pub(crate) fn forget_restore_points(&mut self) {
        (self.before, self.before_update) = (None, None);
    }

    fn save_restore_point(&mut self, batch: u64, params: &Params) -> Result<(), TensorError> {
        let places = self.norms.iter().flat_map(|norm| norm.running.into_iter().chain(norm.count));
        let before = places.map(|index| Ok((index, deep_copy(&params.all[index].tensor)?)));
        let before: Values = before.collect::<Result<_, TensorError>>()?;
        if self.before_update.is_none() {
            // Nobody writes to these copies.
            self.before_update = Some(
                before.iter().map(|(index, tensor)| (*index, tensor.shallow_clone())).collect(),
            );
        }
        self.before = Some((batch, before));
        Ok(())
    }

    /// Prepares for a training pass: each microbatch's statistics are kept apart, or go to the
    /// running statistics at once.
    pub(crate) fn begin_pass(&mut self, pass: &Pass, params: &Params) -> Result<(), EngineError> {
        match pass.mode {
            Mode::Eval => Ok(()),
            Mode::Train if pass.defers_statistics() => self.reserve(pass.key, params),
            Mode::Train => Ok(self.begin_batch(pass.key.batch, params)?),
        }
    }

    /// The statistics of a batch for other replicas, if the stage has norms: the numbers of its
    /// microbatches as int64, and for each norm means and variances in turns.
    pub(crate) fn to_tensors(&self, batch: u64) -> Result<Option<Vec<Tensor>>, TensorError> {
        match self.norms.is_empty() {
            true => Ok(None),
            false => tch::no_grad(|| self.stacked(batch)).map(Some),
        }
    }

    /// Applies the statistics of a batch, of this replica and of others, to the running statistics
    /// in the order of microbatches.
    ///
    /// # Errors
    /// The statistics of others do not fit, or those of a microbatch are missing.
    pub(crate) fn apply_batch(
        &mut self,
        batch: u64,
        others: &[Vec<Tensor>],
        params: &Params,
    ) -> Result<(), EngineError> {
        // Other batches may be in flight.
        let (own, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.seen).into_iter().partition(|(key, _)| key.batch == batch);
        self.seen = rest;
        let mut all: BTreeMap<u32, Vec<BatchStatistics>> =
            own.into_iter().map(|(key, seen)| (key.index, seen)).collect();
        for tensors in others {
            self.add_from_replica(tensors, params, &mut all)?;
        }
        if all.keys().zip(0..).any(|(number, expected)| *number != expected) {
            return Err(wrong("those of some microbatches are missing"));
        }
        self.save_restore_point(batch, params)?;
        all.values().try_for_each(|seen| self.apply(params, seen))?;
        Ok(())
    }

    fn stacked(&self, batch: u64) -> Result<Vec<Tensor>, TensorError> {
        let of_batch = || self.seen.iter().filter(move |(key, _)| key.batch == batch);
        let numbers: Vec<i64> = of_batch().map(|(key, _)| i64::from(key.index)).collect();
        let of_norm = |norm: usize| {
            let rows: Vec<&Tensor> = of_batch().flat_map(|(_, seen)| &seen[norm]).collect();
            Ok(Tensor::f_stack(&rows, 0)?)
        };
        let numbers = Tensor::f_from_slice(&numbers)?;
        std::iter::once(Ok(numbers)).chain((0..self.norms.len()).map(of_norm)).collect()
    }

    /// Checks the statistics of another replica, and adds them to these.
    fn add_from_replica(
        &self,
        tensors: &[Tensor],
        params: &Params,
        all: &mut BTreeMap<u32, Vec<BatchStatistics>>,
    ) -> Result<(), EngineError> {
        let Some((numbers, norms)) =
            tensors.split_first().filter(|(_, norms)| norms.len() == self.norms.len())
        else {
            let problem = format!("{} tensors for {} norms", tensors.len(), self.norms.len());
            return Err(wrong(problem));
        };
        let numbers = microbatch_indices(numbers)?;
        let mut rows: Vec<std::vec::IntoIter<Tensor>> = Vec::new();
        for (norm, tensor) in self.norms.iter().zip(norms) {
            let running = &params.all[norm.running[0]].tensor;
            let mut expected = running.size();
            expected.insert(0, 2 * numbers.len() as i64);
            let kind = tensor.f_kind().map_err(TensorError::from)?;
            if tensor.size() != expected || kind != Kind::Float {
                let problem =
                    format!("expected Float {expected:?}, got {kind:?} {:?}", tensor.size());
                return Err(wrong(problem));
            }
            let tensor = to_device(tensor, running.device())?;
            rows.push(tensor.f_unbind(0).map_err(TensorError::from)?.into_iter());
        }
        for number in numbers {
            let seen = rows.iter_mut().filter_map(|rows| Some([rows.next()?, rows.next()?]));
            if all.insert(number, seen.collect()).is_some() {
                return Err(wrong(format!("microbatch {number} came twice")));
            }
        }
        Ok(())
    }

    /// Applies the statistics of one microbatch to the running statistics.
    fn apply(&self, params: &Params, seen: &[BatchStatistics]) -> Result<(), TensorError> {
        for (norm, seen) in self.norms.iter().zip(seen) {
            let count = norm.count.map(|count| params.all[count].tensor.shallow_clone());
            let count = count.map(|mut count| count.f_add_scalar_(1)).transpose()?;
            let share = match (norm.momentum, count) {
                (Some(momentum), _) => momentum,
                (None, Some(count)) => 1.0 / count.f_double_value(&[])?,
                (None, None) => 0.0,
            };
            for (running, seen) in norm.running.iter().zip(seen) {
                let mut running = params.all[*running].tensor.shallow_clone();
                let _same =
                    running.f_mul_scalar_(1.0 - share)?.f_add_(&seen.f_mul_scalar(share)?)?;
            }
        }
        Ok(())
    }
}

/// Restores the saved values. This cannot fail.
fn restore(values: Values, params: &Params) {
    for (index, before) in values {
        let mut running = params.all[index].tensor.shallow_clone();
        tch::no_grad(|| drop(running.f_copy_(&before)));
    }
}

fn microbatch_indices(tensor: &Tensor) -> Result<Vec<u32>, EngineError> {
    let kind = tensor.f_kind().map_err(TensorError::from)?;
    let numbers = match kind {
        Kind::Int64 => Vec::<i64>::try_from(tensor).map_err(|e| e.to_string()),
        _ => Err(format!("{kind:?}")),
    };
    let numbers = numbers.and_then(|all| {
        all.into_iter().map(|n| u32::try_from(n).map_err(|e| e.to_string())).collect()
    });
    numbers.map_err(|problem| wrong(format!("numbers of microbatches: {problem}")))
}

fn wrong(problem: impl Into<String>) -> EngineError {
    PeerDataError::Statistics { problem: problem.into() }.into()
}
