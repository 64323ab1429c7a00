//! Whether all replicas of a stage still have the same weights.

use crate::boss::BossMan;
use crate::BossManError;
use pipeline::boss::Request;
use std::collections::BTreeMap;

/// By default replicas are compared after so many optimizer steps.
pub(crate) const EVERY: u64 = 100;

impl BossMan {
    /// Compares the trained parameters of all replicas, by their SHA-256. It is done every 100 optimizer steps of
    /// [`BossMan::train_step`], and before [`BossMan::state_dict`].
    ///
    /// # Errors
    /// Two replicas of a stage differ: a machine computes wrongly, or not as the others do. The error names both, and the
    /// first parameter that differs.
    pub async fn compare_replicas(&self) -> Result<(), BossManError> {
        let digests = self.call(Request::Digest).await?.digests;
        let mut first_of = BTreeMap::new();
        for (worker, stage, name, digest) in &digests {
            let (other, first) = *first_of.entry((stage, name)).or_insert((worker, digest));
            if first != digest {
                return Err(BossManError::Replicas {
                    stage: *stage,
                    parameter: name.clone(),
                    workers: (*other, *worker),
                    updates: self.updates,
                });
            }
        }
        Ok(())
    }

    /// The same after every so many optimizer steps, where there are replicas.
    pub(crate) async fn compare_now_and_then(&mut self) -> Result<(), BossManError> {
        if !self.plan.homes.is_replicated() || self.updates == 0 || !self.updates.is_multiple_of(EVERY) {
            return Ok(());
        }
        match self.compare_replicas().await {
            // Who has left in the meantime is left out of the next step.
            Err(error) if self.can_mend(&error) => Ok(()),
            other => other,
        }
    }
}
