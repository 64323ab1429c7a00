//! The signals that end the program. They are handled, so they also work for process 1 of a
//! container. A hangup does not end it: the terminal that started it may close. SIGTERM does not
//! end a local worker: a service manager signals all processes, and the boss still needs its
//! workers to complete the step. They end with the boss.

/// A signal that ends the program, with the exit code that shells have for it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// Ctrl-C: end at once.
    Interrupt = 130,
    /// SIGTERM: end after the current step.
    Terminate = 143,
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
