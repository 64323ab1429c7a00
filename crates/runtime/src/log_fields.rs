//! The log lines about frames, requests, commands and tasks. They share the names of their fields:
//! stage, step, batch, microbatch.
//!
//! Each kind has a target of its own, so that `BOSSMAN_LOG=info,runtime::tasks=debug` shows one
//! kind.

use link::Payload;
use pipeline::boss::Request;
use pipeline::effect::Peer;
use pipeline::ids::{MicrobatchKey, StageId, Ticket};
use pipeline::message::{Command, TensorHead};
use pipeline::task::Task;
use std::fmt::{self, Debug, Write};
use tracing::{debug, debug_span, Level, Span};

/// The target of lines about frames.
const FRAMES: &str = "runtime::frames";
/// The target of lines about requests.
pub(crate) const REQUESTS: &str = "runtime::requests";
/// The target of the span of a command.
const COMMANDS: &str = "runtime::commands";
/// The target of lines about tasks.
pub(crate) const TASKS: &str = "runtime::tasks";

/// The parts of a step that a line is about.
#[derive(Default)]
struct Subject {
    stage: Option<u16>,
    batch: Option<u64>,
    microbatch: Option<u32>,
}

impl Subject {
    fn microbatch(stage: Option<StageId>, key: MicrobatchKey) -> Self {
        Subject {
            stage: stage.map(|stage| stage.0),
            batch: Some(key.batch),
            microbatch: Some(key.index),
        }
    }

    fn stage(stage: StageId, batch: Option<u64>) -> Self {
        Subject { stage: Some(stage.0), batch, microbatch: None }
    }

    fn of_frame(head: &TensorHead) -> Self {
        match head {
            TensorHead::Value { key, to, .. }
            | TensorHead::Target { key, to }
            | TensorHead::Gradient { key, to, .. } => Self::microbatch(Some(*to), *key),
            TensorHead::Output { key, .. } => Self::microbatch(None, *key),
            TensorHead::TiedGrads { batch, to, .. } | TensorHead::TiedValues { batch, to, .. } => {
                Self::stage(*to, Some(*batch))
            }
            TensorHead::Sum { batch, stage, .. }
            | TensorHead::Reduced { batch, stage, .. }
            | TensorHead::Updated { batch, stage, .. }
            | TensorHead::Statistics { batch, stage } => Self::stage(*stage, Some(*batch)),
            TensorHead::Weight { stage, .. } => Self::stage(*stage, None),
            _ => Self::default(),
        }
    }

    fn of_task<T>(task: &Task<T>) -> Self {
        match task {
            Task::Forward { stage, key, .. }
            | Task::Backward { stage, key, .. }
            | Task::BackwardWeight { stage, key, .. } => Self::microbatch(Some(*stage), *key),
            Task::Reduce { stage, batch, .. } | Task::AllReduce { stage, batch, .. } => {
                Self::stage(*stage, Some(*batch))
            }
            Task::TiedGrads { stage }
            | Task::GradNorm { stage, .. }
            | Task::OptimStep { stage, .. }
            | Task::AllGather { stage, .. }
            | Task::EmitShard { stage }
            | Task::Reshard { stage }
            | Task::UpdateTied { stage, .. } => Self::stage(*stage, None),
            Task::Discard { batch, .. } => Subject { batch: Some(*batch), ..Self::default() },
            _ => Self::default(),
        }
    }
}

/// Logs a frame that is sent.
pub(crate) fn log_sent(to: Peer, head: &TensorHead, tensors: &[Payload]) {
    log_frame("sent", to, head, tensors);
}

/// Logs a frame that was received.
pub(crate) fn log_received(from: Peer, head: &TensorHead, tensors: &[Payload]) {
    log_frame("received", from, head, tensors);
}

/// Logs a message that is sent or was received.
pub(crate) fn log_message(event: &'static str, peer: Peer, message: &impl Debug) {
    if tracing::enabled!(target: FRAMES, Level::DEBUG) {
        debug!(target: FRAMES, %peer, kind = variant(message), "{event}");
    }
}

fn log_frame(event: &'static str, peer: Peer, head: &TensorHead, tensors: &[Payload]) {
    if !tracing::enabled!(target: FRAMES, Level::DEBUG) {
        return;
    }
    let Subject { stage, batch, microbatch } = Subject::of_frame(head);
    let kind = variant(head);
    let bytes: usize = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let tensors = tensors.len();
    debug!(target: FRAMES, %peer, kind, stage, batch, microbatch, tensors, bytes, "{event}");
}

/// The span of a command on a worker, from its arrival to the next one's.
pub(crate) fn command_span(id: u64, command: &Command) -> Span {
    if !tracing::enabled!(target: COMMANDS, Level::DEBUG) {
        return Span::none();
    }
    let kind = variant(command);
    match command {
        Command::Run(round) => {
            let (step, batch) = (round.step, round.batch);
            debug_span!(target: COMMANDS, "command", id, kind, step, batch)
        }
        _ => debug_span!(target: COMMANDS, "command", id, kind),
    }
}

/// The span of a task on the compute thread.
pub(crate) fn task_span<T: Debug>(ticket: Ticket, task: &Task<T>) -> Span {
    if !tracing::enabled!(target: TASKS, Level::DEBUG) {
        return Span::none();
    }
    let Subject { stage, batch, microbatch } = Subject::of_task(task);
    let (id, kind) = (ticket.0, variant(task));
    debug_span!(target: TASKS, "task", id, kind, stage, batch, microbatch)
}

/// Logs a request that begins at the boss.
pub(crate) fn log_request(number: u64, request: &Request) {
    if !tracing::enabled!(target: REQUESTS, Level::DEBUG) {
        return;
    }
    let kind = variant(request);
    match request {
        Request::Run(round) => {
            let (step, batch) = (round.step, round.batch);
            debug!(target: REQUESTS, request = number, kind, step, batch, "request")
        }
        _ => debug!(target: REQUESTS, request = number, kind, "request"),
    }
}

/// The name of a value's variant. Formats no field of it, which may be long.
fn variant(value: &impl Debug) -> String {
    let mut name = FirstWord(String::new());
    // The error only says that the first word has ended.
    write!(name, "{value:?}").ok();
    name.0
}

/// Takes the text up to the first character that no identifier has.
struct FirstWord(String);

impl Write for FirstWord {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        self.0.push_str(&text[..end]);
        if end < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_named_without_its_fields() {
        struct Unprintable;
        impl Debug for Unprintable {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("a field is formatted")
            }
        }
        assert_eq!(variant(&Some(Unprintable)), "Some");
        assert_eq!(variant(&pipeline::message::ToWorker::Stop), "Stop");
        let key = MicrobatchKey { batch: 1, index: 2 };
        assert_eq!(variant(&TensorHead::Target { key, to: StageId(3) }), "Target");
    }
}
