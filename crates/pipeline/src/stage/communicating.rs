//! Communicators among the replicas of this worker's stages, by which the compute thread sums gradients itself.
//!
//! One replica of a stage makes an id, which reaches the others by way of the boss; with it all make the communicator. Whatever
//! waits for other replicas on the compute thread must be called off where they do not come: a step that fails, fails
//! everywhere at once, and what comes next begins with new communicators.

use super::{Job, Purpose, StageSession};
use crate::effect::{Peer, StageEffect};
use crate::ids::StageId;
use crate::message::Round;
use crate::replicas::{ShardId, UniqueId};
use crate::schedule::Action;
use crate::task::Task;

impl StageSession {
    /// The replicas of a stage whose gradients are summed by a communicator, and which of them this is.
    fn rank(&self, stage: StageId) -> Option<ShardId> {
        let spec = self.stages.iter().find(|spec| spec.stage == stage).filter(|spec| spec.is_trained())?;
        self.groups.get(&spec.stage).and_then(|group| group.rank())
    }

    pub(super) fn make_ids(&mut self, id: u64) {
        let stages = self.stages.iter().map(|spec| spec.stage);
        let first = stages.filter(|stage| self.rank(*stage).is_some_and(|rank| rank.replica == 0)).collect();
        self.single(id, Task::MakeIds { stages: first });
    }

    pub(super) fn communicate(&mut self, id: u64, ids: Vec<(StageId, UniqueId)>) {
        let mut stages = Vec::new();
        for (stage, unique) in ids {
            let Some(rank) = self.rank(stage) else {
                let reason = format!("sent an id for a communicator of {stage}, which needs none");
                return self.refuse(Peer::Boss, Vec::new(), reason);
            };
            stages.push((stage, rank, unique));
        }
        // All take them in one order, or they would wait for each other.
        if stages.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return self.refuse(Peer::Boss, Vec::new(), "sent ids for communicators out of order".into());
        }
        self.job = Some(Job::Communicate { id });
        self.compute(Purpose::Command(id), Task::Communicate { stages });
    }

    /// Calls off what the compute thread waits for, or will wait for, of the command at work.
    pub(super) fn interrupt(&mut self) {
        let waits = match &self.job {
            Some(Job::Round(running)) => running.round.reduction.is_collective(),
            Some(Job::Communicate { .. }) => true,
            _ => false,
        };
        if waits {
            self.effects.push_back(StageEffect::Interrupt);
        }
    }

    /// Refuses a round in which a compute thread would wait for others that wait for it.
    pub(super) fn check_collective(&self, round: &Round) -> Result<(), String> {
        if !round.reduction.is_collective() {
            return Ok(());
        }
        if self.groups.values().any(|group| group.is_sharded() || group.is_followed()) {
            return Err("a round that sums gradients of which each replica has a part, or others follow, in one".into());
        }
        let sums: Vec<usize> = (0..).zip(&round.actions).filter(|(_, a)| is_sum(a)).map(|(place, _)| place).collect();
        let passes = round.actions.iter().rposition(|action| action.microbatch().is_some());
        let stages = || sums.iter().map(|place| round.actions[*place].stage());
        let ascends = stages().zip(stages().skip(1)).all(|(one, next)| one < next);
        match sums.first().zip(passes).is_none_or(|(sum, pass)| pass < *sum) && ascends {
            true => Ok(()),
            false => Err("a round that sums gradients before its passes are through, or stages out of order".into()),
        }
    }
}

fn is_sum(action: &Action) -> bool {
    matches!(action, Action::Reduce { .. })
}
