//! The settings of training, beside the cuts.

use crate::session::guards::Guards;
use crate::BossManError;
use pipeline::loss_scale::LossScale;
use pipeline::lr_schedule::LrSchedule;
use pipeline::message::Reduction;
use pipeline::replicas::{BucketBytes, Collective, Compress, Replicas, Sharding, WorkerGroups};
use pipeline::LossSpec;

/// The settings of a [`crate::Builder`].
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) microbatches: u32,
    pub(crate) loss: Option<LossSpec>,
    pub(crate) accumulate: u32,
    pub(crate) max_norm: Option<f64>,
    /// Only where float16 needs it.
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) lr_schedule: LrSchedule,
    pub(crate) in_flight: usize,
    /// How many workers get the same stages; nothing for one each.
    pub(crate) replicas: Option<Replicas>,
    /// Whether replicas take equal numbers of microbatches, whatever their speed.
    pub(crate) even_assignment: bool,
    /// Gradients are added up replica by replica.
    pub(crate) fast_reduction: bool,
    /// The form in which replicas exchange gradients, if not float32.
    pub(crate) compress: Option<Compress>,
    /// How the gradients of replicas are summed, as requested.
    pub(crate) collective: Collective,
    /// And whether that is NCCL.
    pub(crate) uses_nccl: bool,
    /// What replicas shard.
    pub(crate) sharding: Option<Sharding>,
    pub(crate) guards: Guards,
    /// A program calls, and is told what it could call; no run file has said what is to be done.
    pub(crate) is_called_by_program: bool,
}

impl Settings {
    /// The possible worker groups for this number of workers.
    pub(crate) fn worker_groups(&self, workers: usize) -> Result<Vec<WorkerGroups>, BossManError> {
        let Some(replicas) = &self.replicas else { return Ok(vec![WorkerGroups::from(workers)]) };
        let groupings = replicas.groupings(workers);
        match (groupings.is_empty(), replicas) {
            (false, _) => Ok(groupings),
            (true, Replicas::Of(of)) => Err(BossManError::Usage(format!(
                "replicas {of:?} are {} workers in all, each at least one a place; there are {workers}",
                of.iter().map(|n| u32::from(*n)).sum::<u32>()
            ))),
            (true, _) => Err(BossManError::Usage(format!(
                "{workers} workers cannot be grouped so that each stage has as many replicas as asked for; start a \
                 multiple of that, or set `replicas` to auto"
            ))),
        }
    }

    /// How gradients are summed.
    pub(crate) fn reduction(&self) -> Reduction {
        match (&self.replicas, self.compress) {
            (None, _) => Reduction::Sequential,
            (Some(_), None) if self.uses_nccl => Reduction::Collective,
            (Some(_), None) if self.fast_reduction => Reduction::Fast,
            (Some(_), None) => Reduction::Tree,
            (Some(_), Some(compress)) => Reduction::Compressed(compress),
        }
    }

    /// How large the buckets of gradients are. Compression implies a slow network. It should start
    /// to send early, and an extra message costs little.
    pub(crate) fn bucket_bytes(&self) -> BucketBytes {
        match self.compress {
            None => BucketBytes::default(),
            Some(_) => BucketBytes { other: 2 << 20, ..BucketBytes::default() },
        }
    }
}
