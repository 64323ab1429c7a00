//! The status of a pool, as `bossman status` shows it.

use super::{Pool, Seen, MAX_TEXT};
use crate::output::printable;
use crate::session::trainer::Trainer;
use crate::BossManError;
use link::{Identity, Ticket};
use pipeline::ids::WorkerId;
use pipeline::membership::Member;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most workers in a status that have left: the last ones. The size of an answer is limited.
const MAX_LEFT_SHOWN: usize = 16;
/// The most workers in a status.
const MAX_SHOWN: usize = 100;

/// The status of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Status {
    /// Steps so far.
    pub step: u64,
    /// The loss of the last step. `None` before the first step, or if it is not finite.
    pub loss: Option<f32>,
    /// Samples per second since the pool was opened.
    pub samples_per_second: f64,
    /// The number of workers that the list leaves out.
    pub more: usize,
    /// The workers, ascending. Only the last of those that have left are listed.
    pub workers: Vec<WorkerStatus>,
}

/// The status of a worker of a pool.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u16,
    /// The name of its machine, as the worker states it.
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
    /// The rate of its slowest link to another worker, in bytes per second.
    pub link_bytes_per_second: Option<u64>,
    /// The memory of its device in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Seconds since its last sign of life.
    pub last_seen_seconds: f64,
}

impl Status {
    /// Fetches the status of a pool from the boss at this address. Without a ticket, uses that of
    /// this user.
    ///
    /// # Errors
    /// There is no answer, the program there is no boss, or the ticket is not the boss's.
    pub async fn ask(host: &str, port: u16, ticket: Option<&str>) -> Result<Self, BossManError> {
        let wrong = |e: link::TicketError| BossManError::Usage(format!("MODEL_TICKET: {e}"));
        let ticket: Ticket = match ticket {
            Some(text) => text.parse().map_err(wrong)?,
            None => Identity::load_or_create()?.ticket().clone(),
        };
        let addresses = link::resolve(host, port).await?;
        let endpoint = link::worker_endpoint(&ticket, &addresses)?;
        let text = link::query_status(&endpoint, &addresses, &ticket).await?;
        let unread = |e: serde_json::Error| {
            BossManError::Usage(format!(
                "the boss at {} sent a status that cannot be read ({e}); is it of another version, \
                 or not a pool?",
                link::host_and_port(host, port)
            ))
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
            "worker",
            "host",
            "device",
            "state",
            "share",
            "steps",
            "samples",
            "ms/mb",
            "link MB/s",
            "seen s"
        )?;
        for w in workers {
            let number =
                |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
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
                w.reason
                    .as_ref()
                    .map_or(String::new(), |reason| format!("  {}", printable(reason, MAX_TEXT))),
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

impl Pool {
    /// The status after the last step of `trainer`.
    pub(super) fn status(&self, trainer: &Trainer, loss: f32) -> Status {
        let loss = Some(loss).filter(|loss| loss.is_finite());
        let left = self.membership.members().filter(|(_, member)| member.state.has_left()).count();
        let mut hidden = left.saturating_sub(MAX_LEFT_SHOWN);
        let is_shown = |(_, member): &(WorkerId, &Member)| {
            let is_hidden = member.state.has_left() && hidden > 0;
            hidden -= usize::from(is_hidden);
            !is_hidden
        };
        let shown = self.membership.members().filter(is_shown).take(MAX_SHOWN);
        let workers: Vec<_> = shown.filter_map(|(w, c)| self.row(trainer, w, c)).collect();
        let samples_per_second =
            self.samples as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        let more = self.membership.members().len() - workers.len();
        Status { step: trainer.position.counters.step, loss, samples_per_second, more, workers }
    }
    fn row(&self, trainer: &Trainer, worker: WorkerId, member: &Member) -> Option<WorkerStatus> {
        let Seen { info, last } = self.workers.get(&worker)?;
        let stage = trainer.plan.stage_placement.stages_of(worker).next();
        let nanos =
            stage.and_then(|stage| trainer.schedules.observed.microbatch_time(stage, worker));
        Some(WorkerStatus {
            worker: worker.0,
            host: printable(&info.host, 64),
            device: printable(&info.device, 16),
            state: member.state.name().into(),
            reason: member.state.reason().map(|reason| printable(reason, MAX_TEXT)),
            share: member.share,
            steps: member.steps,
            samples: member.samples,
            milliseconds: nanos.map(|nanos| nanos as f64 / 1e6),
            link_bytes_per_second: member.bytes_per_second,
            memory_bytes: info.memory_bytes,
            last_seen_seconds: last.elapsed().as_secs_f64(),
        })
    }
}
