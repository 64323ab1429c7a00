//! The memory that a stage keeps of a microbatch. A value that several of its layers keep counts
//! once.

use crate::layer_times::{LayerTimes, Ports};
use crate::plan::StageSpec;
use layerspec::{Layer, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The values of a stage whose memory its layers keep, and the bytes of what they keep besides.
#[derive(Default)]
pub(crate) struct SavedMemory {
    /// The value in whose memory each view lies.
    views: BTreeMap<ValueId, ValueId>,
    forward: BTreeSet<ValueId>,
    between: BTreeSet<ValueId>,
    others_forward: u64,
    others_between: u64,
}

impl SavedMemory {
    /// What the layers of a stage keep, as they were measured one by one.
    pub(crate) fn of(stage: &StageSpec, measured: impl Fn(&Layer) -> LayerTimes) -> Self {
        let mut memory = SavedMemory::default();
        for layer in &stage.layers {
            memory.add(layer, &measured(layer));
        }
        memory
    }

    /// For each layer, the bytes that it keeps from forward to backward and that no layer before it
    /// keeps.
    pub(crate) fn by_layer(
        layers: &[Layer],
        measured: impl Fn(&Layer) -> LayerTimes,
        bytes: impl Fn(ValueId) -> u64,
    ) -> Vec<u64> {
        let mut memory = SavedMemory::default();
        let of_layer = |layer: &Layer| {
            let measured = measured(layer);
            let values = memory.add(layer, &measured).into_iter().collect();
            sum(measured.saved_bytes, &values, &bytes)
        };
        layers.iter().map(of_layer).collect()
    }

    /// Adds a layer. Returns the values that it is the first to keep from forward to backward.
    fn add(&mut self, layer: &Layer, measured: &LayerTimes) -> Vec<ValueId> {
        let ports = &measured.saved_ports;
        self.others_forward = self.others_forward.saturating_add(measured.saved_bytes);
        self.others_between = self.others_between.saturating_add(measured.saved_bytes_between);
        if let Some(input) = layer.inputs.first().map(|input| self.owner(*input)) {
            self.views.extend(among(&layer.outputs, ports.views).map(|view| (view, input)));
        }
        let forward =
            among(&layer.inputs, ports.inputs).chain(among(&layer.outputs, ports.outputs));
        let mut new: Vec<_> = forward.map(|value| self.owner(value)).collect();
        new.retain(|value| self.forward.insert(*value));
        let between = among(&layer.inputs, ports.inputs_between);
        let between: Vec<_> = between.map(|value| self.owner(value)).collect();
        self.between.extend(between);
        new
    }

    /// The value in whose memory this one lies.
    fn owner(&self, value: ValueId) -> ValueId {
        self.views.get(&value).copied().unwrap_or(value)
    }

    /// The bytes kept from forward to backward. `bytes` are those of a value.
    pub(crate) fn forward(&self, bytes: impl Fn(ValueId) -> u64) -> u64 {
        sum(self.others_forward, &self.forward, bytes)
    }

    /// The bytes kept between the halves of backward.
    pub(crate) fn between(&self, bytes: impl Fn(ValueId) -> u64) -> u64 {
        sum(self.others_between, &self.between, bytes)
    }
}

fn among(values: &[ValueId], ports: Ports) -> impl Iterator<Item = ValueId> + '_ {
    values.iter().enumerate().filter(move |(port, _)| ports.contains(*port)).map(|(_, v)| *v)
}

fn sum(others: u64, values: &BTreeSet<ValueId>, bytes: impl Fn(ValueId) -> u64) -> u64 {
    values.iter().fold(others, |sum, value| sum.saturating_add(bytes(*value)))
}
