//! The workers of a run, from its command line.

use crate::run_file::{RunFile, Weights};
use crate::weights::initial_weights::InitialWeights;
use crate::{BossMan, BossManError, Builder, Host, Model, Transport};
use pipeline::replicas::{Replicas, Sharding};
use pipeline::{Cuts, Placement, ScheduleKind};
use std::path::PathBuf;

/// Workers, and how they are reached.
#[derive(Clone, Debug, Default)]
pub struct FleetSettings {
    /// All workers. The default is the number of local ones, or the number that the cuts require.
    pub workers: Option<usize>,
    /// Workers to start on this machine.
    pub local: usize,
    /// Compute threads of each local worker. By default the workers share the cores.
    pub threads: Option<usize>,
    /// The devices of local workers, which take them in turn. If it is empty, they take the GPUs of
    /// this machine in turn, or the CPU if there are none.
    pub devices: Vec<String>,
    /// The UDP port. The default is `MODEL_PORT`, else 1024, or any free port if only local workers
    /// can join.
    pub port: Option<u16>,
    /// How tensors travel between processes of one machine.
    pub transport: Transport,
    /// Whether local workers run TorchScript layers.
    pub allow_torchscript: bool,
    /// A folder into which local workers on GPUs write the most bytes that their tensors had at one
    /// time. The name of a worker's file is its number: 0, 1, ..
    pub peak_memory: Option<PathBuf>,
}

impl FleetSettings {
    /// The number of workers of the run.
    pub(crate) fn worker_count(&self, file: &RunFile) -> Result<usize, BossManError> {
        let each = match &file.replicas {
            Some(Replicas::Of(of)) if self.workers.is_none() && self.local == 0 => {
                return Ok(of.iter().map(|replicas| usize::from(*replicas)).sum());
            }
            Some(Replicas::Each(each)) => usize::from(*each),
            _ => 1,
        };
        match (self.workers, self.local, &file.cuts) {
            (Some(workers), local, _) if workers == 0 || local > workers => {
                Err(BossManError::Usage(format!(
                    "--workers {workers} --local {local}: --workers counts all workers, the local \
                     ones among them"
                )))
            }
            (Some(workers), ..) => Ok(workers),
            (None, local, _) if local > 0 => Ok(local),
            (None, _, Cuts::At(names)) => {
                let gathers = file.sharding.is_some_and(Sharding::shards_parameters);
                let kind = file.schedule.or(gathers.then_some(ScheduleKind::GPipe));
                let chunks = file.chunks.map(|chunks| u16::try_from(chunks).unwrap_or(u16::MAX));
                let stages_a_worker = kind.map_or(1, |kind| Placement::of(kind, chunks).chunks());
                Ok((names.len() + 1).div_ceil(stages_a_worker) * each)
            }
            (None, _, Cuts::Auto) => Err(BossManError::Usage(
                "how many workers? --local N starts N on this machine, --workers N waits for N on \
                 other machines"
                    .into(),
            )),
        }
    }

    /// The initial number of workers of a pool. The default is one.
    pub(crate) fn initial_worker_count(&self, file: &RunFile) -> usize {
        let each = match &file.replicas {
            Some(Replicas::Of(of)) => of.iter().map(|replicas| usize::from(*replicas)).sum(),
            Some(Replicas::Each(each)) => usize::from(*each),
            _ => 1,
        };
        self.workers.unwrap_or(if self.local > 0 { self.local } else { each }).max(1)
    }

    /// The host that waits for them, if they may read the run's data and these weights from their
    /// own files.
    pub(crate) fn host_with_files(
        &self,
        workers: usize,
        file: &RunFile,
        weights: Option<&InitialWeights>,
    ) -> Host {
        let mut host = self.host(workers);
        if let Some(folder) = file.data.as_ref().and_then(|data| data.on_workers.as_ref()) {
            host = host.data(folder);
        }
        let reads = matches!(weights, Some(InitialWeights::OnWorkers(_)));
        let weights = file.weights.as_ref().filter(|_| reads);
        if let Some(folder) = weights.and_then(Weights::on_workers) {
            host = host.weights(folder);
        }
        host
    }

    /// The host that waits for them.
    pub(crate) fn host(&self, workers: usize) -> Host {
        let mut host = Host::new(workers).local(self.local).transport(self.transport);
        host = host.devices(self.devices.iter().cloned());
        if self.allow_torchscript {
            host = host.allow_torchscript();
        }
        if let Some(port) = self.port {
            host = host.port(port);
        }
        if let Some(threads) = self.threads {
            host = host.threads(threads);
        }
        if let Some(folder) = &self.peak_memory {
            host = host.peak_memory(folder);
        }
        host
    }
}

impl RunFile {
    /// The settings of this run for a boss.
    pub(crate) fn builder(&self, model: Model) -> Builder {
        let builder = BossMan::builder(model)
            .cuts(self.cuts.clone())
            .replicas(self.replicas.clone())
            .collective(self.collective)
            .compress(self.compress)
            .shard(self.sharding)
            .schedule(self.schedule)
            .chunks(self.chunks.map(|chunks| chunks as usize))
            .microbatches(self.microbatches)
            .accumulate(self.accumulate)
            .lr_schedule(self.lr_schedule)
            .recompute(self.recompute)
            .precision(self.precision)
            .determinism(self.determinism)
            .loss(self.loss.clone())
            .guards(self.guards)
            .seed(self.seed)
            .for_run_file();
        let builder = if self.fast_reduction { builder.fast_reduction() } else { builder };
        match self.clip_grad_norm {
            Some(max_norm) => builder.clip_grad_norm(max_norm),
            None => builder,
        }
    }
}
