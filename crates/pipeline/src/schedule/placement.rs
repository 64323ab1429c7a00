//! Which worker has which stages.

use super::ScheduleKind;
use crate::ids::{StageId, WorkerId};
use crate::replicas::{Columns, Homes};
use std::collections::BTreeSet;
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

    /// For every stage its workers.
    pub fn homes(self, columns: &Columns) -> Homes {
        let stages = 0..columns.len() * self.chunks();
        Homes::new(stages.map(|stage| columns.of_column(self.column(stage, columns.len())).to_vec()).collect())
    }

    /// Which place of so many a stage is at.
    fn column(self, stage: usize, columns: usize) -> usize {
        match self {
            Placement::V if stage >= columns => (2 * columns).saturating_sub(1 + stage),
            _ => stage % columns.max(1),
        }
    }

    /// Whether stages are placed so.
    pub fn is(self, homes: &Homes) -> bool {
        let places = places(homes);
        let same = |(stage, workers): (StageId, &[WorkerId])| {
            workers == homes.of(StageId(self.column(stage.0 as usize, places) as u16))
        };
        homes.stages() == places * self.chunks() && homes.iter().all(same)
    }

    /// The placement that a kind of schedule wants; `chunks` is for the kinds that may have any number, of which GPipe has one
    /// by default.
    pub fn of(kind: ScheduleKind, chunks: Option<u16>) -> Self {
        match (kind, chunks) {
            (ScheduleKind::GPipe, Some(chunks @ 2..)) => Placement::Interleaved { chunks },
            (ScheduleKind::GPipe | ScheduleKind::OneFOneB | ScheduleKind::ZbH1 | ScheduleKind::Ready, _) => {
                Placement::Plain
            }
            (ScheduleKind::Interleaved, chunks) => Placement::Interleaved { chunks: chunks.unwrap_or(2) },
            (ScheduleKind::ZbV, _) => Placement::V,
        }
    }

    /// Whether a kind of schedule works with stages placed so; if not, the placement that it wants.
    pub(super) fn check(kind: ScheduleKind, homes: &Homes) -> Result<(), Placement> {
        let chunks = (homes.stages() / places(homes).max(1)).clamp(2, 1 << 10) as u16;
        let wanted = Placement::of(kind, Some(chunks));
        match kind {
            ScheduleKind::GPipe | ScheduleKind::Ready => Ok(()),
            _ if wanted.is(homes) => Ok(()),
            _ => Err(wanted),
        }
    }
}

/// How many workers there are, those with the same stages counted once.
fn places(homes: &Homes) -> usize {
    homes.iter().filter_map(|(_, workers)| workers.first()).collect::<BTreeSet<_>>().len()
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
