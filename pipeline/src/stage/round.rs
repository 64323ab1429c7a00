//! A round at work: which action is next, and whether its tensors are there.

use super::inbox::{Inbox, Item};
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::Round;
use crate::plan::{StageOutput, StageSpec};
use crate::schedule::Action;
use crate::task::{LossTask, Task};

/// A round with how far it has come.
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) round: Round,
    next: usize,
    pub(super) losses: Vec<(u32, f32)>,
    /// Frames with tensors sent to the boss.
    pub(super) sent: u32,
    /// Something failed; nothing more is started.
    pub(super) failed: bool,
}

impl Running {
    pub(super) fn new(id: u64, round: Round) -> Self {
        Running { id, round, next: 0, losses: Vec::new(), sent: 0, failed: false }
    }

    /// Whether every action has been started.
    pub(super) fn all_started(&self) -> bool {
        self.next == self.round.actions.len()
    }

    /// Whether the next action updates parameters, which cannot be undone.
    pub(super) fn updates_next(&self) -> bool {
        matches!(self.round.actions.get(self.next), Some(Action::OptimStep { .. }))
    }

    /// The next action with its work, once all its tensors are there.
    pub(super) fn next_task(&mut self, stages: &[StageSpec], inbox: &mut Inbox) -> Option<(Action, Task<Slot>)> {
        let action = *self.round.actions.get(self.next)?;
        let spec = stages.iter().find(|s| s.stage == action.stage())?;
        let task = match action {
            Action::Forward { microbatch, .. } => self.forward(spec, microbatch, inbox)?,
            Action::Backward { microbatch, .. } => self.backward(spec, microbatch, inbox)?,
            Action::OptimStep { stage } => Task::OptimStep { stage },
        };
        self.next += 1;
        Some((action, task))
    }

    fn key(&self, index: u32) -> MicrobatchKey {
        MicrobatchKey { batch: self.round.batch, index }
    }

    fn forward(&self, spec: &StageSpec, index: u32, inbox: &mut Inbox) -> Option<Task<Slot>> {
        let (key, stage) = (self.key(index), spec.stage);
        let loss_output = spec.outputs.iter().position(|o| o.model_output == Some(0));
        let loss = self.round.loss.as_ref().zip(loss_output);
        let there = |item| inbox.has(key, stage, item);
        if !spec.inputs.iter().all(|i| there(Item::Value(i.value))) || (loss.is_some() && !there(Item::Target)) {
            return None;
        }
        let inputs = spec.inputs.iter().flat_map(|i| inbox.take(key, stage, Item::Value(i.value))).collect();
        let loss = loss.and_then(|(loss, output)| {
            let weight = *loss.weights.get(index as usize)?;
            let target = inbox.take(key, stage, Item::Target).pop()?;
            Some(LossTask { output, spec: loss.spec, weight, target })
        });
        let leaves = |o: &StageOutput| !o.to.is_empty() || (self.round.outputs && o.model_output.is_some());
        let export = (0..spec.outputs.len()).filter(|i| leaves(&spec.outputs[*i])).collect();
        Some(Task::Forward { stage, key, step: self.round.step, mode: self.round.mode, inputs, export, loss })
    }

    fn backward(&self, spec: &StageSpec, index: u32, inbox: &mut Inbox) -> Option<Task<Slot>> {
        let (key, stage) = (self.key(index), spec.stage);
        let wanted = |output: &StageOutput| -> Vec<Item> {
            let from_boss = output.model_output.is_some() && self.round.grads_from_boss;
            let boss = from_boss.then_some(None);
            let senders = boss.into_iter().chain(output.to.iter().copied().map(Some));
            let senders: Vec<Option<StageId>> = if output.needs_grad { senders.collect() } else { Vec::new() };
            senders.into_iter().map(|from| Item::Gradient { value: output.value, from }).collect()
        };
        if !spec.outputs.iter().flat_map(wanted).all(|item| inbox.has(key, stage, item)) {
            return None;
        }
        let take = |output: &StageOutput| wanted(output).into_iter().flat_map(|i| inbox.take(key, stage, i)).collect();
        let grads = spec.outputs.iter().map(take).collect();
        Some(Task::Backward { stage, key, grads })
    }
}
