//! The `worker` program: join a boss, work, and join again after the boss was lost. Or check a
//! device.

use crate::compute::samples::LocalSamples;
use crate::compute::stage_compute::StageCompute;
use crate::engine::CustomLayers;
use crate::program::chosen_device::{device, set_threads};
use crate::program::exit_code::{self, exit_now, FAILURE, SUCCESS};
use crate::program::nccl::NcclNetwork;
use crate::program::options::Options;
use crate::program::signals::{FirstTerminate, Signal, Signals};
use crate::program::{every_gpu, nccl, output};
use crate::self_check;
use anyhow::{bail, Context, Result};
use link::{EndpointCloser, LinkError, Ticket, WorkerInfo};
use parking_lot::Mutex;
use runtime::{ComputeThread, End, LeaveSignal, SnapshotStore};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::Device;
use tensor::cuda::uuid;
use tensor::nccl::Nccl;

/// Waits between attempts to reach the boss grow from the first to the second.
const MIN_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The wait after a boss without a free place: the place of a lost worker is free for little longer
/// than this.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// Closes the connections to the boss and the other workers, while there are some.
type SharedCloser = Mutex<Option<EndpointCloser>>;

/// The program with its arguments.
pub(crate) fn main(custom_layers: CustomLayers) -> ! {
    let options = Options::read();
    if let Err(e) = runtime::start_log() {
        output::warn(&format!("worker: {e}"));
        exit_now(FAILURE);
    }
    // Before other threads start.
    let network = NcclNetwork::restrict();
    tensor::panics::quiet();
    let named = options.named_device().map(|(_, name)| name);
    if let Some(uuid) = named.filter(|name| uuid::is_uuid(name)) {
        uuid::show_only(uuid);
    }
    // Before libtorch first looks for GPUs, because it remembers the answer.
    tensor::cuda::load();
    if options.end_with_stdin {
        exit_on_stdin_eof();
    }
    let result = match options.device.as_deref() {
        _ if options.self_check.is_some() => self_check::run(&options),
        Some("all") => every_gpu::run().map(|signal| {
            if let Some(signal) = signal {
                exit_now(signal as i32)
            }
        }),
        _ => run_until_signal(
            &options,
            custom_layers.with_torchscript(options.torchscript_policy()),
            network,
        ),
    };
    match result {
        Ok(()) => exit_now(SUCCESS),
        Err(e) => {
            output::warn(&format!("worker: {e:#}"));
            exit_now(exit_code::of(&e))
        }
    }
}

/// Works until the end of the run. Does not return after a signal.
fn run_until_signal(
    options: &Options,
    custom_layers: CustomLayers,
    network: NcclNetwork,
) -> Result<()> {
    // One thread for the network: the cores are for the compute thread.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let closer = SharedCloser::default();
    let leave = LeaveSignal::default();
    runtime.block_on(async {
        let signals = match options.local_number.is_some() {
            true => Signals::of_local_worker(),
            false => Signals::new(),
        };
        let mut signals = signals.context("cannot handle signals")?;
        let mut work = pin!(serve_runs(options, custom_layers, network, &closer, &leave));
        let signal = tokio::select! {
            result = &mut work => return result.map(drop),
            signal = signals.next() => signal,
        };
        if signal == Signal::Terminate {
            let first = FirstTerminate::now();
            leave.leave();
            let grace = options.grace;
            let how = tokio::select! {
                biased;
                result = &mut work => match result? {
                    End::RunOver => return Ok(()),
                    End::Left { after: Some(step) } => format!("; left after step {step}"),
                    End::Left { after: None } => String::new(),
                },
                () = signals.overruling(first) => "; it ended at once".into(),
                () = tokio::time::sleep(Duration::from_secs(grace)) => {
                    format!("; it could not leave within {grace} s (--grace)")
                }
            };
            output::warn(&format!("worker: terminated{how}"));
        }
        // The others need not wait for a silent worker.
        let closer = closer.lock().take();
        if let Some(closer) = closer {
            closer.close("the worker was told to leave").await;
        }
        exit_now(signal as i32)
    })
}

/// A worker, and the state that outlives one membership.
struct Program<'a> {
    options: &'a Options,
    device: Device,
    info: WorkerInfo,
    custom_layers: CustomLayers,
    nccl: Option<Arc<Nccl>>,
    closer: &'a SharedCloser,
    leave: &'a LeaveSignal,
    /// The next boss finds the snapshots here.
    peer_snapshots: SnapshotStore,
}

