//! The `worker` program: join a boss, work, and join again where the boss was lost.

use crate::compute::StageCompute;
use crate::engine::OwnLayers;
use crate::every_gpu;
use crate::nccl;
use crate::options::Options;
use crate::output;
use crate::samples::OwnSamples;
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
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Where a boss says that all places are taken: the place of a worker that is lost is free for little longer than this.
const SPARE_WAIT: Duration = Duration::from_secs(1);

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: i32 = 130;

/// How to take leave of the boss and the other workers, while there is a connection to them.
type OnLeaving = Mutex<Option<EndpointCloser>>;

/// The program with its arguments.
pub(crate) fn main(own: OwnLayers) -> ! {
    let options = Options::parse();
    // Before there are other threads.
    let beyond_machine = tensor::nccl::keep_to_this_machine();
    // Before libtorch is first asked about GPUs: it remembers the answer.
    tensor::cuda::load();
    if options.end_with_stdin {
        end_with_stdin();
    }
    let result = match options.device.as_deref() {
        Some("all") => every_gpu::run(),
        _ => start(&options, own.allowing_torchscript(options.allow_torchscript), beyond_machine),
    };
    match result {
        Ok(()) => leave(SUCCESS),
        Err(e) => {
            output::warn(&format!("worker: {e:#}"));
            leave(FAILURE)
        }
    }
}

fn start(options: &Options, own: OwnLayers, beyond_machine: bool) -> Result<()> {
    // One thread for the network: the cores are for the compute thread.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let closer = OnLeaving::default();
    runtime.block_on(async {
        tokio::select! {
            result = run(options, own, beyond_machine, &closer) => result,
            () = interrupted() => {
                // The others go on at once, and do not wait until this worker has been silent for long.
                let closer = closer.lock().take();
                if let Some(closer) = closer {
                    closer.close("the worker was told to leave").await;
                }
                leave(INTERRUPTED)
            }
        }
    })
}

/// Ends the process at once, whatever the compute thread is doing: nobody waits for its result any
/// more. The usual way out runs libtorch's clean-up, which crashes while a thread is at work.
fn leave(code: i32) -> ! {
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(code)
}

/// Works for one run after another until a boss says stop. Errors that waiting cannot mend end it.
async fn run(options: &Options, own: OwnLayers, beyond_machine: bool, closer: &OnLeaving) -> Result<()> {
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
    let (library, told) = nccl::look_for(options, device, beyond_machine);
    let info = info(options, device, told);
    let memory = info.memory_bytes.map_or_else(String::new, |b| format!(", {:.1} GiB memory", b as f64 / GIB));
    output::line(&format!("worker {}: {}, {} threads{memory}", info.version, info.device, info.threads));

    let mut wait = FIRST_WAIT;
    let mut said = String::new();
    let mut orphaned = None;
    // Whatever becomes of a boss, the next finds it here.
    let kept = SnapshotStore::default();
    loop {
        match work(options, device, &info, (own.clone(), library.clone()), (closer, &kept)).await {
            Ok(()) => {
                output::line("the run is over");
                return Ok(());
            }
            Err(Trouble::Fatal(e)) => return Err(e),
            Err(Trouble::Passing { reason, worked, refused }) => {
                if worked {
                    wait = FIRST_WAIT;
                }
                // A boss that has no place for it is one.
                if worked || (refused && orphaned.is_some()) {
                    orphaned = Some(Instant::now());
                }
                let left = match (options.orphan_timeout, orphaned) {
                    (Some(seconds), Some(since)) => Duration::from_secs(seconds).saturating_sub(since.elapsed()),
                    _ => Duration::MAX,
                };
                if left.is_zero() {
                    let seconds = options.orphan_timeout.unwrap_or(0);
                    bail!("the boss was lost, and none was there for {seconds} s (--orphan-timeout): {reason}");
                }
                let line = format!("waiting for the boss at {}:{} ({reason})", options.model_host, options.model_port);
                if line != said {
                    output::line(&line);
                    said = line;
                }
                tokio::time::sleep(left.min(if refused { SPARE_WAIT } else { wait })).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

enum Trouble {
    /// Trying again can help; `worked` where a place had been won before, `refused` where a boss is there.
    Passing {
        reason: String,
        worked: bool,
        refused: bool,
    },
    Fatal(anyhow::Error),
}

/// One membership, from dialling to the end of the run.
async fn work(
    options: &Options,
    device: Device,
    info: &WorkerInfo,
    (own, library): (OwnLayers, Option<Arc<Nccl>>),
    (closer, kept): (&OnLeaving, &SnapshotStore),
) -> Result<(), Trouble> {
    let trouble = |worked: bool| {
        move |e: LinkError| {
            if e.is_transient() {
                Trouble::Passing { reason: e.to_string(), worked, refused: matches!(e, LinkError::Refused { .. }) }
            } else {
                Trouble::Fatal(e.into())
            }
        }
    };
    let Some(ticket) = ticket(options).map_err(Trouble::Fatal)? else {
        let reason = "no boss was started by this user on this machine yet; on another machine, set MODEL_TICKET";
        return Err(Trouble::Passing { reason: reason.into(), worked: false, refused: false });
    };
    let boss = link::resolve(&options.model_host, options.model_port).await.map_err(trouble(false))?;
    let endpoint = link::worker_endpoint(&ticket, boss).map_err(trouble(false))?;
    *closer.lock() = Some(EndpointCloser::of(&endpoint));
    let membership = link::join(&endpoint, boss, &ticket, info.clone()).await.map_err(trouble(false))?;
    output::line(&format!("joined the boss at {boss} as {}", membership.worker));
    let membership = membership.transport(options.transport);
    let compute = ComputeThread::start_interruptible(move |called_off| {
        StageCompute::with(device, own).summing_with(library, called_off)
    });
    let compute = compute.context("cannot start the compute thread");
    let samples = Box::new(OwnSamples::below(options.data.clone()));
    let compute = compute.map_err(Trouble::Fatal)?.task_limit(Duration::from_secs(options.task_timeout));
    let result = runtime::serve(membership, &endpoint, &ticket, compute, Some(samples), kept.clone()).await;
    // Lets the last words out; bounded, for the network may be gone.
    tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await.ok();
    result.map_err(|e| match e {
        LinkError::Lost { .. } => Trouble::Passing { reason: e.to_string(), worked: true, refused: false },
        other => Trouble::Fatal(other.into()),
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
fn end_with_stdin() {
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        leave(SUCCESS)
    });
}
