//! Times and memory of stages and links, from which a timeline is computed.

use super::Action;
use crate::ids::{StageId, WorkerId};
use std::collections::BTreeMap;

/// The time of everything in one unit: nanoseconds if it was measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Costs {
    /// The times of every stage on its first worker.
    pub stages: Vec<StageTimes>,
    /// The times of a stage on its other replicas, if they differ.
    pub replicas: BTreeMap<(StageId, WorkerId), StageTimes>,
    /// The link from one worker to another, if it is not `link`.
    pub links: BTreeMap<(WorkerId, WorkerId), Link>,
    /// The link between any other two workers.
    pub link: Link,
    /// The bytes of one microbatch from a stage to a stage that uses its variables. The gradients
    /// have the same size.
    pub bytes: BTreeMap<(StageId, StageId), u64>,
    /// The bytes of the parameters that the second stage copies from the first.
    pub tied_bytes: BTreeMap<(StageId, StageId), u64>,
    /// The bytes of the gradients of a stage, which its replicas exchange.
    pub reduced_bytes: BTreeMap<StageId, u64>,
    /// The bytes of the sums or updated parameters that each replica sends to the others.
    pub returned_bytes: BTreeMap<StageId, u64>,
    /// The bytes of a microbatch that the boss sends to a stage: inputs of the model, and targets.
    pub from_boss: BTreeMap<StageId, u64>,
    /// The link between the boss and a worker, if it is not `boss_link`.
    pub boss_links: BTreeMap<WorkerId, Link>,
    /// The link between the boss and any other worker.
    pub boss_link: Link,
    /// The machine of each worker and of the boss, as arbitrary numbers. All traffic from one
    /// machine to others shares a line. A process without an entry has a machine of its own.
    pub machines: BTreeMap<Process, u32>,
    /// The overhead of each action: the session, and the handover to the compute thread.
    pub per_action: u64,
}

/// A sender or receiver.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Process {
    /// The boss.
    Boss,
    /// A worker.
    Worker(WorkerId),
}

/// The times of one microbatch on a stage.
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
    /// An optimizer step, once for all microbatches.
    pub optim_step: u64,
}

/// A link from one worker to another, which carries one tensor at a time.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Link {
    /// The time from the departure of the last byte to its arrival.
    pub latency: u64,
    /// The time that a byte occupies the link.
    pub per_byte: f64,
}

impl Link {
    /// Two links in a row, with a relay between them.
    pub fn then(&self, next: Link) -> Link {
        Link { latency: self.latency + next.latency, per_byte: self.per_byte.max(next.per_byte) }
    }

    /// A link in nanoseconds, from a measured round trip and rate.
    pub fn measured(rtt_nanos: u64, bytes_per_second: u64) -> Self {
        let per_byte = if bytes_per_second == 0 { 0.0 } else { 1e9 / bytes_per_second as f64 };
        Link { latency: rtt_nanos / 2, per_byte }
    }

    /// The time that `bytes` bytes occupy the link.
    pub fn occupied(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.per_byte) as u64
    }
}

impl Costs {
    /// The costs of textbook pictures: forward 1, backward 2, each half of it 1, optimizer step 1,
    /// no delay.
    pub fn unit(stages: usize) -> Self {
        let unit = StageTimes {
            forward: 1,
            backward: 2,
            backward_input: 1,
            backward_weight: 1,
            optim_step: 1,
        };
        Self::of_stages(vec![unit; stages])
    }

    /// No delay between stages.
    pub fn of_stages(stages: Vec<StageTimes>) -> Self {
        Costs { stages, ..Self::default() }
    }

    /// The link between two workers.
    pub fn link(&self, from: WorkerId, to: WorkerId) -> Link {
        match from == to {
            true => Link::default(),
            false => self.links.get(&(from, to)).copied().unwrap_or(self.link),
        }
    }

    /// The link between the boss and a worker.
    pub fn boss_link(&self, worker: WorkerId) -> Link {
        self.boss_links.get(&worker).copied().unwrap_or(self.boss_link)
    }

    /// The times of a stage on a worker.
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
            // Each of these reads the gradients or parameters once. An optimizer step reads them
            // several times.
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

/// The memory of a stage on its worker, in bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StageBytes {
    /// Permanent: parameters, gradients and optimizer state.
    pub fixed: u64,
    /// From the all-gather of its parameters to their release, if they are sharded.
    pub gathered: u64,
    /// From a microbatch's forward pass to its backward pass, or the first half of that.
    pub held: u64,
    /// From the first half of its backward pass to the second.
    pub held_between: u64,
}
