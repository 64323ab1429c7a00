//! Weights and optimizer state that a user loads and reads.

use super::User;
use crate::calls::{self, Answered};
use crate::math::{self, Param};
use layerspec::{DType, Layer};
use pipeline::boss::{Instruction, IntoRequest, Request};
use pipeline::ids::StageId;
use pipeline::message::Failure;
use pipeline::{slices, LoadContent, StateName, TensorMeta};
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
            for stage in self.stages_of_state(name) {
                let slot = self.world.boss_slots.hold(calls::loaded(name, *value, salt));
                tensors.push((stage, name.clone(), slot));
            }
        }
        let content = LoadContent::Part;
        Instruction::LoadState { tensors, content, more: false }.into_request()
    }

    /// Loads the weights of the last checkpoint, sends the optimizer again, whose state is then
    /// fresh, and loads its state: in several requests, one after the other, as the boss's user
    /// does. Ends with the first one that fails.
    pub(super) fn resume(&mut self, lr: u64) -> Result<Answered, Failure> {
        let mut parts: Vec<(StageId, String, u64)> = Vec::new();
        for (text, value) in &self.kept {
            for stage in self.stages_of_state(text) {
                parts.extend(sliced(text).into_iter().map(|name| (stage, name, *value)));
            }
        }
        let (state, weights): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|(_, name, _)| StateName::parse(name).optimizer);
        self.load_parts(weights)?;
        let request = self.world.submit(Instruction::SetOptimizer(calls::optimizer(lr)));
        self.world.reply(request).result?;
        self.load_parts(state)?;
        let (tensors, content) = (Vec::new(), LoadContent::Part);
        let last = self.world.submit(Instruction::LoadState { tensors, content, more: false });
        self.world.reply(last).result
    }

    fn load_parts(&mut self, parts: Vec<(StageId, String, u64)>) -> Result<(), Failure> {
        // The number of events so far depends on the seed.
        let chunks = 1 + (self.world.events % 4) as usize;
        for chunk in parts.chunks(parts.len().div_ceil(chunks).max(1)) {
            let mut tensors = Vec::new();
            for (stage, name, value) in chunk {
                tensors.push((*stage, name.clone(), self.world.boss_slots.hold(*value)));
            }
            let content = LoadContent::Part;
            let part = self.world.submit(Instruction::LoadState { tensors, content, more: true });
            self.world.reply(part).result?;
        }
        Ok(())
    }

    /// The stages that receive a parameter, or its optimizer state.
    fn stages_of_state(&self, text: &str) -> Vec<StageId> {
        let stages = self.parameters.receivers(&self.plan, StateName::parse(text));
        stages.expect("a parameter of the model")
    }
}

/// The names under which a tensor travels to the workers: its own, or those of its slices, which
/// all have its number.
fn sliced(text: &str) -> Vec<String> {
    let count = 1 + text.bytes().map(u64::from).sum::<u64>() % 3;
    let meta = TensorMeta { dtype: DType::Int64, shape: vec![count] };
    // Slices of one element.
    slices(text, &meta, 8).into_iter().map(|slice| slice.name).collect()
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
