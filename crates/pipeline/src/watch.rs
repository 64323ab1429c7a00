//! The checks of workers in a round, so that training does not fail silently.

use layerspec::LayerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The checks of a round. It changes none of its results.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Watch {
    /// The numbers that must be finite.
    pub finite: Finite,
    /// Whether workers tell with [`Head::Health`](crate::message::Head::Health) how the layers fare that they update.
    pub health: bool,
}

/// Where a number that is not finite (NaN or an infinity) is an error. Forward passes come before any parameter changes, so the
/// step is void and nothing is lost.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Finite {
    /// Nowhere.
    #[default]
    Nowhere,
    /// In the loss.
    Loss,
    /// In what comes into a stage, in its parameters and in what its layers make, too: to find out where it began, for every
    /// number is looked at.
    Everywhere,
}

/// How a layer fared in an optimizer step, as far as one worker sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerHealth {
    /// The layer that owns the parameters.
    pub layer: LayerId,
    /// All its gradients are finite numbers.
    pub finite: bool,
    /// Some of its gradients is not 0.
    pub has_gradient: bool,
    /// Some of the parameters with the largest gradients has changed.
    pub changed: bool,
}

impl LayerHealth {
    /// Each layer once: replicas may see different parts of it.
    pub fn together(all: impl IntoIterator<Item = LayerHealth>) -> Vec<LayerHealth> {
        let mut layers: BTreeMap<LayerId, LayerHealth> = BTreeMap::new();
        for seen in all {
            let layer = layers.entry(seen.layer).or_insert(LayerHealth { has_gradient: false, changed: false, ..seen });
            layer.finite &= seen.finite;
            layer.has_gradient |= seen.has_gradient;
            layer.changed |= seen.changed;
        }
        layers.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replicas_see_of_a_layer_comes_together() {
        let seen =
            |layer, finite, has_gradient, changed| LayerHealth { layer: LayerId(layer), finite, has_gradient, changed };
        let all = [
            seen(2, true, false, false),
            seen(1, true, true, false),
            seen(2, false, true, true),
            seen(1, true, false, true),
        ];
        assert_eq!(LayerHealth::together(all), [seen(1, true, true, true), seen(2, false, true, true)]);
    }
}
