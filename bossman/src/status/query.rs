//! Asks a boss for the status of its run. If the run has ended, its folder tells.

use super::value::{Phase, Status};
use crate::runs::{LiveBoss, RunState, RunSummary};
use crate::BossManError;
use link::{LinkError, Ticket};
use std::path::Path;
use std::time::Duration;

/// A boss that begins, or is between two sessions, is asked this often.
const ATTEMPTS: u32 = 3;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(300);
/// A boss that has not answered by then is busy. An address without a boss is silent for 3 seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl Status {
    /// Fetches the status of a run from the boss at this address. Without a ticket, uses that of
    /// this user.
    ///
    /// # Errors
    /// There is no answer, the program there is no boss, or the ticket is not the boss's.
    pub async fn ask(host: &str, port: u16, ticket: Option<&str>) -> Result<Self, BossManError> {
        let wrong = |e: link::TicketError| BossManError::Usage(format!("MODEL_TICKET: {e}"));
        let ticket: Ticket = match ticket {
            Some(text) => text.parse().map_err(wrong)?,
            None => own_ticket()?,
        };
        let addresses = link::resolve(host, port).await?;
        let endpoint = link::worker_endpoint(&ticket, &addresses)?;
        let asking = link::query_status(&endpoint, &addresses, &ticket);
        let text = match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
            Ok(text) => text?,
            Err(_) => {
                return Err(BossManError::Usage(format!(
                    "the boss at {} does not answer now: it is busy; ask again",
                    link::host_and_port(host, port)
                )))
            }
        };
        let unread = |e: serde_json::Error| {
            BossManError::Usage(format!(
                "the boss at {} sent a status that cannot be read ({e}); is it of another version?",
                link::host_and_port(host, port)
            ))
        };
        serde_json::from_str(&text).map_err(unread)
    }

    /// The status of the run with this folder: from its boss on this machine, or from the folder if
    /// no process trains there. Without a ticket, uses that of this user.
    ///
    /// # Errors
    /// The folder is no run's, its boss is on another machine, or the boss does not answer.
    pub async fn of_run(folder: &Path, ticket: Option<&str>) -> Result<Self, BossManError> {
        if !folder.is_dir() {
            return Err(BossManError::file(folder, "there is no such folder"));
        }
        let mut problem = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(BETWEEN_ATTEMPTS).await;
            }
            problem = match LiveBoss::of(folder)? {
                LiveBoss::Here { port } => match Self::ask("127.0.0.1", port, ticket).await {
                    Ok(status) => return Ok(status),
                    Err(error) => error.to_string(),
                },
                // It completes the files of the run.
                LiveBoss::Silent => {
                    match RunSummary::of_ended(folder)?.and_then(Self::of_summary) {
                        Some(status) => return Ok(status),
                        None => "it does not listen".into(),
                    }
                }
                LiveBoss::Elsewhere { machine, port } => {
                    let problem = format!(
                        "its boss runs on {machine}; ask there, or with --host {machine} --port \
                         {port}"
                    );
                    return Err(BossManError::file(folder, problem));
                }
                LiveBoss::Nobody => match Self::at_the_end(folder)? {
                    Some(status) => return Ok(status),
                    None => "it begins".into(),
                },
            };
        }
        let problem = format!("a process trains in this folder and does not answer now: {problem}");
        Err(BossManError::file(folder, problem))
    }

    /// The status of a run that has ended, from its folder. `None` if it runs again.
    fn at_the_end(folder: &Path) -> Result<Option<Self>, BossManError> {
        if !folder.join("events.jsonl").is_file() {
            return Err(BossManError::file(folder, "is no run's folder: it has no events.jsonl"));
        }
        Ok(Self::of_summary(RunSummary::read(folder)?))
    }

    /// The status of a run that has ended. `None` if it runs.
    fn of_summary(run: RunSummary) -> Option<Self> {
        let RunSummary { state, step, steps, loss, .. } = run;
        let (phase, error) = match state {
            RunState::Running { .. } => return None,
            RunState::Ended => (Phase::Ended, None),
            RunState::Interrupted => (Phase::Interrupted, None),
            RunState::Failed { why } => (Phase::Failed, Some(why)),
            RunState::Crashed => (Phase::Crashed, None),
        };
        Some(Status { phase, error, step, steps, loss, ..Status::default() })
    }
}

/// The ticket of this user's bosses. A program that asks makes none, because no boss would know it.
fn own_ticket() -> Result<Ticket, BossManError> {
    link::local_ticket().map_err(LinkError::from)?.ok_or_else(|| {
        let problem =
            "this user has started no boss on this machine; set MODEL_TICKET to what the \
                       boss prints";
        BossManError::Usage(problem.into())
    })
}
