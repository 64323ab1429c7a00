//! Whether all replicas of a stage still have the same weights.

use crate::session::boss::BossMan;
use crate::BossManError;
use pipeline::boss::Request;
use pipeline::ids::{StageId, WorkerId};
use std::collections::BTreeMap;

/// The default interval, in optimizer steps, of the comparison of replicas.
pub(crate) const COMPARE_EVERY: u64 = 100;

impl BossMan {
    /// Compares the trained parameters of all replicas, by their SHA-256. It is done every 100 optimizer steps of
    /// [`BossMan::train_step`], and before [`BossMan::state_dict`].
    ///
    /// # Errors
    /// Two replicas of a stage differ: a machine computes wrongly, or not as the others do. The error names both, and the
    /// first parameter that differs.
    pub async fn compare_replicas(&self) -> Result<(), BossManError> {
        let digests = self.call(Request::Digest).await?.digests;
        let mut replicas: BTreeMap<StageId, BTreeMap<WorkerId, BTreeMap<&str, &[u8; 32]>>> = BTreeMap::new();
        for (worker, stage, name, digest) in &digests {
            replicas.entry(*stage).or_default().entry(*worker).or_default().insert(name, digest);
        }
        for (stage, workers) in replicas {
            let mut workers = workers.into_iter();
            let Some((first, expected)) = workers.next() else { continue };
            for (worker, found) in workers {
                let names = expected.keys().chain(found.keys());
                let differs = names.copied().filter(|name| expected.get(name) != found.get(name)).min();
                if let Some(name) = differs {
                    let (parameter, updates) = (name.to_string(), self.updates);
                    return Err(BossManError::ReplicasDiffer { stage, parameter, workers: (first, worker), updates });
                }
            }
        }
        Ok(())
    }

    /// The same after every so many optimizer steps, where there are replicas.
    pub(crate) async fn compare_periodically(&mut self) -> Result<(), BossManError> {
        if !self.plan.stage_placement.is_replicated()
            || self.updates == 0
            || !self.updates.is_multiple_of(COMPARE_EVERY)
        {
            return Ok(());
        }
        match self.compare_replicas().await {
            // A worker that left in the meantime is removed before the next step.
            Err(error) if self.recover(&error) => Ok(()),
            other => other,
        }
    }
}
