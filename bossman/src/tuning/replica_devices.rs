//! Finds replicas that compute on unlike devices, whose results are not equal to the bit.

use crate::{output, BossManError};
use link::WorkerInfo;
use pipeline::ids::{StageId, WorkerId};
use pipeline::Determinism;
use std::fmt;

/// The most characters of the name of a worker's device.
const MAX_NAME: usize = 100;

/// Two replicas of a stage on unlike devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnlikeReplicas {
    stage: StageId,
    /// The first replica, and the first that differs from it, each with its device.
    replicas: [(WorkerId, String); 2],
}

impl fmt::Display for UnlikeReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(first, device), (other, other_device)] = &self.replicas;
        write!(
            f,
            "the replicas of {} compute on unlike devices ({first} on {device}, {other} on \
             {other_device})",
            self.stage
        )
    }
}

impl UnlikeReplicas {
    /// The warning, if such replicas are allowed.
    ///
    /// # Errors
    /// They are not allowed.
    pub(crate) fn judge(&self, determinism: Determinism) -> Result<String, BossManError> {
        match determinism {
            Determinism::Strict => Err(BossManError::Usage(format!(
                "{self}, which round differently: take devices of one kind for them, or set \
                 `determinism: fast` (Builder::determinism), and results then depend on which \
                 replica computes what"
            ))),
            Determinism::Fast => Ok(format!(
                "{self}: results are inexact, because they depend on which replica computes what, \
                 and the replicas' weights may come apart in their last bits"
            )),
        }
    }
}

/// The kind of a worker's device, for users.
pub(crate) fn device_kind(info: &WorkerInfo) -> String {
    output::printable(info.device_kind(), MAX_NAME)
}

/// Finds a stage with replicas on unlike devices. A worker whose device is not known is like any.
pub(crate) fn unlike<'a>(
    stages: impl IntoIterator<Item = (StageId, &'a [WorkerId])>,
    device_of: impl Fn(WorkerId) -> Option<String>,
) -> Option<UnlikeReplicas> {
    stages.into_iter().find_map(|(stage, workers)| {
        let known = |worker: &WorkerId| Some((*worker, device_of(*worker)?));
        let mut replicas = workers.iter().filter_map(known);
        let first = replicas.next()?;
        let other = replicas.find(|(_, device)| *device != first.1)?;
        Some(UnlikeReplicas { stage, replicas: [first, other] })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::replicas::StagePlacement;

    fn info(device: &str, processor: &str) -> WorkerInfo {
        WorkerInfo { device: device.into(), processor: processor.into(), ..WorkerInfo::default() }
    }

    fn found(stages: &[&[u16]], workers: &[WorkerInfo]) -> Option<UnlikeReplicas> {
        let workers_of = |stage: &&[u16]| stage.iter().copied().map(WorkerId).collect::<Vec<_>>();
        let placement = StagePlacement::new(stages.iter().map(workers_of).collect());
        unlike(placement.iter(), |worker| workers.get(usize::from(worker.0)).map(device_kind))
    }

    #[test]
    fn a_device_is_named_by_its_kind() {
        assert_eq!(device_kind(&info("cpu", "x86_64 AuthenticAMD family 26 model 2")), "cpu");
        assert_eq!(device_kind(&info("cuda:1", "cuda NVIDIA\nH100")), "cuda NVIDIA H100");
        assert_eq!(device_kind(&info("cuda:1", "")), "cuda");
        assert_eq!(device_kind(&info("mps", "mps")), "mps");
    }

    #[test]
    fn only_replicas_of_one_stage_must_be_alike() {
        let h100 = |device: &str| info(device, "cuda NVIDIA H100");
        let workers = [h100("cuda:0"), info("cpu", "a"), h100("cuda:1"), info("cpu", "b")];
        assert_eq!(found(&[&[0, 2], &[1, 3]], &workers), None);
        assert_eq!(found(&[&[0], &[1], &[2], &[3]], &workers), None);
        assert_eq!(found(&[&[0, 9]], &workers), None, "nothing is known of worker 9");
        let unlike = found(&[&[0, 2], &[2, 0, 3]], &workers).unwrap();
        assert_eq!(
            unlike.to_string(),
            "the replicas of stage 1 compute on unlike devices (worker 2 on cuda NVIDIA H100, \
             worker 3 on cpu)"
        );
        let h200 = info("cuda:0", "cuda NVIDIA H200");
        assert!(found(&[&[0, 1]], &[h100("cuda:0"), h200]).is_some());
    }

    #[test]
    fn they_are_an_error_or_a_warning() {
        let workers = [info("cpu", ""), info("cuda:0", "cuda fake GPU")];
        let unlike = found(&[&[0, 1]], &workers).unwrap();
        let error = unlike.judge(Determinism::Strict).unwrap_err().to_string();
        assert!(error.contains("`determinism: fast` (Builder::determinism)"), "{error}");
        assert!(unlike.judge(Determinism::Fast).unwrap().contains("results are inexact"));
    }
}
