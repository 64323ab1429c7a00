//! Running statistics of norms, with the statistics of each microbatch kept apart.
//!
//! Running statistics depend on the order of microbatches. Replicas each see some of these, so each hands out what it saw,
//! and at the end of the round all take all of it in the order of microbatches: every replica comes to the same.

use super::branch::TreeTarget;
use super::error::EngineError;
use super::params::Params;
use super::stage::StageConfig;
use super::state::copy;
use super::Engine;
use layerspec::LayerKind;
use pipeline::ids::MicrobatchKey;
use pipeline::task::HandedOut;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// Mean and unbiased variance of each channel.
pub(super) type BatchStatistics = [Tensor; 2];

/// The statistics of microbatches that the norms of a stage have not applied yet.
#[derive(Debug, Default)]
pub(super) struct RunningStatistics {
    norms: Vec<NormLayer>,
    /// For each norm.
    seen: BTreeMap<MicrobatchKey, Vec<BatchStatistics>>,
    /// The batch whose statistics were taken last, or are being taken, and what the running ones were before, by place: its
    /// step may still be called off, and done again.
    before: Option<(u64, Values)>,
    /// What they were before the first batch since parameters were last updated, or were to be.
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
    /// The share of the newest batch; none for averages over all batches.
    momentum: Option<f64>,
}

impl RunningStatistics {
    pub(super) fn new(stage: &StageConfig, params: &Params) -> Self {
        let norm = |(layer, spec): (usize, &layerspec::Layer)| {
            let of = |name: &str| params.bindings[layer].iter().find(|b| b.name == name).map(|b| b.index);
            let count = of("num_batches_tracked");
            let (momentum, count) = match &spec.kind {
                LayerKind::BatchNorm1d(norm) => (norm.momentum, count),
                LayerKind::BatchNorm2d(norm) => (norm.momentum, count),
                // As its op: it never counts, and without momentum learns nothing.
                LayerKind::InstanceNorm2d(norm) => (Some(norm.momentum.unwrap_or(0.0)), None),
                _ => return None,
            };
            Some(NormLayer { layer, running: [of("running_mean")?, of("running_var")?], count, momentum })
        };
        let norms = stage.layers.iter().enumerate().filter_map(norm).collect();
        RunningStatistics { norms, seen: BTreeMap::new(), before: None, before_update: None }
    }

    /// Makes room for what the norms will see of a microbatch.
    pub(super) fn reserve(&mut self, key: MicrobatchKey, params: &Params) -> Result<(), EngineError> {
        if self.norms.is_empty() {
            return Ok(());
        }
        let room = |norm: &NormLayer| -> Result<BatchStatistics, TensorError> {
            let zeros = |index: usize| Ok::<_, TensorError>(params.all[index].tensor.f_zeros_like()?);
            Ok([zeros(norm.running[0])?, zeros(norm.running[1])?])
        };
        let room = self.norms.iter().map(room).collect::<Result<_, _>>()?;
        match self.seen.insert(key, room) {
            None => Ok(()),
            Some(_) => Err(EngineError::AlreadyForwarded { key }),
        }
    }

    /// The place for a norm's statistics of a microbatch.
    pub(super) fn for_layer(&self, key: MicrobatchKey, layer: usize) -> Option<&BatchStatistics> {
        let place = self.norms.iter().position(|norm| norm.layer == layer)?;
        self.seen.get(&key)?.get(place)
    }

    pub(super) fn clear(&mut self) {
        self.seen.clear();
    }

    /// Forgets what was seen of a batch.
    pub(super) fn discard(&mut self, batch: u64) {
        self.seen.retain(|key, _| key.batch != batch);
    }

    /// Running statistics are about to take what they see of a batch, microbatch by microbatch.
    pub(super) fn begin_batch(&mut self, batch: u64, params: &Params) -> Result<(), TensorError> {
        match &self.before {
            Some((of, _)) if *of == batch => Ok(()),
            _ if self.norms.is_empty() => Ok(()),
            _ => self.save_restore_point(batch, params),
        }
    }

    /// Running statistics become again what they were before this batch, if it was the last.
    pub(super) fn undo(&mut self, batch: u64, params: &Params) {
        if let Some((_, before)) = self.before.take_if(|(of, _)| *of == batch) {
            restore(before, params);
        }
    }

    /// Parameters were updated by what has come since they last were; or that was skipped, and running statistics become again
    /// what they were then.
    pub(super) fn on_update(&mut self, skipped: bool, params: &Params) {
        if let Some(before) = self.before_update.take().filter(|_| skipped) {
            restore(before, params);
        }
    }

    /// There are others, to which nothing leads back.
    pub(super) fn forget_restore_points(&mut self) {
        (self.before, self.before_update) = (None, None);
    }

    fn save_restore_point(&mut self, batch: u64, params: &Params) -> Result<(), TensorError> {
        let places = self.norms.iter().flat_map(|norm| norm.running.into_iter().chain(norm.count));
        let before = places.map(|index| Ok((index, copy(&params.all[index].tensor)?)));
        let before: Values = before.collect::<Result<_, TensorError>>()?;
        if self.before_update.is_none() {
            // Nobody writes to these copies.
            self.before_update = Some(before.iter().map(|(index, tensor)| (*index, tensor.shallow_clone())).collect());
        }
        self.before = Some((batch, before));
        Ok(())
    }

