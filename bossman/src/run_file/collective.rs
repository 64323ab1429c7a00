//! The key `collective` of a run file: how replicas sum their gradients.

use layerspec::yaml::Mapping;
use layerspec::Fault;
use pipeline::replicas::{Collective, Replicas};

/// Only replicas exchange gradients, and NCCL sums all of them in float32, in an order of its own.
pub(super) fn collective(run: &Mapping<'_>) -> Result<Collective, Fault> {
    let exact = run.get("reduction").is_some_and(|node| node.as_text() == Some("exact"));
    let Some(node) = run.get("collective") else { return Ok(quic_if_exact(exact)) };
    let name = node.as_text();
    let choice = Collective::NAMES.iter().find(|(choice, _)| name == Some(choice)).map(|(_, choice)| *choice);
    let refused = |why: &str| Err(Fault::new(node.place, format!("`collective: nccl` {why}")));
    match choice {
        None => Err(node.unexpected("`collective`", "`auto`, `quic` or `nccl`")),
        Some(Collective::Auto) => Ok(quic_if_exact(exact)),
        Some(Collective::Quic) => Ok(Collective::Quic),
        Some(Collective::Nccl) => match super::replicas(run)? {
            None => refused("goes with `replicas` only"),
            Some(Replicas::Each(1)) => refused("goes with two replicas or more"),
            Some(Replicas::Of(of)) if of.iter().all(|replicas| *replicas <= 1) => {
                refused("goes with two replicas or more, at one place at least")
            }
            _ if super::compress(run)?.is_some() => refused("does not go with `compress`: NCCL sums float32"),
            _ if super::sharding(run)?.is_some() => {
                refused("does not go with `shard`: with it each replica gets all sums")
            }
            _ if exact => refused("does not go with `reduction: exact`: NCCL sums in an order of its own"),
            _ => Ok(Collective::Nccl),
        },
    }
}

/// Who asks for the exact order gets it.
fn quic_if_exact(exact: bool) -> Collective {
    match exact {
        true => Collective::Quic,
        false => Collective::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerspec::yaml;

    #[test]
    fn who_asks_for_the_exact_order_gets_it() {
        let read = |text: &str| {
            let root = yaml::parse(text).unwrap();
            collective(&root.mapping("the run file", "key", &["replicas", "reduction", "collective"]).unwrap()).unwrap()
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
