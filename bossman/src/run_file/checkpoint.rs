//! The keys `checkpoint` and `receipt` of a run file.

use crate::checkpoint::{Every, KeepBest, Policy};
use layerspec::yaml::{Kind, Mapping, Node, Reader, COUNT, SIZE, TEXT};
use layerspec::Diagnostic;
use std::path::Path;

/// The default number of checkpoints to keep.
const KEEP: u64 = 3;

/// A number of minutes.
const MINUTES: Reader<f64> =
    Reader::new("a number of minutes above 0, and no more than a year has", |node| {
        match node.kind {
            // At most a year.
            Kind::Int(minutes @ 1..=525_600) => Some(minutes as f64),
            Kind::Float(minutes) if minutes > 0.0 && minutes <= 525_600.0 => Some(minutes),
            _ => None,
        }
    });

const BEST: Reader<KeepBest> =
    Reader::new("`loss` or `accuracy`", |node| match (TEXT.read)(node)?.as_str() {
        "loss" => Some(KeepBest::Loss),
        "accuracy" => Some(KeepBest::Accuracy),
        _ => None,
    });

pub(super) fn checkpoint(run: &Mapping<'_>, folder: &Path) -> Result<Option<Policy>, Diagnostic> {
    let Some(node) = run.get("checkpoint") else { return Ok(None) };
    let keys = node.mapping("`checkpoint`", "key", &["dir", "every", "keep", "keep_best"])?;
    let dir = keys.optional("dir", &TEXT)?.map(|dir| match dir.contains("://") {
        true => dir,
        false => folder.join(dir).to_string_lossy().into_owned(),
    });
    let keep = keys.optional("keep", &SIZE)?.unwrap_or(KEEP);
    Ok(Some(Policy {
        dir,
        every: every("`every`", keys.need("every")?)?,
        keep: usize::try_from(keep).unwrap_or(usize::MAX),
        keep_best: keys.optional("keep_best", &BEST)?,
        audit: usize::try_from(audit(run)?.unwrap_or(0)).unwrap_or(usize::MAX),
    }))
}

/// The number of checkpoints in `receipt: {audit: N}`.
pub(super) fn audit(run: &Mapping<'_>) -> Result<Option<u64>, Diagnostic> {
    let Some(node) = run.get("receipt") else { return Ok(None) };
    node.mapping("`receipt`", "key", &["audit"])?.optional("audit", &COUNT)
}

/// A number of steps, or `{minutes: 5}`.
pub(super) fn every(what: &str, node: &Node) -> Result<Every, Diagnostic> {
    match &node.kind {
        Kind::Map(_) => {
            let every = node.mapping(what, "key", &["steps", "minutes"])?;
            match (every.optional("steps", &SIZE)?, every.optional("minutes", &MINUTES)?) {
                (Some(steps), None) => Ok(Every::Steps(steps)),
                (None, Some(minutes)) => Ok(Every::Minutes(minutes)),
                _ => Err(Diagnostic::new(
                    node.location,
                    format!("{what}: give `steps` or `minutes`"),
                )),
            }
        }
        _ => Ok(Every::Steps(node.read(what, &SIZE)?)),
    }
}
