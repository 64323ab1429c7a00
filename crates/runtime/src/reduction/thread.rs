//! The thread that sums gradients of replicas. It works beside the compute thread.

use crate::reduction::sums::Reducer;
use crate::task_tensor::TaskTensor;
use link::Payload;
use pipeline::effect::{Residuals, Summing};
use pipeline::ids::Ticket;
use pipeline::message::Failure;
use pipeline::replicas::Node;
use std::panic::{catch_unwind, AssertUnwindSafe};
use tokio::sync::mpsc as results;

/// The slices of each node of a tree.
type Slices = Vec<(Node, Vec<TaskTensor>)>;
type Done = (Ticket, Result<Vec<Payload>, Failure>);

enum Job {
    Sum(Ticket, Summing, Slices),
    Settle(Residuals),
}

/// The thread that sums. It starts with the first sum, and ends after this is dropped.
#[derive(Default)]
pub(crate) struct ReductionThread(Option<Running>);

struct Running {
    todo: std::sync::mpsc::Sender<Job>,
    done: results::UnboundedReceiver<Done>,
}

impl ReductionThread {
    /// Queues a sum.
    ///
    /// # Errors
    /// The thread does not run.
    pub(crate) fn submit(
        &mut self,
        ticket: Ticket,
        summing: Summing,
        sums: Slices,
    ) -> Result<(), String> {
        let running = match &mut self.0 {
            Some(running) => running,
            none => {
                none.insert(start().map_err(|e| format!("cannot start a thread for sums: {e}"))?)
            }
        };
        running
            .todo
            .send(Job::Sum(ticket, summing, sums))
            .map_err(|_| "the thread for sums has ended".into())
    }

    /// Settles the residuals of all sums queued so far.
    pub(crate) fn settle(&self, residuals: Residuals) {
        // Without sums there are no residuals. The next sum reports a thread that has ended.
        if let Some(running) = &self.0 {
            running.todo.send(Job::Settle(residuals)).ok();
        }
    }

    /// The next result. `None` if nothing was queued. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Done> {
        self.0.as_mut()?.done.recv().await
    }
}

fn start() -> std::io::Result<Running> {
    let (sender, todo) = std::sync::mpsc::channel::<Job>();
    let (done, receiver) = results::unbounded_channel();
    std::thread::Builder::new().name("sum".into()).spawn(move || {
        let mut sums = Reducer::default();
        for todo in todo {
            let (ticket, summing, slices) = match todo {
                Job::Sum(ticket, summing, slices) => (ticket, summing, slices),
                Job::Settle(residuals) => {
                    sums.settle(residuals);
                    continue;
                }
            };
            let result = catch_unwind(AssertUnwindSafe(|| {
                let slices =
                    slices.iter().map(|(node, slices)| Ok((*node, in_host_memory(slices)?)));
                let slices = slices.collect::<Result<Vec<_>, _>>()?;
                sums.reduce(summing, &slices)
            }));
            let result = result
                .unwrap_or_else(|_| Err(Failure::new("the sum thread panicked; please report it")));
            // Frees the slices before the sums are sent.
            drop(slices);
            if done.send((ticket, result)).is_err() {
                return;
            }
        }
    })?;
    Ok(Running { todo: sender, done: receiver })
}

/// Copies the slices of a node that are on the device.
fn in_host_memory(slices: &[TaskTensor]) -> Result<Vec<Payload>, Failure> {
    slices.iter().map(TaskTensor::to_host).collect()
}
