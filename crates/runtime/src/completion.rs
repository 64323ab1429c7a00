//! Reports results once the device has done their work. The compute thread runs ahead of its
//! device; a thread of its own waits.
//!
//! Without pending work, as on CPUs, there is no such thread, and results are reported at once.

use crate::compute_event::{ComputeEvent, FinishedTask};
use crate::log_fields::TASKS;
use crate::task_tensor::TaskTensor;
use crate::watchdog::TaskWatch;
use pipeline::message::Failure;
use pipeline::task::Outcome;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, Span};

/// The work that a device still has to do for a task.
pub trait PendingWork: Send {
    /// Waits for the device, and completes the outcome with what it computed: a loss, or sums of
    /// squares.
    ///
    /// # Errors
    /// The work failed. The failure names the task.
    fn complete(self: Box<Self>, outcome: &mut Outcome<TaskTensor>) -> Result<(), Failure>;
}

/// An event of the compute thread, and what comes before it.
struct Pending {
    event: ComputeEvent,
    work: Option<Box<dyn PendingWork>>,
    span: Span,
}

/// Sends events to the driver, in their order. Dropping it sends those that wait.
pub(crate) struct CompletionQueue {
    driver: UnboundedSender<ComputeEvent>,
    /// Sees the waits for the device.
    watch: TaskWatch,
    /// The thread that waits, once there was something to wait for.
    waiting: Option<(mpsc::Sender<Pending>, JoinHandle<()>)>,
}

impl CompletionQueue {
    pub(crate) fn new(driver: UnboundedSender<ComputeEvent>, watch: TaskWatch) -> Self {
        CompletionQueue { driver, watch, waiting: None }
    }

    /// Reports an event once `work` and all events before it are done. `Err` if nobody listens, or
    /// the system starts no thread.
    pub(crate) fn report(
        &mut self,
        event: ComputeEvent,
        work: Option<Box<dyn PendingWork>>,
    ) -> Result<(), ()> {
        let span = Span::current();
        if work.is_none() && self.waiting.is_none() {
            log(&event);
            return self.driver.send(event).map_err(drop);
        }
        let (sender, _) = match &mut self.waiting {
            Some(waiting) => waiting,
            none => none.insert(start(self.driver.clone(), self.watch.clone()).map_err(drop)?),
        };
        sender.send(Pending { event, work, span }).map_err(drop)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.waiting.take() {
            drop(sender);
            thread.join().ok();
        }
    }
}

fn start(
    driver: UnboundedSender<ComputeEvent>,
    watch: TaskWatch,
) -> std::io::Result<(mpsc::Sender<Pending>, JoinHandle<()>)> {
    let (sender, todo) = mpsc::channel::<Pending>();
    let thread = std::thread::Builder::new().name("completion".into()).spawn(move || {
        let mut last_end = None;
        for Pending { mut event, work, span } in todo {
            let _in_span = span.entered();
            if let Some(work) = work {
                if let ComputeEvent::Done(task) = &mut event {
                    watch.begin(false);
                    complete(task, work, last_end);
                    watch.end();
                    last_end = Some(task.end);
                }
            }
            log(&event);
            if driver.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok((sender, thread))
}

/// Waits for a task. It has worked since the end of the task before it.
fn complete(task: &mut FinishedTask, work: Box<dyn PendingWork>, last_end: Option<Instant>) {
    if let Ok(outcome) = &mut task.result {
        if let Err(failure) = work.complete(outcome) {
            task.result = Err(failure.into());
        }
    }
    task.end = Instant::now();
    task.start = last_end.map_or(task.start, |end| end.max(task.start));
}

fn log(event: &ComputeEvent) {
    let ComputeEvent::Done(FinishedTask { result, start, end, .. }) = event else { return };
    let micros = (*end - *start).as_micros() as u64;
    match result {
        Ok(_) => debug!(target: TASKS, micros, "task done"),
        Err(error) => {
            let failure = &error.failure.message;
            debug!(target: TASKS, micros, failure, "task failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::ids::Ticket;
    use std::time::Duration;
    use tokio::sync::mpsc::unbounded_channel;

    const WORK: Duration = Duration::from_millis(30);

    /// The work of a device that begins when somebody waits for it.
    struct Work;

    impl PendingWork for Work {
        fn complete(self: Box<Self>, _: &mut Outcome<TaskTensor>) -> Result<(), Failure> {
            std::thread::sleep(WORK);
            Ok(())
        }
    }

    /// A task whose call took no time.
    fn called(ticket: u64) -> ComputeEvent {
        let (now, result) = (Instant::now(), Ok(Outcome::Done));
        ComputeEvent::Done(FinishedTask { ticket: Ticket(ticket), result, start: now, end: now })
    }

    #[test]
    fn the_time_of_a_task_is_that_of_the_devices_work() {
        let (sender, mut events) = unbounded_channel();
        let mut queue = CompletionQueue::new(sender, TaskWatch::default());
        for event in [called(1), called(2)] {
            assert!(queue.report(event, Some(Box::new(Work))).is_ok());
        }
        drop(queue);
        let mut done = || match events.try_recv() {
            Ok(ComputeEvent::Done(task)) => task,
            _ => panic!("a task is missing"),
        };
        let (first, second) = (done(), done());
        assert_eq!((first.ticket, second.ticket), (Ticket(1), Ticket(2)));
        assert!(first.end - first.start >= WORK);
        assert!(second.end - second.start >= WORK);
        assert_eq!(second.start, first.end, "the wait for the first is not the second's time");
    }
}
