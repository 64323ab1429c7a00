//! Measures how long replicas take to sum gradients of a given size.
//!
//! Each round is a training step whose layers take no time. The program is the boss and starts
//! itself again as each worker. It prints one line of JSON: for each round, the longest time of any
//! worker.

use anyhow::{ensure, Context, Result};
use bytes::Bytes;
use clap::Parser;
use layerspec::{DType, LayerGraph};
use link::{Identity, Listener, ListenerEvent, Payload, Ticket, Transport, WorkerInfo};
use pipeline::boss::{Instruction, RunRequest, Setup};
use pipeline::message::{Failure, Mode, Reduction, RoundLoss};
use pipeline::replicas::{buckets, nodes, shard, Bucket, WorkerGroups};
use pipeline::round_outputs::RoundOutputs;
use pipeline::schedule::{Action, Ending, Terms};
use pipeline::task::{EarlyOutput, Outcome, Task, TaskError, TreeLeaf};
use pipeline::watch::Watch;
use pipeline::{Cuts, LossSpec, Placement, Plan, ScheduleKind, TensorMeta};
use runtime::{Compute, ComputeThread, Handle, TaskTensor};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

/// The width and height of a layer's weight, which has 4 MiB.
const WIDTH: usize = 1024;
const LAYER_MIB: usize = (WIDTH * WIDTH * FLOAT) >> 20;
const FLOAT: usize = size_of::<f32>();

/// Sums gradients of a given size over workers and prints how long that took.
#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 2)]
    workers: u16,
    /// The gradients' size in MiB, a multiple of 4.
    #[arg(long, default_value_t = 4)]
    mib: usize,
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// How tensors travel between processes of one machine.
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Run as the worker with this number for the boss at `--boss`.
    #[arg(long, hide = true, requires = "boss")]
    worker: Option<u16>,
    #[arg(long, hide = true)]
    boss: Option<SocketAddr>,
}

/// The environment variable that carries the ticket, as for any worker.
const TICKET: &str = "MODEL_TICKET";

fn main() -> Result<()> {
    let options = Options::parse();
    tensor::memory::keep_freed_memory();
    // One thread, as in the worker program.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        match (options.worker, options.boss) {
            (Some(number), Some(boss)) => work(number, boss, options.transport).await,
            _ => run_boss(&options).await,
        }
    })
}

async fn run_boss(options: &Options) -> Result<()> {
    let layers = options.mib / LAYER_MIB;
    ensure!(
        layers > 0 && options.mib.is_multiple_of(LAYER_MIB),
        "--mib: expected a multiple of {LAYER_MIB}"
    );
    let layer =
        format!("  - Linear: {{in_features: {WIDTH}, out_features: {WIDTH}, bias: false}}\n")
            .repeat(layers);
    let model = format!("model: sums\ninputs: {{x: [batch, {WIDTH}]}}\nlayers:\n{layer}");
    let graph = LayerGraph::from_yaml(&model, "sums")?;
    let plan =
        Plan::new(&graph, &Cuts::Auto, WorkerGroups::of(&[options.workers]), Placement::Plain)?;
    let identity = Identity::load_or_create()?;
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listener =
        Listener::open(&identity, here, plan.workers())?.transport(options.transport);
    let mut workers = Vec::new();
    for number in 0..options.workers {
        workers.push(start(number, listener.address(), identity.ticket(), options.transport)?);
    }
    while listener.missing() > 0 {
        let event = listener.next().await;
        ensure!(matches!(event, ListenerEvent::Joined { .. }), "{event:?}");
    }
    let setup = Setup::new(plan.clone());
    let handle = runtime::start(listener, setup, |notice| eprintln!("{notice}"))?;
    handle.call(Instruction::Distribute).await?;
    let mut seconds = Vec::new();
    for round in 1..=options.rounds {
        seconds.push(sum(&plan, &graph, &handle, round).await?);
    }
    println!("{}", serde_json::json!({ "seconds": seconds }));
    handle.stop().await;
    workers.iter_mut().for_each(|worker| drop(worker.wait()));
    Ok(())
}

