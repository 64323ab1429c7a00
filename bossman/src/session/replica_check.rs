//! Compares the weights of the replicas of a stage.

use super::trainer::Trainer;
use crate::BossManError;
use pipeline::boss::Digest;
use pipeline::ids::{StageId, WorkerId};
use std::collections::BTreeMap;

/// The interval, in optimizer steps, of the comparison of replicas.
const COMPARE_EVERY: u64 = 100;

/// The digests of a worker's parameters, by name.
type Digests<'a> = BTreeMap<&'a str, &'a [u8; 32]>;

/// Compares the trained parameters of all replicas, by their SHA-256.
///
/// # Errors
/// Two replicas of a stage differ. The error names both, and the first parameter that differs.
pub(crate) async fn compare_replicas(trainer: &Trainer) -> Result<(), BossManError> {
    let digests = trainer.call(Digest).await?;
    let mut replicas: BTreeMap<StageId, BTreeMap<WorkerId, Digests<'_>>> = BTreeMap::new();
    for (worker, stage, name, digest) in &digests {
        replicas.entry(*stage).or_default().entry(*worker).or_default().insert(name, digest);
    }
    for (stage, workers) in replicas {
        let mut workers = workers.into_iter();
        let Some((first, expected)) = workers.next() else { continue };
        for (worker, found) in workers {
            if let Some(parameter) = first_difference(&expected, &found) {
                return Err(BossManError::ReplicasDiffer {
                    stage,
                    parameter,
                    workers: (first, worker),
                    updates: trainer.position.counters.updates,
                });
            }
        }
    }
    Ok(())
}

/// Whether replicas are expected to have the same weights. On unlike devices, their optimizers
/// round differently.
pub(crate) fn must_agree(trainer: &Trainer) -> bool {
    trainer.plan.stage_placement.is_replicated() && !trainer.has_unlike_replicas
}

/// Whether replicas are to be compared after this update.
pub(crate) fn is_due(trainer: &Trainer) -> bool {
    let updates = trainer.position.counters.updates;
    must_agree(trainer) && updates > 0 && updates.is_multiple_of(COMPARE_EVERY)
}

fn first_difference(expected: &Digests<'_>, found: &Digests<'_>) -> Option<String> {
    let names = expected.keys().chain(found.keys()).copied();
    names.filter(|name| expected.get(name) != found.get(name)).min().map(String::from)
}
