//! The settings of a training run beside its run file.

use crate::events::Events;
use crate::runs::RunFolderSettings;
use crate::train::stop::StopSignal;
use crate::workers::fleet_settings::FleetSettings;
use std::path::PathBuf;

/// The settings of `bossman train` beside the run file.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// The workers to use.
    pub fleet: FleetSettings,
    /// The file for metrics, one line of JSON for each step.
    pub metrics: Option<PathBuf>,
    /// The file for the timelines of the last steps.
    pub trace: Option<PathBuf>,
    /// Weights to start from, unless the run resumes from a checkpoint.
    pub weights: Option<PathBuf>,
    /// The file for the weights after each epoch. The best weights go beside it, to
    /// [`crate::best_path`].
    pub save: Option<PathBuf>,
    /// Resume from the last checkpoint, or from the one of this name. With `if-any`, resume from
    /// the last checkpoint, or begin without one.
    pub resume: Option<Option<String>>,
    /// Take samples in the order of the file.
    pub no_shuffle: bool,
    /// Where the run's folder goes. Weights, metrics and checkpoints go there unless another place
    /// is named for them. `None`: there is no folder.
    pub run_folder: Option<RunFolderSettings>,
    /// Asks the run to stop after its current step, with everything saved.
    pub stop: StopSignal,
    /// The observers of the run. By default a console shows it on standard output.
    pub events: Events,
    /// Whether ticket holders may join and leave during the run (`bossman serve`).
    pub pool: bool,
}
