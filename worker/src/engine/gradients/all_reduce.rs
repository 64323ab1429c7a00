//! The sum over replicas among their devices, bucket by bucket. Each replica first sums its own
//! microbatches. The result is added to the gradients so far.

use crate::engine::error::EngineError;
use crate::engine::gradients::buffer::{GradientRange, GradientSlice};
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::params::shards::param_use;
use crate::engine::params::stage_params::Params;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};
use tensor::nccl::NcclError;
use tensor::TensorError;

/// The replicas of a stage, which sum together. All must call for the same sums in the same order.
pub trait AllReduce {
    /// Replaces each number of a flat float32 tensor by its sum over all replicas. The device may
    /// still work on it when this returns.
    ///
    /// # Errors
    /// A replica is missing.
    fn all_reduce(&mut self, tensor: &mut Tensor) -> Result<(), NcclError>;

    /// Waits until all sums so far are computed.
    ///
    /// # Errors
    /// A replica is missing.
    fn finish(&mut self) -> Result<(), NcclError>;
}

impl GradientStore {
    /// Sums the gradients of a batch's microbatches over all replicas. Each adds up its own first;
    /// the result is added to the gradients so far. A replica without microbatches takes part with
    /// zeros. A parameter without a gradient on any replica has none, as in PyTorch.
    pub(crate) fn all_reduce(
        &mut self,
        params: &Params,
        device: Device,
        replicas: &mut impl AllReduce,
    ) -> Result<(), EngineError> {
        let buckets = self.trees.buckets()?.to_vec();
        let own = self.local_sums(buckets.len())?;
        // Every replica must know which parameters have a gradient on any replica.
        let came: Vec<f32> =
            own.iter().flatten().map(|sum| if sum.is_some() { 1.0 } else { 0.0 }).collect();
        let mut came = on(device, &came)?;
        replicas.all_reduce(&mut came)?;
        replicas.finish()?;
        let came = Vec::<f32>::try_from(came.f_to_device(Device::Cpu).map_err(TensorError::from)?);
        let mut came = came.map_err(TensorError::from)?.into_iter().map(|replicas| replicas > 0.0);

        for (bucket, sums) in buckets.iter().zip(own) {
            let came: Vec<bool> = came.by_ref().take(sums.len()).collect();
            let uses =
                || bucket.uses.iter().zip(&came).filter(|(_, came)| **came).map(|(used, _)| used);
            let wanted =
                sums.iter().zip(bucket.uses.iter().zip(&came)).filter(|(_, (_, came))| **came);
            let parts =
                wanted.map(|(sum, (used, _))| or_zeros(sum.as_ref(), used.elements, device));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            if parts.is_empty() {
                continue;
            }
            let mut flat = Tensor::f_cat(&parts, 0).map_err(TensorError::from)?;
            drop((parts, sums));
            replicas.all_reduce(&mut flat)?;
            // Work behind a sum that never ends would make launching block, which cannot be
            // interrupted.
            replicas.finish()?;
            let mut begin = 0;
            for used in uses() {
                let elements = used.elements as i64;
                let part = flat.f_narrow(0, begin, elements).map_err(TensorError::from)?;
                begin += elements;
                let used = param_use(used);
                let param = params.of_use(used);
                let range = GradientRange { param, size: param.size(), first: 0 };
                let slice = GradientSlice { first: 0, tensor: part };
                self.buffer(used).add_slices(&range, &[slice])?;
            }
        }
        Ok(())
    }

    /// The sum of this replica's microbatches for each bucket and use, flat.
    fn local_sums(&mut self, buckets: usize) -> Result<Vec<Vec<Option<Tensor>>>, EngineError> {
        let mut own = Vec::with_capacity(buckets);
        for bucket in 0..buckets {
            let nodes: BTreeMap<_, Vec<Option<Tensor>>> = self.trees.drain_nodes(bucket)?;
            let mut sums: Vec<Option<Tensor>> = Vec::new();
            sums.resize_with(self.trees.buckets()?[bucket].uses.len(), || None);
            for (place, term) in nodes.into_values().flat_map(|node| node.into_iter().enumerate()) {
                let Some(term) = term else { continue };
                sums[place] = Some(match sums[place].take() {
                    Some(sum) => sum.f_add(&term).map_err(TensorError::from)?,
                    None => term,
                });
            }
            own.push(sums);
        }
        self.trees.finish_round();
        Ok(own)
    }
}

fn or_zeros(sum: Option<&Tensor>, elements: u64, device: Device) -> Result<Tensor, TensorError> {
    match sum {
        Some(sum) => Ok(sum.shallow_clone()),
        None => Ok(Tensor::f_zeros([elements as i64], (Kind::Float, device))?),
    }
}

fn on(device: Device, numbers: &[f32]) -> Result<Tensor, TensorError> {
    // Never empty, because a stage with buckets has uses of parameters.
    let tensor = Tensor::f_from_slice(numbers)?;
    // Always a copy, because it is written to.
    Ok(tensor.f_to_device_(device, Kind::Float, false, true)?)
}
