//! The signals that end the program. They are handled, so they also work for process 1 of a
//! container. A hangup does not end it: the terminal that started it may close. SIGTERM does not
//! end a local worker: a service manager signals all processes, and the boss still needs its
//! workers to complete the step. They end with the boss.

use std::time::{Duration, Instant};

/// A signal that ends the program, with the exit code that shells have for it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// Ctrl-C: end at once.
    Interrupt = 130,
    /// SIGTERM: end after the current step.
    Terminate = 143,
}

/// The first SIGTERM of a process, from which its work ends well.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FirstTerminate(Instant);

impl FirstTerminate {
    /// One SIGTERM may arrive twice. systemd signals all processes of a unit, also those to which
    /// `--device all` passes the signal on, and `timeout` signals its child and then its group.
    const SAME_SIGNAL: Duration = Duration::from_secs(1);

    /// The process has just received it.
    pub(crate) fn now() -> Self {
        FirstTerminate(Instant::now())
    }

    /// Whether a further signal at this time ends the process at once.
    fn is_overruled(self, by: Signal, at: Instant) -> bool {
        by == Signal::Interrupt || at.saturating_duration_since(self.0) >= Self::SAME_SIGNAL
    }
}

/// Handles the signals of this process from now on.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    /// `None` if SIGTERM is left to the boss.
    #[cfg(unix)]
    terminate: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{signal, SignalKind};
        // Once handled, it is never again left to the system, which would end the process.
        drop(signal(SignalKind::hangup())?);
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: Some(signal(SignalKind::terminate())?),
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {})
    }

    /// Handles the signals of a worker that ends with its boss.
    pub(crate) fn of_local_worker() -> std::io::Result<Self> {
        let signals = Self::new()?;
        // It stays handled, as a hangup.
        #[cfg(unix)]
        let signals = Signals { terminate: None, ..signals };
        Ok(signals)
    }

    /// Waits for a signal that ends the process at once, after this one. Cancel safe.
    pub(crate) async fn overruling(&mut self, first: FirstTerminate) {
        loop {
            let signal = self.next().await;
            if first.is_overruled(signal, Instant::now()) {
                return;
            }
        }
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        #[cfg(unix)]
        {
            let terminate = async {
                match &mut self.terminate {
                    Some(terminate) => terminate.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.interrupt.recv() => Signal::Interrupt,
                _ = terminate => Signal::Terminate,
            }
        }
        #[cfg(not(unix))]
        {
            tokio::signal::ctrl_c().await.ok();
            Signal::Interrupt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sigterm_that_arrives_twice_is_one_and_ctrl_c_always_counts() {
        let first = FirstTerminate::now();
        let golden = [
            (Signal::Terminate, 0, false),
            (Signal::Terminate, 1, false),
            (Signal::Terminate, 999, false),
            (Signal::Terminate, 1000, true),
            (Signal::Terminate, 60_000, true),
            (Signal::Interrupt, 0, true),
            (Signal::Interrupt, 60_000, true),
        ];
        for (signal, millis, expected) in golden {
            let at = first.0 + Duration::from_millis(millis);
            assert_eq!(first.is_overruled(signal, at), expected, "{signal:?} after {millis} ms");
        }
    }
}
