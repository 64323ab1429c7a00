//! The placement of stages on workers.

use super::ScheduleKind;
use crate::ids::{StageId, WorkerId};
use crate::replicas::{StagePlacement, WorkerGroups};
use std::collections::BTreeSet;
use std::fmt;

/// How stages, in the order of the model, are assigned to workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// One stage on each worker.
    #[default]
    Plain,
    /// Several stages on each worker, in turns: of `p` workers, worker `w` has the stages `w`, `w +
    /// p`, `w + 2p` and so on.
    Interleaved {
        /// The number of stages on each worker.
        chunks: u16,
    },
    /// Two stages on each worker, down and up again: of `p` workers, worker `w` has the stages `w`
    /// and `2p - 1 - w`.
    V,
}

impl Placement {
    /// The number of stages on each worker.
    pub fn chunks(self) -> usize {
        match self {
            Placement::Plain => 1,
            Placement::Interleaved { chunks } => chunks.into(),
            Placement::V => 2,
        }
    }

    /// The workers of every stage.
    pub fn stage_placement(self, worker_groups: &WorkerGroups) -> StagePlacement {
        let stages = 0..worker_groups.len() * self.chunks();
        StagePlacement::new(
            stages
                .map(|stage| {
                    worker_groups.of_group(self.column(stage, worker_groups.len())).to_vec()
                })
                .collect(),
        )
    }

    /// The place of a stage, of `worker_groups` places.
    fn column(self, stage: usize, worker_groups: usize) -> usize {
        match self {
            Placement::V if stage >= worker_groups => (2 * worker_groups).saturating_sub(1 + stage),
            _ => stage % worker_groups.max(1),
        }
    }

    /// Whether stages have this placement.
    pub fn is(self, stage_placement: &StagePlacement) -> bool {
        let places = places(stage_placement);
        let same = |(stage, workers): (StageId, &[WorkerId])| {
            workers == stage_placement.of(StageId(self.column(stage.0 as usize, places) as u16))
        };
        stage_placement.stages() == places * self.chunks() && stage_placement.iter().all(same)
    }

    /// The placement that a kind of schedule needs. `chunks` is for the kinds with any number of
    /// stages on a worker. For GPipe it is one by default.
    pub fn of(kind: ScheduleKind, chunks: Option<u16>) -> Self {
        match (kind, chunks) {
            (ScheduleKind::GPipe, Some(chunks @ 2..)) => Placement::Interleaved { chunks },
            (
                ScheduleKind::GPipe
                | ScheduleKind::OneFOneB
                | ScheduleKind::ZbH1
                | ScheduleKind::Ready,
                _,
            ) => Placement::Plain,
            (ScheduleKind::Interleaved, chunks) => {
                Placement::Interleaved { chunks: chunks.unwrap_or(2) }
            }
            (ScheduleKind::ZbV, _) => Placement::V,
        }
    }

    /// Checks that a kind of schedule works with this placement of stages. Returns the placement
    /// that it needs if not.
    pub(super) fn check(
        kind: ScheduleKind,
        stage_placement: &StagePlacement,
    ) -> Result<(), Placement> {
        let chunks =
            (stage_placement.stages() / places(stage_placement).max(1)).clamp(2, 1 << 10) as u16;
        let wanted = Placement::of(kind, Some(chunks));
        match kind {
            ScheduleKind::GPipe | ScheduleKind::Ready => Ok(()),
            _ if wanted.is(stage_placement) => Ok(()),
            _ => Err(wanted),
        }
    }
}

/// The number of workers, with those of the same stages counted once.
fn places(stage_placement: &StagePlacement) -> usize {
    stage_placement.iter().filter_map(|(_, workers)| workers.first()).collect::<BTreeSet<_>>().len()
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Plain => f.write_str("one stage a worker"),
            Placement::Interleaved { chunks } => write!(f, "{chunks} stages a worker, in turns"),
            Placement::V => f.write_str("two stages a worker, down and up again"),
        }
    }
}
