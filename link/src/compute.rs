//! The compute thread: takes tasks in order and never waits on the network.

use crate::interrupt::Interrupt;
use crate::payload::Payload;
use pipeline::ids::Ticket;
use pipeline::message::Failure;
use pipeline::task::{HandedOut, Outcome, Task};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc as results;

/// What carries out tasks; the worker crate does it with libtorch.
pub trait Compute {
    /// One task, to its end. What others wait for may be handed out before.
    fn run(
        &mut self,
        task: Task<Payload>,
        hand_out: &mut dyn FnMut(HandedOut<Payload>),
    ) -> Result<Outcome<Payload>, Failure>;
}

/// What comes of tasks, in this order.
pub(crate) enum Report {
    HandedOut(HandedOut<Payload>),
    Done(Done),
}

/// A task that was carried out.
pub(crate) struct Done {
    pub(crate) ticket: Ticket,
    pub(crate) result: Result<Outcome<Payload>, Failure>,
    /// When the work began and ended.
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// A thread that ends when this is dropped, which waits for the task at work; that one waits for no other worker then.
pub struct ComputeThread {
    /// Taken, and so closed, to end the thread.
    tasks: Option<std::sync::mpsc::Sender<(Ticket, Task<Payload>)>>,
    results: results::UnboundedReceiver<Report>,
    thread: Option<JoinHandle<()>>,
    interrupt: Interrupt,
}

impl ComputeThread {
    /// Starts the thread; `make` runs on it.
    pub fn start<C: Compute>(make: impl FnOnce() -> C + Send + 'static) -> std::io::Result<Self> {
        Self::interruptible(|_| make())
    }

    /// The same for tasks that wait for other workers, unless they are interrupted.
    pub fn interruptible<C: Compute>(make: impl FnOnce(Interrupt) -> C + Send + 'static) -> std::io::Result<Self> {
        let interrupt = Interrupt::default();
        let given = interrupt.clone();
        let (tasks, todo) = std::sync::mpsc::channel::<(Ticket, Task<Payload>)>();
        let (done, results) = results::unbounded_channel();
        let thread = std::thread::Builder::new().name("compute".into()).spawn(move || {
            let mut compute = make(given);
            for (ticket, task) in todo {
                let start = Instant::now();
                // A panic is a defect of ours; it must reach the boss as an error all the same.
                // Where nobody listens any more, the thread ends below.
                let mut hand_out = |handed| drop(done.send(Report::HandedOut(handed)));
                let result = catch_unwind(AssertUnwindSafe(|| compute.run(task, &mut hand_out)));
                let result =
                    result.unwrap_or_else(|_| Err(Failure::new("the compute thread panicked; please report it")));
                let report = Report::Done(Done { ticket, result, start, end: Instant::now() });
                if done.send(report).is_err() {
                    return;
                }
            }
        })?;
        Ok(ComputeThread { tasks: Some(tasks), results, thread: Some(thread), interrupt })
    }

    pub(crate) fn give(&self, ticket: Ticket, task: Task<Payload>) {
        // The thread lives as long as this does.
        if let Some(tasks) = &self.tasks {
            tasks.send((ticket, task)).ok();
        }
    }

    /// Tasks up to the next that clears up wait for no other worker any more.
    pub(crate) fn interrupt(&self) {
        self.interrupt.raise();
    }

    /// What comes next. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Report> {
        self.results.recv().await
    }
}

impl Drop for ComputeThread {
    fn drop(&mut self) {
        self.tasks = None;
        self.interrupt.raise();
        self.results.close();
        // A thread left behind would hold its memory while the next one fills its own.
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
