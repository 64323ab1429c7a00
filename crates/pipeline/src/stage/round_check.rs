//! The rules that a round must follow. A round that breaks one would wait forever for tensors that
//! cannot arrive.

use super::membership::Membership;
use super::needs::max_norm;
use super::replica_group::ReplicaGroup;
use crate::ids::StageId;
use crate::message::{Round, MAX_MICROBATCHES};
use crate::schedule::{Action, Order};
use std::collections::BTreeSet;

/// Fails with the reason if a round breaks it.
type Rule = fn(&Check<'_>) -> Result<(), String>;

/// Every rule. The first one that is broken is the reason.
const RULES: &[Rule] = &[
    |check| check.stages_are_here(),
    |check| check.actions_are_distinct(),
    |check| check.losses_have_weights(),
    |check| check.updates_have_a_learning_rate(),
    |check| check.limits_come_with_norms(),
    |check| check.shards_are_gathered_and_measured(),
    |check| check.microbatches_are_in_the_batch(),
    |check| check.microbatches_have_samples(),
    |check| check.replicas_exist(),
    |check| check.replicas_can_sum(),
    |check| check.sums_per_replica_wait_for_all(),
    |check| check.collectives_have_equal_replicas(),
    |check| check.collectives_come_last_and_in_order(),
    |check| check.order_covers_all_stages(),
];

/// Fails with the first broken rule.
pub(super) fn check(round: &Round, membership: &Membership) -> Result<(), String> {
    let check = Check { round, membership };
    RULES.iter().try_for_each(|rule| rule(&check))
}

struct Check<'a> {
    round: &'a Round,
    membership: &'a Membership,
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(otherwise.to_string()),
    }
}

