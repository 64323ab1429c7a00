//! The task of an action, made of the tensors that have arrived for it.

use super::inbox::{Inbox, Item};
use super::needs::{gradients, loss_output, needs};
use super::replica_group::{ReplicaGroup, Shard};
use super::stage_reduction::StageReduction;
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Mode, Round, RoundUpdate};
use crate::plan::{StageOutput, StageSpec};
use crate::round_outputs::RoundOutputs;
use crate::schedule::Action;
use crate::task::{LossTask, Task, TreeLeaf, Update};

/// The parts of a task.
pub(super) struct TaskBuilder<'a> {
    pub(super) round: &'a Round,
    /// The stage of the action.
    pub(super) spec: &'a StageSpec,
    /// The key under which its tensors are in the inbox.
    pub(super) key: MicrobatchKey,
    pub(super) group: Option<&'a ReplicaGroup>,
    pub(super) reduction: Option<&'a StageReduction>,
    /// The norm of all gradients, once it is known.
    pub(super) norm: Option<f64>,
    pub(super) inbox: &'a mut Inbox,
}

impl TaskBuilder<'_> {
    /// Takes the tensors of an action out of the inbox. `leaf` is for a backward pass.
    pub(super) fn build(mut self, action: Action, leaf: Option<TreeLeaf>) -> Option<Task<Slot>> {
        let (key, stage) = (self.key, self.spec.stage);
        Some(match action {
            Action::Forward { .. } => self.forward(),
            Action::Backward { .. } => {
                Task::Backward { stage, key, grads: self.grads(), input_only: false, leaf }
            }
            Action::BackwardInput { .. } => {
                Task::Backward { stage, key, grads: self.grads(), input_only: true, leaf: None }
            }
            Action::BackwardWeight { .. } => Task::BackwardWeight { stage, key, leaf },
            Action::Reduce { .. } => self.reduce(),
            Action::ReduceTied { .. } => Task::TiedGrads { stage },
            Action::GradNorm { .. } => Task::GradNorm { stage, tied: self.tied(&action) },
            Action::OptimStep { .. } => self.optim_step(&action)?,
            Action::AllGather { .. } => {
                let buckets =
                    self.shards(|Shard { bucket, replica }| Item::Updated { bucket, replica });
                Task::AllGather { stage, buckets }
            }
            Action::Share { .. } => Task::EmitShard { stage },
            Action::Reshard { .. } => Task::Reshard { stage },
            Action::UpdateTied { .. } => Task::UpdateTied { stage, tied: self.tied(&action) },
        })
    }

    fn take(&mut self, item: Item) -> Vec<Slot> {
        self.inbox.take(self.key, self.spec.stage, item)
    }

    fn forward(&mut self) -> Task<Slot> {
        let (spec, round, key) = (self.spec, self.round, self.key);
        let inputs = spec.inputs.iter().flat_map(|i| self.take(Item::Value(i.value))).collect();
        let loss = round.loss.as_ref().zip(loss_output(spec)).and_then(|(loss, output)| {
            let weight = *loss.weights.get(key.index as usize)?;
            let target = self.take(Item::Target).pop()?;
            let is_free = spec.outputs.get(output).is_some_and(|output| output.to.is_empty());
            let likeliest = loss.likeliest && is_free;
            Some(LossTask { output, spec: loss.spec.clone(), weight, target, likeliest })
        });
        let is_for_boss = |o: &StageOutput| o.model_output.is_some_and(|o| round.outputs.has(o));
        let leaves = |o: &StageOutput| !o.to.is_empty() || is_for_boss(o);
        let export = (0..spec.outputs.len()).filter(|i| leaves(&spec.outputs[*i])).collect();
        let last_position = match round.outputs {
            RoundOutputs::First(last) => {
                let of = spec.outputs.iter().position(|o| is_for_boss(o) && o.to.is_empty());
                of.map(|output| (output, last))
            }
            RoundOutputs::None | RoundOutputs::All => None,
        };
        Task::Forward {
            stage: spec.stage,
            key,
            step: round.step,
            mode: round.mode,
            kv_cache: round.kv_cache.clone(),
            inputs,
            export,
            last_position,
            loss,
            defer_statistics: round.mode == Mode::Train && round.reduction.is_apart(),
            finite: round.watch.finite,
        }
    }

    fn grads(&mut self) -> Vec<Vec<Slot>> {
        let (spec, round) = (self.spec, self.round);
        let of_output = |output: &StageOutput| {
            gradients(round, output).into_iter().flat_map(|item| self.take(item)).collect()
        };
        spec.outputs.iter().map(of_output).collect()
    }

    fn reduce(&mut self) -> Task<Slot> {
        let (stage, batch) = (self.spec.stage, self.key.batch);
        let Some((group, progress)) = self.group.zip(self.reduction) else {
            return Task::Reduce { stage, batch, buckets: Vec::new(), statistics: Vec::new() };
        };
        // A stage without gradients has no communicator.
        if progress.is_collective() && self.spec.is_trained() {
            let statistics = progress.take_statistics(group, |item| self.take(item));
            return Task::AllReduce { stage, batch, statistics };
        }
        let buckets = self.shards(|Shard { bucket, replica }| Item::Reduced { bucket, replica });
        let statistics = progress.take_statistics(group, |item| self.take(item));
        Task::Reduce { stage, batch, buckets, statistics }
    }

    fn shards(&mut self, item: fn(Shard) -> Item) -> Vec<Vec<Vec<Slot>>> {
        self.group.map_or(Vec::new(), |group| group.take_shards(|shard| self.take(item(shard))))
    }

    fn optim_step(&mut self, action: &Action) -> Option<Task<Slot>> {
        let update = self.round.update?;
        let skip = skips_update(&update, self.norm);
        let clip = self.norm.map_or(1.0, |norm| update.clip(norm));
        Some(Task::OptimStep {
            stage: self.spec.stage,
            update: Update { lr: update.lr, scale: update.scale, clip, skip },
            tied: self.tied(action),
            health: self.round.watch.health,
        })
    }

    /// The tensors of tied parameters, by the stage at the other end.
    fn tied(&mut self, action: &Action) -> Vec<(StageId, Vec<Slot>)> {
        let items = needs(self.round, self.spec, action);
        let take = |item: Item| match item {
            Item::TiedGrads { from } | Item::TiedValues { from } => Some((from, self.take(item))),
            _ => None,
        };
        items.into_iter().filter_map(take).collect()
    }
}

