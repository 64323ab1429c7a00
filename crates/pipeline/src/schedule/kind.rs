//! The kinds of schedule, by the names that run files use.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The kind of a schedule, which determines the lists of actions.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum ScheduleKind {
    /// All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965).
    GPipe,
    /// One forward, one backward, once the pipeline is full (PipeDream-Flush, Narayanan et al.
    /// 2021, arXiv:2006.09503): as fast as GPipe. A worker holds at most one microbatch for each
    /// stage.
    #[default]
    OneFOneB,
    /// 1F1B with several stages on each worker (Narayanan et al. 2021, arXiv:2104.04473): a shorter
    /// wait at both ends, for more messages.
    Interleaved,
    /// 1F1B whose backward passes are split: the weight halves fill the waits of 1F1B (Qi et al.
    /// 2023, arXiv:2401.10241). A third of the wait, in the same memory.
    ZbH1,
    /// Two stages on each worker, placed in a V, with backward passes split (Qi et al. 2024,
    /// arXiv:2405.15362): hardly any wait, in the memory of 1F1B.
    ZbV,
    /// No fixed order: each worker runs any action that is ready. The delay of the links determines
    /// the number of microbatches in flight.
    Ready,
}

impl ScheduleKind {
    /// Whether replicas take their stages in the same order, for every assignment of microbatches.
    /// Sharded parameters need this.
    pub fn takes_stages_in_order(self) -> bool {
        match self {
            ScheduleKind::GPipe | ScheduleKind::OneFOneB | ScheduleKind::ZbH1 => true,
            ScheduleKind::Interleaved | ScheduleKind::ZbV | ScheduleKind::Ready => false,
        }
    }

    /// Every kind, with the name used in run files.
    pub const NAMES: [(&'static str, ScheduleKind); 6] = [
        ("gpipe", ScheduleKind::GPipe),
        ("1f1b", ScheduleKind::OneFOneB),
        ("interleaved", ScheduleKind::Interleaved),
        ("zb-h1", ScheduleKind::ZbH1),
        ("zb-v", ScheduleKind::ZbV),
        ("ready", ScheduleKind::Ready),
    ];

    /// Whether its backward passes are split in two halves.
    pub fn splits(self) -> bool {
        matches!(self, ScheduleKind::ZbH1 | ScheduleKind::ZbV | ScheduleKind::Ready)
    }
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
