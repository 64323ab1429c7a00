//! The actions that gather and free the parameters of a stage, if replicas shard parameters.
//!
//! Consecutive passes through one stage are a visit to it. A worker gathers the others' shards
//! before a visit and frees them after it. When a visit begins, the worker shares its own shard of
//! the stage that is visited next. So the others have it in time, and no worker holds the
//! parameters of more than two stages. This is ZeRO's third stage (Rajbhandari et al. 2020). A
//! worker makes few visits if it takes all microbatches through a stage before its next stage.
//! GPipe with several stages on a worker does so (the breadth-first pipeline of Lamy-Poirier 2022).
//!
//! The gradients of a stage leave during the last visit to it. They are summed before the next
//! visit ends. So no worker has the gradients of more than two stages in flight. A replica without
//! microbatches has none.
//!
//! Replicas must make the same visits, or they would wait for each other for ever. A replica
//! without microbatches makes the visits of the others.

use super::{Action, Layout, ScheduleError};
use crate::ids::{StageId, WorkerId};

impl Layout {
    /// Adds the actions that gather parameters to lists of passes, if parameters are sharded.
    ///
    /// # Errors
    /// Replicas do not visit their stages in the same order.
    pub fn gathered(&self, lists: Vec<Vec<Action>>) -> Result<Vec<Vec<Action>>, ScheduleError> {
        if !(0..self.stages() as u16).any(|stage| self.shards_parameters(StageId(stage))) {
            return Ok(lists);
        }
        let visits: Vec<Vec<StageId>> = lists.iter().map(|list| self.visits(list)).collect();
        let gathered = lists.into_iter().zip(0..).map(|(list, worker)| {
            let shared = |other: &usize| {
                let both = |stage: StageId| {
                    self.stage_placement.has(stage, WorkerId(worker))
                        && self.stage_placement.has(stage, WorkerId(*other as u16))
                };
                (0..self.stages() as u16)
                    .map(StageId)
                    .any(|stage| self.shards_parameters(stage) && both(stage))
            };
            let of_all = (0..visits.len()).filter(shared).map(|other| &visits[other]);
            let Some(most) = of_all.clone().max_by_key(|visits| visits.len()) else {
                return Ok(list);
            };
            match of_all.clone().find(|visits| !visits.is_empty() && *visits != most) {
                Some(other) => {
                    let apart = most
                        .iter()
                        .zip(other)
                        .find(|(one, other)| one != other)
                        .map(|(one, _)| *one);
                    Err(ScheduleError::Visits(
                        apart.or(most.get(other.len()).copied()).unwrap_or(StageId(0)),
                    ))
                }
                None => Ok(self.around(list, most)),
            }
        });
        gathered.collect()
    }

    /// Adds the sums of gradients to the passes of a worker: at the end, or, if parameters are
    /// sharded, each after the visit that follows the last one to its stage.
    pub(super) fn summed(&self, passes: Vec<Action>, sums: Vec<Action>) -> Vec<Action> {
        let last = |stage: StageId| passes.iter().rposition(|action| action.stage() == stage);
        let after_next_visit = |sum: &Action| {
            let next = last(sum.stage()).filter(|_| self.shards_parameters(sum.stage()))? + 1;
            let visited = passes.get(next)?.stage();
            let ends = passes[next..].iter().position(|action| action.stage() != visited);
            ends.map(|length| next + length)
        };
        let place = |sum: &Action| after_next_visit(sum).unwrap_or(passes.len());
        let sums = sums.into_iter().map(|sum| (place(&sum), sum));
        let mut all: Vec<(usize, Action)> =
            sums.chain(passes.iter().copied().enumerate()).collect();
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, action)| action).collect()
    }

    /// For every worker, the actions that gather all parameters of a stage, and those that free
    /// them. `None` if every replica has all parameters.
    pub fn whole(&self, stage: StageId) -> Option<[Vec<Vec<Action>>; 2]> {
        if !self.shards_parameters(stage) {
            return None;
        }
        let of_replicas = |actions: &[Action]| {
            let workers = (0..self.workers() as u16).map(WorkerId);
            let list = |worker| {
                if self.stage_placement.has(stage, worker) {
                    actions.to_vec()
                } else {
                    Vec::new()
                }
            };
            workers.map(list).collect()
        };
        let gather = [Action::Share { stage }, Action::AllGather { stage }];
        Some([of_replicas(&gather), of_replicas(&[Action::Reshard { stage }])])
    }

    /// The stages that a list visits, one after the other.
    fn visits(&self, list: &[Action]) -> Vec<StageId> {
        let mut visits: Vec<StageId> = list
            .iter()
            .filter(|action| self.is_visit(action))
            .map(|action| action.stage())
            .collect();
        visits.dedup();
        visits
    }

    /// Whether an action uses parameters that are to be gathered.
    fn is_visit(&self, action: &Action) -> bool {
        action.microbatch().is_some() && self.shards_parameters(action.stage())
    }

    /// Adds the actions that gather and free parameters around the visits of a list.
    fn around(&self, list: Vec<Action>, visits: &[StageId]) -> Vec<Action> {
        let begins = |number: usize| {
            let first =
                visits.first().filter(|_| number == 0).map(|stage| Action::Share { stage: *stage });
            let gather = visits.get(number).map(|stage| Action::AllGather { stage: *stage });
            let next = visits.get(number + 1).map(|stage| Action::Share { stage: *stage });
            first.into_iter().chain(gather).chain(next)
        };
        let mut all = Vec::new();
        let last = list.iter().rposition(|action| self.is_visit(action));
        if last.is_none() {
            for (number, stage) in visits.iter().enumerate() {
                all.extend(begins(number).chain([Action::Reshard { stage: *stage }]));
            }
        }
        let mut at: Option<(usize, StageId)> = None;
        for (place, action) in list.into_iter().enumerate() {
            if self.is_visit(&action) && at.is_none_or(|(_, stage)| stage != action.stage()) {
                all.extend(at.map(|(_, stage)| Action::Reshard { stage }));
                let number = at.map_or(0, |(number, _)| number + 1);
                all.extend(begins(number));
                at = Some((number, action.stage()));
            }
            all.push(action);
            if Some(place) == last {
                all.extend(at.map(|(_, stage)| Action::Reshard { stage }));
            }
        }
        all
    }

    /// Whether [`Layout::gathered`] adds this action.
    pub(super) fn gathers(&self, action: &Action) -> bool {
        match action {
            Action::Share { .. } | Action::Reshard { .. } => true,
            Action::AllGather { stage } => self.shards_parameters(*stage),
            _ => false,
        }
    }
}
