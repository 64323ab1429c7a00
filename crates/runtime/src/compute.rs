//! The compute thread: takes tasks in order and never waits on the network.

use crate::interrupt::Interrupt;
use crate::watchdog::TaskWatch;
use link::Payload;
use pipeline::ids::Ticket;
use pipeline::message::Failure;
use pipeline::task::{HandedOut, Outcome, Task};
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc as results;

/// An executor of tasks; the worker crate does it with libtorch.
pub trait Compute {
    /// One task, to its end. Results that other workers wait for may be handed out earlier.
    fn run(
        &mut self,
        task: Task<Payload>,
        hand_out: &mut dyn FnMut(HandedOut<Payload>),
    ) -> Result<Outcome<Payload>, Failure>;
}

/// The results of tasks, in order.
pub(crate) enum ComputeEvent {
    HandedOut(HandedOut<Payload>),
    Done(FinishedTask),
}

/// A task that was carried out.
pub(crate) struct FinishedTask {
    pub(crate) ticket: Ticket,
    pub(crate) result: Result<Outcome<Payload>, Failure>,
    /// When the work began and ended.
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// Longer than any task of a device in order takes, unless [`ComputeThread::task_limit`] says otherwise: what NCCL's watchdog
/// in PyTorch allows.
const DEFAULT_TASK_LIMIT: Duration = Duration::from_secs(600);

/// A thread that ends when this is dropped, which waits for the task at work; that one waits for no other worker then.
pub struct ComputeThread {
    /// Taken, and so closed, to end the thread.
    tasks: Option<std::sync::mpsc::Sender<(Ticket, Task<Payload>)>>,
    results: results::UnboundedReceiver<ComputeEvent>,
    thread: Option<JoinHandle<()>>,
    interrupt: Interrupt,
    at_work: TaskWatch,
    limit: Duration,
}

impl ComputeThread {
    /// Starts the thread; `make` runs on it.
    pub fn start<C: Compute>(make: impl FnOnce() -> C + Send + 'static) -> std::io::Result<Self> {
        Self::start_interruptible(|_| make())
    }

    /// The same for tasks that wait for other workers, unless they are interrupted.
    pub fn start_interruptible<C: Compute>(
        make: impl FnOnce(Interrupt) -> C + Send + 'static,
    ) -> std::io::Result<Self> {
        let interrupt = Interrupt::default();
        let given = interrupt.clone();
        let at_work = TaskWatch::default();
        let working = at_work.clone();
        let (tasks, todo) = std::sync::mpsc::channel::<(Ticket, Task<Payload>)>();
        let (done, results) = results::unbounded_channel();
        let thread = std::thread::Builder::new().name("compute".into()).spawn(move || {
            let mut compute = make(given);
            for (ticket, task) in todo {
                let start = Instant::now();
                working.begin(task.waits_for_others());
                // A panic is a defect of ours; it must reach the boss as an error all the same.
                // Without a receiver, the thread ends below.
                let mut hand_out = |handed| drop(done.send(ComputeEvent::HandedOut(handed)));
                let result = catch_unwind(AssertUnwindSafe(|| compute.run(task, &mut hand_out)));
                working.end();
                let panicked =
                    || Failure { unfit: true, ..Failure::new("the compute thread panicked; please report it") };
                let result = result.unwrap_or_else(|_| Err(panicked()));
                let report = ComputeEvent::Done(FinishedTask { ticket, result, start, end: Instant::now() });
                if done.send(report).is_err() {
                    return;
                }
            }
        })?;
        let (tasks, thread, limit) = (Some(tasks), Some(thread), DEFAULT_TASK_LIMIT);
        Ok(ComputeThread { tasks, results, thread, interrupt, at_work, limit })
    }

    /// A task that takes longer shows that the device or its driver hangs, and ends the membership.
    #[must_use]
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The time limit of a task.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Ends if a task takes longer.
    pub(crate) fn watchdog(&self) -> impl Future<Output = ()> + Send + 'static {
        let (at_work, limit) = (self.at_work.clone(), self.limit);
        async move { at_work.stuck_for(limit).await }
    }

    /// Leaves the thread behind: it is in a task that never ends.
    pub(crate) fn abandon(&mut self) {
        self.thread = None;
    }

    pub(crate) fn submit(&self, ticket: Ticket, task: Task<Payload>) {
        // The thread lives as long as this does.
        if let Some(tasks) = &self.tasks {
            tasks.send((ticket, task)).ok();
        }
    }

    /// Tasks up to the next that clears up wait for no other worker any more.
    pub(crate) fn interrupt(&self) {
        self.interrupt.raise();
    }

    /// The next result. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<ComputeEvent> {
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
