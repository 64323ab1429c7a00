//! The round of the current command: its next action, and the results of actions.

use super::action_ledger::{broken, in_action, ActionLedger};
use super::action_task::{skips_update, TaskBuilder};
use super::context::RoundContext;
use super::inbox::{Inbox, Item};
use super::membership::Membership;
use super::needs::{max_norm, needs};
use super::reduction::{RoundReduction, StageBucket};
use super::results::Results;
use crate::ids::{MicrobatchKey, Slot, StageId};
use crate::message::{Failure, Round, Span, TensorHead, ToBoss, MAX_SPANS};
use crate::norm::Square;
use crate::plan::StageSpec;
use crate::replicas::{is_reduced, MicrobatchOrder};
use crate::schedule::{Action, Picker};
use crate::task::{EarlyOutput, Outcome, Task, TreeLeaf};
use std::collections::BTreeMap;

/// A round and its progress.
pub(super) struct ActiveRound {
    /// The command.
    pub(super) id: u64,
    pub(super) round: Round,
    picker: Picker,
    ledger: ActionLedger,
    /// The weighted loss of each microbatch that the boss does not know yet.
    pub(super) losses: Vec<(u32, f32)>,
    /// The number of frames with tensors sent to the boss.
    pub(super) sent: u32,
    /// When each action ran.
    pub(super) spans: Vec<Span>,
    /// Whether something failed. Then nothing more is started.
    pub(super) failed: bool,
    norm: Norm,
    /// The number of microbatches of each stage that have still to add their gradients.
    unadded: BTreeMap<StageId, u32>,
    visits: BTreeMap<StageId, Visits>,
    pub(super) reduction: RoundReduction,
}

/// The norm of the round's gradients.
struct Norm {
    /// The sums of squares on this worker so far.
    squares: Vec<Square>,
    /// The number of stages that have not computed theirs.
    missing: usize,
    /// The norm over all stages, once the boss has sent it.
    total: Option<f64>,
}

/// The progress of a stage whose replicas shard the parameters.
#[derive(Default)]
struct Visits {
    /// How often this worker has shared its part in this round.
    shared: u32,
    /// How often it has gathered the parts of the others.
    gathered: u32,
}

/// The state of the compute thread when the next action is chosen.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum ComputeThread {
    Idle,
    /// It has work. An action is chosen only if no action that may become ready would precede it.
    Busy,
}

/// The next action and its task.
pub(super) struct Next {
    pub(super) action: Action,
    pub(super) task: Task<Slot>,
}

impl ActiveRound {
    pub(super) fn new(id: u64, round: Round, membership: &Membership) -> Self {
        let sends_back =
            |spec: &StageSpec| spec.inputs.iter().any(|i| i.needs_grad && i.from.is_some());
        let order = MicrobatchOrder::new(
            &round.microbatch_assignment,
            &membership.placement,
            round.microbatches,
        );
        let picker = Picker::new(&round.actions, &round.order, &order, |stage| {
            membership.stage(stage).is_some_and(sends_back)
        });
        let missing = round.actions.iter().filter(|a| matches!(a, Action::GradNorm { .. })).count();
        let mut unadded = BTreeMap::new();
        for action in round.actions.iter().filter(|action| adds_gradients(action)) {
            *unadded.entry(action.stage()).or_insert(0) += 1;
        }
        ActiveRound {
            id,
            picker,
            ledger: ActionLedger::new(&round.actions),
            losses: Vec::new(),
            sent: 0,
            spans: Vec::new(),
            failed: false,
            norm: Norm { squares: Vec::new(), missing, total: None },
            unadded,
            visits: BTreeMap::new(),
            reduction: RoundReduction::new(&round, membership),
            round,
        }
    }

    /// Whether every action has been started and every requested sum computed. The reduction thread
    /// may still send gradients that other workers wait for.
    pub(super) fn is_over(&self) -> bool {
        self.picker.is_done() && self.reduction.is_idle()
    }

    /// Fails if an action of a round that is over has not ended.
    pub(super) fn check_actions(&self) -> Result<(), Failure> {
        self.ledger.check()
    }

    /// Whether this round updates parameters with compressed gradients. `None` if nothing is
    /// compressed, or a later round updates them.
    pub(super) fn uses_compressed(&self) -> Option<bool> {
        self.round.reduction.compress()?;
        let steps = |action: &Action| matches!(action, Action::OptimStep { .. });
        let update = self.round.update.filter(|_| self.round.actions.iter().any(steps))?;
        Some(!skips_update(&update, self.norm.total))
    }