/// Works for one run after another until a boss ends its run, or `leave` asks the worker to leave.
/// Returns errors that a retry cannot help.
async fn serve_runs(
    options: &Options,
    custom_layers: CustomLayers,
    network: NcclNetwork,
    closer: &SharedCloser,
    leave: &LeaveSignal,
) -> Result<End> {
    tensor::memory::keep_freed_memory();
    let device = device(options)?;
    set_threads(options)?;
    for (flag, folder) in [("--data", &options.data), ("--weights", &options.weights)] {
        if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
            bail!("{flag} {}: there is no such folder", folder.display());
        }
    }
    let loaded = nccl::load_nccl(options, device, network);
    let info = info(options, device, loaded.report);
    let memory = info
        .memory_bytes
        .map_or_else(String::new, |b| format!(", {:.1} GiB memory", b as f64 / GIB));
    output::line(&format!(
        "worker {}: {}, {} threads{memory}",
        info.version, info.device, info.threads
    ));
    report_cuda(device);
    let nccl = loaded.library;
    let peer_snapshots = SnapshotStore::default();
    let program =
        Program { options, device, info, custom_layers, nccl, closer, leave, peer_snapshots };
    let mut wait = BossWait::default();
    loop {
        match program.serve_run().await {
            Ok(End::RunOver) => {
                output::line("the run is over");
                return Ok(End::RunOver);
            }
            Ok(left) => return Ok(left),
            Err(RunError::Left) => return Ok(End::Left { after: None }),
            Err(RunError::Fatal(e)) => return Err(e),
            Err(RunError::Transient(lost)) => tokio::select! {
                biased;
                () = leave.wait() => return Ok(End::Left { after: None }),
                waited = wait.before_retry(options, lost) => waited?,
            },
        }
    }
}

/// The wait for a boss, from one attempt to the next.
struct BossWait {
    wait: Duration,
    last_message: String,
    boss_lost_at: Option<Instant>,
}

impl Default for BossWait {
    fn default() -> Self {
        BossWait { wait: MIN_WAIT, last_message: String::new(), boss_lost_at: None }
    }
}

impl BossWait {
    /// Waits until the next attempt.
    ///
    /// # Errors
    /// There was a boss, and has been none for longer than `--orphan-timeout`.
    async fn before_retry(&mut self, options: &Options, lost: Transient) -> Result<()> {
        let Transient { reason, had_joined, refused } = lost;
        // A boss that refuses answers, so one broken call after many refusals costs little.
        if had_joined || refused {
            self.wait = MIN_WAIT;
        }
        // A boss without a free place counts as a boss.
        if had_joined || refused {
            self.boss_lost_at = Some(Instant::now());
        }
        let left = match (options.orphan_timeout, self.boss_lost_at) {
            (Some(seconds), Some(since)) => {
                Duration::from_secs(seconds).saturating_sub(since.elapsed())
            }
            _ => Duration::MAX,
        };
        if left.is_zero() {
            let seconds = options.orphan_timeout.unwrap_or(0);
            bail!(
                "the boss was lost, and none was there for {seconds} s (--orphan-timeout): {reason}"
            );
        }
        let line = format!(
            "waiting for the boss at {} ({reason})",
            link::host_and_port(&options.model_host, options.model_port)
        );
        if self.is_news(&line, had_joined) {
            output::line(&line);
        }
        tokio::time::sleep(left.min(if refused { REFUSED_WAIT } else { self.wait })).await;
        self.wait = (self.wait * 2).min(MAX_WAIT);
        Ok(())
    }

    /// Whether the user has yet to read this line. The loss of a boss is news each time.
    fn is_news(&mut self, line: &str, had_joined: bool) -> bool {
        let is_news = had_joined || line != self.last_message;
        self.last_message = line.to_string();
        is_news
    }
}

/// The most characters of a machine's boot id, which has 36.
const MAX_BOOT_ID: usize = 64;
const GIB: f64 = (1u64 << 30) as f64;

/// The end of a membership, or of an attempt to join.
enum RunError {
    /// The worker was told to leave before it had joined.
    Left,
    Transient(Transient),
    Fatal(anyhow::Error),
}

/// An error after which another attempt can succeed.
struct Transient {
    reason: String,
    /// Whether the worker was a member before.
    had_joined: bool,
    /// Whether there is a boss, but without a free place.
    refused: bool,
}

