//! The thread that sums gradients of replicas, beside the compute thread.

use crate::payload::Payload;
use crate::pool::Pool;
use crate::summing::sum;
use pipeline::ids::Ticket;
use pipeline::message::Failure;
use pipeline::replicas::Node;
use std::panic::{catch_unwind, AssertUnwindSafe};
use tokio::sync::mpsc as results;

/// For each node of a tree its slices.
type Sums = Vec<(Node, Vec<Payload>)>;
type Todo = (Ticket, u32, Sums);
type Done = (Ticket, Result<Vec<Payload>, Failure>);

/// A thread that begins with the first sum, and ends some time after this is dropped.
#[derive(Default)]
pub(crate) struct SumThread(Option<Running>);

struct Running {
    todo: std::sync::mpsc::Sender<Todo>,
    done: results::UnboundedReceiver<Done>,
}

impl SumThread {
    /// Has the slices of each node summed along the tree over so many microbatches.
    pub(crate) fn give(&mut self, ticket: Ticket, microbatches: u32, sums: Sums) -> Result<(), String> {
        let running = match &mut self.0 {
            Some(running) => running,
            none => none.insert(start().map_err(|e| format!("cannot start a thread for sums: {e}"))?),
        };
        running.todo.send((ticket, microbatches, sums)).map_err(|_| "the thread for sums has ended".into())
    }

    /// The next result; never, where none has been asked for. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Done> {
        self.0.as_mut()?.done.recv().await
    }
}

fn start() -> std::io::Result<Running> {
    let (sender, todo) = std::sync::mpsc::channel::<Todo>();
    let (done, receiver) = results::unbounded_channel();
    std::thread::Builder::new().name("sum".into()).spawn(move || {
        let pool = Pool::default();
        for (ticket, microbatches, sums) in todo {
            let result = catch_unwind(AssertUnwindSafe(|| sum(microbatches, &sums, &pool)));
            let result = result.unwrap_or_else(|_| Err(Failure::new("the sum thread panicked; please report it")));
            // Frees what came before the sums are sent.
            drop(sums);
            if done.send((ticket, result)).is_err() {
                return;
            }
        }
    })?;
    Ok(Running { todo: sender, done: receiver })
}