    /// The norm over all stages is known.
    pub(super) fn set_norm(&mut self, norm: f64) {
        self.norm.total = Some(norm);
    }

    /// Whether the round gathers the parameters of a stage more than `times` times.
    pub(super) fn gathers_again(&self, stage: StageId, times: u32) -> bool {
        let gathers =
            self.round.actions.iter().filter(|action| **action == Action::AllGather { stage });
        gathers.count() > times as usize
    }

    /// The next action, once all its tensors have arrived.
    pub(super) fn next(
        &mut self,
        compute_thread: ComputeThread,
        membership: &Membership,
        inbox: &mut Inbox,
    ) -> Result<Option<Next>, Failure> {
        let ready = |action: &Action| self.is_ready(action, membership, inbox);
        let picked = match compute_thread {
            ComputeThread::Busy => self.picker.pick_early(ready),
            ComputeThread::Idle => self.picker.pick(ready),
        };
        let Some(action) = picked else { return Ok(None) };
        self.ledger.start(action)?;
        let task = self.task(action, membership, inbox);
        let task = task.ok_or_else(|| broken(action, "it has no task"))?;
        self.picker.start(&action);
        if let Action::AllGather { stage } = action {
            self.visits.entry(stage).or_default().gathered += 1;
        }
        Ok(Some(Next { action, task }))
    }

    fn is_ready(&self, action: &Action, membership: &Membership, inbox: &Inbox) -> bool {
        let stage = action.stage();
        let Some(spec) = membership.stage(stage) else { return false };
        let waits_for_norm = matches!(action, Action::OptimStep { .. })
            && max_norm(&self.round).is_some()
            && self.norm.total.is_none();
        let group = membership.groups.get(&stage);
        let from_replicas = match (action, group, self.reduction.stage(stage)) {
            (Action::Reduce { .. }, Some(group), Some(progress)) => progress.needs(group),
            (Action::AllGather { .. }, Some(group), _) => group.updates().collect(),
            _ => Vec::new(),
        };
        let key = self.key(action);
        let mut items = needs(&self.round, spec, action).into_iter().chain(from_replicas);
        !waits_for_norm && items.all(|item| inbox.has(key, stage, item))
    }

    fn key(&self, action: &Action) -> MicrobatchKey {
        let index = match action {
            Action::AllGather { stage } => self.visits.get(stage).map_or(0, |v| v.gathered),
            _ => action.microbatch().unwrap_or(0),
        };
        MicrobatchKey { batch: self.round.batch, index }
    }

    fn task(
        &mut self,
        action: Action,
        membership: &Membership,
        inbox: &mut Inbox,
    ) -> Option<Task<Slot>> {
        let stage = action.stage();
        let spec = membership.stage(stage)?;
        // Without gradients and statistics there is nothing to sum, and nothing ends the sum.
        let leaf = self.leaf(action, membership).filter(|_| is_reduced(spec));
        let builder = TaskBuilder {
            round: &self.round,
            spec,
            key: self.key(&action),
            group: membership.groups.get(&stage),
            reduction: self.reduction.stage(stage),
            norm: self.norm.total,
            inbox,
        };
        builder.build(action, leaf)
    }

    /// The place of a microbatch's gradients in the sum, for the backward pass that is about to
    /// start.
    fn leaf(&mut self, action: Action, membership: &Membership) -> Option<TreeLeaf> {
        let adds = adds_gradients(&action);
        let stage = action.stage();
        let last = match self.unadded.get_mut(&stage).filter(|_| adds) {
            Some(unadded) => {
                *unadded = unadded.saturating_sub(1);
                *unadded == 0
            }
            None => false,
        };
        let group = membership.groups.get(&stage);
        let group = group.filter(|group| adds && (last || group.shards_gradients()));
        let group = group.filter(|_| self.reduction.stage(stage).is_some());
        let order = &self.round.reduction;
        let hand_out = group.filter(|_| !order.is_collective()).map(|group| group.replicas());
        let leaf = TreeLeaf {
            microbatches: self.round.microbatches,
            emit_to_replicas: hand_out,
            last,
            emits_statistics: last && group.is_some(),
        };
        order.is_apart().then_some(leaf)
    }