impl Program<'_> {
    /// Waits for a step of joining.
    async fn unless_told_to_leave<T>(
        &self,
        step: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, RunError> {
        tokio::select! {
            result = step => result.map_err(before_joining),
            () = self.leave.wait() => Err(RunError::Left),
        }
    }

    /// Runs one membership, from dialling to the end of the run, or until this worker leaves it.
    async fn serve_run(&self) -> Result<End, RunError> {
        let Some(ticket) = ticket(self.options).map_err(RunError::Fatal)? else {
            let reason = "this user has started no boss on this machine; on another machine, set \
                          MODEL_TICKET";
            let reason = reason.into();
            return Err(RunError::Transient(Transient {
                reason,
                had_joined: false,
                refused: false,
            }));
        };
        let (host, port) = (&self.options.model_host, self.options.model_port);
        let boss = self.unless_told_to_leave(link::resolve(host, port)).await?;
        let endpoint = link::worker_endpoint(&ticket, &boss).map_err(before_joining)?;
        *self.closer.lock() = Some(EndpointCloser::of(&endpoint));
        let join = link::join(&endpoint, &boss, &ticket, self.info.clone());
        let membership = self.unless_told_to_leave(join).await?;
        let (boss, worker) = (membership.boss_address, membership.worker);
        output::line(&format!("joined the boss at {boss} as {worker}"));
        let membership = membership.transport(self.options.transport);
        let (device, custom_layers, nccl) =
            (self.device, self.custom_layers.clone(), self.nccl.clone());
        let weights = self.options.weights.clone();
        let peak_memory = self.options.peak_memory.clone();
        let compute = ComputeThread::start_interruptible(move |interrupt| {
            StageCompute::with_custom_layers(device, custom_layers)
                .with_nccl(nccl, interrupt)
                .with_weights(weights)
                .with_peak_memory(peak_memory)
        });
        let compute = compute.context("cannot start the compute thread");
        let samples = Box::new(LocalSamples::in_folder(self.options.data.clone()));
        let compute = compute
            .map_err(RunError::Fatal)?
            .task_limit(Duration::from_secs(self.options.task_timeout));
        let mut work = pin!(runtime::serve(
            membership,
            &endpoint,
            &ticket,
            compute,
            Some(samples),
            self.peer_snapshots.clone(),
            self.leave,
        ));
        let result = tokio::select! {
            biased;
            result = &mut work => result,
            // It would have left if it did nothing.
            () = self.leave.wait() => {
                let grace = self.options.grace;
                output::warn(&format!(
                    "leaving after this step, or once a pool can spare it, within {grace} s; a \
                     second signal ends it at once"
                ));
                work.await
            }
        };
        // The connections end with the program.
        if let Ok(left @ End::Left { .. }) = result {
            return Ok(left);
        }
        // The wait is bounded, because the network may be gone.
        tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await.ok();
        result.map_err(|e| match e {
            LinkError::Lost { .. } => {
                // Not needed while the worker waits for the next session.
                tensor::memory::return_freed_memory();
                let reason = e.to_string();
                RunError::Transient(Transient { reason, had_joined: true, refused: false })
            }
            other => RunError::Fatal(other.into()),
        })
    }
}

fn before_joining(e: LinkError) -> RunError {
    if !e.is_transient() {
        return RunError::Fatal(e.into());
    }
    let (reason, refused) = (e.to_string(), matches!(e, LinkError::Refused { .. }));
    RunError::Transient(Transient { reason, had_joined: false, refused })
}

fn ticket(options: &Options) -> Result<Option<Ticket>> {
    match &options.model_ticket {
        Some(text) => Ok(Some(text.parse().context("MODEL_TICKET")?)),
        None => Ok(link::local_ticket()?),
    }
}

/// Tells the driver and the GPUs, or why there are none.
fn report_cuda(device: Device) {
    let cuda = tensor::cuda::load();
    if cuda.is_fault() && device == Device::Cpu {
        output::warn(&format!("worker: warning: computes on the CPU; {cuda}"));
    } else {
        output::line(&cuda.to_string());
    }
}

fn info(options: &Options, device: Device, nccl: link::Nccl) -> WorkerInfo {
    WorkerInfo {
        device: tensor::device::name(device),
        processor: tensor::device::processor(device),
        threads: u32::try_from(tensor::threads::count()).unwrap_or(u32::MAX),
        memory_bytes: tensor::device::memory(device).map(|m| m.usable(device)),
        version: env!("CARGO_PKG_VERSION").into(),
        direct: !options.relay,
        host: gethostname::gethostname().to_string_lossy().into_owned(),
        machine: boot_id(),
        device_id: tensor::device::hardware_id(device),
        process: std::process::id(),
        instance: options.local_instance.unwrap_or_else(link::instance),
        nccl,
    }
}

/// Identifies this machine until it restarts, where the system tells that. Containers on it have
/// the same, and copies of a virtual machine have others.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().chars().take(MAX_BOOT_ID).collect()
}

/// Ends this process once the process that started it is gone: the kernel then closes the other end
/// of the pipe.
fn exit_on_stdin_eof() {
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        exit_now(SUCCESS)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_of_a_boss_is_told_and_each_wait_once() {
        let mut wait = BossWait::default();
        let told = [
            ("no answer", false),
            ("no answer", false),
            ("lost", true),
            ("lost", true),
            ("no answer", false),
            ("no answer", false),
            ("lost", true),
        ];
        let told = told.map(|(line, had_joined)| wait.is_news(line, had_joined));
        assert_eq!(told, [true, false, true, true, true, false, true]);
    }
}
