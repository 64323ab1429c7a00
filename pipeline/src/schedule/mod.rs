//! A schedule as one value: the list of actions of each worker, which is printed, checked,
//! predicted and executed.

mod check;
mod gpipe;
mod one_f_one_b;
mod picture;
mod timeline;

pub use check::{check, ScheduleError};
pub use picture::picture;
pub use timeline::{timeline, Costs, Deadlock, Interval, Timeline};

use crate::ids::{StageId, WorkerId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One thing a worker does. Gradients are summed in the order of microbatches, so every schedule
/// runs a stage's backward passes in ascending order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Action {
    /// A microbatch through a stage.
    Forward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// A microbatch's gradients through a stage.
    Backward {
        /// Which stage.
        stage: StageId,
        /// Which microbatch.
        microbatch: u32,
    },
    /// The stage's gradients applied to its parameters.
    OptimStep {
        /// Which stage.
        stage: StageId,
    },
}

impl Action {
    /// The stage it belongs to.
    pub fn stage(&self) -> StageId {
        match *self {
            Action::Forward { stage, .. } | Action::Backward { stage, .. } | Action::OptimStep { stage } => stage,
        }
    }

    /// The microbatch it works on, if any.
    pub fn microbatch(&self) -> Option<u32> {
        match *self {
            Action::Forward { microbatch, .. } | Action::Backward { microbatch, .. } => Some(microbatch),
            Action::OptimStep { .. } => None,
        }
    }

    /// What it does, in a word or two.
    pub fn verb(&self) -> &'static str {
        match self {
            Action::Forward { .. } => "forward",
            Action::Backward { .. } => "backward",
            Action::OptimStep { .. } => "optimizer step",
        }
    }
}

/// Which list of actions is made.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965).
    GPipe,
    /// One forward, one backward, once the pipeline is full (PipeDream-Flush, Narayanan et al. 2021,
    /// arXiv:2006.09503): as fast as GPipe, with at most as many microbatches held as there are stages.
    #[default]
    OneFOneB,
}

impl ScheduleKind {
    /// Every kind, with the name used in run files.
    pub const NAMES: [(&'static str, ScheduleKind); 2] =
        [("gpipe", ScheduleKind::GPipe), ("1f1b", ScheduleKind::OneFOneB)];
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for ScheduleKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("unknown schedule `{text}`; expected one of {}", names.join(", "))
        })
    }
}

/// What each worker does in one training step, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Which kind made it.
    pub kind: ScheduleKind,
    /// How many microbatches the batch is cut into.
    pub microbatches: u32,
    /// For every stage the worker that has it.
    pub homes: Vec<WorkerId>,
    /// For every worker its actions.
    pub workers: Vec<Vec<Action>>,
}

impl Schedule {
    /// The schedule of a training step for stages placed on workers as `homes` says.
    pub fn new(kind: ScheduleKind, homes: &[WorkerId], microbatches: u32) -> Self {
        let stages = homes.len();
        let count = homes.iter().map(|w| w.0 as usize + 1).max().unwrap_or(0);
        let mut workers = vec![Vec::new(); count];
        for (index, home) in homes.iter().enumerate() {
            let stage = StageId(index as u16);
            let list = &mut workers[home.0 as usize];
            match kind {
                ScheduleKind::GPipe => gpipe::actions(stage, microbatches, list),
                ScheduleKind::OneFOneB => one_f_one_b::actions(stage, stages, microbatches, list),
            }
            list.push(Action::OptimStep { stage });
        }
        Schedule { kind, microbatches, homes: homes.to_vec(), workers }
    }

    /// The most microbatches whose activations a stage holds at one time.
    pub fn peak_in_flight(&self, stage: StageId) -> usize {
        let (mut held, mut peak) = (0usize, 0);
        for action in self.workers.iter().flatten().filter(|a| a.stage() == stage) {
            match action {
                Action::Forward { .. } => held += 1,
                Action::Backward { .. } => held = held.saturating_sub(1),
                Action::OptimStep { .. } => {}
            }
            peak = peak.max(held);
        }
        peak
    }
}
