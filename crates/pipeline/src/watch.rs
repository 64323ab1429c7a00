//! The checks of workers in a round, so that training does not fail silently.

use layerspec::LayerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The checks of a round. It changes none of its results.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Watch {
    /// The numbers that must be finite.
    pub finite: FiniteCheck,
    /// Whether workers report the health of the layers that they update, as
    /// [`ToBoss::Health`](crate::message::ToBoss::Health).
    pub health: bool,
}

/// The numbers that must be finite, so neither NaN nor infinite. Forward passes come before any
/// parameter changes, so a failed check voids the step and loses nothing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FiniteCheck {
    /// None.
    #[default]
    Off,
    /// The loss.
    Loss,
    /// The loss, the inputs and parameters of every stage, and the outputs of every layer. Finds
    /// the first layer with a bad number, but reads every number, which takes time.
    All,
}

/// The health of a layer in an optimizer step, as far as one worker sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerHealth {
    /// The layer that owns the parameters.
    pub layer: LayerId,
    /// Whether all its gradients are finite.
    pub finite: bool,
    /// Whether one of its gradients is not 0.
    pub has_gradient: bool,
    /// Whether one of the parameters with the largest gradients has changed.
    pub changed: bool,
}

impl LayerHealth {
    /// Merges the entries of each layer. Replicas may see different parts of a layer.
    pub fn together(all: impl IntoIterator<Item = LayerHealth>) -> Vec<LayerHealth> {
        let mut layers: BTreeMap<LayerId, LayerHealth> = BTreeMap::new();
        for seen in all {
            let layer = layers.entry(seen.layer).or_insert(LayerHealth {
                has_gradient: false,
                changed: false,
                ..seen
            });
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
        let seen = |layer, finite, has_gradient, changed| LayerHealth {
            layer: LayerId(layer),
            finite,
            has_gradient,
            changed,
        };
        let all = [
            seen(2, true, false, false),
            seen(1, true, true, false),
            seen(2, false, true, true),
            seen(1, true, false, true),
        ];
        assert_eq!(
            LayerHealth::together(all),
            [seen(1, true, true, true), seen(2, false, true, true)]
        );
    }
}