    /// An action is complete: its tensors go to the stages that use them, the rest to the boss.
    pub(super) fn on_done(
        &mut self,
        span: Span,
        outcome: Outcome<Slot>,
        context: &mut RoundContext<'_>,
    ) -> Result<(), Failure> {
        let action = span.action;
        if let Err(failure) = self.ledger.end(action) {
            context.outbox.drop_slots(outcome.into_tensors());
            return Err(failure);
        }
        if self.spans.len() < MAX_SPANS {
            self.spans.push(span);
        }
        if let Action::Share { stage } = action {
            self.visits.entry(stage).or_default().shared += 1;
        }
        let Some(spec) = context.membership.stage(action.stage()) else {
            context.outbox.drop_slots(outcome.into_tensors());
            return Ok(());
        };
        let key =
            MicrobatchKey { batch: self.round.batch, index: action.microbatch().unwrap_or(0) };
        let mut results = Results {
            round: &self.round,
            spec,
            membership: context.membership,
            links: context.links,
            outbox: context.outbox,
        };
        let sent = match outcome {
            Outcome::Forward { outputs, loss } => {
                self.losses.extend(loss.map(|loss| (key.index, loss)));
                self.sent += results.outputs_to_boss();
                results.send_outputs(key, outputs)
            }
            Outcome::Backward { grads } => results.send_grads(key, grads),
            Outcome::Tied { tensors } => {
                results.send_tied(action, tensors);
                Ok(())
            }
            Outcome::Norms { squares } => {
                self.norm.squares.extend(squares);
                self.norm.missing = self.norm.missing.saturating_sub(1);
                if self.norm.missing == 0 {
                    let squares = std::mem::take(&mut self.norm.squares);
                    let losses = std::mem::take(&mut self.losses);
                    context.outbox.tell_boss(ToBoss::Norms { id: self.id, squares, losses });
                }
                Ok(())
            }
            other => {
                context.outbox.drop_slots(other.into_tensors());
                Ok(())
            }
        };
        sent.map_err(|failure| in_action(action, failure))
    }

    /// The compute thread hands out a result during a task.
    pub(super) fn on_early_output(
        &mut self,
        output: EarlyOutput<Slot>,
        context: &mut RoundContext<'_>,
    ) -> Result<(), Failure> {
        let batch = self.round.batch;
        match output {
            EarlyOutput::Sums { stage, bucket, shards } => {
                return self.reduction.on_sums(StageBucket { stage, bucket }, shards, context);
            }
            EarlyOutput::Updated { stage, bucket, slices } => {
                let group = context.membership.groups.get(&stage);
                let group = group.filter(|group| group.shards_bucket(bucket));
                let Some(group) = group.filter(|_| !slices.is_empty()) else {
                    context.outbox.drop_slots(slices);
                    return Ok(());
                };
                let visit = self.visits.get(&stage).map_or(0, |visits| visits.shared);
                let head = TensorHead::Updated { batch, stage, bucket, visit };
                let to = group.other_workers().map(|worker| context.links.to(worker, head.clone()));
                context.outbox.send(to.collect(), slices);
            }
            EarlyOutput::Statistics { stage, tensors } => {
                let group = context.membership.groups.get(&stage);
                let Some(group) = group.filter(|group| group.statistics) else {
                    context.outbox.drop_slots(tensors);
                    return Ok(());
                };
                let others = group.other_workers().chain(group.followers.iter().copied());
                let head = TensorHead::Statistics { batch, stage };
                let to = others.map(|worker| context.links.to(worker, head.clone())).collect();
                context.outbox.send(to, tensors);
            }
            EarlyOutput::Health(layers) => {
                context.outbox.tell_boss(ToBoss::Health { id: self.id, layers });
            }
        }
        Ok(())
    }

    /// A tensor of the round is in the inbox. Sums of gradients may now be added.
    pub(super) fn on_arrived(
        &mut self,
        stage: StageId,
        item: Item,
        context: &mut RoundContext<'_>,
    ) {
        if let (Item::Sum { bucket, .. }, false) = (item, self.failed) {
            self.reduction.add(StageBucket { stage, bucket }, context);
        }
    }
}

/// Whether an action adds the gradients of a microbatch to those of the batch.
fn adds_gradients(action: &Action) -> bool {
    matches!(action, Action::Backward { .. } | Action::BackwardWeight { .. })
}
