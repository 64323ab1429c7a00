//! A batch cut into microbatches, ready to be sent.

use super::call::PayloadCopier;
use super::trainer::Trainer;
use crate::data::batch_inputs::Inputs;
use crate::data::loss_weights::{count_targets, loss_weights};
use crate::tuning::batch_shape::{BatchShape, MicrobatchSizes};
use crate::tuning::layer_probes::first_target_bytes;
use crate::{Batch, BossManError};
use layerspec::ValueId;
use link::Payload;
use pipeline::samples::Samples;

/// A batch cut into microbatches.
pub(crate) struct PreparedBatch {
    pub(crate) microbatches: u32,
    pub(crate) samples: u64,
    pub(crate) tokens: Option<u64>,
    /// The weight of each microbatch in the mean of the loss.
    pub(crate) loss_weights: Vec<f64>,
    /// The sizes of the model's named dimensions in the first microbatch, which is the largest.
    pub(crate) sizes: layerspec::Bindings,
    pub(crate) inputs: Vec<(u32, ValueId, Payload)>,
    pub(crate) targets: Vec<(u32, Payload)>,
    /// The bytes of the first microbatch's targets. `None` if workers read inputs and targets.
    pub(crate) target_bytes: Option<u64>,
    /// The samples that workers read themselves.
    pub(crate) samples_to_read: Option<Samples>,
}

impl PreparedBatch {
    /// Checks a batch and cuts it into `microbatches`.
    pub(crate) fn new(
        trainer: &Trainer,
        batch: &Batch,
        microbatches: u32,
    ) -> Result<Self, BossManError> {
        let loss = trainer.required_loss()?;
        let inputs = Inputs::of(trainer.model.graph(), batch)?;
        let ranges = inputs.microbatches(microbatches)?;
        let targets = inputs.targets(batch, &ranges)?;
        Ok(PreparedBatch {
            samples: inputs.samples(),
            sizes: inputs.sizes_of(&ranges[0]),
            inputs: inputs.payloads(&ranges)?,
            target_bytes: first_target_bytes(&inputs, &targets),
            targets,
            loss_weights: loss_weights(loss, batch.target(), &ranges)?,
            tokens: count_targets(loss, batch.target())?,
            microbatches: ranges.len() as u32,
            samples_to_read: inputs.samples_to_read().cloned(),
        })
    }

    /// The properties of the batch on which costs depend.
    pub(crate) fn shape(&self) -> BatchShape {
        BatchShape {
            microbatch: MicrobatchSizes {
                sizes: self.sizes.clone(),
                target_bytes: self.target_bytes,
            },
            microbatches: self.microbatches,
        }
    }

    /// A copy with memory of its own, and the bytes of its payloads.
    pub(super) fn deep_copy(&self) -> (Self, usize) {
        let mut copier = PayloadCopier::default();
        let inputs = self.inputs.iter();
        let inputs =
            inputs.map(|(index, value, payload)| (*index, *value, copier.copy(payload))).collect();
        let targets = self.targets.iter();
        let targets = targets.map(|(index, payload)| (*index, copier.copy(payload))).collect();
        let copy = PreparedBatch {
            inputs,
            targets,
            loss_weights: self.loss_weights.clone(),
            sizes: self.sizes.clone(),
            samples_to_read: self.samples_to_read.clone(),
            ..*self
        };
        (copy, copier.bytes)
    }
}
