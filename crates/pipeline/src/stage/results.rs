//! The tensors that an action made, on their way to the stages that use them.

use super::links::Links;
use super::membership::Membership;
use super::outbox::Outbox;
use crate::effect::{Destination, Peer};
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Round, TensorHead};
use crate::plan::{StageOutput, StageSpec};
use crate::schedule::Action;

/// Sends the results of one stage.
pub(super) struct Results<'a> {
    pub(super) round: &'a Round,
    pub(super) spec: &'a StageSpec,
    pub(super) membership: &'a Membership,
    pub(super) links: &'a Links,
    pub(super) outbox: &'a mut Outbox,
}

impl Results<'_> {
    fn is_for_boss(&self, output: &StageOutput) -> bool {
        self.round.outputs && output.model_output.is_some()
    }

    /// The number of outputs that go to the boss.
    pub(super) fn outputs_to_boss(&self) -> u32 {
        self.spec.outputs.iter().filter(|output| self.is_for_boss(output)).count() as u32
    }

    /// Sends the outputs of a forward pass, which are only those that leave the stage.
    pub(super) fn send_outputs(&mut self, key: MicrobatchKey, outputs: Vec<Slot>) {
        let leaves = |output: &&StageOutput| !output.to.is_empty() || self.is_for_boss(output);
        let leaving: Vec<&StageOutput> = self.spec.outputs.iter().filter(leaves).collect();
        for (output, slot) in leaving.into_iter().zip(outputs) {
            let value = output.value;
            let users = output.to.iter().copied();
            let users =
                users.filter_map(|to| self.to(to, key, TensorHead::Value { key, value, to }));
            let boss = self.is_for_boss(output).then_some(Destination {
                peer: Peer::Boss,
                route: None,
                head: TensorHead::Output { key, value },
            });
            let to = users.chain(boss).collect();
            self.send(to, vec![slot]);
        }
    }

    /// Sends the gradients of a stage's inputs to the stages that made them.
    pub(super) fn send_grads(&mut self, key: MicrobatchKey, grads: Vec<Vec<Slot>>) {
        for (input, slots) in self.spec.inputs.iter().zip(grads) {
            let maker = input.from.filter(|_| input.needs_grad);
            let head = |to| TensorHead::Gradient {
                key,
                value: input.value,
                from: Some(self.spec.stage),
                to,
            };
            let to = maker.and_then(|maker| self.to(maker, key, head(maker)));
            // An input that needs no gradient has no slots either.
            if to.is_some() || !slots.is_empty() {
                self.send(to.into_iter().collect(), slots);
            }
        }
    }

    /// Sends gradients or new values of tied parameters to the stages at the other end.
    pub(super) fn send_tied(&mut self, action: Action, tensors: Vec<(StageId, Vec<Slot>)>) {
        let (from, batch) = (self.spec.stage, self.round.batch);
        for (to, slots) in tensors {
            let head = match action {
                Action::ReduceTied { .. } => TensorHead::TiedGrads { batch, from, to },
                _ => TensorHead::TiedValues { batch, from, to },
            };
            let me = self.membership.worker;
            let partners = me.map(|me| self.membership.placement.partners(from, me, to));
            let partners = partners.into_iter().flatten();
            let to = partners.map(|worker| self.links.to(worker, head.clone())).collect();
            self.send(to, slots);
        }
    }

    /// The way to the worker that takes a microbatch through a stage.
    fn to(&self, stage: StageId, key: MicrobatchKey, head: TensorHead) -> Option<Destination> {
        let worker = self.round.microbatch_assignment.worker(
            &self.membership.placement,
            stage,
            key.index,
        )?;
        Some(self.links.to(worker, head))
    }

    fn send(&mut self, to: Vec<Destination>, slots: Vec<Slot>) {
        match to.is_empty() {
            true => self.outbox.drop_slots(slots),
            false => self.outbox.send(to, slots),
        }
    }
}