/// Whether an update leaves parameters unchanged, because the norm is not finite.
pub(super) fn skips_update(update: &RoundUpdate, norm: Option<f64>) -> bool {
    update.skip_infinite && norm.is_some_and(|norm| !norm.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{membership, round};
    use super::*;
    use crate::round_outputs::LastPosition;

    /// The outputs that a forward pass of a stage of two exports, and the one that it shortens.
    fn exported(stage: u16, outputs: RoundOutputs) -> (Vec<usize>, Option<usize>) {
        let membership = membership(&[1, 1], stage, None);
        let builder = TaskBuilder {
            round: &Round { outputs, ..round(Vec::new()) },
            spec: membership.stage(StageId(stage)).expect("its stage"),
            key: MicrobatchKey { batch: 7, index: 0 },
            group: None,
            reduction: None,
            norm: None,
            inbox: &mut Inbox::default(),
        };
        match builder.build(Action::Forward { stage: StageId(stage), microbatch: 0 }, None) {
            Some(Task::Forward { export, last_position, .. }) => {
                (export, last_position.map(|(output, _)| output))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_models_output_is_shortened_to_its_last_position() {
        let first = RoundOutputs::First(LastPosition { dim: 2, positions: 8 });
        assert_eq!(exported(1, RoundOutputs::None), (vec![], None));
        assert_eq!(exported(1, RoundOutputs::All), (vec![0], None));
        assert_eq!(exported(1, first), (vec![0], Some(0)));
        assert_eq!(exported(0, first), (vec![0], None), "it goes to the next stage");
    }
}
