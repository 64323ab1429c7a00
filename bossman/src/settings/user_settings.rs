//! The user's settings. They never change after [`crate::Builder::build`].

use super::conflicts::{Facts, ReductionOrder};
use super::guards::Guards;
use pipeline::lr_schedule::LrSchedule;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::{Cuts, Determinism, Initialization, LossSpec, ScheduleKind};

/// The default limit of batches that wait for their backward pass.
const DEFAULT_IN_FLIGHT: usize = 8;

/// The settings of a [`crate::Builder`].
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) parallel: ParallelSettings,
    /// `None`: the number of workers, or 1 if the model's first input has a fixed batch size.
    pub(crate) microbatches: Option<u32>,
    /// The loss at first; [`crate::BossMan::set_loss`] sets another one.
    pub(crate) loss: Option<LossSpec>,
    pub(crate) accumulate: u32,
    pub(crate) max_norm: Option<f64>,
    pub(crate) lr_schedule: LrSchedule,
    pub(crate) in_flight: usize,
    pub(crate) guards: Guards,
    pub(crate) seed: u64,
    /// Whether results on GPUs are equal to the bit from run to run.
    pub(crate) determinism: Determinism,
    /// When workers draw initial values.
    pub(crate) initialization: Initialization,
    /// Whether losses are scaled, as float16 requires.
    pub(crate) scales_loss: bool,
    /// Whether a program uses the API. Errors then name calls instead of keys.
    pub(crate) is_called_by_program: bool,
}

/// The settings that place the model on workers, and those of replicas.
#[derive(Clone)]
pub(crate) struct ParallelSettings {
    pub(crate) cuts: Cuts,
    pub(crate) schedule: Option<ScheduleKind>,
    /// The stages on each worker.
    pub(crate) chunks: Option<usize>,
    /// The workers that get the same stages. `None`: each worker has its own.
    pub(crate) replicas: Option<Replicas>,
    /// Whether replicas of unequal speed take equal numbers of microbatches, too.
    pub(crate) even_assignment: bool,
    /// Whether each replica sums its own gradients first.
    pub(crate) fast_reduction: bool,
    /// The form in which replicas exchange gradients, if not float32.
    pub(crate) compress: Option<Compress>,
    /// How the gradients of replicas are summed.
    pub(crate) collective: Collective,
    /// The state that replicas shard.
    pub(crate) sharding: Option<Sharding>,
    /// The number of times that workers of this run were out of memory. Plans use less of it then.
    pub(crate) shortages: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            parallel: ParallelSettings {
                cuts: Cuts::Auto,
                schedule: None,
                chunks: None,
                replicas: None,
                even_assignment: false,
                fast_reduction: false,
                compress: None,
                collective: Collective::default(),
                sharding: None,
                shortages: 0,
            },
            microbatches: None,
            loss: None,
            accumulate: 1,
            max_norm: None,
            lr_schedule: LrSchedule::default(),
            in_flight: DEFAULT_IN_FLIGHT,
            guards: Guards::default(),
            seed: 0,
            determinism: Determinism::default(),
            initialization: Initialization::default(),
            scales_loss: false,
            is_called_by_program: true,
        }
    }
}

impl Settings {
    /// The settings that may exclude each other.
    pub(crate) fn facts(&self) -> Facts {
        let parallel = &self.parallel;
        Facts {
            replicas: parallel.replicas.clone(),
            compress: parallel.compress,
            sharding: parallel.sharding,
            collective: parallel.collective,
            reduction: match parallel.fast_reduction {
                true => ReductionOrder::Fast,
                false => ReductionOrder::Unsaid,
            },
            schedule: parallel.schedule,
            chunks: parallel.chunks.map(|chunks| chunks as u64),
            accumulate: self.accumulate,
            ..Facts::default()
        }
    }
}

impl ParallelSettings {
    /// Whether workers are grouped by measurement.
    pub(crate) fn chooses_replicas(&self) -> bool {
        self.replicas == Some(Replicas::Auto)
    }

    pub(crate) fn shards_parameters(&self) -> bool {
        self.sharding.is_some_and(Sharding::shards_parameters)
    }

    /// The requested schedule, or the one that the other settings imply.
    pub(crate) fn requested_schedule(&self) -> Option<ScheduleKind> {
        self.schedule.or(self.shards_parameters().then_some(ScheduleKind::GPipe))
    }
}
