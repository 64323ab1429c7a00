//! A round at work: which action is next, and its work once its tensors are there.

use super::inbox::{Inbox, Item};
use super::needs::{gradients, loss_output, max_norm, needs};
use super::reducing::{Reducing, ReplicaGroup};
use super::StageSession;
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Round, RoundUpdate, Span, MAX_SPANS};
use crate::norm::Square;
use crate::plan::{StageOutput, StageSpec};
use crate::replicas::{MicrobatchOrder, StagePlacement};
use crate::schedule::{Action, Picker};
use crate::task::{Branch, LossTask, Task, Update};
use std::collections::BTreeMap;

/// A round with how far it has come.
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) round: Round,
    picker: Picker,
    pub(super) losses: Vec<(u32, f32)>,
    /// Frames with tensors sent to the boss.
    pub(super) sent: u32,
    /// When each action ran.
    pub(super) spans: Vec<Span>,
    /// Something failed; nothing more is started.
    pub(super) failed: bool,
    squares: Vec<Square>,
    /// The number of stages that have not computed their norms.
    unmeasured: usize,
    /// The norm over all stages, once the boss has told it.
    pub(super) norm: Option<f64>,
    /// For every stage how many microbatches have still to add their gradients.
    unadded: BTreeMap<StageId, u32>,
    /// For every stage how often its parameters were shared, and gathered, in this round.
    visits: BTreeMap<StageId, (u32, u32)>,
    /// The progress of the gradients of stages with replicas.
    pub(super) reducing: BTreeMap<StageId, Reducing>,
}

impl Running {
    pub(super) fn new(
        id: u64,
        round: Round,
        stages: &[StageSpec],
        groups: &BTreeMap<StageId, ReplicaGroup>,
        stage_placement: &StagePlacement,
    ) -> Self {
        let sends_back = |spec: &StageSpec| spec.inputs.iter().any(|i| i.needs_grad && i.from.is_some());
        let awaited = |stage| stages.iter().any(|s| s.stage == stage && sends_back(s));
        let picker = Picker::new(
            &round.actions,
            &round.order,
            &MicrobatchOrder::new(&round.microbatch_assignment, stage_placement, round.microbatches),
            awaited,
        );
        let unmeasured = round.actions.iter().filter(|a| matches!(a, Action::GradNorm { .. })).count();
        let mut unadded = BTreeMap::new();
        let mut reducing = BTreeMap::new();
        for action in &round.actions {
            match *action {
                Action::Backward { stage, .. } | Action::BackwardWeight { stage, .. } => {
                    *unadded.entry(stage).or_insert(0) += 1;
                }
                Action::Reduce { stage } => {
                    let begun =
                        groups.get(&stage).map(|group| (stage, Reducing::new(stage, group, &round, stage_placement)));
                    reducing.extend(begun);
                }
                _ => {}
            }
        }
        Running {
            id,
            picker,
            losses: Vec::new(),
            sent: 0,
            spans: Vec::new(),
            failed: false,
            squares: Vec::new(),
            unmeasured,
            norm: None,
            unadded,
            visits: BTreeMap::new(),
            reducing,
            round,
        }
    }

    /// How often this worker has shared its part of a stage's parameters.
    pub(super) fn shared(&self, stage: StageId) -> u32 {
        self.visits.get(&stage).map_or(0, |(shared, _)| *shared)
    }

    /// An action is carried out.
    pub(super) fn ended(&mut self, action: &Action) {
        if let Action::Share { stage } = action {
            self.visits.entry(*stage).or_default().0 += 1;
        }
    }

    /// Whether every action has been started.
    pub(super) fn all_started(&self) -> bool {
        self.picker.is_done()
    }

    /// Whether parameters change by what replicas have sent each other since they last did; nothing where that is left to a
    /// later round, or nothing was compressed.
    pub(super) fn uses_compressed(&self) -> Option<bool> {
        self.round.reduction.compress()?;
        let steps = |action: &Action| matches!(action, Action::OptimStep { .. });
        let update = self.round.update.filter(|_| self.round.actions.iter().any(steps))?;
        Some(!self.skips(&update))
    }

    fn skips(&self, update: &RoundUpdate) -> bool {
        update.skip_infinite && self.norm.is_some_and(|norm| !norm.is_finite())
    }

