//! Weights and optimizer state that a user loads and reads.

use super::User;
use crate::calls;
use crate::math::{self, Param};
use layerspec::Layer;
use pipeline::boss::{Instruction, IntoRequest, Request};
use pipeline::ids::StageId;
use pipeline::{LoadContent, StateName};
use std::collections::BTreeMap;

impl User<'_> {
    pub(super) fn load(&mut self, salt: u64) -> Request {
        if self.state.is_empty() {
            // Its value is the initial one, because it was never fetched.
            let owner = |layer: &Layer| layer.share.map(|owner| self.graph.layer(owner));
            let of = |layer: &Layer| {
                let own = math::own_weights(layer, owner(layer));
                own.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
            };
            let names = self.graph.layers().iter().flat_map(of);
            self.state =
                names.map(|name| (name.clone(), Param::new(calls::SEED, &name).value)).collect();
        }
        let mut tensors = Vec::new();
        for (name, value) in &self.state {
            let (layer, parameter) = name.rsplit_once('.').expect("a layer and a parameter");
            let layer = self.graph.layer_by_name(layer).expect("a layer of the model");
            for stage in self.plan.holders(layer, parameter) {
                let slot = self.world.boss_slots.hold(calls::loaded(name, *value, salt));
                tensors.push((stage, name.clone(), slot));
            }
        }
        Instruction::LoadState { tensors, content: LoadContent::Weights }.into_request()
    }

    pub(super) fn resume(&mut self) -> Request {
        let mut tensors = Vec::new();
        for (text, value) in &self.kept {
            for stage in self.stages_of_state(text) {
                tensors.push((stage, text.clone(), self.world.boss_slots.hold(*value)));
            }
        }
        Instruction::LoadState { tensors, content: LoadContent::WholeState }.into_request()
    }

    /// The stages that receive a parameter, or its optimizer state.
    pub(super) fn stages_of_state(&self, text: &str) -> Vec<StageId> {
        let name = StateName::parse(text);
        let (layer, parameter) =
            name.kept().map_or(name.name, |(param, _)| param).rsplit_once('.').expect("a name");
        let layer = self.graph.layer_by_name(layer).expect("a layer of the model");
        // Only the owner has the optimizer state.
        let most = if name.optimizer { 1 } else { usize::MAX };
        self.plan.holders(layer, parameter).into_iter().take(most).collect()
    }
}

/// Joins the shards of a state. All shards have the same value here.
pub fn together(state: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut whole: BTreeMap<String, u64> = BTreeMap::new();
    for (name, value) in state {
        let name = StateName { start: None, ..StateName::parse(&name) }.to_string();
        let before = whole.insert(name.clone(), value);
        assert!(
            before.is_none_or(|before| before == value),
            "parts of {name} that do not belong together"
        );
    }
    whole
}
