//! The costs of layers, for batches of known size.

use crate::{Bindings, LayerGraph, LayerId, Role, TensorType, ValueId};

/// The cost of a layer.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Elements of its own parameters; shared ones count at their first layer.
    pub params: u64,
    /// Floating-point operations of one forward pass over the whole batch.
    pub flops: u64,
    /// Bytes of its outputs for the whole batch.
    pub activation_bytes: u64,
}

impl LayerGraph {
    /// The cost of one layer for a batch of the sizes in `bindings`. None when a symbol it depends
    /// on is not bound, or a number does not fit 64 bits.
    pub fn cost(&self, id: LayerId, bindings: &Bindings) -> Option<Cost> {
        let layer = self.layer(id);
        let (inputs, outputs) = (self.types(&layer.inputs), self.types(&layer.outputs));
        let params = self.own_params(id);
        let params = params.iter().filter(|param| param.role == Role::Parameter);
        Some(Cost {
            params: sum(params.map(|param| param.elements()))?,
            flops: layer.kind.flops(&inputs, &outputs).ok()?.eval(bindings)?,
            activation_bytes: sum(outputs.iter().map(|ty| ty.bytes(bindings)))?,
        })
    }

    /// The types of several values.
    pub(crate) fn types(&self, ids: &[ValueId]) -> Vec<TensorType> {
        ids.iter().map(|id| self.value(*id).ty.clone()).collect()
    }
}

fn sum(mut numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    numbers.try_fold(0u64, |sum, number| sum.checked_add(number?))
}
