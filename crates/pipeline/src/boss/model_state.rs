//! The model's state on the workers, as the boss knows it: whether it is whole, and which batches
//! are in flight.

use super::request::{Instruction, Request, RunRequest};
use super::work::Work;
use crate::message::Failure;
use std::collections::BTreeSet;

/// The number of cancelled batches to remember.
const REMEMBERED: usize = 256;

/// The state of the model on the workers.
#[derive(Default)]
pub(super) struct ModelState {
    /// Whether every worker has its stages.
    pub(super) distributed: bool,
    /// Set if a cancellation came too late for some stages: their parameters are a step ahead.
    partial_update: Option<PartialUpdate>,
    /// Whether some workers may have parameters of a load that failed on others, or that has not
    /// ended.
    partial_load: bool,
    /// Batches of cancelled training, whose tensors and gradients are discarded.
    cancelled: BTreeSet<u64>,
    /// Batches that went forward in training mode and wait for their backward pass.
    pending_backward: BTreeSet<u64>,
}

/// A model with some stages a step ahead. It is consistent again once it is distributed anew, or
/// once parameters are loaded and then the optimizer is sent, whose state is a step ahead, too.
#[derive(Copy, Clone)]
struct PartialUpdate {
    step: u64,
    loaded: bool,
}

impl ModelState {
    /// Workers receive their stages.
    pub(super) fn distribute(&mut self) {
        self.pending_backward.clear();
        self.distributed = false;
    }

    /// Refuses a request that needs a state which the model does not have.
    pub(super) fn check(&self, request: &Request) -> Result<(), Failure> {
        let anytime = matches!(
            request,
            Request::Instruct(Instruction::Distribute)
                | Request::Instruct(Instruction::SendFiles(_))
                | Request::Instruct(Instruction::Stop)
                | Request::Measure(_)
                | Request::ReportLinks(_)
        );
        if !self.distributed && !anytime {
            return Err(Failure::new(
                "the workers have no layers yet: call distribute_model() first",
            ));
        }
        let needs_whole = matches!(
            request,
            Request::Run(_)
                | Request::SendState(_)
                | Request::Instruct(Instruction::StoreSnapshot(_))
        );
        match self.partial_update {
            Some(PartialUpdate { step, .. }) if needs_whole => {
                return Err(Failure::new(format!(
                    "step {step} failed after some stages had already updated their parameters; \
                     load a state_dict and send the optimizer again to go on"
                )));
            }
            None if needs_whole && self.partial_load => {
                return Err(Failure::new(
                    "loading parameters failed or was broken off, so they may not belong together: \
                     load a state_dict again, or restore a state, to go on",
                ));
            }
            _ => {}
        }
        match request {
            Request::Run(run) if self.cancelled.contains(&run.batch) => Err(Failure::new(
                "this batch was cancelled when an earlier call failed, and its gradients are \
                 gone: begin again with forward()",
            )),
            _ => Ok(()),
        }
    }

    /// Limits the batches that wait for their backward pass, because workers store their
    /// activations.
    pub(super) fn check_pending(
        &self,
        run: &RunRequest,
        max_pending: usize,
    ) -> Result<(), Failure> {
        let pending = self.pending_backward.len();
        match run.leaves() {
            Some(true) if pending >= max_pending && !self.pending_backward.contains(&run.batch) => {
                Err(Failure::new(format!(
                    "{pending} batches wait for their backward pass, which is as many as may: \
                     call backward() for one of them, or forget it, before the next forward() in \
                     training mode"
                )))
            }
            Some(false)
                if run.is_backward_only() && !self.pending_backward.contains(&run.batch) =>
            {
                Err(Failure::new(
                    "no forward pass of this batch waits for a backward pass: call forward() in \
                     training mode first",
                ))
            }
            _ => Ok(()),
        }
    }