    /// What was seen of a batch: the numbers of its microbatches, and for each norm means and variances in turns.
    fn to_tensors(&self, batch: u64) -> Result<Vec<Tensor>, TensorError> {
        let of_batch = || self.seen.iter().filter(move |(key, _)| key.batch == batch);
        let numbers: Vec<i64> = of_batch().map(|(key, _)| i64::from(key.index)).collect();
        let of_norm = |norm: usize| {
            let rows: Vec<&Tensor> = of_batch().flat_map(|(_, seen)| &seen[norm]).collect();
            Ok(Tensor::f_stack(&rows, 0)?)
        };
        let numbers = Tensor::f_from_slice(&numbers)?;
        std::iter::once(Ok(numbers)).chain((0..self.norms.len()).map(of_norm)).collect()
    }

    /// Adds what another replica saw, checked, to this.
    fn add_from_replica(
        &self,
        tensors: &[Tensor],
        (params, device): (&Params, Device),
        all: &mut BTreeMap<u32, Vec<BatchStatistics>>,
    ) -> Result<(), EngineError> {
        let Some((numbers, norms)) = tensors.split_first().filter(|(_, norms)| norms.len() == self.norms.len()) else {
            let problem = format!("{} tensors for {} norms", tensors.len(), self.norms.len());
            return Err(EngineError::StatisticsMismatch { problem });
        };
        let numbers = microbatch_indices(numbers)?;
        let mut rows: Vec<std::vec::IntoIter<Tensor>> = Vec::new();
        for (norm, tensor) in self.norms.iter().zip(norms) {
            let mut expected = params.all[norm.running[0]].tensor.size();
            expected.insert(0, 2 * numbers.len() as i64);
            let kind = tensor.f_kind().map_err(TensorError::from)?;
            if tensor.size() != expected || kind != Kind::Float {
                let problem = format!("expected Float {expected:?}, got {kind:?} {:?}", tensor.size());
                return Err(EngineError::StatisticsMismatch { problem });
            }
            let tensor = tensor.f_to_device(device).map_err(TensorError::from)?;
            rows.push(tensor.f_unbind(0).map_err(TensorError::from)?.into_iter());
        }
        for number in numbers {
            let seen = rows.iter_mut().filter_map(|rows| Some([rows.next()?, rows.next()?]));
            if all.insert(number, seen.collect()).is_some() {
                return Err(EngineError::StatisticsMismatch { problem: format!("microbatch {number} came twice") });
            }
        }
        Ok(())
    }

    /// Takes what one microbatch showed into the running statistics.
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
                let _same = running.f_mul_scalar_(1.0 - share)?.f_add_(&seen.f_mul_scalar(share)?)?;
            }
        }
        Ok(())
    }
}

/// The same tensors as they were: nothing is left that could fail.
fn restore(values: Values, params: &Params) {
    for (index, before) in values {
        let mut running = params.all[index].tensor.shallow_clone();
        tch::no_grad(|| drop(running.f_copy_(&before)));
    }
}

impl Engine {
    /// Hands out the statistics of the norms, if there are any.
    pub(super) fn emit_statistics(&self, batch: u64, target: &mut TreeTarget<'_>) -> Result<(), EngineError> {
        if self.statistics.norms.is_empty() {
            return Ok(());
        }
        let tensors = tch::no_grad(|| self.statistics.to_tensors(batch))?;
        Ok((target.emit)(HandedOut::Statistics { stage: target.stage, tensors })?)
    }

    /// Takes what the norms saw here, and what those of other replicas did, into the running statistics, in the order of
    /// microbatches.
    pub(super) fn apply_statistics(&mut self, batch: u64, others: Vec<Vec<Tensor>>) -> Result<(), EngineError> {
        // Other batches may be under way.
        let (own, rest) =
            std::mem::take(&mut self.statistics.seen).into_iter().partition(|(key, _)| key.batch == batch);
        self.statistics.seen = rest;
        let own: BTreeMap<MicrobatchKey, Vec<BatchStatistics>> = own;
        let mut all: BTreeMap<u32, Vec<BatchStatistics>> =
            own.into_iter().map(|(key, seen)| (key.index, seen)).collect();
        for tensors in &others {
            self.statistics.add_from_replica(tensors, (&self.params, self.stage.device), &mut all)?;
        }
        if all.keys().zip(0..).any(|(number, expected)| *number != expected) {
            return Err(EngineError::StatisticsMismatch { problem: "those of some microbatches are missing".into() });
        }
        self.statistics.save_restore_point(batch, &self.params)?;
        all.values().try_for_each(|seen| self.statistics.apply(&self.params, seen))?;
        Ok(())
    }
}

fn microbatch_indices(tensor: &Tensor) -> Result<Vec<u32>, EngineError> {
    let kind = tensor.f_kind().map_err(TensorError::from)?;
    let numbers = match kind {
        Kind::Int64 => Vec::<i64>::try_from(tensor).map_err(|e| e.to_string()),
        _ => Err(format!("{kind:?}")),
    };
    let numbers =
        numbers.and_then(|all| all.into_iter().map(|n| u32::try_from(n).map_err(|e| e.to_string())).collect());
    numbers
        .map_err(|problem| EngineError::StatisticsMismatch { problem: format!("numbers of microbatches: {problem}") })
}
