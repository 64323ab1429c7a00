//! The communicators of this worker's stages, by which its compute thread sums gradients with other
//! replicas.

use crate::compute::failures::nccl_failure;
use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::replicas::{ShardId, UniqueId};
use runtime::Interrupt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::{Device, Tensor};
use tensor::nccl::{Communicator, Nccl, NcclError, Rank};

/// The time after which the boss has certainly noticed a lost worker.
const INTERRUPT_WAIT: Duration = Duration::from_secs(15);

/// The communicators of a worker's stages.
#[derive(Default)]
pub(crate) struct Communicators {
    /// `None` if the worker has no NCCL.
    nccl: Option<Arc<Nccl>>,
    interrupt: Interrupt,
    of_stages: BTreeMap<StageId, Communicator>,
}

impl Communicators {
    pub(crate) fn new(nccl: Option<Arc<Nccl>>, interrupt: Interrupt) -> Self {
        Communicators { nccl, interrupt, of_stages: BTreeMap::new() }
    }

    fn nccl(&self) -> Result<&Arc<Nccl>, Failure> {
        self.nccl.as_ref().ok_or_else(|| Failure::new("this worker has no NCCL"))
    }

    /// An id for a communicator of each stage.
    pub(crate) fn unique_ids(
        &self,
        stages: &[StageId],
    ) -> Result<Vec<(StageId, UniqueId)>, Failure> {
        let nccl = self.nccl()?;
        stages
            .iter()
            .map(|stage| Ok((*stage, nccl.unique_id().map_err(|e| nccl_failure(&e))?.into())))
            .collect()
    }

    /// Makes communicators with the other replicas of these stages, and replaces existing ones.
    pub(crate) fn connect(
        &mut self,
        stages: &[(StageId, ShardId, UniqueId)],
        device: Device,
    ) -> Result<(), Failure> {
        self.clear();
        for (stage, rank, id) in stages {
            let is_interrupted = || self.interrupt.is_raised();
            let rank = Rank { index: rank.replica, count: rank.replicas };
            let found = Communicator::new(self.nccl()?, id.bytes(), rank, device, &is_interrupted);
            let found = wait_for_interrupt(&self.interrupt, found)
                .map_err(|e| Failure { stage: Some(*stage), ..nccl_failure(&e) })?;
            self.of_stages.insert(*stage, found);
        }
        Ok(())
    }

    /// Ends all communicators, without the other replicas.
    pub(crate) fn clear(&mut self) {
        self.of_stages.clear();
    }

    /// Lowers the interrupt: the interrupted work is over, and calls may wait again.
    pub(crate) fn clear_interrupt(&self) {
        self.interrupt.lower();
    }

    /// The communicator with which a stage's replicas sum.
    pub(crate) fn for_stage(&mut self, stage: StageId) -> Result<StageCommunicator<'_>, Failure> {
        let missing = || Failure::new("there is no communicator among its replicas");
        let communicator = self.of_stages.get_mut(&stage).ok_or_else(missing)?;
        Ok(StageCommunicator { communicator, interrupt: &self.interrupt })
    }
}

/// This worker's end of one communicator.
pub(crate) struct StageCommunicator<'a> {
    communicator: &'a mut Communicator,
    interrupt: &'a Interrupt,
}

impl crate::engine::AllReduce for StageCommunicator<'_> {
    fn all_reduce(&mut self, tensor: &mut Tensor) -> Result<(), NcclError> {
        let result = self.communicator.all_reduce(tensor, &|| self.interrupt.is_raised());
        wait_for_interrupt(self.interrupt, result)
    }

    fn finish(&mut self) -> Result<(), NcclError> {
        let result = self.communicator.finish(&|| self.interrupt.is_raised());
        wait_for_interrupt(self.interrupt, result)
    }
}

/// NCCL may notice a lost replica before the boss does. That is not this worker's failure, so this
/// waits until the boss interrupts the task.
fn wait_for_interrupt<T>(
    interrupt: &Interrupt,
    result: Result<T, NcclError>,
) -> Result<T, NcclError> {
    let begun = Instant::now();
    let may_be_remote = |error: &NcclError| match error {
        NcclError::Remote { .. } => true,
        NcclError::Call { .. } => !error.is_out_of_memory() && !error.is_device_broken(),
        _ => false,
    };
    while result.as_ref().is_err_and(may_be_remote)
        && !interrupt.is_raised()
        && begun.elapsed() < INTERRUPT_WAIT
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    result
}