    /// A request succeeded. `leaves` says whether its batch waits for a backward pass now; `None`
    /// leaves that unchanged.
    pub(super) fn succeeded(&mut self, work: Work, batch: Option<u64>, leaves: Option<bool>) {
        match (batch, leaves) {
            (Some(batch), Some(true)) => drop(self.pending_backward.insert(batch)),
            (Some(batch), Some(false)) => drop(self.pending_backward.remove(&batch)),
            _ => {}
        }
        self.partial_update = match (self.partial_update, work) {
            (Some(partial), Work::Loading | Work::LoadingPart) => {
                Some(PartialUpdate { loaded: true, ..partial })
            }
            (Some(PartialUpdate { loaded: true, .. }), Work::SettingOptimizer)
            | (_, Work::Distributing) => None,
            (partial, _) => partial,
        };
        self.partial_load = match work {
            Work::LoadingPart => true,
            Work::Loading | Work::Distributing => false,
            _ => self.partial_load,
        };
        self.distributed |= work == Work::Distributing;
    }

    /// A request failed. Workers cancel it.
    pub(super) fn failed(&mut self, work: Work, batch: Option<u64>) {
        self.partial_load |= matches!(work, Work::Loading | Work::LoadingPart);
        if let Some(batch) = batch {
            self.pending_backward.remove(&batch);
        }
        self.cancelled.extend(batch.filter(|_| work == Work::Training));
        if self.cancelled.len() > REMEMBERED {
            self.cancelled.pop_first();
        }
    }

    /// A worker had updated its parameters in this step before the cancellation reached it.
    pub(super) fn updated_in_part(&mut self, step: Option<u64>) {
        self.partial_update = step.map(|step| PartialUpdate { step, loaded: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Reduction;
    use crate::OptimizerSpec;

    fn distributed() -> ModelState {
        let mut model = ModelState::default();
        model.succeeded(Work::Distributing, None, None);
        model
    }

    fn run(batch: u64) -> Request {
        Request::Run(Box::new(RunRequest::of(batch, Vec::new(), Reduction::default())))
    }

    fn error(model: &ModelState, request: &Request) -> String {
        model.check(request).expect_err("it cannot be").to_string()
    }

    #[test]
    fn nothing_runs_before_the_model_is_distributed() {
        assert!(error(&ModelState::default(), &run(1)).contains("distribute_model"));
        assert!(ModelState::default().check(&Request::Instruct(Instruction::Distribute)).is_ok());
        assert!(distributed().check(&run(1)).is_ok());
    }

    #[test]
    fn a_partial_update_ends_with_a_load_and_then_an_optimizer() {
        let mut model = distributed();
        model.updated_in_part(Some(3));
        let optimizer = Request::Instruct(Instruction::SetOptimizer(OptimizerSpec::sgd(0.1)));
        assert!(model.check(&optimizer).is_ok());
        model.succeeded(Work::SettingOptimizer, None, None);
        assert!(error(&model, &run(1)).starts_with("step 3 failed"));
        model.succeeded(Work::Loading, None, None);
        assert!(error(&model, &run(1)).starts_with("step 3 failed"));
        model.succeeded(Work::SettingOptimizer, None, None);
        assert!(model.check(&run(1)).is_ok());
    }

    #[test]
    fn a_partial_load_ends_with_the_next_load() {
        let mut model = distributed();
        model.failed(Work::Loading, None);
        assert!(error(&model, &run(1)).starts_with("loading parameters failed"));
        model.succeeded(Work::Loading, None, None);
        assert!(model.check(&run(1)).is_ok());
    }

    #[test]
    fn a_load_in_parts_ends_with_its_last_part() {
        let mut model = distributed();
        model.updated_in_part(Some(3));
        for work in [Work::LoadingPart, Work::SettingOptimizer, Work::LoadingPart] {
            model.succeeded(work, None, None);
            assert!(model.check(&run(1)).is_err());
        }
        assert!(error(&model, &run(1)).starts_with("loading parameters failed or was broken off"));
        model.failed(Work::LoadingPart, None);
        model.succeeded(Work::LoadingPart, None, None);
        assert!(model.check(&run(1)).is_err(), "the next load has not ended either");
        model.succeeded(Work::Loading, None, None);
        assert!(model.check(&run(1)).is_ok());
    }

    #[test]
    fn a_cancelled_batch_begins_again() {
        let mut model = distributed();
        model.failed(Work::Training, Some(7));
        assert!(error(&model, &run(7)).contains("cancelled") && model.check(&run(8)).is_ok());
        // Evaluation leaves nothing that could be void.
        model.failed(Work::Other, Some(8));
        assert!(model.check(&run(8)).is_ok());
    }
}
