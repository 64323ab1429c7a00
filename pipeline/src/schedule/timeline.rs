//! When each action runs, under given costs: each worker takes its list in order, and an action
//! starts once the worker is free and what it needs has arrived.

use super::{Action, Schedule};
use crate::ids::{StageId, WorkerId};
use std::collections::BTreeMap;
use std::fmt;

/// How long things take, in any one unit.
#[derive(Clone, Debug)]
pub struct Costs {
    /// A forward pass, for each stage.
    pub forward: Vec<u64>,
    /// A backward pass, for each stage.
    pub backward: Vec<u64>,
    /// An optimizer step, for each stage.
    pub optim_step: Vec<u64>,
    /// A tensor's way from one worker to another.
    pub hop: u64,
}

impl Costs {
    /// The costs that textbook pictures use: forward 1, backward 2, optimizer step 1, no delay.
    pub fn unit(stages: usize) -> Self {
        Costs { forward: vec![1; stages], backward: vec![2; stages], optim_step: vec![1; stages], hop: 0 }
    }

    fn of(&self, action: &Action) -> u64 {
        let table = match action {
            Action::Forward { .. } => &self.forward,
            Action::Backward { .. } => &self.backward,
            Action::OptimStep { .. } => &self.optim_step,
        };
        table.get(action.stage().0 as usize).copied().unwrap_or(1)
    }
}

/// An action with its start and end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    /// What runs.
    pub action: Action,
    /// From when.
    pub start: u64,
    /// Until when.
    pub end: u64,
}

/// Every action of every worker with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// For every worker its actions in order.
    pub workers: Vec<Vec<Interval>>,
}

impl Timeline {
    /// When the last action ends.
    pub fn end(&self) -> u64 {
        self.workers.iter().flatten().map(|i| i.end).max().unwrap_or(0)
    }
}

/// Workers that wait for each other for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// What each stuck worker waits to do.
    pub stuck: Vec<(WorkerId, Action)>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("workers wait for each other:")?;
        for (worker, action) in &self.stuck {
            write!(f, " {worker} for the {} of {}", action.verb(), action.stage())?;
            if let Some(microbatch) = action.microbatch() {
                write!(f, ", microbatch {microbatch}")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

/// Plays a schedule. `edges` are the pairs of stages (maker, user) between which a variable goes.
pub fn timeline(schedule: &Schedule, edges: &[(StageId, StageId)], costs: &Costs) -> Result<Timeline, Deadlock> {
    let mut ended: BTreeMap<Action, u64> = BTreeMap::new();
    let mut free = vec![0u64; schedule.workers.len()];
    let mut workers: Vec<Vec<Interval>> = vec![Vec::new(); schedule.workers.len()];
    loop {
        let mut moved = false;
        for (worker, list) in schedule.workers.iter().enumerate() {
            while let Some(action) = list.get(workers[worker].len()) {
                let Some(ready) = ready_at(action, schedule, edges, costs, &ended) else { break };
                let start = free[worker].max(ready);
                let end = start + costs.of(action);
                free[worker] = end;
                ended.insert(*action, end);
                workers[worker].push(Interval { action: *action, start, end });
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let next = |w: usize| schedule.workers[w].get(workers[w].len()).map(|a| (WorkerId(w as u16), *a));
    let stuck: Vec<_> = (0..workers.len()).filter_map(next).collect();
    if stuck.is_empty() {
        Ok(Timeline { workers })
    } else {
        Err(Deadlock { stuck })
    }
}

/// When all an action needs has arrived; nothing while some of it is still to be done.
fn ready_at(
    action: &Action,
    schedule: &Schedule,
    edges: &[(StageId, StageId)],
    costs: &Costs,
    ended: &BTreeMap<Action, u64>,
) -> Option<u64> {
    let arrival = |need: Action| {
        let home = |stage: StageId| schedule.homes.get(stage.0 as usize);
        let hop = if home(need.stage()) == home(action.stage()) { 0 } else { costs.hop };
        ended.get(&need).map(|end| end + hop)
    };
    let latest =
        |needs: Vec<Action>| needs.into_iter().try_fold(0, |latest: u64, need| Some(latest.max(arrival(need)?)));
    match *action {
        Action::Forward { stage, microbatch } => {
            let makers = edges.iter().filter(|(_, user)| *user == stage);
            latest(makers.map(|(maker, _)| Action::Forward { stage: *maker, microbatch }).collect())
        }
        Action::Backward { stage, microbatch } => {
            let users = edges.iter().filter(|(maker, _)| *maker == stage);
            let users = users.map(|(_, user)| Action::Backward { stage: *user, microbatch });
            latest(users.chain([Action::Forward { stage, microbatch }]).collect())
        }
        Action::OptimStep { stage } => {
            latest((0..schedule.microbatches).map(|microbatch| Action::Backward { stage, microbatch }).collect())
        }
    }
}
