//! `--device all`: one worker process for each GPU or MIG slice. One that dies is started again.

use crate::program::exit_code::DEVICE_BROKEN;
use crate::program::output;
use crate::program::signals::{FirstTerminate, Signal, Signals};
use anyhow::{bail, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tch::Device;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Waits before a process is started again grow from the first to the second.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Starts a worker for each GPU with the same arguments and environment, and waits for all. Returns
/// the signal that ended them, if one did: SIGTERM lets them end their step.
///
/// The children end with this process: each holds the reading end of a pipe that only it writes to.
pub(crate) fn run() -> Result<Option<Signal>> {
    let gpus = gpus();
    if gpus.is_empty() {
        bail!(
            "--device all: this machine has no GPU that libtorch can use ({}); leave --device out \
             to use the CPU",
            tensor::cuda::load()
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new().context("cannot handle signals")?;
        let (leave, told) = watch::channel(());
        let count = gpus.len();
        let mut workers = JoinSet::new();
        // Where it is may change while it runs, as after `make build`.
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        for gpu in gpus {
            workers.spawn(keep_running(program.clone(), gpu, told.clone()));
        }
        let mut ended = std::pin::pin!(all_of(workers));
        let signal = tokio::select! {
            failed = &mut ended => match failed? {
                0 => return Ok(None),
                failed => bail!("{failed} of {count} workers ended with an error"),
            },
            signal = signals.next() => signal,
        };
        if signal == Signal::Terminate {
            let first = FirstTerminate::now();
            leave.send(()).ok();
            tokio::select! {
                failed = ended => drop(failed),
                // The pipes close, and the workers end at once.
                () = signals.overruling(first) => {}
            }
        }
        Ok(Some(signal))
    })
}

/// The names of the GPUs, for `--device`.
fn gpus() -> Vec<String> {
    let slices = tensor::cuda::uuid::slices();
    if !slices.is_empty() {
        return slices;
    }
    let all = tensor::device::all().into_iter();
    all.filter(|device| *device != Device::Cpu).map(tensor::device::name).collect()
}

/// Waits for all workers. Returns how many failed.
async fn all_of(mut workers: JoinSet<Result<bool>>) -> Result<usize> {
    let mut failed = 0;
    while let Some(worker) = workers.join_next().await {
        failed += usize::from(!worker??);
    }
    Ok(failed)
}

/// Keeps a worker on a GPU until it ends by itself, or until it is told to leave. Returns whether
/// it succeeded.
async fn keep_running(
    program: PathBuf,
    gpu: String,
    mut leave: watch::Receiver<()>,
) -> Result<bool> {
    let (mut wait, mut has_started) = (MIN_WAIT, false);
    loop {
        let begun = Instant::now();
        let why = match start(&program, &gpu) {
            Ok(mut child) => {
                has_started = true;
                // `wait` would close the pipe, which tells the child to end.
                let _pipe = child.stdin.take();
                let status = tokio::select! {
                    status = child.wait() => status?,
                    _ = leave.changed() => {
                        terminate(&child);
                        child.wait().await?;
                        return Ok(true);
                    }
                };
                if !has_died(status) {
                    return Ok(status.success());
                }
                format!("died ({status})")
            }
            // The workers on other GPUs go on.
            Err(error) if has_started => format!("did not start ({error:#})"),
            Err(error) => return Err(error),
        };
        if begun.elapsed() > MAX_WAIT {
            wait = MIN_WAIT;
        }
        let seconds = wait.as_secs();
        output::warn(&format!("the worker on {gpu} {why}; it starts again in {seconds} s"));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = leave.changed() => return Ok(true),
        }
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Whether a process did not end by a decision of its own. A worker handles the signals by which
/// users end it, and has an exit code for each.
fn has_died(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code == DEVICE_BROKEN)
}

fn start(program: &Path, gpu: &str) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments_without_device()).arg("--device").arg(gpu);
    command.arg("--end-with-stdin").stdin(Stdio::piped()).kill_on_drop(true);
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Sends SIGTERM.
fn terminate(child: &Child) {
    #[cfg(unix)]
    if let Some(pid) = child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32)) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
    }
}

/// Whether an argument is not meant for the workers that this process starts. Each of them draws a
/// number of its own.
fn is_of_this_process(argument: &str) -> bool {
    let is_set = |flag: &str| argument.starts_with(flag);
    argument == "--end-with-stdin" || is_set("--device=") || is_set("--local-instance=")
}

fn arguments_without_device() -> Vec<std::ffi::OsString> {
    let mut kept = Vec::new();
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--device" {
            arguments.next();
        } else if !is_of_this_process(&argument.to_string_lossy()) {
            kept.push(argument);
        }
    }
    kept
}
