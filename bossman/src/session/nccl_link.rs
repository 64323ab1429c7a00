//! The NCCL communicators of replicas.

use crate::events::{Events, Remark};
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
        if !self.must_connect(run) {
            return Ok(());
        }
        match create_communicators(handle).await {
            Ok(()) => self.is_connected = true,
            Err(error) => {
                let place = Remark::default().of_error(&error);
                let message = self.fall_back(error, run, fallback)?;
                events.warn(Remark { message, ..place });
            }
        }
        Ok(())
    }

    /// Whether replicas connect before this round.
    fn must_connect(&self, run: &RunRequest) -> bool {
        let sums =
            run.actions.iter().flatten().any(|action| matches!(action, Action::Reduce { .. }));
        run.reduction.is_collective() && sums && !self.is_connected
    }

    /// Replicas that cannot connect sum with `fallback` in this round and later ones. Returns the
    /// warning. With workers that are lost or busy, and without `fallback`, the error stays.
    fn fall_back(
        &mut self,
        error: BossManError,
        run: &mut RunRequest,
        fallback: Option<Reduction>,
    ) -> Result<String, BossManError> {
        let may_help = !error.workers_were_lost() && !error.was_refused();
        let Some(reduction) = fallback.filter(|_| may_help) else { return Err(error) };
        let why = format!("replicas cannot sum with NCCL, and sum over QUIC from now on: {error}");
        self.is_used = false;
        self.description = Some(why.clone());
        run.reduction = reduction;
        Ok(why)
    }
}

async fn create_communicators(handle: &Handle) -> Result<(), BossManError> {
    let ids = handle.call(MakeIds).await?;
    handle.call(Instruction::Communicate(ids)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::ids::{StageId, WorkerId};
    use pipeline::message::Failure;

    fn chosen() -> NcclLink {
        let description = Some("NCCL: all replicas are GPUs".to_string());
        NcclLink::new(CollectiveDecision { uses_nccl: true, description })
    }

    fn round(actions: Vec<Action>, reduction: Reduction) -> RunRequest {
        RunRequest::of(1, vec![actions], reduction)
    }

    #[test]
    fn replicas_connect_before_the_first_round_that_sums_and_again_after_a_failure() {
        let mut link = chosen();
        let sum = Action::Reduce { stage: StageId(0) };
        assert!(!link.must_connect(&round(Vec::new(), Reduction::Collective)), "nothing to sum");
        assert!(!link.must_connect(&round(vec![sum], Reduction::Fast)), "no NCCL");
        let run = round(vec![sum], Reduction::Collective);
        assert!(link.must_connect(&run));
        link.set_connected(true);
        assert!(!link.must_connect(&run));
        assert!(link.disconnect() && link.must_connect(&run));
        assert!(!link.disconnect(), "there are none any more");
    }

    #[test]
    fn replicas_that_cannot_connect_sum_in_another_way_from_then_on() {
        let (mut link, mut run) = (chosen(), round(Vec::new(), Reduction::Collective));
        let error = || BossManError::Worker(Failure::new("no network"));
        let problem = link.fall_back(error(), &mut run, None).unwrap_err();
        assert_eq!(problem.to_string(), error().to_string());
        assert!(link.is_used() && run.reduction.is_collective(), "there is no other way");
        let warning = link.fall_back(error(), &mut run, Some(Reduction::Fast)).unwrap();
        assert!(warning.ends_with(&error().to_string()), "{warning}");
        assert_eq!(link.description(), Some(&warning));
        assert!(!link.is_used() && !run.reduction.is_collective());
    }

    /// Recovery begins with other workers, which may have NCCL.
    #[test]
    fn a_lost_worker_does_not_end_the_use_of_nccl() {
        let (mut link, mut run) = (chosen(), round(Vec::new(), Reduction::Collective));
        let error = BossManError::Worker(Failure::lost("silent").on(WorkerId(1)));
        assert!(link.fall_back(error, &mut run, Some(Reduction::Fast)).is_err());
        assert!(link.is_used() && run.reduction.is_collective());
    }
}
