//! The `worker` program: join a boss, work, and join again after the boss was lost.

use crate::compute::StageCompute;
use crate::engine::CustomLayers;
use crate::every_gpu;
use crate::nccl;
use crate::options::Options;
use crate::output;
use crate::samples::LocalSamples;
use anyhow::{bail, Context, Result};
use clap::Parser;
use link::{EndpointCloser, LinkError, Ticket, WorkerInfo};
use parking_lot::Mutex;
use runtime::{ComputeThread, SnapshotStore};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::Device;
use tensor::nccl::Nccl;

/// Waits between attempts to reach the boss grow from the first to the second.
const MIN_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Where a boss says that all places are taken: the place of a worker that is lost is free for little longer than this.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// How to take leave of the boss and the other workers, while there is a connection to them.
type SharedCloser = Mutex<Option<EndpointCloser>>;

/// The program with its arguments.
pub(crate) fn main(custom_layers: CustomLayers) -> ! {
    let options = Options::parse();
    // Before there are other threads.
    let beyond_machine = tensor::nccl::restrict_to_loopback();
    // Before libtorch is first asked about GPUs: it remembers the answer.
    tensor::cuda::load();
    if options.end_with_stdin {
        exit_on_stdin_eof();
    }
    let result = match options.device.as_deref() {
        Some("all") => every_gpu::run(),
        _ => run_until_signal(&options, custom_layers.allowing_torchscript(options.allow_torchscript), beyond_machine),
    };
    match result {
        Ok(()) => exit_now(SUCCESS),
        Err(e) => {
            output::warn(&format!("worker: {e:#}"));
            exit_now(FAILURE)
        }
    }
}

fn run_until_signal(options: &Options, custom_layers: CustomLayers, beyond_machine: bool) -> Result<()> {
    // One thread for the network: the cores are for the compute thread.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let closer = SharedCloser::default();
    runtime.block_on(async {
        tokio::select! {
            result = serve_runs(options, custom_layers, beyond_machine, &closer) => result,
            () = interrupted() => {
                // The others go on at once, and do not wait until this worker has been silent for long.
                let closer = closer.lock().take();
                if let Some(closer) = closer {
                    closer.close("the worker was told to leave").await;
                }
                exit_now(INTERRUPTED)
            }
        }
    })
}

/// Ends the process at once, whatever the compute thread is doing: nobody waits for its result any
/// more. The usual way out runs libtorch's clean-up, which crashes while a thread is at work.
fn exit_now(code: i32) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(code)
}

