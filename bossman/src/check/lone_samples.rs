//! Microbatches of one sample against the layers that normalise over a microbatch.

use crate::BossManError;
use layerspec::{Bindings, Layer, LayerGraph, LayerKind};

/// The batches of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    pub(crate) samples: u64,
    pub(crate) batch_size: u64,
    /// The most microbatches of a batch.
    pub(crate) microbatches: u64,
    pub(crate) steps: u64,
}

impl Batches {
    /// The batches with microbatches of one sample: all, or the last of an epoch.
    fn with_lone_sample(self) -> Option<u64> {
        let full = self.batch_size.min(self.samples);
        let left = self.samples % full;
        let reaches_last = left > 0 && self.steps > self.samples / full;
        let of_one = |size: &u64| size / self.microbatches.clamp(1, *size) == 1;
        [full].into_iter().chain(reaches_last.then_some(left)).find(of_one)
    }

    /// Other settings near these without such batches.
    fn instead(self) -> String {
        let is_right = |other: &Batches| other.with_lone_sample().is_none();
        let fewer =
            (1..self.microbatches).rev().map(|microbatches| Batches { microbatches, ..self });
        let larger = self.batch_size + 1..=self.batch_size.saturating_mul(2);
        let larger = larger.map(|batch_size| Batches { batch_size, ..self });
        let fewer =
            fewer.clone().find(is_right).map(|it| format!("`microbatches: {}`", it.microbatches));
        let larger =
            larger.clone().find(is_right).map(|it| format!("`batch_size: {}`", it.batch_size));
        match (fewer, larger) {
            (Some(fewer), Some(larger)) => format!("set {fewer} or {larger}"),
            (Some(one), None) | (None, Some(one)) => format!("set {one}"),
            (None, None) => "train on more samples".into(),
        }
    }
}

/// Checks that no layer has to normalise over a single value for each channel.
pub(crate) fn check(graph: &LayerGraph, batches: Batches) -> Result<(), BossManError> {
    let (Some(size), Some(batch)) = (batches.with_lone_sample(), graph.batch()) else {
        return Ok(());
    };
    let Some(layer) = graph.layers().iter().find(|layer| needs_more(layer, graph, batch)) else {
        return Ok(());
    };
    let Batches { samples, batch_size, microbatches, .. } = batches;
    let which = match size == batch_size.min(samples) {
        true => format!("a batch of {size}"),
        false => format!("the last batch of an epoch, {size} of {samples} samples,"),
    };
    Err(BossManError::Usage(format!(
        "{which} in at most {microbatches} microbatches leaves one sample for a microbatch, over \
         which `{}` ({}) cannot normalise; {}",
        layer.name,
        layer.kind.name(),
        batches.instead()
    )))
}

/// Whether a layer has one value for each channel, or group of channels, if a microbatch has one
/// sample.
fn needs_more(layer: &Layer, graph: &LayerGraph, batch: &str) -> bool {
    use LayerKind::{BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm};
    let groups = match &layer.kind {
        BatchNorm1d(_) | BatchNorm2d(_) | BatchNorm3d(_) => None,
        GroupNorm(norm) => Some(norm.num_groups),
        _ => return false,
    };
    let one_sample = Bindings::new().with(batch, 1);
    let input = layer.inputs.first().map(|input| &graph.value(*input).ty.shape);
    let sizes = input.and_then(|shape| shape.eval(&one_sample));
    sizes.is_some_and(|sizes| {
        let means = groups.or(sizes.get(1).copied());
        means == Some(sizes.iter().product())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    fn graph(layers: &str) -> LayerGraph {
        let text = format!("inputs: {{x: [batch, 4]}}\nlayers:\n{layers}");
        Model::from_yaml(&text).unwrap().graph().clone()
    }

    #[test]
    fn a_last_batch_that_leaves_one_sample_is_refused() {
        let norm = graph("- BatchNorm1d: {num_features: 4}\n  name: norm\n");
        let batches = Batches { samples: 1000, batch_size: 331, microbatches: 4, steps: 100 };
        let refused = |batches| check(&norm, batches).unwrap_err().to_string();
        assert_eq!(
            refused(batches),
            "the last batch of an epoch, 7 of 1000 samples, in at most 4 microbatches leaves one \
             sample for a microbatch, over which `norm` (BatchNorm1d) cannot normalise; set \
             `microbatches: 3` or `batch_size: 334`"
        );
        // The epoch's last batch is not reached.
        check(&norm, Batches { steps: 3, ..batches }).unwrap();
        check(&norm, Batches { microbatches: 3, ..batches }).unwrap();
        check(&norm, Batches { batch_size: 334, ..batches }).unwrap();
        let all = refused(Batches { samples: 64, batch_size: 4, ..batches });
        assert!(all.starts_with("a batch of 4 in at most 4 microbatches"), "{all}");
        assert!(all.ends_with("set `microbatches: 2` or `batch_size: 8`"), "{all}");
        assert!(refused(Batches { samples: 1, ..batches }).ends_with("train on more samples"));
        // Each group has one of the four values.
        let groups =
            |groups| graph(&format!("- GroupNorm: {{num_groups: {groups}, num_channels: 4}}\n"));
        check(&groups(4), batches).unwrap_err();
        check(&groups(2), batches).unwrap();
    }

    #[test]
    fn layers_with_several_values_of_a_sample_take_one_sample() {
        let batches = Batches { samples: 5, batch_size: 4, microbatches: 4, steps: 2 };
        for layers in [
            "- Linear: {in_features: 4, out_features: 4}\n",
            "- Unsqueeze: {dim: 1}\n- BatchNorm1d: {num_features: 1}\n",
        ] {
            check(&graph(layers), batches).unwrap();
        }
    }
}
