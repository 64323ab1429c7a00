//! The flags for workers, and work that Ctrl-C ends.

use anyhow::Result;
use bossman::fleet::FleetSettings;
use bossman::{BossManError, Transport};
use std::future::Future;

/// The workers of a run.
#[derive(clap::Args)]
pub(crate) struct Fleet {
    /// Start this many workers on this machine; they end with the boss.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) local: usize,
    /// Workers in all; those that are not local join from other machines.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Compute threads of each local worker [default: workers share the cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// UDP port to listen on [default: MODEL_PORT, else 1024; any free port if all workers are
    /// local]
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

impl Fleet {
    pub(crate) fn settings(&self) -> FleetSettings {
        FleetSettings {
            workers: self.workers,
            local: self.local,
            threads: self.threads.map(usize::from),
            port: self.port,
            transport: self.transport,
            allow_torchscript: self.allow_torchscript,
        }
    }
}

/// Ctrl-C was pressed before the end of the work.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);

/// Runs work until its end or Ctrl-C. `on_interrupt` tells the user what an interruption leaves.
pub(crate) fn until_interrupted<T>(
    on_interrupt: &'static str,
    work: impl Future<Output = Result<T, BossManError>>,
) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            result = work => Ok(result?),
            _ = tokio::signal::ctrl_c() => Err(Interrupted(on_interrupt).into()),
        }
    })
}
