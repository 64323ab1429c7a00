//! The NCCL communicators of replicas.

use crate::events::Events;
use crate::tuning::collective::CollectiveDecision;
use crate::BossManError;
use pipeline::boss::{Instruction, MakeIds, RunRequest};
use pipeline::message::Reduction;
use pipeline::schedule::Action;
use runtime::Handle;

/// Whether replicas sum gradients with NCCL, and whether they have found each other.
#[derive(Default)]
pub(crate) struct NcclLink {
    is_used: bool,
    is_connected: bool,
    /// The choice and its reason, if there was a choice.
    description: Option<String>,
}

impl NcclLink {
    pub(crate) fn new(decision: CollectiveDecision) -> Self {
        let CollectiveDecision { uses_nccl, description } = decision;
        NcclLink { is_used: uses_nccl, is_connected: false, description }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// How replicas sum gradients, and the reason, if there was a choice.
    pub(crate) fn description(&self) -> Option<&String> {
        self.description.as_ref()
    }

    /// Marks the communicators as lost, until [`NcclLink::set_connected`]. Returns whether there
    /// were some.
    pub(crate) fn disconnect(&mut self) -> bool {
        std::mem::replace(&mut self.is_connected, false)
    }

    pub(crate) fn set_connected(&mut self, connected: bool) {
        self.is_connected = connected;
    }

    /// Connects replicas before the first round in which they sum gradients, and again after a
    /// round that failed. With `fallback`, replicas that cannot connect sum in that way from then
    /// on.
    pub(crate) async fn connect(
        &mut self,
        handle: &Handle,
        run: &mut RunRequest,
        fallback: Option<Reduction>,
        events: &Events,
    ) -> Result<(), BossManError> {
        let sums =
            run.actions.iter().flatten().any(|action| matches!(action, Action::Reduce { .. }));
        if !run.reduction.is_collective() || !sums || self.is_connected {
            return Ok(());
        }
        match (create_communicators(handle).await, fallback) {
            (Ok(()), _) => self.is_connected = true,
            (Err(error), Some(reduction)) if !error.workers_were_lost() && !error.was_refused() => {
                let why = format!(
                    "replicas cannot sum with NCCL, and sum over QUIC from now on: {error}"
                );
                events.warn(why.clone());
                self.is_used = false;
                self.description = Some(why);
                run.reduction = reduction;
            }
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }
}

async fn create_communicators(handle: &Handle) -> Result<(), BossManError> {
    let ids = handle.call(MakeIds).await?;
    handle.call(Instruction::Communicate(ids)).await?;
    Ok(())
}