/// Works for one run after another until a boss says stop. Errors that waiting cannot mend end it.
async fn serve_runs(
    options: &Options,
    custom_layers: CustomLayers,
    beyond_machine: bool,
    closer: &SharedCloser,
) -> Result<()> {
    tensor::memory::keep_freed_memory();
    let device = device(options)?;
    if let Some(threads) = options.threads {
        if threads == 0 {
            bail!("--threads 0: at least one compute thread is needed");
        }
        tensor::threads::set_count(threads);
    }
    if let Some(folder) = options.data.as_ref().filter(|folder| !folder.is_dir()) {
        bail!("--data {}: there is no such folder", folder.display());
    }
    let (library, nccl_info) = nccl::load_nccl(options, device, beyond_machine);
    let info = info(options, device, nccl_info);
    let memory = info.memory_bytes.map_or_else(String::new, |b| format!(", {:.1} GiB memory", b as f64 / GIB));
    output::line(&format!("worker {}: {}, {} threads{memory}", info.version, info.device, info.threads));

    let mut wait = MIN_WAIT;
    let mut last_message = String::new();
    let mut boss_lost_at = None;
    // Whatever becomes of a boss, the next finds it here.
    let peer_snapshots = SnapshotStore::default();
    loop {
        match serve_run(options, device, &info, (custom_layers.clone(), library.clone()), (closer, &peer_snapshots))
            .await
        {
            Ok(()) => {
                output::line("the run is over");
                return Ok(());
            }
            Err(RunError::Fatal(e)) => return Err(e),
            Err(RunError::Transient { reason, had_joined, refused }) => {
                if had_joined {
                    wait = MIN_WAIT;
                }
                // A boss that has no place for it is one.
                if had_joined || (refused && boss_lost_at.is_some()) {
                    boss_lost_at = Some(Instant::now());
                }
                let left = match (options.orphan_timeout, boss_lost_at) {
                    (Some(seconds), Some(since)) => Duration::from_secs(seconds).saturating_sub(since.elapsed()),
                    _ => Duration::MAX,
                };
                if left.is_zero() {
                    let seconds = options.orphan_timeout.unwrap_or(0);
                    bail!("the boss was lost, and none was there for {seconds} s (--orphan-timeout): {reason}");
                }
                let line = format!("waiting for the boss at {}:{} ({reason})", options.model_host, options.model_port);
                if line != last_message {
                    output::line(&line);
                    last_message = line;
                }
                tokio::time::sleep(left.min(if refused { REFUSED_WAIT } else { wait })).await;
                wait = (wait * 2).min(MAX_WAIT);
            }
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

enum RunError {
    /// Trying again can help; `had_joined` where a place had been won before, `refused` where a boss is there.
    Transient {
        reason: String,
        had_joined: bool,
        refused: bool,
    },
    Fatal(anyhow::Error),
}

/// One membership, from dialling to the end of the run.
async fn serve_run(
    options: &Options,
    device: Device,
    info: &WorkerInfo,
    (custom_layers, library): (CustomLayers, Option<Arc<Nccl>>),
    (closer, peer_snapshots): (&SharedCloser, &SnapshotStore),
) -> Result<(), RunError> {
    let run_error = |had_joined: bool| {
        move |e: LinkError| {
            if e.is_transient() {
                RunError::Transient {
                    reason: e.to_string(),
                    had_joined,
                    refused: matches!(e, LinkError::Refused { .. }),
                }
            } else {
                RunError::Fatal(e.into())
            }
        }
    };
    let Some(ticket) = ticket(options).map_err(RunError::Fatal)? else {
        let reason = "no boss was started by this user on this machine yet; on another machine, set MODEL_TICKET";
        return Err(RunError::Transient { reason: reason.into(), had_joined: false, refused: false });
    };
    let boss = link::resolve(&options.model_host, options.model_port).await.map_err(run_error(false))?;
    let endpoint = link::worker_endpoint(&ticket, boss).map_err(run_error(false))?;
    *closer.lock() = Some(EndpointCloser::of(&endpoint));
    let membership = link::join(&endpoint, boss, &ticket, info.clone()).await.map_err(run_error(false))?;
    output::line(&format!("joined the boss at {boss} as {}", membership.worker));
    let membership = membership.transport(options.transport);
    let compute = ComputeThread::start_interruptible(move |interrupt| {
        StageCompute::with_custom_layers(device, custom_layers).with_nccl(library, interrupt)
    });
    let compute = compute.context("cannot start the compute thread");
    let samples = Box::new(LocalSamples::in_folder(options.data.clone()));
    let compute = compute.map_err(RunError::Fatal)?.task_limit(Duration::from_secs(options.task_timeout));
    let result = runtime::serve(membership, &endpoint, &ticket, compute, Some(samples), peer_snapshots.clone()).await;
    // Lets the last words out; bounded, for the network may be gone.
    tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await.ok();
    result.map_err(|e| match e {
        LinkError::Lost { .. } => RunError::Transient { reason: e.to_string(), had_joined: true, refused: false },
        other => RunError::Fatal(other.into()),
    })
}

fn ticket(options: &Options) -> Result<Option<Ticket>> {
    match &options.model_ticket {
        Some(text) => Ok(Some(text.parse().context("MODEL_TICKET")?)),
        None => Ok(link::local_ticket()?),
    }
}

fn device(options: &Options) -> Result<Device> {
    let all = tensor::device::all();
    let Some(name) = &options.device else {
        return Ok(all.iter().copied().find(|d| *d != Device::Cpu).unwrap_or(Device::Cpu));
    };
    let device = tensor::device::parse(name).context("--device")?;
    if !all.contains(&device) {
        let names: Vec<_> = all.iter().map(|d| tensor::device::name(*d)).collect();
        bail!("--device {name}: not on this machine, which has {}", names.join(", "));
    }
    Ok(device)
}

fn info(options: &Options, device: Device, nccl: link::Nccl) -> WorkerInfo {
    WorkerInfo {
        device: tensor::device::name(device),
        threads: u32::try_from(tensor::threads::count()).unwrap_or(u32::MAX),
        memory_bytes: tensor::device::memory(device).map(|m| m.total),
        version: env!("CARGO_PKG_VERSION").into(),
        direct: !options.relay,
        host: gethostname::gethostname().to_string_lossy().into_owned(),
        process: std::process::id(),
        nccl,
    }
}

async fn interrupted() {
    #[cfg(unix)]
    {
        let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
        if let Ok(mut terminate) = terminate {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    tokio::signal::ctrl_c().await.ok();
}

/// Ends this process, whatever it does, once whoever started it is gone: the kernel closes the other
/// end of the pipe however that process ended.
fn exit_on_stdin_eof() {
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        exit_now(SUCCESS)
    });
}