impl Check<'_> {
    fn actions(&self) -> impl Iterator<Item = &Action> + '_ {
        self.round.actions.iter()
    }

    fn place(&self, action: Action) -> Option<usize> {
        self.actions().position(|other| *other == action)
    }

    fn updates(&self) -> bool {
        self.actions().any(|action| matches!(action, Action::OptimStep { .. }))
    }

    /// One more than the last microbatch of an action.
    fn microbatches(&self) -> usize {
        self.actions().filter_map(Action::microbatch).max().map_or(0, |last| last as usize + 1)
    }

    fn groups(&self) -> impl Iterator<Item = (StageId, &ReplicaGroup)> + '_ {
        self.membership.groups.iter().map(|(stage, group)| (*stage, group))
    }

    fn stages_are_here(&self) -> Result<(), String> {
        match self.actions().find(|action| self.membership.stage(action.stage()).is_none()) {
            Some(action) => Err(format!("an action for {}, which is not here", action.stage())),
            None => Ok(()),
        }
    }

    /// Gradients would count twice, and parameters would be updated twice.
    fn actions_are_distinct(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut once = self.actions().filter(|action| !action.may_repeat());
        ensure(once.all(|action| seen.insert(*action)), "a round with the same action twice")
    }

    fn losses_have_weights(&self) -> Result<(), String> {
        let least = self.microbatches();
        let weights = self.round.loss.as_ref().map(|loss| loss.weights.len());
        ensure(
            weights.is_none_or(|weights| weights >= least),
            &format!("fewer than {least} loss weights"),
        )
    }

    fn updates_have_a_learning_rate(&self) -> Result<(), String> {
        ensure(
            !self.updates() || self.round.update.is_some(),
            "an optimizer step without a learning rate",
        )
    }

    /// The first replica of a stage computes the norm, or all replicas do.
    fn limits_come_with_norms(&self) -> Result<(), String> {
        let norms = self.actions().any(|action| matches!(action, Action::GradNorm { .. }));
        let me = self.membership.worker;
        let is_first = me.is_some()
            && self
                .membership
                .stages
                .iter()
                .any(|spec| self.membership.placement.first(spec.stage) == me);
        let fits = match max_norm(self.round) {
            Some(_) => norms || !is_first,
            None => !norms,
        };
        ensure(
            !self.updates() || fits,
            "a limit for the norm of gradients without actions that find the norm, or the reverse",
        )
    }

    fn shards_are_gathered_and_measured(&self) -> Result<(), String> {
        for (stage, group) in self.groups().filter(|(_, group)| group.is_sharded()) {
            let step = self.place(Action::OptimStep { stage });
            let gather = self.place(Action::AllGather { stage });
            if !group.shards_parameters() && (step.is_some() != gather.is_some() || step > gather) {
                return Err(format!(
                    "an update of a part of {stage} that is not followed by one that gathers the \
                     others"
                ));
            }
            let is_measured = self.place(Action::GradNorm { stage }).is_some();
            if step.is_some() && is_measured != max_norm(self.round).is_some() {
                return Err(format!(
                    "a limit for the norm of gradients of which a part of {stage} is left out"
                ));
            }
        }
        Ok(())
    }

    fn microbatches_are_in_the_batch(&self) -> Result<(), String> {
        let (all, least) = (self.round.microbatches, self.microbatches());
        ensure(
            all <= MAX_MICROBATCHES && least <= all as usize,
            &format!("a batch of {all} microbatches with actions for {least}"),
        )
    }

    /// Every microbatch that is read here is among the round's samples.
    fn microbatches_have_samples(&self) -> Result<(), String> {
        let Some(samples) = &self.round.samples else { return Ok(()) };
        let mut forwards = self
            .actions()
            .filter(|action| matches!(action, Action::Forward { .. }))
            .filter_map(Action::microbatch);
        ensure(
            forwards.all(|microbatch| samples.part(microbatch, self.round.microbatches).is_some()),
            "microbatches without samples, or samples for others",
        )
    }

    fn replicas_exist(&self) -> Result<(), String> {
        ensure(
            self.round.microbatch_assignment.fits(&self.membership.placement),
            "microbatches for replicas that there are not",
        )
    }

    fn replicas_can_sum(&self) -> Result<(), String> {
        ensure(
            self.membership.groups.is_empty() || self.round.reduction.is_apart(),
            "a round that sums gradients in a way that replicas cannot",
        )
    }

    fn sums_per_replica_wait_for_all(&self) -> Result<(), String> {
        let leaves_early = self.groups().any(|(_, group)| group.shards_gradients());
        ensure(
            !self.round.reduction.adds_up_first() || !leaves_early,
            "a round that adds up gradients which leave with each microbatch",
        )
    }

    /// A collective operation sums whole gradients of replicas that all take part.
    fn collectives_have_equal_replicas(&self) -> Result<(), String> {
        let differ = self.groups().any(|(_, group)| group.is_sharded() || group.is_followed());
        ensure(
            !self.round.reduction.is_collective() || !differ,
            "a round that sums gradients of which each replica has a part, or others follow, in \
             one",
        )
    }

    /// Otherwise a compute thread would wait for others that wait for it.
    fn collectives_come_last_and_in_order(&self) -> Result<(), String> {
        if !self.round.reduction.is_collective() {
            return Ok(());
        }
        let is_sum = |action: &Action| matches!(action, Action::Reduce { .. });
        let first_sum = self.actions().position(is_sum);
        let last_pass = self.round.actions.iter().rposition(|action| action.microbatch().is_some());
        let stages: Vec<StageId> =
            self.actions().filter(|action| is_sum(action)).map(Action::stage).collect();
        let is_last = first_sum.zip(last_pass).is_none_or(|(sum, pass)| pass < sum);
        ensure(
            is_last && stages.windows(2).all(|pair| pair[0] < pair[1]),
            "a round that sums gradients before its passes are through, or stages out of order",
        )
    }

    fn order_covers_all_stages(&self) -> Result<(), String> {
        let stages = self.membership.placement.stages();
        let covers = match &self.round.order {
            Order::Ready { in_flight, held } => in_flight.len() >= stages && held.len() >= stages,
            _ => true,
        };
        ensure(covers, "an order that does not cover all stages")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{membership, round};
    use super::*;
    use crate::message::{Reduction, RoundUpdate};
    use crate::replicas::Sharding;

    const STAGE: StageId = StageId(0);

    /// The reason to refuse a round of these actions, as `change` makes it.
    fn refused(
        membership: &Membership,
        actions: &[Action],
        change: impl Fn(&mut Round),
    ) -> Option<String> {
        let mut round = round(actions.to_vec());
        change(&mut round);
        check(&round, membership).err()
    }

    fn update(max_norm: Option<f64>) -> impl Fn(&mut Round) {
        move |round| {
            let update = RoundUpdate { lr: 0.1, scale: 1.0, max_norm, skip_infinite: false };
            round.update = Some(update);
        }
    }

    #[test]
    fn actions_are_for_stages_and_microbatches_that_exist() {
        let alone = membership(&[1, 1], 0, None);
        let forward = |stage, microbatch| Action::Forward { stage: StageId(stage), microbatch };
        assert_eq!(refused(&alone, &[forward(0, 3)], |_| ()), None);
        let reason = Some("an action for stage 1, which is not here".to_string());
        assert_eq!(refused(&alone, &[forward(1, 0)], |_| ()), reason);
        let reason = Some("a batch of 4 microbatches with actions for 5".to_string());
        assert_eq!(refused(&alone, &[forward(0, 4)], |_| ()), reason);
    }

    #[test]
    fn only_actions_that_gather_parameters_come_twice() {
        let alone = membership(&[1, 1], 0, None);
        let forward = |microbatch| Action::Forward { stage: STAGE, microbatch };
        let reason = Some("a round with the same action twice".to_string());
        assert_eq!(refused(&alone, &[forward(0), forward(1), forward(0)], |_| ()), reason);
        let step = Action::OptimStep { stage: STAGE };
        assert_eq!(refused(&alone, &[step, step], update(None)), reason);
        let gather = [
            Action::Share { stage: STAGE },
            Action::AllGather { stage: STAGE },
            Action::Reshard { stage: STAGE },
        ];
        assert_eq!(refused(&alone, &[gather, gather].concat(), |_| ()), None);
    }

    #[test]
    fn an_update_needs_a_learning_rate_and_a_limit_needs_norms() {
        let alone = membership(&[1, 1], 0, None);
        let (step, norm) = (Action::OptimStep { stage: STAGE }, Action::GradNorm { stage: STAGE });
        let is_refused = |actions: &[Action], max| refused(&alone, actions, update(max)).is_some();
        assert!(refused(&alone, &[step], |_| ()).is_some());
        assert!(!is_refused(&[step], None) && !is_refused(&[norm, step], Some(1.0)));
        assert!(is_refused(&[step], Some(1.0)) && is_refused(&[norm, step], None));
    }

    #[test]
    fn a_shard_that_is_updated_is_gathered_afterwards() {
        let sharded = membership(&[2, 1], 0, Some(Sharding::Optimizer));
        let (step, gather) =
            (Action::OptimStep { stage: STAGE }, Action::AllGather { stage: STAGE });
        let is_refused = |actions: &[Action]| {
            let tree = |round: &mut Round| {
                update(None)(round);
                round.reduction = Reduction::Tree;
            };
            refused(&sharded, actions, tree).is_some()
        };
        assert!(!is_refused(&[step, gather]));
        assert!(is_refused(&[step]) && is_refused(&[gather]) && is_refused(&[gather, step]));
    }

    #[test]
    fn replicas_sum_in_an_order_that_they_can() {
        let replica = membership(&[2, 1], 0, None);
        let by = |reduction| refused(&replica, &[], |round| round.reduction = reduction);
        assert!(by(Reduction::Sequential).is_some());
        assert_eq!((by(Reduction::Tree), by(Reduction::Fast)), (None, None));
    }

    #[test]
    fn collectives_come_after_the_passes() {
        let replica = membership(&[2, 1], 0, None);
        let sum = Action::Reduce { stage: STAGE };
        let pass = Action::Backward { stage: STAGE, microbatch: 0 };
        let is_refused = |actions: &[Action]| {
            let collective = |round: &mut Round| round.reduction = Reduction::Collective;
            refused(&replica, actions, collective).is_some()
        };
        assert!(!is_refused(&[pass, sum]) && is_refused(&[sum, pass]));
    }
}
