//! How long things take and how much memory they hold: what a timeline is computed from.

use super::Action;
use crate::ids::{StageId, WorkerId};
use std::collections::BTreeMap;

/// How long everything takes, in any one unit; nanoseconds where it was measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Costs {
    /// For every stage, on its first worker.
    pub stages: Vec<StageTimes>,
    /// For its other replicas, where they take another time.
    pub replicas: BTreeMap<(StageId, WorkerId), StageTimes>,
    /// The way from one worker to another, where it is not `link`.
    pub links: BTreeMap<(WorkerId, WorkerId), Link>,
    /// The way between any other two workers.
    pub link: Link,
    /// Bytes that go for one microbatch from a stage to one that uses its variables; as many come back.
    pub bytes: BTreeMap<(StageId, StageId), u64>,
    /// Bytes of the parameters that the second stage shares with the first.
    pub tied_bytes: BTreeMap<(StageId, StageId), u64>,
    /// Bytes of the gradients of a stage, which its replicas exchange.
    pub reduced_bytes: BTreeMap<StageId, u64>,
    /// Bytes of what each replica has made of its part, and gives to the others: sums, or updated parameters.
    pub returned_bytes: BTreeMap<StageId, u64>,
    /// Bytes of a microbatch that the boss sends to a stage: inputs of the model, and targets.
    pub from_boss: BTreeMap<StageId, u64>,
    /// The way between the boss and a worker, where it is not `boss_link`.
    pub boss_links: BTreeMap<WorkerId, Link>,
    /// The way between the boss and any other worker.
    pub boss_link: Link,
    /// Which machine each worker is on, and the boss, by any numbers: what goes from one machine to another shares a line.
    /// One that is missing has a machine of its own.
    pub machines: BTreeMap<Process, u32>,
    /// What each action takes beside its work: the session and the way to the compute thread.
    pub per_action: u64,
}

/// Who sends and receives.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Process {
    /// The boss.
    Boss,
    /// A worker.
    Worker(WorkerId),
}

/// What one microbatch takes on a stage.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StageTimes {
    /// A forward pass.
    pub forward: u64,
    /// A backward pass, both halves at once.
    pub backward: u64,
    /// The half for inputs.
    pub backward_input: u64,
    /// The half for parameters.
    pub backward_weight: u64,
    /// An optimizer step, which is one for all microbatches.
    pub optim_step: u64,
}

/// A way from one worker to another, on which one tensor goes at a time.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Link {
    /// From the last byte's departure to its arrival.
    pub latency: u64,
    /// How long a byte occupies the link.
    pub per_byte: f64,
}

impl Link {
    /// Two ways in a row, by way of somebody who passes things on.
    pub fn then(&self, next: Link) -> Link {
        Link { latency: self.latency + next.latency, per_byte: self.per_byte.max(next.per_byte) }
    }

    /// In nanoseconds, from a round trip and a rate that were measured.
    pub fn measured(rtt_nanos: u64, bytes_per_second: u64) -> Self {
        let per_byte = if bytes_per_second == 0 { 0.0 } else { 1e9 / bytes_per_second as f64 };
        Link { latency: rtt_nanos / 2, per_byte }
    }

    /// How long so many bytes occupy it.
    pub fn occupied(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.per_byte) as u64
    }
}

impl Costs {
    /// The costs that textbook pictures use: forward 1, backward 2, each half of it 1, optimizer step 1, no delay.
    pub fn unit(stages: usize) -> Self {
        let unit = StageTimes { forward: 1, backward: 2, backward_input: 1, backward_weight: 1, optim_step: 1 };
        Self::of_stages(vec![unit; stages])
    }

    /// No delay between stages.
    pub fn of_stages(stages: Vec<StageTimes>) -> Self {
        Costs { stages, ..Self::default() }
    }

    /// The way between two workers.
    pub fn link(&self, from: WorkerId, to: WorkerId) -> Link {
        match from == to {
            true => Link::default(),
            false => self.links.get(&(from, to)).copied().unwrap_or(self.link),
        }
    }

    /// The way between the boss and a worker.
    pub fn boss_link(&self, worker: WorkerId) -> Link {
        self.boss_links.get(&worker).copied().unwrap_or(self.boss_link)
    }

    /// What a stage takes on a worker.
    pub fn stage(&self, stage: StageId, worker: WorkerId) -> StageTimes {
        let first = || self.stages.get(stage.0 as usize).copied().unwrap_or_default();
        self.replicas.get(&(stage, worker)).copied().unwrap_or_else(first)
    }

    pub(super) fn of(&self, action: &Action, worker: WorkerId) -> u64 {
        let stage = self.stage(action.stage(), worker);
        let work = match action {
            Action::Forward { .. } => stage.forward,
            Action::Backward { .. } => stage.backward,
            Action::BackwardInput { .. } => stage.backward_input,
            Action::BackwardWeight { .. } => stage.backward_weight,
            Action::OptimStep { .. } => stage.optim_step,
            // Each passes once over the gradients or parameters, where an optimizer step passes several times.
            Action::Reduce { .. }
            | Action::ReduceTied { .. }
            | Action::GradNorm { .. }
            | Action::AllGather { .. }
            | Action::Share { .. }
            | Action::UpdateTied { .. } => stage.optim_step / 4,
            Action::Reshard { .. } => 0,
        };
        work + self.per_action
    }
}

/// The memory that a stage takes on its worker.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StageBytes {
    /// Parameters, gradients and the optimizer's state: always there.
    pub fixed: u64,
    /// From the sharing of its parameters until they are let go, where that is done.
    pub gathered: u64,
    /// From a microbatch's forward pass to its backward pass, or the first half of that.
    pub held: u64,
    /// From the first half of its backward pass to the second.
    pub held_between: u64,
}
