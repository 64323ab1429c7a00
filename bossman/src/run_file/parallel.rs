//! The keys of a run file that place the model on workers and say how replicas work together.

use super::RunFile;
use crate::settings::conflicts::{Facts, ReductionOrder};
use layerspec::yaml::{self, Key, Mapping, Node, SIZE, TEXT};
use layerspec::{Diagnostic, LayerGraph};
use pipeline::plan::PlanError;
use pipeline::replicas::{Collective, Compress, Replicas, Sharding};
use pipeline::{Cuts, ScheduleKind};

/// Reads these keys, unchecked against each other.
pub(super) fn facts(run: &Mapping<'_>) -> Result<Facts, Diagnostic> {
    let reduction = reduction(run)?;
    let mut facts = Facts {
        replicas: replicas(run)?,
        compress: compress(run)?,
        sharding: sharding(run)?,
        collective: collective(run, reduction)?,
        reduction,
        schedule: schedule(run)?,
        ..Facts::default()
    };
    facts.chunks = chunks(run, &facts)?.map(u64::from);
    Ok(facts)
}

pub(super) fn small_count(run: &Mapping<'_>, key: &str) -> Result<Option<u32>, Diagnostic> {
    let Some(count) = run.optional(key, &SIZE)? else { return Ok(None) };
    let node = run.need(key)?;
    u32::try_from(count)
        .map(Some)
        .map_err(|_| node.unexpected(&format!("`{key}`"), "a smaller number"))
}

fn schedule(run: &Mapping<'_>) -> Result<Option<ScheduleKind>, Diagnostic> {
    let Some(name) = run.optional("schedule", &TEXT)?.filter(|name| name != "auto") else {
        return Ok(None);
    };
    let place = run.need("schedule")?.location;
    let names = ScheduleKind::NAMES.map(|(name, _)| name).into_iter().chain(["auto"]);
    let kind = name.parse().map(Some);
    kind.map_err(|why: String| {
        Diagnostic::new(place, format!("{why}, auto")).suggesting(layerspec::nearest(&name, names))
    })
}

/// One stage on each worker is the default, except with sharded parameters.
fn chunks(run: &Mapping<'_>, facts: &Facts) -> Result<Option<u32>, Diagnostic> {
    let Some(chunks) = small_count(run, "chunks")? else { return Ok(None) };
    let may_be_one = facts.sharding == Some(Sharding::Parameters)
        && matches!(facts.schedule, None | Some(ScheduleKind::GPipe));
    match chunks {
        1 if !may_be_one => {
            Err(run.need("chunks")?.unexpected("`chunks`", "2 or more stages a worker"))
        }
        _ => Ok(Some(chunks)),
    }
}

const CUTS: &str = "`auto` or a list of layer names";

pub(super) fn cuts(run: &Mapping<'_>) -> Result<Cuts, Diagnostic> {
    let Some(node) = run.get("cuts") else { return Ok(Cuts::Auto) };
    if node.as_text() == Some("auto") {
        return Ok(Cuts::Auto);
    }
    let names = node.list("`cuts`", CUTS)?.iter().map(|name| name.read("a cut", &TEXT));
    Ok(Cuts::At(names.collect::<Result<_, _>>()?))
}

/// Checks that the cuts name layers of the model, in their order. A model that cannot be read has
/// an error of its own, later.
pub(super) fn check_cuts(text: &str, file: &RunFile) -> Result<(), Diagnostic> {
    let Cuts::At(_) = &file.cuts else { return Ok(()) };
    let Ok(graph) = LayerGraph::from_file(&file.model) else { return Ok(()) };
    let root = yaml::parse(text)?;
    let run = root.mapping("the run file", "key", &super::KEYS)?;
    let names: Vec<&str> = graph.layers().iter().map(|layer| layer.name.as_str()).collect();
    let mut before = 0;
    for node in run.need("cuts")?.list("`cuts`", CUTS)? {
        let name = node.read("a cut", &TEXT)?;
        let Some(place) = names.iter().position(|layer| *layer == name) else {
            return Err(Key { location: node.location, text: name }.unknown("layer", &names));
        };
        if place <= before {
            let error = PlanError::Order(name);
            return Err(Diagnostic::new(node.location, error.to_string()));
        }
        before = place;
    }
    Ok(())
}

