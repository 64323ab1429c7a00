//! The messages about a recovery that the user reads.

use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A time in seconds, as JSON has it.
pub mod seconds {
    use core::time::Duration;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the seconds.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    /// Reads the seconds.
    ///
    /// # Errors
    /// It is no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

/// The state from which a run resumes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateSource {
    /// The initial weights.
    Beginning,
    /// A checkpoint after this step.
    Checkpoint {
        /// The last step in it.
        step: u64,
    },
    /// Copies of the state after this step, which workers hold for each other.
    PeerSnapshot {
        /// The last step in it.
        step: u64,
    },
    /// The boss's copy in memory.
    BossCopy {
        /// The number of optimizer steps in it.
        updates: u64,
    },
}

impl StateSource {
    /// The steps that it holds, or optimizer steps for the boss's copy.
    pub fn position(&self) -> u64 {
        match *self {
            StateSource::Beginning => 0,
            StateSource::Checkpoint { step } | StateSource::PeerSnapshot { step } => step,
            StateSource::BossCopy { updates } => updates,
        }
    }
}

impl fmt::Display for StateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateSource::Beginning => f.write_str("the beginning"),
            StateSource::Checkpoint { step } => write!(f, "the checkpoint of step {step}"),
            StateSource::PeerSnapshot { step } => write!(f, "the peer snapshot of step {step}"),
            StateSource::BossCopy { updates } => {
                write!(f, "the boss's copy after {updates} updates")
            }
        }
    }
}

/// How a run resumes after a loss of workers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResumeReport {
    /// The workers that joined again.
    pub workers: usize,
    /// The workers at first.
    pub initial_workers: usize,
    /// The state from which they resume.
    pub source: StateSource,
}

impl fmt::Display for ResumeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResumeReport { workers, initial_workers, source } = self;
        write!(f, "recovery: resuming with {workers} of {initial_workers} workers from {source}")
    }
}

/// The work that a recovery repeats.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeated {
    /// Training steps.
    Steps(u64),
    /// Calls by hand.
    Calls(u64),
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, one) = match *self {
            Repeated::Steps(count) => (count, "step"),
            Repeated::Calls(count) => (count, "call"),
        };
        write!(f, "{count} {one}{}", if count == 1 { "" } else { "s" })
    }
}

/// The cost of a recovery, from the failure until all lost work is repeated.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveryCost {
    /// The repeated work.
    pub repeated: Repeated,
    /// The time until workers had joined again.
    #[serde(rename = "rejoin_s", with = "seconds")]
    pub rejoin: Duration,
    /// The time from then until they had their state.
    #[serde(rename = "restore_s", with = "seconds")]
    pub restore: Duration,
    /// The time from then until the work was repeated.
    #[serde(rename = "recompute_s", with = "seconds")]
    pub recompute: Duration,
}

impl fmt::Display for RecoveryCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        // The times may be those of somebody else's log.
        let all = self.rejoin.saturating_add(self.restore).saturating_add(self.recompute);
        write!(
            f,
            "recovery: repeated {} in {}: {} to rejoin, {} to restore, {} to recompute",
            self.repeated,
            seconds(all),
            seconds(self.rejoin),
            seconds(self.restore),
            seconds(self.recompute)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_workers_source_and_cost() {
        let report = |source| ResumeReport { workers: 2, initial_workers: 3, source }.to_string();
        let from = "recovery: resuming with 2 of 3 workers from";
        for (source, text, position) in [
            (StateSource::Beginning, "the beginning", 0),
            (StateSource::Checkpoint { step: 8 }, "the checkpoint of step 8", 8),
            (StateSource::PeerSnapshot { step: 9 }, "the peer snapshot of step 9", 9),
            (StateSource::BossCopy { updates: 7 }, "the boss's copy after 7 updates", 7),
        ] {
            assert_eq!(report(source), format!("{from} {text}"));
            assert_eq!(source.position(), position);
        }
        let cost = RecoveryCost {
            repeated: Repeated::Steps(3),
            rejoin: Duration::from_millis(1500),
            restore: Duration::from_millis(250),
            recompute: Duration::from_millis(50),
        };
        assert_eq!(
            cost.to_string(),
            "recovery: repeated 3 steps in 1.80 s: 1.50 s to rejoin, 0.25 s to restore, 0.05 s to \
             recompute"
        );
        assert_eq!(Repeated::Calls(1).to_string(), "1 call");
    }
}