fn start(number: u16, boss: SocketAddr, ticket: &Ticket, transport: Transport) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--worker", &number.to_string(), "--boss", &boss.to_string()]);
    command.args(["--transport", &transport.to_string()]).env(TICKET, ticket.to_string());
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
}

/// Runs one round, in which every worker has one microbatch. Returns the seconds from the first
/// gradient to the sum of all, on the slowest worker.
async fn sum(plan: &Plan, graph: &LayerGraph, handle: &Handle, round: u64) -> Result<f64> {
    let microbatches = plan.workers() as u32;
    let reduction = Reduction::Tree;
    let terms = Terms {
        ending: Ending::Gather,
        reduction,
        ..Terms::new(ScheduleKind::GPipe, microbatches)
    };
    let schedule = plan.schedule_for(&terms)?;
    let sample = || {
        let meta = TensorMeta { dtype: DType::Float32, shape: vec![1, WIDTH as u64] };
        handle.slots.insert(Payload { meta, bytes: vec![0; WIDTH * FLOAT].into() })
    };
    let input = *graph.inputs().first().context("a model with an input")?;
    let weights = vec![1.0; microbatches as usize];
    let run = RunRequest {
        batch: round,
        step: round,
        mode: Mode::Train,
        kv_cache: None,
        actions: schedule.workers,
        order: schedule.order,
        microbatch_assignment: schedule.microbatch_assignment,
        microbatches,
        reduction,
        update: None,
        watch: Watch::default(),
        loss: Some(RoundLoss { spec: LossSpec::MSELoss, weights, likeliest: false }),
        outputs: RoundOutputs::None,
        samples: None,
        inputs: (0..microbatches).map(|m| (m, input, sample())).collect(),
        targets: (0..microbatches).map(|m| (m, sample())).collect(),
        grads: None,
    };
    let spans = handle.call(Box::new(run)).await?.spans;
    let backward = spans.iter().filter(|span| matches!(span.action, Action::Backward { .. }));
    let took = backward.filter_map(|begin| {
        let ends =
            |span: &&pipeline::effect::WorkerSpan| matches!(span.action, Action::Reduce { .. });
        let end = spans.iter().filter(ends).find(|span| span.worker == begin.worker)?;
        Some(end.end.0.saturating_sub(begin.start.0))
    });
    Ok(took.max().context("no worker said when it was done")? as f64 / 1e6)
}

async fn work(number: u16, boss: SocketAddr, transport: Transport) -> Result<()> {
    let ticket: Ticket = std::env::var(TICKET)?.parse()?;
    let endpoint = link::worker_endpoint(&ticket, &[boss])?;
    let info = WorkerInfo { process: std::process::id(), ..WorkerInfo::default() };
    let membership = link::join(&endpoint, &[boss], &ticket, info).await?.transport(transport);
    let compute = ComputeThread::start(move || Gradients { number, ..Gradients::default() })?;
    let (snapshots, leave) = (runtime::SnapshotStore::default(), runtime::LeaveSignal::default());
    runtime::serve(membership, &endpoint, &ticket, compute, None, snapshots, &leave).await?;
    Ok(())
}

/// A compute thread without layers: it hands out gradients and receives their sums.
#[derive(Default)]
struct Gradients {
    number: u16,
    buckets: Vec<Bucket>,
    /// The gradients of every bucket. Each element is this worker's number plus 1.
    own: Vec<Bytes>,
    sums: Vec<Vec<u8>>,
    replicas: u16,
}

