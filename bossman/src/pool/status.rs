//! The status of a pool, as `bossman status` shows it.

use super::{MemberState, MAX_TEXT};
use crate::output::printable;
use crate::session::boss::BossMan;
use crate::BossManError;
use link::{Identity, Ticket};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most workers that have left in a status, the last ones: an answer has its limits.
const MAX_LEFT_SHOWN: usize = 16;
/// The most workers in a status.
const MAX_SHOWN: usize = 100;

/// How a pool stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Status {
    /// Steps so far.
    pub step: u64,
    /// The loss of the last one; nothing before the first, or where it is no finite number.
    pub loss: Option<f32>,
    /// Samples a second since the pool was opened.
    pub samples_per_second: f64,
    /// The number of workers that the list leaves out.
    pub more: usize,
    /// The workers, ascending; of those who have left the last ones.
    pub workers: Vec<WorkerStatus>,
}

/// How a worker of a pool stands.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u16,
    /// Its machine, as it names that.
    pub host: String,
    /// The device on which it computes.
    pub device: String,
    /// `preparing`, `catching up`, `working`, `aside` or `left`.
    pub state: String,
    /// The reason, if it was evicted or has left.
    pub reason: Option<String>,
    /// Its part of the last batch, from 0 to 1.
    pub share: f64,
    /// Steps in which it took part.
    pub steps: u64,
    /// Samples that it took.
    pub samples: u64,
    /// Milliseconds for a microbatch, forward and back.
    pub milliseconds: Option<f64>,
    /// How fast its slowest link to another worker is, in bytes a second.
    pub link_bytes_per_second: Option<u64>,
    /// Memory of its device in bytes, where known.
    pub memory_bytes: Option<u64>,
    /// Seconds since it was last heard of.
    pub last_seen_seconds: f64,
}

impl Status {
    /// Asks the boss at this address how its pool stands; the ticket is this user's where none is given.
    ///
    /// # Errors
    /// Nobody answers there, it is no boss, or the ticket is not its own.
    pub async fn ask(host: &str, port: u16, ticket: Option<&str>) -> Result<Self, BossManError> {
        let wrong = |e: link::TicketError| BossManError::Usage(format!("MODEL_TICKET: {e}"));
        let ticket: Ticket = match ticket {
            Some(text) => text.parse().map_err(wrong)?,
            None => Identity::load_or_create()?.ticket().clone(),
        };
        let address = link::resolve(host, port).await?;
        let endpoint = link::worker_endpoint(&ticket, address)?;
        let text = link::query_status(&endpoint, address, &ticket).await?;
        let unread = |e: serde_json::Error| {
            BossManError::Usage(format!("the boss at {address} says how it stands in words we do not know ({e}); is it of another version, or no pool?"))
        };
        serde_json::from_str(&text).map_err(unread)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { step, loss, samples_per_second, more, workers } = self;
        let loss = loss.map_or("-".into(), |loss| format!("{loss:.4}"));
        writeln!(f, "step {step}, loss {loss}, {samples_per_second:.1} samples/s")?;
        writeln!(
            f,
            "{:>6}  {:12} {:8} {:11} {:>5} {:>7} {:>9} {:>9} {:>10} {:>9}",
            "worker", "host", "device", "state", "share", "steps", "samples", "ms/mb", "link MB/s", "seen s"
        )?;
        for w in workers {
            let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
            writeln!(
                f,
                "{:>6}  {:12} {:8} {:11} {:>4.0}% {:>7} {:>9} {:>9} {:>10} {:>9.1}{}",
                w.worker,
                printable(&w.host, MAX_TEXT),
                printable(&w.device, MAX_TEXT),
                printable(&w.state, MAX_TEXT),
                w.share * 100.0,
                w.steps,
                w.samples,
                number(w.milliseconds),
                number(w.link_bytes_per_second.map(|rate| rate as f64 / 1e6)),
                w.last_seen_seconds,
                w.reason.as_ref().map_or(String::new(), |reason| format!("  {}", printable(reason, MAX_TEXT))),
            )?;
        }
        match more {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

impl Status {
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "{}".into())
    }
}

impl BossMan {
    /// How the pool stands.
    pub(super) fn status(&self, loss: f32) -> Status {
        let Some(pool) = &self.pool else {
            return Status::default();
        };
        let loss = Some(loss).filter(|loss| loss.is_finite());
        let left = pool.members.values().filter(|c| c.has_left()).count();
        let mut hidden = left.saturating_sub(MAX_LEFT_SHOWN);
        let mut workers = Vec::new();
        for (worker, c) in &pool.members {
            if c.has_left() && hidden > 0 {
                hidden -= 1;
                continue;
            }
            if workers.len() == MAX_SHOWN {
                break;
            }
            let stage = self.plan.stage_placement.stages_of(*worker).next();
            let nanos = stage.and_then(|stage| self.scheduling.observed.microbatch_time(stage, *worker));
            workers.push(WorkerStatus {
                worker: worker.0,
                host: printable(&c.info.host, 64),
                device: printable(&c.info.device, 16),
                state: c.state.name().into(),
                reason: match &c.state {
                    MemberState::Evicted { reason, .. } | MemberState::Left { reason } => {
                        Some(printable(reason, MAX_TEXT))
                    }
                    _ => None,
                },
                share: c.share,
                steps: c.steps,
                samples: c.samples,
                milliseconds: nanos.map(|nanos| nanos as f64 / 1e6),
                link_bytes_per_second: c.bytes_per_second,
                memory_bytes: c.info.memory_bytes,
                last_seen_seconds: c.last_seen.elapsed().as_secs_f64(),
            });
        }
        let samples_per_second = pool.samples as f64 / pool.started.elapsed().as_secs_f64().max(1e-9);
        let more = pool.members.len() - workers.len();
        Status { step: self.step, loss, samples_per_second, more, workers }
    }
}