/// The number of microbatches, or 0 for the default.
pub(super) fn microbatches(run: &Mapping<'_>, batch_size: u64) -> Result<u32, Diagnostic> {
    let Some(count) = small_count(run, "microbatches")? else { return Ok(0) };
    if u64::from(count) > batch_size {
        let message = format!(
            "`microbatches: {count}` is more than `batch_size: {batch_size}`: a microbatch has at \
             least one sample; take fewer microbatches or larger batches"
        );
        return Err(Diagnostic::new(run.need("microbatches")?.location, message));
    }
    Ok(count)
}

fn replicas(run: &Mapping<'_>) -> Result<Option<Replicas>, Diagnostic> {
    let Some(node) = run.get("replicas") else { return Ok(None) };
    let expected = "`auto`, a number of workers for each stage, or a list of such numbers";
    let number = |node: &Node| {
        let number = node.read("`replicas`", &SIZE)?;
        u16::try_from(number).map_err(|_| node.unexpected("`replicas`", "a smaller number"))
    };
    match (node.as_text(), node.list("`replicas`", expected)) {
        (Some("auto"), _) => Ok(Some(Replicas::Auto)),
        (_, Ok([])) => Err(node.unexpected("`replicas`", expected)),
        (_, Ok(list)) => Ok(Some(Replicas::Of(list.iter().map(number).collect::<Result<_, _>>()?))),
        (_, Err(_)) => number(node)
            .map(Replicas::Each)
            .map(Some)
            .map_err(|_| node.unexpected("`replicas`", expected)),
    }
}

/// Reads one of these names, or `none`, which is no value.
fn named<T: Copy>(
    run: &Mapping<'_>,
    key: &str,
    none: &str,
    names: &[(&str, T)],
    expected: &str,
) -> Result<Option<T>, Diagnostic> {
    let Some(node) = run.get(key) else { return Ok(None) };
    let text = node.as_text();
    let choice = names.iter().find(|(name, _)| text == Some(name)).map(|(_, choice)| *choice);
    match choice {
        None if text != Some(none) => Err(node.unexpected(&format!("`{key}`"), expected)),
        choice => Ok(choice),
    }
}

fn compress(run: &Mapping<'_>) -> Result<Option<Compress>, Diagnostic> {
    named(run, "compress", "f32", &Compress::NAMES, "`f32`, `bf16`, `int8` or `int4`")
}

fn sharding(run: &Mapping<'_>) -> Result<Option<Sharding>, Diagnostic> {
    let expected = "`none`, `optimizer`, `gradients` or `parameters`";
    named(run, "shard", "none", &Sharding::NAMES, expected)
}

fn reduction(run: &Mapping<'_>) -> Result<ReductionOrder, Diagnostic> {
    let Some(node) = run.get("reduction") else { return Ok(ReductionOrder::Unsaid) };
    match node.as_text() {
        Some("exact") => Ok(ReductionOrder::Exact),
        Some("fast") => Ok(ReductionOrder::Fast),
        _ => Err(node.unexpected("`reduction`", "`exact` or `fast`")),
    }
}

/// Only QUIC sums in the exact order.
fn collective(run: &Mapping<'_>, reduction: ReductionOrder) -> Result<Collective, Diagnostic> {
    let choice = named(run, "collective", "auto", &Collective::NAMES, "`auto`, `quic` or `nccl`")?;
    Ok(match choice.unwrap_or_default() {
        Collective::Auto if reduction == ReductionOrder::Exact => Collective::Quic,
        choice => choice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::yaml;

    #[test]
    fn the_exact_order_implies_quic() {
        let read = |text: &str| {
            let root = yaml::parse(text).unwrap();
            let keys = ["replicas", "reduction", "collective"];
            facts(&root.mapping("the run file", "key", &keys).unwrap()).unwrap().collective
        };
        assert_eq!(read("replicas: 2"), Collective::Auto);
        assert_eq!(read("{replicas: 2, reduction: fast}"), Collective::Auto);
        assert_eq!(read("{replicas: 2, reduction: exact}"), Collective::Quic);
        assert_eq!(read("{replicas: 2, reduction: exact, collective: auto}"), Collective::Quic);
        assert_eq!(read("{replicas: [2, 1], collective: nccl}"), Collective::Nccl);
        assert_eq!(read("{replicas: auto, reduction: fast, collective: nccl}"), Collective::Nccl);
        assert_eq!(read("collective: quic"), Collective::Quic);
    }
}
