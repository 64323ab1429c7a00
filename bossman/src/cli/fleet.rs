//! The flags for workers, and work that Ctrl-C and SIGTERM end.

use super::exit_now;
use anyhow::Result;
use bossman::fleet::FleetSettings;
use bossman::output;
use bossman::train::StopSignal;
use bossman::{BossManError, Transport};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The workers of a run.
#[derive(clap::Args)]
pub(crate) struct Fleet {
    /// Start this many workers on this machine; they end with the boss.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count)]
    pub(crate) local: usize,
    /// Workers in all; those that are not local join from other machines.
    #[arg(long, value_name = "N", value_parser = count)]
    workers: Option<usize>,
    /// Compute threads of each local worker [default: workers share the cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// The devices of local workers, which take them in turn, as `cuda:0,cuda:1` [default: the GPUs
    /// in turn, else the CPU]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = device)]
    device: Vec<String>,
    /// UDP port to listen on [default: MODEL_PORT, else 1024; any free port if only local workers
    /// can join]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// How tensors travel between processes of one machine: `auto` uses shared memory, `quic` the
    /// network path
    #[arg(long, value_name = "WAY", default_value = "auto")]
    transport: Transport,
    /// Let local workers run the model's TorchScript layers, which are programs.
    #[arg(long)]
    allow_torchscript: bool,
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a number of workers, as 2".into())
}

pub(super) fn device(text: &str) -> Result<String, String> {
    if tensor::cuda::uuid::is_uuid(text) {
        return Ok(text.into());
    }
    tensor::device::parse(text).map(tensor::device::name).map_err(|e| e.to_string())
}

impl Fleet {
    pub(crate) fn settings(&self) -> FleetSettings {
        FleetSettings {
            workers: self.workers,
            local: self.local,
            threads: self.threads.map(usize::from),
            devices: self.device.clone(),
            port: self.port,
            transport: self.transport,
            allow_torchscript: self.allow_torchscript,
            peak_memory: None,
        }
    }
}

/// The user ended the work before its end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; {text}")]
pub(crate) struct Interrupted {
    pub(crate) code: u8,
    pub(crate) text: String,
}

/// Ctrl-C and SIGTERM, each with its exit code. They are handled, so they also work for process 1.
struct Signals {
    // Both are caught from the beginning. `tokio::signal::ctrl_c` begins once it is waited for.
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

/// How long work has to look at a signal.
const UNHEARD: Duration = Duration::from_secs(1);

/// The exit codes of shells: 128 and the number of the signal.
const INTERRUPTED: u8 = 130;
#[cfg(unix)]
const TERMINATED: u8 = 143;

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            #[cfg(unix)]
            interrupt: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?,
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?,
        })
    }

    /// Waits for a signal that ends the program at once, after the first one.
    async fn overruling(&mut self, first: Instant) {
        loop {
            let code = self.next().await;
            if is_overruled(first.elapsed(), code) {
                return;
            }
        }
    }

    /// Waits for the next signal, and returns its exit code.
    async fn next(&mut self) -> u8 {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPTED,
            _ = self.terminate.recv() => TERMINATED,
        }
        #[cfg(not(unix))]
        {
            tokio::signal::ctrl_c().await.ok();
            INTERRUPTED
        }
    }
}

/// Whether a further signal ends the program at once, so long after the first. One SIGTERM may
/// arrive twice: `timeout` signals its child and then its group.
fn is_overruled(after: Duration, code: u8) -> bool {
    code == INTERRUPTED || after >= Duration::from_secs(1)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Runs work until its end or a signal. `on_interrupt` tells the user what an interruption leaves.
pub(crate) fn until_interrupted<T>(
    on_interrupt: &'static str,
    work: impl Future<Output = Result<T, BossManError>>,
) -> Result<T> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let (mut signals, mut again) = (Signals::new()?, Signals::new()?);
        let interrupted = |code| Interrupted { code, text: on_interrupt.into() };
        // Work that hashes files looks at no signal for long.
        tokio::spawn(async move {
            let code = again.next().await;
            tokio::time::sleep(UNHEARD).await;
            output::warn(&format!("bossman: {}", interrupted(code)));
            exit_now(code);
        });
        tokio::select! {
            result = work => Ok(result?),
            code = signals.next() => Err(interrupted(code).into()),
        }
    });
    // Files that are still read are not waited for.
    runtime.shutdown_background();
    result
}

