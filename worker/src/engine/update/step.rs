//! From gradients to new parameters.

use crate::engine::error::EngineError;
use crate::engine::gradients::gradient_store::GradientStore;
use crate::engine::params::param_store::ParamStore;
use crate::engine::params::running_statistics::RunningStatistics;
use crate::engine::update::health;
use crate::engine::update::optimizer::{Optimizer, ParamUpdate};
use layerspec::LayerId;
use pipeline::task::Update;
use pipeline::watch::LayerHealth;
use tch::Tensor;
use tensor::{foreach, TensorError};

/// Whether a step reports the health of each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthCheck {
    /// No report, and no cost.
    Off,
    /// A report.
    On,
}

/// The parts of a stage that an optimizer step changes.
pub(crate) struct OptimStep<'a> {
    pub(crate) store: &'a mut ParamStore,
    pub(crate) gradients: &'a mut GradientStore,
    pub(crate) statistics: &'a mut RunningStatistics,
    pub(crate) optimizer: &'a mut Optimizer,
}

impl OptimStep<'_> {
    /// Skips the step: the gradients are cleared, and running statistics restored, for what they
    /// saw led to this.
    pub(crate) fn skip(self) {
        self.statistics.on_skipped_update(self.store.params());
        self.gradients.zero_owned(self.store);
    }

    /// Updates the parameters that this replica updates, and clears the gradients. The result is
    /// empty without a health check.
    pub(crate) fn run(
        self,
        update: &Update,
        check: HealthCheck,
    ) -> Result<Vec<LayerHealth>, EngineError> {
        let totals = self.gradients.totals(self.store.params())?;
        let gradients: Vec<&Tensor> = totals.iter().flatten().collect();
        for factor in [update.scale, update.clip].into_iter().filter(|factor| *factor != 1.0) {
            foreach::multiply(&gradients, factor)?;
        }
        let due = due_updates(self.store, &totals)?;
        let probes = match check {
            HealthCheck::Off => None,
            HealthCheck::On => Some(health::probe(&due, self.store.params())?),
        };
        self.statistics.on_update();
        self.store.bump_version();
        self.optimizer.step(due, update.lr)?;
        let health = match probes {
            None => Vec::new(),
            Some(probes) => health::layer_health(probes, without_gradient(self.store, &totals))?,
        };
        self.gradients.zero_owned(self.store);
        // The gathered parameters are those before the step.
        self.store.reshard()?;
        Ok(health)
    }
}

/// The parameters to update: trained, owned by this stage, and with a gradient. The others stay as
/// they are, as in PyTorch.
fn due_updates<'a>(
    store: &ParamStore,
    totals: &'a [Option<Tensor>],
) -> Result<Vec<ParamUpdate<'a>>, TensorError> {
    let all = store.params().all.iter().zip(totals).enumerate();
    let due = all.filter_map(|(index, (param, grad))| {
        let grad = grad.as_ref().filter(|_| param.trained && param.owner_stage.is_none())?;
        let tensor = store.update_view(index);
        Some(tensor.map(|tensor| ParamUpdate { index, tensor, grad }))
    });
    due.collect()
}

/// The owners of trained parameters without a gradient.
fn without_gradient(store: &ParamStore, totals: &[Option<Tensor>]) -> Vec<LayerId> {
    let all = store.params().all.iter().zip(totals);
    let without =
        all.filter(|(param, grad)| param.trained && param.owner_stage.is_none() && grad.is_none());
    without.map(|(param, _)| param.owner).collect()
}
