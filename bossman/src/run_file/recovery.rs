//! The key `redundancy` of a run file: the source of the state after a loss of workers.

use super::checkpoint::every;
use crate::checkpoint::Every;
use crate::RecoverySource;
use layerspec::yaml::{Kind, Mapping, Node};
use layerspec::Fault;

/// Steps between two copies, where nothing is said.
const STEPS: u64 = 10;
const EXPECTED: &str = "`none`, `checkpoint`, `neighbour` or `{neighbour: STEPS}`";

pub(super) fn redundancy(run: &Mapping<'_>) -> Result<RecoverySource, Fault> {
    let checkpoints = run.get("checkpoint").is_some();
    let Some(node) = run.get("redundancy") else {
        return Ok(if checkpoints { RecoverySource::Checkpoint } else { RecoverySource::None });
    };
    match node.as_text() {
        Some("none") => Ok(RecoverySource::None),
        Some("checkpoint") if checkpoints => Ok(RecoverySource::Checkpoint),
        Some("checkpoint") => Err(Fault::new(node.place, "`redundancy: checkpoint` goes with `checkpoint` only")),
        Some("neighbour") => Ok(RecoverySource::PeerSnapshot(Every::Steps(STEPS))),
        _ => neighbour(node),
    }
}

fn neighbour(node: &Node) -> Result<RecoverySource, Fault> {
    if !matches!(node.kind, Kind::Map(_)) {
        return Err(node.unexpected("`redundancy`", EXPECTED));
    }
    let keys = node.mapping("`redundancy`", "key", &["neighbour"])?;
    every("`neighbour`", keys.need("neighbour")?).map(RecoverySource::PeerSnapshot)
}