/// Runs work until its end. The first signal asks it to stop well, for which it has the time
/// `grace`, or by default ten seconds after SIGTERM, and any time after Ctrl-C: who pressed it can
/// press it again. A second signal ends it at once. A hangup ends nothing: a run goes on without
/// the terminal or the SSH session that started it. Returns the exit code of a signal, too.
pub(crate) fn until_stopped<T>(
    stop: &StopSignal,
    grace: Option<Duration>,
    work: impl Future<Output = Result<T, BossManError>>,
) -> Result<(T, Option<u8>)> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let signals = Signals::new()?;
        // Once handled, it is never again left to the system, which would end the process.
        #[cfg(unix)]
        drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?);
        let (ends, ended) = oneshot::channel();
        let heard = Arc::new(OnceLock::new());
        // Apart from the work, which may read files for a long time.
        tokio::spawn(follow(signals, stop.clone(), grace, heard.clone(), ends));
        tokio::select! {
            result = work => Ok((result?, heard.get().copied())),
            Ok(interrupted) = ended => Err(interrupted.into()),
        }
    });
    if result.is_err() {
        // Files that are still read or written are not waited for.
        runtime.shutdown_background();
    }
    result
}

/// Follows the signals of work that is asked to stop well. `ends` gets why it must end at once. If
/// the work does not look at that soon, ends the process.
async fn follow(
    mut signals: Signals,
    stop: StopSignal,
    grace: Option<Duration>,
    heard: Arc<OnceLock<u8>>,
    ends: oneshot::Sender<Interrupted>,
) {
    let code = signals.next().await;
    let first = Instant::now();
    heard.set(code).ok();
    stop.stop();
    let limit = limit(grace, code);
    let within = limit.map_or(String::new(), |limit| format!(" within {} s", limit.as_secs_f64()));
    output::warn(&format!(
        "stopping: a step under way is completed and saved{within}; press Ctrl-C again to end at \
         once"
    ));
    let late = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let why = tokio::select! {
        () = late => format!("it did not end{within} (--grace)"),
        () = signals.overruling(first) => "it ended at once".into(),
    };
    let text = format!("{why}, so what was not written by then is not saved");
    ends.send(Interrupted { code, text: text.clone() }).ok();
    tokio::time::sleep(UNHEARD).await;
    output::warn(&format!("bossman: {}", Interrupted { code, text }));
    exit_now(code);
}

/// The time that work has to stop well after the signal with this exit code. What sends SIGTERM
/// often sends SIGKILL soon.
fn limit(grace: Option<Duration>, code: u8) -> Option<Duration> {
    grace.or((code != INTERRUPTED).then_some(Duration::from_secs(10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_leaves_any_time_for_the_step_and_for_saving() {
        let seconds = Duration::from_secs;
        assert_eq!(limit(None, INTERRUPTED), None);
        assert_eq!(limit(None, TERMINATED), Some(seconds(10)));
        assert_eq!(limit(Some(seconds(0)), INTERRUPTED), Some(seconds(0)));
        assert_eq!(limit(Some(seconds(60)), TERMINATED), Some(seconds(60)));
    }

    #[test]
    fn a_sigterm_that_arrives_twice_is_one_and_ctrl_c_always_counts() {
        let golden = [
            (TERMINATED, 0, false),
            (TERMINATED, 999, false),
            (TERMINATED, 1000, true),
            (INTERRUPTED, 0, true),
            (INTERRUPTED, 2000, true),
        ];
        for (code, millis, expected) in golden {
            assert_eq!(
                is_overruled(Duration::from_millis(millis), code),
                expected,
                "{code} {millis}"
            );
        }
    }
}