    /// The next action with its work, once all its tensors are there. `busy` says that the compute thread has work: then
    /// nothing is chosen that something still to come would go before.
    pub(super) fn next_task(
        &mut self,
        stages: &[StageSpec],
        groups: &BTreeMap<StageId, ReplicaGroup>,
        inbox: &mut Inbox,
        busy: bool,
    ) -> Option<(Action, Task<Slot>)> {
        let ready = |action: &Action| self.is_ready(action, stages, groups, inbox);
        let action = if busy { self.picker.pick_early(ready) } else { self.picker.pick(ready) }?;
        let task = self.task(action, spec(stages, &action)?, groups, inbox)?;
        self.picker.start(&action);
        if let Action::AllGather { stage } = action {
            self.visits.entry(stage).or_default().1 += 1;
        }
        Some((action, task))
    }

    /// Takes the norms of a stage in; gives those of all once they are complete.
    pub(super) fn measured(&mut self, squares: Vec<Square>) -> Option<Vec<Square>> {
        self.squares.extend(squares);
        self.unmeasured = self.unmeasured.saturating_sub(1);
        (self.unmeasured == 0).then(|| std::mem::take(&mut self.squares))
    }

    pub(super) fn ran(&mut self, span: Span) {
        if self.spans.len() < MAX_SPANS {
            self.spans.push(span);
        }
    }

    fn is_ready(
        &self,
        action: &Action,
        stages: &[StageSpec],
        groups: &BTreeMap<StageId, ReplicaGroup>,
        inbox: &Inbox,
    ) -> bool {
        let Some(spec) = spec(stages, action) else { return false };
        let key = self.key(action);
        let waits =
            matches!(action, Action::OptimStep { .. }) && max_norm(&self.round).is_some() && self.norm.is_none();
        let of_replicas = match (action, groups.get(&spec.stage), self.reducing.get(&spec.stage)) {
            (Action::Reduce { .. }, Some(group), Some(reducing)) => reducing.needs(group),
            (Action::AllGather { .. }, Some(group), _) => group.updates().collect(),
            _ => Vec::new(),
        };
        !waits
            && needs(&self.round, spec, action)
                .into_iter()
                .chain(of_replicas)
                .all(|item| inbox.has(key, spec.stage, item))
    }

    fn key(&self, action: &Action) -> MicrobatchKey {
        let index = match action {
            Action::AllGather { stage } => self.visits.get(stage).map_or(0, |(_, gathered)| *gathered),
            _ => action.microbatch().unwrap_or(0),
        };
        MicrobatchKey { batch: self.round.batch, index }
    }

    /// Where the gradients of the microbatch go that is about to go back through a stage.
    fn branch(&mut self, action: Action, groups: &BTreeMap<StageId, ReplicaGroup>) -> Option<Branch> {
        let adds = matches!(action, Action::Backward { .. } | Action::BackwardWeight { .. });
        let stage = action.stage();
        let last = match self.unadded.get_mut(&stage).filter(|_| adds) {
            Some(unadded) => {
                *unadded = unadded.saturating_sub(1);
                *unadded == 0
            }
            None => false,
        };
        let group = groups.get(&stage).filter(|group| adds && (last || group.shards_gradients()));
        let group = group.filter(|_| self.reducing.contains_key(&stage));
        let hand_out = group.filter(|_| !self.round.reduction.is_collective()).map(ReplicaGroup::replicas);
        let tells = last && group.is_some();
        let branch = Branch { microbatches: self.round.microbatches, hand_out, last, tells };
        self.round.reduction.is_apart().then_some(branch)
    }

