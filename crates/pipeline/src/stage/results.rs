//! The tensors that an action made, on their way to the stages that use them.

use super::links::Links;
use super::membership::Membership;
use super::outbox::Outbox;
use crate::effect::{Destination, Peer};
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Failure, Round, TensorHead};
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
        output.model_output.is_some_and(|output| self.round.outputs.has(output))
    }

    /// The number of outputs that go to the boss.
    pub(super) fn outputs_to_boss(&self) -> u32 {
        self.spec.outputs.iter().filter(|output| self.is_for_boss(output)).count() as u32
    }

    /// Sends the outputs of a forward pass, which are only those that leave the stage. Fails if
    /// there are more or fewer: the next stage would wait forever.
    pub(super) fn send_outputs(
        &mut self,
        key: MicrobatchKey,
        outputs: Vec<Slot>,
    ) -> Result<(), Failure> {
        let leaves = |output: &&StageOutput| !output.to.is_empty() || self.is_for_boss(output);
        let leaving: Vec<&StageOutput> = self.spec.outputs.iter().filter(leaves).collect();
        let (made, wanted) = (outputs.len(), leaving.len());
        if made != wanted {
            self.outbox.drop_slots(outputs);
            let problem =
                format!("{made} outputs where {wanted} leave the stage; please report it");
            return Err(Failure::new(problem));
        }
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
        Ok(())
    }

    /// Sends the gradients of a stage's inputs to the stages that made them. Fails if there are
    /// gradients of more or fewer inputs.
    pub(super) fn send_grads(
        &mut self,
        key: MicrobatchKey,
        grads: Vec<Vec<Slot>>,
    ) -> Result<(), Failure> {
        let (made, wanted) = (grads.len(), self.spec.inputs.len());
        if made != wanted {
            self.outbox.drop_slots(grads.into_iter().flatten().collect());
            let problem =
                format!("gradients of {made} inputs of a stage with {wanted}; please report it");
            return Err(Failure::new(problem));
        }
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
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::super::testing::{links, membership, round, text};
    use super::*;

    const KEY: MicrobatchKey = MicrobatchKey { batch: 7, index: 0 };

    /// The effects of the first of two stages, and its failure.
    fn sent(send: impl FnOnce(&mut Results<'_>) -> Result<(), Failure>) -> [String; 2] {
        let (membership, links) = (membership(&[1, 1], 0, None), links(0, &[]));
        let (round, mut outbox) = (round(Vec::new()), Outbox::default());
        let mut results = Results {
            round: &round,
            spec: membership.stage(StageId(0)).expect("the first stage"),
            membership: &membership,
            links: &links,
            outbox: &mut outbox,
        };
        let failure = send(&mut results).err().map(|failure| failure.message);
        [text(&mut outbox), failure.unwrap_or_default()]
    }

    #[test]
    fn a_stage_sends_as_many_outputs_as_leave_it() {
        let outputs = |slots: &[u64]| {
            sent(|results| results.send_outputs(KEY, slots.iter().copied().map(Slot).collect()))
        };
        assert_eq!(outputs(&[1]), ["send [1] as Value to worker 1\n", ""]);
        let failure = "0 outputs where 1 leave the stage; please report it";
        assert_eq!(outputs(&[]), ["", failure]);
        let failure = "2 outputs where 1 leave the stage; please report it";
        assert_eq!(outputs(&[1, 2]), ["drop [1, 2]\n", failure]);
    }

    #[test]
    fn a_stage_has_gradients_of_as_many_inputs_as_it_has() {
        let grads = |grads: Vec<Vec<Slot>>| sent(|results| results.send_grads(KEY, grads));
        assert_eq!(grads(vec![Vec::new()]), ["", ""], "the model's input needs none");
        let failure = "gradients of 0 inputs of a stage with 1; please report it";
        assert_eq!(grads(Vec::new()), ["", failure]);
        let failure = "gradients of 2 inputs of a stage with 1; please report it";
        assert_eq!(grads(vec![vec![Slot(1)], vec![Slot(2)]]), ["drop [1, 2]\n", failure]);
    }
}
