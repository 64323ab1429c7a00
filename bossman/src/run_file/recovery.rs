//! The key `redundancy` of a run file: the source of the state after a loss of workers.

use super::checkpoint::every;
use crate::checkpoint::Every;
use crate::RecoverySource;
use layerspec::yaml::{Kind, Mapping, Node};
use layerspec::Diagnostic;

/// The default number of steps between two snapshots.
const STEPS: u64 = 10;
const EXPECTED: &str = "`none`, `checkpoint`, `neighbour` or `{neighbour: STEPS}`";

pub(super) fn redundancy(run: &Mapping<'_>) -> Result<RecoverySource, Diagnostic> {
    let checkpoints = run.get("checkpoint").is_some();
    let Some(node) = run.get("redundancy") else {
        return Ok(if checkpoints { RecoverySource::Checkpoint } else { RecoverySource::None });
    };
    match node.as_text() {
        Some("none") => Ok(RecoverySource::None),
        Some("checkpoint") => Ok(RecoverySource::Checkpoint),
        Some("neighbour") => Ok(RecoverySource::PeerSnapshot(Every::Steps(STEPS))),
        _ => neighbour(node),
    }
}

fn neighbour(node: &Node) -> Result<RecoverySource, Diagnostic> {
    if !matches!(node.kind, Kind::Map(_)) {
        return Err(node.unexpected("`redundancy`", EXPECTED));
    }
    let keys = node.mapping("`redundancy`", "key", &["neighbour"])?;
    every("`neighbour`", keys.need("neighbour")?).map(RecoverySource::PeerSnapshot)
}
