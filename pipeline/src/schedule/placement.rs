//! Which worker has which stages.

use super::ScheduleKind;
use crate::ids::WorkerId;
use std::fmt;

/// How stages, in the order of the model, are dealt to workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// One stage each.
    #[default]
    Plain,
    /// Several each, in turns: of `p` workers, worker `w` has the stages `w`, `w + p`, `w + 2p` and so on.
    Interleaved {
        /// How many stages each worker has.
        chunks: u16,
    },
    /// Two each, down and up again: of `p` workers, worker `w` has the stages `w` and `2p - 1 - w`.
    V,
}

impl Placement {
    /// How many stages each worker has.
    pub fn chunks(self) -> usize {
        match self {
            Placement::Plain => 1,
            Placement::Interleaved { chunks } => chunks.into(),
            Placement::V => 2,
        }
    }

    /// For every stage its worker.
    pub fn homes(self, workers: usize) -> Vec<WorkerId> {
        let home = |stage: usize| match self {
            Placement::V if stage >= workers => 2 * workers - 1 - stage,
            _ => stage % workers.max(1),
        };
        (0..workers * self.chunks()).map(|stage| WorkerId(home(stage) as u16)).collect()
    }

    /// Whether stages are placed so.
    pub fn is(self, homes: &[WorkerId]) -> bool {
        let workers = workers(homes);
        homes == self.homes(workers)
    }

    /// The placement that a kind of schedule wants; `chunks` is for the kind that may have any number.
    pub fn of(kind: ScheduleKind, chunks: u16) -> Self {
        match kind {
            ScheduleKind::GPipe | ScheduleKind::OneFOneB | ScheduleKind::ZbH1 | ScheduleKind::Ready => Placement::Plain,
            ScheduleKind::Interleaved => Placement::Interleaved { chunks },
            ScheduleKind::ZbV => Placement::V,
        }
    }

    /// Whether a kind of schedule works with stages placed so; if not, the placement that it wants.
    pub(super) fn check(kind: ScheduleKind, homes: &[WorkerId]) -> Result<(), Placement> {
        let chunks = (homes.len() / workers(homes).max(1)).clamp(2, 1 << 10) as u16;
        let wanted = Placement::of(kind, chunks);
        match kind {
            ScheduleKind::GPipe | ScheduleKind::Ready => Ok(()),
            _ if wanted.is(homes) => Ok(()),
            _ => Err(wanted),
        }
    }
}

/// How many workers there are.
pub(super) fn workers(homes: &[WorkerId]) -> usize {
    homes.iter().map(|w| w.0 as usize + 1).max().unwrap_or(0)
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
