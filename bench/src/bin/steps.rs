//! Trains a model on made-up batches and prints one line of JSON: the time of each step, when the
//! first step ended, and the peak memory of each worker that runs here.

use anyhow::{Context, Result};
use bench::memory;
use bossman::trace::Trace;
use bossman::{
    Batch, BossMan, Compress, Loss, Model, Optimizer, Replicas, ScheduleKind, Sharding, Transport,
    Variables,
};
use clap::{Parser, ValueEnum};
use layerspec::{Bindings, ValueId};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tch::{Device, Kind, Reduction, Tensor};

/// Trains a model on made-up batches and prints the time of each step.
#[derive(Parser)]
struct Options {
    /// The model file.
    #[arg(required_unless_present = "list")]
    model: Option<PathBuf>,
    /// Print the names of all schedules instead of training.
    #[arg(long)]
    list: bool,
    /// The schedule; `auto` lets BossMan choose.
    #[arg(long, default_value = AUTO)]
    schedule: Asked,
    /// Write the timelines of the last step, as measured and as predicted.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How tensors travel between processes of one machine.
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// How to make a step.
    #[arg(long, value_enum, default_value = "whole")]
    by: By,
    #[arg(long, default_value_t = 32)]
    batch: u64,
    #[arg(long, default_value_t = 8)]
    microbatches: u32,
    #[arg(long, default_value_t = 12)]
    steps: usize,
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Number of workers that hold the same stages; by default, each worker has its own stages.
    #[arg(long)]
    replicas: Option<u16>,
    /// Form in which replicas exchange gradients: `bf16`, `int8`, `int4`, or `f32`.
    #[arg(long, default_value = "f32")]
    compress: CompressionForm,
    /// State that replicas shard: `optimizer`, `gradients`, `parameters`, or `none`.
    #[arg(long, default_value = "none")]
    shard: SharedOut,
    /// Stages on each worker, if the schedule leaves the number open.
    #[arg(long)]
    chunks: Option<usize>,
    /// Assign microbatches to replicas evenly, regardless of their speed.
    #[arg(long)]
    even: bool,
    /// Let replicas add up their gradients before they send them.
    #[arg(long)]
    fast_reduction: bool,
    /// Wait for the workers on this port instead of starting them.
    #[arg(long, value_name = "PORT")]
    wait: Option<u16>,
    #[arg(long, default_value_t = 1e-4)]
    lr: f64,
}

/// The default schedule, for which BossMan chooses.
const AUTO: &str = "auto";

/// A schedule, or `None` if BossMan chooses.
#[derive(Clone)]
struct Asked(Option<ScheduleKind>);

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Asked(if text == AUTO { None } else { Some(text.parse()?) }))
    }
}

/// A form in which gradients travel, or `None` for float32.
#[derive(Clone)]
struct CompressionForm(Option<Compress>);

impl FromStr for CompressionForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(CompressionForm(if text == "f32" { None } else { Some(text.parse()?) }))
    }
}

/// The sharding between replicas, or `None`.
#[derive(Clone)]
struct SharedOut(Option<Sharding>);

impl FromStr for SharedOut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Sharding::NAMES.iter().find(|(name, _)| *name == text).map(|(_, way)| *way);
        match found.is_some() || text == "none" {
            true => Ok(SharedOut(found)),
            false => Err("expected `optimizer`, `gradients`, `parameters` or `none`".into()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum By {
    /// Call `train_step`.
    Whole,
    /// Call `forward`, `backward` and `optim_step`, and compute the loss here.
    Hand,
}

#[derive(Serialize, Default)]
struct Report {
    /// Duration of every step in seconds, from the call to the answer.
    steps: Vec<f64>,
    /// When the first step ended, in seconds since 1970.
    first_step_unix: f64,
    /// The peak resident memory of each local worker, in bytes. Empty if the system does not report
    /// it.
    memory: Vec<u64>,
    /// The loss of the last step.
    loss: f64,
    /// The schedule that ran.
    schedule: Option<String>,
    /// The predicted duration of the last step in seconds, if it was predicted.
    predicted_s: Option<f64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some(file) = &options.model else {
        let names: Vec<&str> =
            std::iter::once(AUTO).chain(ScheduleKind::NAMES.map(|(name, _)| name)).collect();
        println!("{}", serde_json::to_string(&names)?);
        return Ok(());
    };
    let model = Model::from_file(file)?;
    let (x, y) = batch(&model, options.batch)?;
    let host = bossman::Host::new(options.workers).transport(options.transport);
    let host = match options.wait {
        Some(port) => host.port(port),
        None => host.local(options.workers).threads(1).quiet(),
    };
    let builder =
        BossMan::builder(model).schedule(options.schedule.0).microbatches(options.microbatches);
    let builder = builder.replicas(options.replicas.map(Replicas::Each));
    let builder = if options.even { builder.assign_evenly() } else { builder };
    let builder = if options.fast_reduction { builder.fast_reduction() } else { builder };
    let builder =
        builder.compress(options.compress.0).shard(options.shard.0).chunks(options.chunks);
    let mut boss = builder.loss(Loss::MSELoss).build(host.wait().await?)?;
    boss.distribute_model().await?;
    boss.send_optimizer(Optimizer::adam(options.lr)).await?;

    let mut report = Report::default();
    for step in 0..options.steps {
        let began = Instant::now();
        report.loss = match options.by {
            By::Whole => f64::from(boss.train_step(&Batch::new(&x, &y)).await?.loss),
            By::Hand => by_hand(&mut boss, &x, &y).await?,
        };
        report.steps.push(began.elapsed().as_secs_f64());
        if step == 0 {
            report.first_step_unix = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        }
    }
    report.memory = memory::of_children()?;
    report.schedule = boss.schedule().map(|kind| kind.to_string());
    if let Some(timelines) = boss.timelines() {
        report.predicted_s =
            timelines.predicted.as_ref().map(|predicted| predicted.step_time as f64 / 1e6);
        if let Some(path) = &options.trace {
            Trace::of([(options.steps as u64, &timelines)]).save(path)?;
        }
    }
    println!("{}", serde_json::to_string(&report)?);
    boss.shutdown().await;
    Ok(())
}

async fn by_hand(boss: &mut BossMan, x: &Tensor, y: &Tensor) -> Result<f64> {
    let prediction = boss.forward(x, Variables::new()).await?;
    let loss = prediction.f_mse_loss(y, Reduction::Mean)?;
    loss.f_backward()?;
    boss.backward(&prediction.f_grad()?).await?;
    boss.optim_step().await?;
    Ok(loss.f_double_value(&[])?)
}

/// Makes inputs and targets for the model's first input and output, uniform between 0 and 1.
fn batch(model: &Model, samples: u64) -> Result<(Tensor, Tensor)> {
    let graph = model.graph();
    let mut bindings = Bindings::new();
    if let Some(word) = graph.batch() {
        bindings.set(word, samples);
    }
    let random = |value: Option<&ValueId>| -> Result<Tensor> {
        let value = graph.value(*value.context("the model has no input or no output")?);
        let sizes = value
            .ty
            .shape
            .eval(&bindings)
            .with_context(|| format!("no size for {}", value.ty.shape))?;
        let sizes = sizes.into_iter().map(i64::try_from).collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::f_rand(sizes, (Kind::Float, Device::Cpu))?)
    };
    Ok((random(graph.inputs().first())?, random(graph.outputs().first())?))
}