impl Gradients {
    /// Returns the slices of a replica's shard of a bucket, as byte ranges within the bucket.
    fn slices(&self, bucket: usize, replica: u16) -> Vec<std::ops::Range<usize>> {
        let Some(bucket) = self.buckets.get(bucket) else { return Vec::new() };
        let begins =
            |place: usize| bucket.uses.iter().take(place).map(|used| used.elements).sum::<u64>();
        let slices = shard(bucket, replica, self.replicas).into_iter();
        slices
            .map(|slice| {
                let begin = begins(slice.place);
                (begin + slice.elements.start) as usize * FLOAT
                    ..(begin + slice.elements.end) as usize * FLOAT
            })
            .collect()
    }

    fn emit(&self, leaf: TreeLeaf, index: u32, emit: &mut dyn FnMut(EarlyOutput<TaskTensor>)) {
        let Some(node) = nodes(leaf.microbatches, [index]).first().copied() else { return };
        for (bucket, own) in self.own.iter().enumerate() {
            let of = |replica| {
                let slices = self.slices(bucket, replica).into_iter().map(|place| {
                    let meta = TensorMeta {
                        dtype: DType::Float32,
                        shape: vec![(place.len() / FLOAT) as u64],
                    };
                    Payload { meta, bytes: own.slice(place) }.into()
                });
                vec![(node, slices.collect())]
            };
            let shards = (0..self.replicas).map(of).collect();
            emit(EarlyOutput::Sums {
                stage: pipeline::ids::StageId(0),
                bucket: bucket as u32,
                shards,
            });
        }
    }

    /// Copies the sums to the memory that an optimizer would read.
    fn take(&mut self, buckets: &[Vec<Vec<TaskTensor>>]) -> Result<(), String> {
        for (bucket, shards) in buckets.iter().enumerate() {
            for (replica, slices) in (0..).zip(shards) {
                let places = self.slices(bucket, replica);
                for (place, slice) in places.into_iter().zip(slices) {
                    let sum = self.sums.get_mut(bucket).and_then(|sum| sum.get_mut(place));
                    let slice = slice.to_host().map_err(|e| e.to_string())?;
                    let sum = sum
                        .filter(|sum| sum.len() == slice.bytes.len())
                        .ok_or("a slice of another size")?;
                    sum.copy_from_slice(&slice.bytes);
                }
            }
        }
        Ok(())
    }

    /// Checks that the first and the last number of each bucket equal the sum over all replicas.
    fn check(&self) -> Result<(), String> {
        let expected = (1..=self.replicas).map(f32::from).sum::<f32>().to_le_bytes();
        let right = |sum: &Vec<u8>| sum.starts_with(&expected) && sum.ends_with(&expected);
        self.sums.iter().all(right).then_some(()).ok_or_else(|| "a wrong sum".into())
    }
}

impl Compute for Gradients {
    fn prepare(&mut self, _: &Task<TaskTensor>) {}

    fn run(
        &mut self,
        task: Task<TaskTensor>,
        emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
    ) -> Result<Outcome<TaskTensor>, TaskError> {
        match task {
            Task::Build { stages, settings } => {
                let bytes = settings.buckets;
                self.buckets =
                    stages.first().map_or(Vec::new(), |stage| buckets(stage, bytes, None));
                let number = f32::from(self.number + 1).to_le_bytes();
                let own = |bucket: &Bucket| number.repeat(bucket.elements() as usize).into();
                self.own = self.buckets.iter().map(own).collect();
                self.sums =
                    self.buckets.iter().map(|bucket| vec![0; bucket.bytes() as usize]).collect();
            }
            Task::Forward { .. } => {
                return Ok(Outcome::Forward { outputs: Vec::new(), loss: Some(0.0) })
            }
            Task::Backward { key, leaf: Some(leaf), .. } => {
                self.replicas = leaf.emit_to_replicas.unwrap_or(1);
                self.emit(leaf, key.index, emit);
                return Ok(Outcome::Backward { grads: vec![Vec::new()] });
            }
            Task::Reduce { buckets, .. } => {
                self.take(&buckets).map_err(Failure::new)?;
                self.check().map_err(Failure::new)?;
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }
}