    fn task(
        &mut self,
        action: Action,
        spec: &StageSpec,
        groups: &BTreeMap<StageId, ReplicaGroup>,
        inbox: &mut Inbox,
    ) -> Option<Task<Slot>> {
        // Without training there is nothing to sum, and nothing ends the sum.
        let branch = self.branch(action, groups).filter(|_| spec.is_trained());
        let (key, stage) = (self.key(&action), action.stage());
        let mut tied = |items: Vec<Item>| -> Vec<(StageId, Vec<Slot>)> {
            let take = |item: Item| match item {
                Item::TiedGrads { from } | Item::TiedValues { from } => Some((from, inbox.take(key, stage, item))),
                _ => None,
            };
            items.into_iter().filter_map(take).collect()
        };
        Some(match action {
            Action::Forward { .. } => self.forward(spec, key, inbox),
            Action::Backward { .. } => self.backward(spec, key, inbox, false, branch),
            Action::BackwardInput { .. } => self.backward(spec, key, inbox, true, None),
            Action::BackwardWeight { .. } => Task::BackwardWeight { stage, key, branch },
            Action::Reduce { .. } => {
                let of_replicas = groups.get(&stage).zip(self.reducing.get(&stage));
                let statistics = of_replicas
                    .and_then(|(group, reducing)| reducing.take_statistics(group, |item| inbox.take(key, stage, item)));
                if let Some(statistics) = statistics {
                    return Some(Task::AllReduce { stage, batch: key.batch, statistics });
                }
                let (buckets, statistics) = match (groups.get(&stage), self.reducing.get(&stage)) {
                    (Some(group), Some(reducing)) => reducing.take(group, |item| inbox.take(key, stage, item)),
                    _ => (Vec::new(), Vec::new()),
                };
                Task::Reduce { stage, batch: key.batch, buckets, statistics }
            }
            Action::ReduceTied { .. } => Task::TiedGrads { stage },
            Action::GradNorm { .. } => Task::GradNorm { stage, tied: tied(needs(&self.round, spec, &action)) },
            Action::OptimStep { .. } => {
                let update = self.round.update?;
                let clip = self.norm.map_or(1.0, |norm| update.clip(norm));
                let skip = self.skips(&update);
                let update = Update { lr: update.lr, scale: update.scale, clip, skip };
                let health = self.round.watch.health;
                Task::OptimStep { stage, update, tied: tied(needs(&self.round, spec, &action)), health }
            }
            Action::AllGather { .. } => {
                let take = |item| inbox.take(key, stage, item);
                let buckets = groups.get(&stage).map_or(Vec::new(), |group| group.take_updates(take));
                Task::AllGather { stage, buckets }
            }
            Action::Share { .. } => Task::Share { stage },
            Action::Reshard { .. } => Task::Reshard { stage },
            Action::UpdateTied { .. } => Task::UpdateTied { stage, tied: tied(needs(&self.round, spec, &action)) },
        })
    }

    fn forward(&self, spec: &StageSpec, key: MicrobatchKey, inbox: &mut Inbox) -> Task<Slot> {
        let stage = spec.stage;
        let inputs = spec.inputs.iter().flat_map(|i| inbox.take(key, stage, Item::Value(i.value))).collect();
        let loss = self.round.loss.as_ref().zip(loss_output(spec)).and_then(|(loss, output)| {
            let weight = *loss.weights.get(key.index as usize)?;
            let target = inbox.take(key, stage, Item::Target).pop()?;
            Some(LossTask { output, spec: loss.spec.clone(), weight, target })
        });
        let leaves = |o: &StageOutput| !o.to.is_empty() || (self.round.outputs && o.model_output.is_some());
        let export = (0..spec.outputs.len()).filter(|i| leaves(&spec.outputs[*i])).collect();
        let Round { step, mode, cached, watch, .. } = &self.round;
        let (step, mode, cached, finite) = (*step, *mode, cached.clone(), watch.finite);
        let apart = StageSession::keeps_apart(&self.round, spec);
        Task::Forward { stage, key, step, mode, cached, inputs, export, loss, apart, finite }
    }

    fn backward(
        &self,
        spec: &StageSpec,
        key: MicrobatchKey,
        inbox: &mut Inbox,
        input_only: bool,
        branch: Option<Branch>,
    ) -> Task<Slot> {
        let stage = spec.stage;
        let mut take = |item: Item| inbox.take(key, stage, item);
        let grads = spec.outputs.iter().map(|o| gradients(&self.round, o).into_iter().flat_map(&mut take).collect());
        Task::Backward { stage, key, grads: grads.collect(), input_only, branch }
    }
}

fn spec<'a>(stages: &'a [StageSpec], action: &Action) -> Option<&'a StageSpec> {
    stages.iter().find(|s| s.stage == action.stage())
}
