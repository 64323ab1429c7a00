//! How far a transfer of training state is.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A transfer of training state that takes long: weights that are saved or fetched, or a state that
/// is loaded.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Where the state goes.
    pub direction: Direction,
    /// The bytes of the tensors that have arrived. The replicas of a stage count once.
    pub bytes: u64,
    /// All its bytes.
    pub of_bytes: u64,
    /// Seconds since it began.
    pub elapsed_s: f64,
    /// Whether it has ended. It broke off if fewer than all bytes have arrived.
    pub ended: bool,
}

/// Where training state goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the workers, from the boss or from files of their own.
    ToWorkers,
    /// From the workers, into memory or a file.
    FromWorkers,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transfer { direction, bytes, of_bytes, elapsed_s, ended } = self;
        let what = match direction {
            Direction::ToWorkers => "loading state into the workers",
            Direction::FromWorkers => "fetching weights from the workers",
        };
        let gigabytes = |bytes: &u64| *bytes as f64 / 1e9;
        let (arrived, all) = (gigabytes(bytes), gigabytes(of_bytes));
        write!(f, "{what}: {arrived:.2} of {all:.2} GB in {elapsed_s:.0} s")?;
        match ended {
            true if bytes < of_bytes => f.write_str(", and broke off"),
            _ => Ok(()),
        }
    }
}
