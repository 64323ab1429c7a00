//! A thread for work that may wait for a step's computations.

use std::io;
use std::sync::mpsc;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Does one job after the other, in the time that other threads leave. It ends when this value is
/// dropped and its jobs are done.
pub(super) struct BackgroundThread {
    jobs: mpsc::Sender<Job>,
}

impl BackgroundThread {
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime::stand_back();
            todo.into_iter().for_each(|job| job());
        })?;
        Ok(BackgroundThread { jobs })
    }

    /// Waits for the result of a job.
    ///
    /// # Errors
    /// The thread has ended, because a job panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, &'static str> {
        let (sender, result) = oneshot::channel();
        let ended = "the thread that writes has ended";
        // Nobody wants the result of a job whose caller has gone.
        let job = Box::new(move || drop(sender.send(job())));
        self.jobs.send(job).map_err(|_| ended)?;
        result.await.map_err(|_| ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn jobs_are_done_in_order_and_a_panic_is_an_error() {
        let thread = BackgroundThread::start("test").unwrap();
        let (one, two) = tokio::join!(thread.run(|| 1), thread.run(|| 2));
        assert_eq!((one, two), (Ok(1), Ok(2)));
        let panics = thread.run(|| assert_eq!(1, 2)).await;
        assert_eq!(panics, Err("the thread that writes has ended"));
        assert!(thread.run(|| 3).await.is_err());
    }
}
