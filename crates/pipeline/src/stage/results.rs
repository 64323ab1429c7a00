//! Handles a task's result: tensors go to whoever uses them, the rest to the boss.

use super::{Job, StageSession};
use crate::effect::{Destination, Peer, StageEffect};
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::Head;
use crate::plan::{StageOutput, StageSpec};
use crate::schedule::Action;
use crate::task::Outcome;

impl StageSession {
    /// A command that is one task is carried out.
    pub(super) fn command_done(&mut self, id: u64, outcome: Outcome<Slot>) {
        if let Some(Job::Assign { built, .. }) = &mut self.job {
            *built = true;
            return self.finish_opening();
        }
        if let Some(Job::ChangeMembership(_)) = &self.job {
            return match outcome {
                Outcome::State { tensors } => self.membership_changed(Some(tensors)),
                other => {
                    self.drop_slots(other.into_tensors());
                    self.membership_changed(None);
                }
            };
        }
        if let (Some(Job::Measure { times, .. }), Outcome::Measured { times: found }) = (&mut self.job, &outcome) {
            *times = Some(found.clone());
            return self.finish_measuring();
        }
        if let (Some(Job::Keep { .. }), Outcome::State { tensors }) = (&self.job, outcome.clone()) {
            return self.copied(id, tensors);
        }
        let mut sent = 0;
        match outcome {
            Outcome::State { tensors } => {
                for (name, slot) in tensors {
                    sent += 1;
                    self.send_boss(Head::State { id, name }, vec![slot]);
                }
            }
            Outcome::Digests { digests } => self.tell_boss(Head::Digests { id, digests }),
            Outcome::UniqueIds { ids } => self.tell_boss(Head::UniqueIds { id, ids }),
            other => self.drop_slots(other.into_tensors()),
        }
        self.done(id, Vec::new(), sent, Vec::new());
    }

    /// An action of the round at work is carried out.
    pub(super) fn action_done(&mut self, action: Action, outcome: Outcome<Slot>) {
        let Some(Job::Round(running)) = &mut self.job else { return };
        let Some(spec) = self.stages.iter().find(|s| s.stage == action.stage()) else { return };
        running.ended(&action);
        let (id, batch) = (running.id, running.round.batch);
        let key = MicrobatchKey { batch, index: action.microbatch().unwrap_or(0) };
        match outcome {
            Outcome::Forward { outputs, loss } => {
                let to_boss = running.round.outputs;
                let is_sent = |o: &&StageOutput| to_boss && o.model_output.is_some();
                running.losses.extend(loss.map(|loss| (key.index, loss)));
                running.sent += spec.outputs.iter().filter(is_sent).count() as u32;
                let effects = self.forward_done(spec, key, outputs, to_boss);
                self.effects.extend(effects);
            }
            Outcome::Backward { grads } => {
                let effects = self.backward_done(spec, key, grads);
                self.effects.extend(effects);
            }
            Outcome::Tied { tensors } => {
                for (to, slots) in tensors {
                    let from = action.stage();
                    let head = match action {
                        Action::ReduceTied { .. } => Head::TiedGrads { batch, from, to },
                        _ => Head::TiedValues { batch, from, to },
                    };
                    let partners =
                        self.worker.map(|me| self.stage_placement.partners(from, me, to)).unwrap_or_default();
                    let to = partners.into_iter().map(|worker| self.links.to(worker, head.clone()));
                    let effect = send(to.collect::<Vec<_>>(), slots);
                    self.effects.push_back(effect);
                }
            }
            Outcome::Norms { squares } => {
                if let Some(squares) = running.measured(squares) {
                    let losses = std::mem::take(&mut running.losses);
                    self.tell_boss(Head::Norms { id, squares, losses });
                }
            }
            other => self.drop_slots(other.into_tensors()),
        }
    }

    /// The way to the worker that takes a microbatch through a stage.
    fn to(&self, stage: StageId, key: MicrobatchKey, head: Head) -> Option<Destination> {
        let Some(Job::Round(running)) = &self.job else { return None };
        running
            .round
            .microbatch_assignment
            .worker(&self.stage_placement, stage, key.index)
            .map(|worker| self.links.to(worker, head))
    }

    fn forward_done(
        &self,
        spec: &StageSpec,
        key: MicrobatchKey,
        outputs: Vec<Slot>,
        to_boss: bool,
    ) -> Vec<StageEffect> {
        let leaving = spec.outputs.iter().filter(|o| !o.to.is_empty() || (to_boss && o.model_output.is_some()));
        let gone = leaving.zip(outputs).map(|(output, slot)| {
            let value = output.value;
            let users = output.to.iter().filter_map(|to| self.to(*to, key, Head::Value { key, value, to: *to }));
            let boss = (to_boss && output.model_output.is_some()).then_some(Destination {
                peer: Peer::Boss,
                route: None,
                head: Head::Output { key, value },
            });
            send(users.chain(boss), vec![slot])
        });
        gone.collect()
    }

    fn backward_done(&self, spec: &StageSpec, key: MicrobatchKey, grads: Vec<Vec<Slot>>) -> Vec<StageEffect> {
        let gone = spec.inputs.iter().zip(grads).map(|(input, slots)| {
            let maker = input.from.filter(|_| input.needs_grad);
            let head = |to| Head::Gradient { key, value: input.value, from: Some(spec.stage), to };
            (maker.and_then(|maker| self.to(maker, key, head(maker))), slots)
        });
        // What nobody wants has no slots either.
        gone.filter(|(to, slots)| to.is_some() || !slots.is_empty()).map(|(to, slots)| send(to, slots)).collect()
    }
}

fn send(to: impl IntoIterator<Item = Destination>, slots: Vec<Slot>) -> StageEffect {
    let to: Vec<_> = to.into_iter().collect();
    match to.is_empty() {
        true => StageEffect::Drop(slots),
        false => StageEffect::Send { to, slots },
    }
}
