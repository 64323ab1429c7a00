//! The compute thread. It runs tasks in order, and never waits for the network.
//! `completion.rs` reports their results.

use crate::completion::{CompletionQueue, PendingWork};
use crate::compute_event::{ComputeEvent, FinishedTask};
use crate::interrupt::Interrupt;
use crate::log_fields::task_span;
use crate::task_tensor::TaskTensor;
use crate::watchdog::TaskWatch;
use pipeline::ids::Ticket;
use pipeline::message::{Failure, FailureKind};
use pipeline::task::{EarlyOutput, Outcome, Task, TaskError};
use std::convert::Infallible;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc as results;
use tracing::Span;

/// An executor of tasks. The worker crate implements it with libtorch.
pub trait Compute {
    /// Runs a task. `emit` takes results early, because other workers wait for them. On a device,
    /// the task's work may still be [pending](Compute::pending) when this returns.
    ///
    /// # Errors
    /// The task failed.
    fn run(
        &mut self,
        task: Task<TaskTensor>,
        emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
    ) -> Result<Outcome<TaskTensor>, TaskError>;

    /// Does what must precede a task, and is not the task's own work. Its time does not count as
    /// the task's, from which the speed of this worker is told.
    fn prepare(&mut self, task: &Task<TaskTensor>);

    /// The work of the last task that the device has still to do. `None` if it is done.
    fn pending(&mut self) -> Option<Box<dyn PendingWork>> {
        None
    }
}

/// A task for the thread.
struct Submission {
    ticket: Ticket,
    task: Task<TaskTensor>,
    span: Span,
}

/// The time limit of a task unless [`ComputeThread::task_limit`] sets another one. A device in
/// order never needs as long. It is the default of PyTorch's NCCL watchdog.
const DEFAULT_TASK_LIMIT: Duration = Duration::from_secs(600);

/// The compute thread. Dropping it interrupts a task that waits for other workers, and blocks until
/// the thread's end. `end` waits without blocking.
pub struct ComputeThread {
    /// `None` ends the thread.
    tasks: Option<std::sync::mpsc::Sender<Submission>>,
    results: results::UnboundedReceiver<ComputeEvent>,
    thread: Option<JoinHandle<()>>,
    /// Disconnects when the thread has ended and its memory is free.
    alive: results::Receiver<Infallible>,
    interrupt: Interrupt,
    watch: TaskWatch,
    device_watch: TaskWatch,
    limit: Duration,
}

impl ComputeThread {
    /// Starts the thread, and runs `make` on it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start<C: Compute>(make: impl FnOnce() -> C + Send + 'static) -> std::io::Result<Self> {
        Self::start_interruptible(|_| make())
    }

    /// Starts the thread for tasks that wait for other workers until they are interrupted.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start_interruptible<C: Compute>(
        make: impl FnOnce(Interrupt) -> C + Send + 'static,
    ) -> std::io::Result<Self> {
        let interrupt = Interrupt::default();
        let given = interrupt.clone();
        let (watch, device_watch) = (TaskWatch::default(), TaskWatch::default());
        let (thread_watch, completion_watch) = (watch.clone(), device_watch.clone());
        let (tasks, todo) = std::sync::mpsc::channel::<Submission>();
        let (done, results) = results::unbounded_channel();
        let (living, alive) = results::channel(1);
        let thread = std::thread::Builder::new().name("compute".into()).spawn(move || {
            // Dropped last, after the tensors and the thread that waits for the device.
            let _living = living;
            let mut completions = CompletionQueue::new(done, completion_watch);
            let mut compute = make(given);
            for Submission { ticket, task, span } in todo {
                let _in_span = span.entered();
                thread_watch.begin(task.waits_for_others());
                let mut start = Instant::now();
                // A panic is a defect of ours, and must reach the boss as an error.
                // If the receiver is gone, the thread ends below.
                let mut emit = |output| {
                    completions.report(ComputeEvent::EarlyOutput(output), None).ok();
                };
                let result = catch_unwind(AssertUnwindSafe(|| {
                    compute.prepare(&task);
                    start = Instant::now();
                    compute.run(task, &mut emit)
                }));
                thread_watch.end();
                let panicked = || Failure {
                    kind: FailureKind::Unfit,
                    ..Failure::new("the compute thread panicked; please report it")
                };
                let result = result.unwrap_or_else(|_| Err(panicked().into()));
                let pending = compute.pending();
                let finished = FinishedTask { ticket, result, start, end: Instant::now() };
                if completions.report(ComputeEvent::Done(finished), pending).is_err() {
                    break;
                }
            }
            // A device that hangs does not free its memory, either.
            thread_watch.begin(false);
            drop(compute);
            thread_watch.end();
        })?;
        let (tasks, thread, limit) = (Some(tasks), Some(thread), DEFAULT_TASK_LIMIT);
        Ok(ComputeThread { tasks, results, thread, alive, interrupt, watch, device_watch, limit })
    }

    /// Sets the time limit of a task. A task that takes longer counts as hanging, and ends the run
    /// of this worker.
    #[must_use]
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The time limit of a task.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// A future that ends if a task exceeds the limit.
    pub(crate) fn watchdog(&self) -> impl Future<Output = ()> + Send + 'static {
        let (watch, device, limit) = (self.watch.clone(), self.device_watch.clone(), self.limit);
        async move {
            tokio::select! {
                () = watch.wait_until_hanging(limit) => {}
                () = device.wait_until_hanging(limit) => {}
            }
        }
    }

    /// Abandons the thread, because its task never ends.
    pub(crate) fn abandon(&mut self) {
        self.thread = None;
    }

    /// Queues a task.
    pub(crate) fn submit(&self, ticket: Ticket, task: Task<TaskTensor>) {
        // The thread lives as long as this value.
        if let Some(tasks) = &self.tasks {
            let span = task_span(ticket, &task);
            tasks.send(Submission { ticket, task, span }).ok();
        }
    }

    /// Stops queued tasks from waiting for other workers, up to the next task that cleans up.
    pub(crate) fn interrupt(&self) {
        self.interrupt.raise();
    }

    /// The next result. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<ComputeEvent> {
        self.results.recv().await
    }

    /// Ends the thread after its current task, and waits until its memory is free. Does not block.
    /// If the wait is cancelled, the thread is abandoned.
    pub(crate) async fn end(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            self.alive.recv().await;
            // Nothing is left for it to do.
            thread.join().ok();
        }
    }

    /// Lets the thread end after its current task, which waits for no other workers any more.
    fn stop(&mut self) {
        self.tasks = None;
        self.interrupt.raise();
        self.results.close();
    }
}

impl Drop for ComputeThread {
    fn drop(&mut self) {
        self.stop();
        // Without this, the old thread would hold its memory while the next one fills its own.
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
