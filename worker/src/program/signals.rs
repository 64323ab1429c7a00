//! The signals that end the program. They are handled, so they also work for process 1 of a
//! container. A hangup does not end it: the terminal that started it may close.

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
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{signal, SignalKind};
        // Once handled, it is never again left to the system, which would end the process.
        drop(signal(SignalKind::hangup())?);
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {})
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
        #[cfg(not(unix))]
        {
            tokio::signal::ctrl_c().await.ok();
            Signal::Interrupt
        }
    }
}
