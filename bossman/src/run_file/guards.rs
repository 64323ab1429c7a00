//! The key `guards` of a run file.

use crate::{Guards, NonFinite};
use layerspec::yaml::{Mapping, Reader, COUNT, TEXT};
use layerspec::Diagnostic;

const NON_FINITE: Reader<NonFinite> =
    Reader::new("`stop` or `skip`", |node| match (TEXT.read)(node)?.as_str() {
        "stop" => Some(NonFinite::Stop),
        "skip" => Some(NonFinite::Skip),
        _ => None,
    });

pub(super) fn guards(run: &Mapping<'_>) -> Result<Guards, Diagnostic> {
    let Some(node) = run.get("guards") else { return Ok(Guards::default()) };
    let keys = node.mapping("`guards`", "key", &["nonfinite", "layers_every", "chance_after"])?;
    let usual = Guards::default();
    Ok(Guards {
        nonfinite: keys.optional("nonfinite", &NON_FINITE)?.unwrap_or_default(),
        layers_every: keys.optional("layers_every", &COUNT)?.unwrap_or(usual.layers_every),
        chance_after: keys.optional("chance_after", &COUNT)?.unwrap_or(usual.chance_after),
    })
}
