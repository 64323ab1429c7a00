//! The end of a sum that replicas take among their devices: what each replica's microbatches came to is summed over the
//! replicas, bucket by bucket, and added to the gradients so far.

use super::error::EngineError;
use super::Engine;
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};
use tensor::nccl::NcclError;
use tensor::TensorError;

/// The replicas of a stage as one that sums: all call for the same sums in the same order.
pub trait AllReduce {
    /// Replaces each number of a flat float32 tensor by its sum over all replicas. The device may still be at work on it when
    /// this returns.
    ///
    /// # Errors
    /// Some replica does not come.
    fn all_reduce(&mut self, tensor: &mut Tensor) -> Result<(), NcclError>;

    /// Waits until all sums so far are taken.
    ///
    /// # Errors
    /// Some replica does not come.
    fn finish(&mut self) -> Result<(), NcclError>;
}

impl Engine {
    /// Sums the gradients of a batch's microbatches over all replicas, of which each adds its own up first, and adds that to the
    /// gradients so far; a replica that took no microbatch takes part with zeros. Running statistics of norms take what these
    /// saw, of which `statistics` holds what each other replica handed out. As in PyTorch, a parameter to which no gradient
    /// came on any replica has none.
    pub fn all_reduce(
        &mut self,
        batch: u64,
        statistics: Vec<Vec<Tensor>>,
        replicas: &mut impl AllReduce,
    ) -> Result<(), EngineError> {
        tch::no_grad(|| {
            self.all_reduce_buckets(replicas)?;
            self.apply_statistics(batch, statistics)
        })
    }

    fn all_reduce_buckets(&mut self, replicas: &mut impl AllReduce) -> Result<(), EngineError> {
        let buckets = self.trees.buckets()?.to_vec();
        let device = self.stage.device;
        let own = self.local_sums(buckets.len())?;
        // Every replica must know which parameters have a gradient on any replica.
        let came: Vec<f32> = own.iter().flatten().map(|sum| if sum.is_some() { 1.0 } else { 0.0 }).collect();
        let mut came = on(device, &came)?;
        replicas.all_reduce(&mut came)?;
        replicas.finish()?;
        let came = Vec::<f32>::try_from(came.f_to_device(Device::Cpu).map_err(TensorError::from)?);
        let mut came = came.map_err(TensorError::from)?.into_iter().map(|replicas| replicas > 0.0);

        for (bucket, sums) in buckets.iter().zip(own) {
            let came: Vec<bool> = came.by_ref().take(sums.len()).collect();
            let uses = || bucket.uses.iter().zip(&came).filter(|(_, came)| **came).map(|(used, _)| used);
            let wanted = sums.iter().zip(bucket.uses.iter().zip(&came)).filter(|(_, (_, came))| **came);
            let parts = wanted.map(|(sum, (used, _))| or_zeros(sum.as_ref(), used.elements, device));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            if parts.is_empty() {
                continue;
            }
            let mut flat = Tensor::f_cat(&parts, 0).map_err(TensorError::from)?;
            drop((parts, sums));
            replicas.all_reduce(&mut flat)?;
            // Work that piles up behind a sum that never ends would have launching block, where nothing can be called off.
            replicas.finish()?;
            let mut begin = 0;
            for used in uses() {
                let elements = used.elements as i64;
                let part = flat.f_narrow(0, begin, elements).map_err(TensorError::from)?;
                begin += elements;
                let param = &self.params.all[self.params.bindings[used.layer][used.number].index].tensor;
                self.gradients[used.layer][used.number].add_parts((&param.size(), param), 0, &[(0, part)])?;
            }
        }
        Ok(())
    }

    /// For every bucket and use what this replica's microbatches came to, flat.
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
    // Never empty: what has buckets has uses.
    let tensor = Tensor::f_from_slice(numbers)?;
    // A copy in any case: it is written to.
    Ok(tensor.f_to_device_(device, Kind::Float, false, true)?)
}
